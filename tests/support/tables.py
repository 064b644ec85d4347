"""Rows in, rows out: one model's SQL over tables made of literal rows, in an in-memory DuckDB."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import duckdb

from pipeline import duck
from pipeline.contracts import contracts
from pipeline.duck import literal
from pipeline.models.engine import models, prepare
from pipeline.models.rules import RuleSet, load_rules
from tests.support.builders import DECODE

Row = Mapping[str, Any]
Tables = Mapping[str, Iterable[Row]]
Result = list[tuple[Any, ...]]

DEFAULTS: dict[str, Any] = {
    "run_id": "run", "source": "kineto", "trace_id": "t", "device": 0, "stream": 7, "pid": 1, "tid": 1,
    "kind": "kernel",
    "side": "cpu", "is_open": False, "is_graph": False, "is_complete": True, "confidence": 1.0,
    "method": "annotation",
}  # fmt: skip
"""What a row has in a column that the test does not name; all other columns are NULL."""


@cache
def _no_rows() -> Path:
    """A landed run without any row: one Parquet file per raw table."""
    run = Path(tempfile.mkdtemp(prefix="stepledger-tests-"))
    atexit.register(shutil.rmtree, run, ignore_errors=True)
    (run / "file_id=none").mkdir()
    with duckdb.connect() as con:
        for table, contract in contracts("raw").items():
            con.execute(
                f"COPY ({contract.empty_query()}) TO {literal(run / 'file_id=none' / f'{table}.parquet')} "
                "(FORMAT parquet)"
            )
    return run


def empty_warehouse(rules: RuleSet | None = None) -> duckdb.DuckDBPyConnection:
    """A connection as models see it, with raw tables that hold no row yet."""
    con = duck.working(Path(tempfile.gettempdir()), threads=1, memory_limit="500MB")
    prepare(con, _no_rows(), "run", rules or load_rules(), "build", "inputs")
    for table in contracts("raw"):
        con.execute(
            f"CREATE TABLE raw.rows AS FROM raw.{table}; DROP VIEW raw.{table}; ALTER TABLE raw.rows RENAME "
            f"TO {table}"
        )
    return con


def insert(con: duckdb.DuckDBPyConnection, table: str, rows: Iterable[Row]) -> None:
    """Add rows to a table; columns that a row does not name get DEFAULTS or NULL."""
    columns = [r[0] for r in con.execute(f"DESCRIBE {table}").fetchall()]
    values = []
    for row in rows:
        assert row.keys() <= set(columns), f"{table} has no {sorted(row.keys() - set(columns))}"
        values.append(
            "(" + ", ".join(literal(row[c] if c in row else DEFAULTS.get(c)) for c in columns) + ")"
        )
    if values:
        con.execute(f"INSERT INTO {table} VALUES {', '.join(values)}")


@cache
def shapes() -> duckdb.DuckDBPyConnection:
    """Every table of the warehouse with its columns, empty: the models themselves say which they are."""
    con = empty_warehouse()
    for model in models():
        con.execute(f"CREATE TABLE {model.name} AS {model.sql}")
        con.execute(f"DELETE FROM {model.name}")
    return con


def run_model(name: str, tables: Tables, columns: str, order: str = "ALL") -> Result:
    """The rows (only `columns`) that the model `name` makes of these tables; tables not named are empty."""
    sql = next(model.sql for model in models() if model.name == name)
    con = shapes()
    con.execute("BEGIN")
    try:
        for table, rows in tables.items():
            insert(con, table, rows)
        return con.execute(f"SELECT {columns} FROM ({sql.rstrip()}\n) ORDER BY {order}").fetchall()
    finally:
        con.execute("ROLLBACK")


def evaluate(expression: str, *params: Any) -> Any:
    """The value of an expression that may use the macros of sql/macros.sql and of the rules."""
    return duck.scalar(shapes(), f"SELECT {expression}", list(params))


def _needed(wanted: Iterable[str]) -> set[str]:
    """These models and all that they read, directly or not."""
    needs = {model.name: model.needs for model in models()}
    found: set[str] = set()
    open_names = list(wanted)
    while open_names:
        name = open_names.pop()
        if name not in found:
            found.add(name)
            open_names += needs[name]
    return found


def build_all(
    tables: Tables, rules: RuleSet | None = None, wanted: Iterable[str] = ()
) -> duckdb.DuckDBPyConnection:
    """A connection in which every model (or only those wanted, and what they read) is built from these raw
    tables."""
    con = empty_warehouse(rules)
    for table, rows in tables.items():
        insert(con, table, rows)
    names = _needed(wanted or [model.name for model in models()])
    for model in models():
        if model.name in names:
            con.execute(f"CREATE TABLE {model.name} AS {model.sql}")
    return con


@dataclass
class Scene:
    """One trace as raw rows: steps on the CPU, and work on the GPU with the calls that launched it."""

    trace_id: str = "t"
    rank: int | None = 0
    source: str = "kineto"
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[Row] = field(default_factory=list)
    calls: list[Row] = field(default_factory=list)
    operators: list[Row] = field(default_factory=list)
    activities: list[dict[str, Any]] = field(default_factory=list)

    def step(self, start_ns: int, dur_ns: int, label: str = DECODE) -> Scene:
        """An annotation on thread 1."""
        self.notes.append({"trace_id": self.trace_id, "name": label, "start_ns": start_ns, "dur_ns": dur_ns})
        return self

    def launch(
        self, launch_ns: int, *work: tuple[Any, ...], call: str = "cudaLaunchKernel", **fields: Any
    ) -> Scene:
        """One call and what it runs: (name, start_ns, dur_ns) each."""
        correlation = len(self.calls) + 1
        self.calls.append(
            {
                "trace_id": self.trace_id,
                "correlation": correlation,
                "name": call,
                "start_ns": launch_ns,
                "dur_ns": 1,
            }
        )
        return self.unlaunched(*work, correlation=correlation, **fields)

    def unlaunched(self, *work: tuple[Any, ...], **fields: Any) -> Scene:
        """GPU work whose call was not recorded."""
        for name, start_ns, dur_ns in work:
            kind = (
                "memcpy" if name.startswith("Memcpy") else "memset" if name.startswith("Memset") else "kernel"
            )
            made = {
                "trace_id": self.trace_id,
                "kind": kind,
                "name": name,
                "start_ns": start_ns,
                "dur_ns": dur_ns,
            }
            self.activities.append({"device": 0, "stream": 7, "correlation": None} | made | fields)
        return self

    def tables(self) -> dict[str, list[Row]]:
        """The raw tables; activities are numbered as the contract of raw.gpu_activity says."""

        def place(row: dict[str, Any]) -> tuple[Any, ...]:
            return (
                row["device"],
                row["stream"],
                row["start_ns"],
                row["dur_ns"],
                row["name"],
                row["correlation"] or 0,
            )

        numbered: list[Row] = [
            row | {"activity_id": i} for i, row in enumerate(sorted(self.activities, key=place))
        ]
        trace = {"trace_id": self.trace_id, "rank": self.rank, "source": self.source} | self.facts
        return {
            "raw.trace": [trace], "raw.annotation": self.notes, "raw.launch": self.calls,
            "raw.cpu_op": self.operators,
            "raw.gpu_activity": numbered,
        }  # fmt: skip


@cache
def few_rules() -> RuleSet:
    """Our rules for the handful of names that scenes use: a build with all of them takes three times as
    long."""
    used = {
        "nvjet", "nccl_all_reduce", "marlin_moe", "memcpy_htod", "memcpy_dtoh", "memset", "torch_reduce",
        "torch_fill", "allreduce_residual_norm",
        "moe_sum_after_experts", "moe_zero_fill",
    }  # fmt: skip
    return RuleSet(tuple(rule for rule in load_rules().rules if rule.id in used), "few")


def build_scenes(*scenes: Scene, wanted: Iterable[str] = ()) -> duckdb.DuckDBPyConnection:
    """A connection in which every model, or those wanted, is built from these traces, with few_rules."""
    made = [scene.tables() for scene in scenes]
    return build_all(
        {table: [row for tables in made for row in tables[table]] for table in made[0]}, few_rules(), wanted
    )
