"""Build the marts of one run: SQL files in order of their dependencies, each checked against its contract and
written as Parquet."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import duckdb

from pipeline import duck
from pipeline.contracts import CONTRACT_VERSION, Contract, contracts
from pipeline.duck import literal
from pipeline.errors import ModelError
from pipeline.models import interconnects
from pipeline.models.macros import install as install_macros
from pipeline.models.macros import macros
from pipeline.models.rules import RuleSet
from pipeline.resources import resource

_MANY_ACTIVITIES = 1_000_000
"""Above it tables are built in a file: they are compressed there, and evicted without another write.
Below it, that takes longer."""
_LAYERS = ("staging", "intermediate", "marts")
_REFERENCE = re.compile(r"\b(?:FROM|JOIN)\s+([a-z_][a-z0-9_.]*)", re.IGNORECASE)
_CTE = re.compile(r"\b([a-z_][a-z0-9_]*) AS (?:MATERIALIZED )?\(")
_COMMENT = re.compile(r"--[^\n]*")


@dataclass(frozen=True)
class Model:
    """One SQL file: one SELECT whose result is a table of the file's name."""

    name: str
    layer: str
    place: str
    sql: str
    needs: frozenset[str]


@cache
def models() -> tuple[Model, ...]:
    """All models in an order in which each finds what it needs. Raises ModelError on a cycle or a skipped
    layer."""
    files = {
        path.stem: path for layer in _LAYERS for path in sorted((resource("sql") / layer).rglob("*.sql"))
    }
    found: dict[str, Model] = {}
    for name, path in files.items():
        sql = path.read_text(encoding="utf-8")
        code = _COMMENT.sub("", sql)
        needs = frozenset(_REFERENCE.findall(code)) & files.keys() - {name, *_CTE.findall(code)}
        place = path.relative_to(resource("sql"))
        found[name] = Model(name, place.parts[0], f"sql/{place.as_posix()}", sql, needs)
    for model in found.values():
        for need in model.needs:
            if _LAYERS.index(found[need].layer) > _LAYERS.index(model.layer):
                raise ModelError(f"{model.place} reads {need}, which is in a later layer")
    try:
        TopologicalSorter({m.name: m.needs for m in found.values()}).prepare()
    except CycleError as error:
        raise ModelError(f"models depend on each other in a circle: {error.args[1]}") from error
    return tuple(found[name] for name in _depth_first(found))


def _depth_first(found: dict[str, Model]) -> list[str]:
    """Each model right after what it needs, so that few tables wait for their last reader at any time."""
    order: dict[str, None] = {}

    def visit(name: str) -> None:
        if name not in order:
            for need in sorted(found[name].needs):
                visit(need)
            order[name] = None

    for name in found:
        visit(name)
    return list(order)


@cache
def models_sha() -> str:
    """Hash of all model SQL and macros: marts record which models built them."""
    text = "".join(m.name + m.sql for m in sorted(models(), key=lambda m: m.name))
    return hashlib.sha256((text + macros()).encode()).hexdigest()[:16]


def build_marts(
    raw_run: Path,
    run_id: str,
    out: Path,
    rules: RuleSet,
    build_id: str,
    inputs_sha: str,
    config: Path | None = None,
    *,
    spill: Path,
    threads: int,
    memory_limit: str,
) -> None:
    """Write every mart of the run whose raw Parquet is under `raw_run` into `out`. A table is dropped when no
    later model reads it.

    Raises ModelError if a model fails or its result is not what its contract says.
    """
    with duck.working(spill, threads=threads, memory_limit=memory_limit) as con:
        if _activities(con, raw_run) > _MANY_ACTIVITIES:
            con.execute(f"ATTACH {literal(spill / 'tables.duckdb')} AS tables; USE tables")
        prepare(con, raw_run, run_id, rules, build_id, inputs_sha, config)
        marts = contracts("marts")
        last_use = {
            need: number for number, model in enumerate(models()) for need in (*model.needs, model.name)
        }
        for number, model in enumerate(models()):
            run_model(con, model)
            if model.name in marts:
                _write_mart(con, marts[model.name], out / f"{model.name}.parquet")
            for name in sorted(model.needs | {model.name}):
                if last_use[name] == number:
                    con.execute(f"DROP {'VIEW' if name in marts else 'TABLE'} {name}")


def _activities(con: duckdb.DuckDBPyConnection, raw_run: Path) -> int:
    """GPU activities of a run, from its files' own counts."""
    return int(
        duck.scalar(
            con,
            (
                "SELECT coalesce(sum(num_rows), 0) FROM "
                f"parquet_file_metadata({duck.files(raw_run, '*/gpu_activity.parquet')})"
            ),
        )
    )


def prepare(
    con: duckdb.DuckDBPyConnection,
    raw_run: Path,
    run_id: str,
    rules: RuleSet,
    build_id: str,
    inputs_sha: str,
    config: Path | None = None,
) -> None:
    """Give the connection what models read: raw views of one run, its run_config, rules, macros and facts of
    the build."""
    con.execute("CREATE SCHEMA raw")
    for table, shape in contracts("raw").items():
        # Files landed by an older version lack tables that came later.
        is_there = next(raw_run.glob(f"*/{table}.parquet"), None) is not None
        scan = (
            f"read_parquet({duck.files(raw_run, f'*/{table}.parquet')}, union_by_name = true, "
            "hive_partitioning = false)"
        )
        found = scan if is_there else f"({shape.empty_query()})"
        con.execute(f"CREATE VIEW raw.{table} AS SELECT {literal(run_id)} AS run_id, * FROM {found}")
    contract = contracts("config")["run_config"]
    # Files that an older version wrote lack columns that came later.
    given = (
        f"UNION ALL BY NAME FROM read_parquet({duck.files(config.parent, config.name)})"
        if config and config.is_file()
        else ""
    )
    con.execute(
        f"CREATE TABLE run_config AS SELECT {contract.select_list()} "
        f"FROM (({contract.empty_query()}) {given})"
    )
    install_macros(con)
    rules.install(con)
    interconnects.install(con)
    con.execute(
        f"CREATE TABLE build_info AS SELECT {literal(build_id)} AS build_id, {literal(rules.sha)} AS "
        "rules_sha, "
        f"{literal(models_sha())} AS models_sha, {literal(inputs_sha)} AS inputs_sha, {CONTRACT_VERSION} AS "
        "contract_version"
    )


def run_model(con: duckdb.DuckDBPyConnection, model: Model) -> None:
    """Create the table of one model, whose needs are there."""
    try:
        con.execute(f"CREATE TABLE {model.name} AS {model.sql}")
    except duckdb.Error as error:
        raise ModelError(f"{model.place}: {error}") from error


def _write_mart(con: duckdb.DuckDBPyConnection, contract: Contract, file: Path) -> None:
    """Write the table of a mart as Parquet; models that read it read the file from here on, which is
    small."""
    key = ", ".join(f'"{k}"' for k in contract.grain)
    try:
        con.execute(
            f"COPY (SELECT {contract.select_list()} FROM {contract.table} ORDER BY {key}) TO "
            f"{literal(file)} "
            "(FORMAT parquet, COMPRESSION zstd)"
        )
    except duckdb.Error as error:
        raise ModelError(
            f"marts.{contract.table} is not what schemas/marts/{contract.table}.toml says: {error}"
        ) from error
    scan = f"read_parquet({duck.files(file.parent, file.name)}, hive_partitioning = false)"
    contract.check(con, scan)
    con.execute(f"DROP TABLE {contract.table}")
    con.execute(f"CREATE VIEW {contract.table} AS FROM {scan}")
