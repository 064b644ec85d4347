"""The views over the lake, and the constants in them: which version wrote them, for which place, and which
runs they leave out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import duckdb

from pipeline import __version__, duck
from pipeline.contracts import CONTRACT_VERSION, Layer, contracts
from pipeline.duck import literal
from pipeline.lake.atomic import replacing
from pipeline.lake.compact import relation, templated
from pipeline.lake.damage import BUILT, LAYERS, is_damaged
from pipeline.lake.home import TEMPLATE, Home

_RUNS_VIEW = """
CREATE VIEW runs AS
WITH judged AS (
    SELECT run_id, build_id,
        CASE WHEN bool_or(NOT is_passed AND severity = 'fail') THEN 'fail'
             WHEN bool_or(NOT is_passed AND severity = 'warn') THEN 'warn' ELSE 'pass' END AS verdict
    FROM quality GROUP BY run_id, build_id
)
SELECT run_facts.run_id, source, traces, ranks, ranks_expected, decode_steps, prefill_steps, gpu_name, engine,
run_facts.build_id,
    rules_sha, models_sha, coalesce(judged.verdict, 'unchecked') AS verdict
FROM run_facts LEFT JOIN judged ON run_facts.run_id = judged.run_id AND run_facts.build_id = judged.build_id
"""
"""Only results of the same build count: a rebuilt run is unchecked until it is checked again."""

_WRITTEN_BY = {
    "stepledger_version": "the stepledger that wrote these views",
    "contract_version": "version of the tables' columns",
    "home": "the home that they were written for",
    "lake": "the folder that they read",
}
_LEFT_OUT = {"run_id": "a run that these views do not read", "why": "the reason, and what to do"}


@dataclass(frozen=True)
class Writer:
    """The writer of a database of views, and its lake. None: written by a version that did not record it
    yet."""

    stepledger_version: str
    contract_version: int | None
    lake: str | None


def written_by(con: duckdb.DuckDBPyConnection) -> Writer:
    """Who wrote the views of this session."""
    try:
        return Writer(*duck.rows(con, "SELECT stepledger_version, contract_version, lake FROM written_by")[0])
    except duckdb.CatalogException:  # the view came with version 4 of the tables, in 0.1.0
        return Writer("0.1.0", None, None)


def home_of(con: duckdb.DuckDBPyConnection) -> Home:
    """The home that the views of this session read."""
    return Home(Path(duck.scalar(con, "SELECT home FROM written_by")))


def left_out_of(con: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """Runs that the views of this session do not read, and why."""
    return dict(duck.rows(con, "SELECT run_id, why FROM left_out ORDER BY ALL"))


def make_views(
    con: duckdb.DuckDBPyConnection, home: Home, left_out: Mapping[str, str], pinned: Iterable[str] = ()
) -> None:
    """Make every view in an empty database. Raises duckdb.Error where a raw table of a run that is not left
    out cannot be read."""
    con.execute("CREATE SCHEMA raw")
    for layer in LAYERS:
        for table, contract in contracts(layer).items():
            name = f"raw.{table}" if layer == "raw" else table
            scan = _lake_scan(home, layer, table, left_out)
            reads = relation(home, table, scan, left_out, pinned) if layer in BUILT else f"FROM {scan}"
            # The union with no rows keeps DuckDB 2.0 from rewriting windows over the view as a join of it
            # with itself: the copy forgets a filter on run_id that pruned files, and all runs are counted
            # (duck.NO_SELF_JOINED_WINDOWS).
            reads += f" UNION ALL BY NAME FROM {_no_rows(home, layer, table)}"
            con.execute(f"CREATE VIEW {name} AS {reads}")
            _comment(con, name, contract.doc, {column.name: column.doc for column in contract.columns})
    con.execute(_RUNS_VIEW)
    lake = home.raw.parent.resolve()
    con.execute(
        f"CREATE VIEW written_by AS SELECT {literal(__version__)} AS stepledger_version, {CONTRACT_VERSION} "
        "AS contract_version, "
        f"{literal(home.root.resolve())} AS home, {literal(lake)} AS lake"
    )
    _comment(con, "written_by", "Who wrote these views, and where their lake is.", _WRITTEN_BY)
    rows = ", ".join(f"({literal(run_id)}, {literal(why)})" for run_id, why in left_out.items()) or "('', '')"
    con.execute(
        f"CREATE VIEW left_out AS SELECT * FROM (VALUES {rows}) AS run (run_id, why) WHERE run_id <> ''"
    )
    _comment(
        con,
        "left_out",
        "Runs that these views leave out, since their files cannot be read as they are.",
        _LEFT_OUT,
    )


def _comment(con: duckdb.DuckDBPyConnection, view: str, doc: str, columns: Mapping[str, str]) -> None:
    comments = [f"COMMENT ON VIEW {view} IS {literal(doc)}"]
    comments += [
        f'COMMENT ON COLUMN {view}."{column}" IS {literal(text)}' for column, text in columns.items()
    ]
    con.execute(";".join(comments))


def _lake_scan(home: Home, layer: Layer, table: str, left_out: Mapping[str, str]) -> str:
    """The table function that reads one table of all runs, with run_id as text (a run may be called 2026)."""
    one = f"run_id={TEMPLATE}"
    if layer in BUILT:
        root = home.marts if layer == "marts" else home.quality_lake
        return (
            f"read_parquet({templated(root.resolve(), one, '*', table)}, hive_types = {{'run_id': VARCHAR}})"
        )
    # Files that an older version wrote lack columns that came later: so the columns of all files are read
    # first.
    root, part, types = (
        (home.raw, f"file_id={TEMPLATE}/", "'run_id': VARCHAR, 'file_id': VARCHAR")
        if layer == "raw"
        else (home.config, "", "'run_id': VARCHAR")
    )
    pattern = f"{'*/' if part else ''}{table}.parquet"
    files = duck.files(root.resolve(), f"*/{pattern}")
    if left_out:  # by name: a pattern would have the damaged files opened
        kept = [
            folder
            for folder in sorted(root.resolve().glob("run_id=*"))
            if folder.name.removeprefix("run_id=") not in left_out
        ]
        found = [
            duck.files(file.parent, file.name) for folder in kept for file in sorted(folder.glob(pattern))
        ]
        files = f"[{', '.join(found)}]"
    return f"read_parquet({files}, hive_types = {{{types}}}, union_by_name = true)"


def _no_rows(home: Home, layer: Layer, table: str) -> str:
    """A file of this table without rows."""
    folder = (
        home.raw / f"run_id={TEMPLATE}" / f"file_id={TEMPLATE}"
        if layer == "raw"
        else home.compact / f"gen={TEMPLATE}"
    )
    folder = home.config / f"run_id={TEMPLATE}" if layer == "config" else folder
    return f"read_parquet({duck.files(folder.resolve(), f'{table}.parquet')}, hive_partitioning = false)"


def write_templates(home: Home) -> None:
    """A zero-row file of every table, so that no view is without a file; rewritten when a contract
    changes."""
    one = f"run_id={TEMPLATE}"
    for target, tables in (
        (home.raw / one / f"file_id={TEMPLATE}", contracts("raw")),
        (home.config / one, contracts("config")),
        (home.quality_lake / one, contracts("quality")),
        (home.marts / one, contracts("marts")),
        (home.compact / f"gen={TEMPLATE}", contracts("quality") | contracts("marts")),
    ):
        stamp = hashlib.sha256(repr(tables).encode()).hexdigest()[:16]
        if (target / f"{stamp}.stamp").is_file() and not any(
            is_damaged(target / f"{table}.parquet") for table in tables
        ):
            continue
        with replacing(target, home.staging) as folder, duck.in_memory() as con:
            con.execute("BEGIN")
            for table, contract in tables.items():
                file = literal(folder / f"{table}.parquet")
                con.execute(f"COPY ({contract.empty_query()}) TO {file} (FORMAT parquet)")
            (folder / f"{stamp}.stamp").touch()
