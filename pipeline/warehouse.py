"""The warehouse: marts of each run in the lake, and a database file of views over the lake for people's SQL."""

from __future__ import annotations

import hashlib
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import duckdb

from pipeline import duck, session
from pipeline.atomic import SCRATCH, exchange_folder, is_abandoned, remove, remove_asides, write_file
from pipeline.compact import COMPACTED, built_facts, checked_builds, relation, remove_compacted, settle
from pipeline.contracts import contracts
from pipeline.duck import literal
from pipeline.errors import UsageError
from pipeline.home import TEMPLATE, Home
from pipeline.models import CONTRACT_VERSION, build_marts, models_sha
from pipeline.rules import RuleSet
from pipeline.settings import Settings

GRACE_SECONDS = 600
"""How long a replaced build stays on disk, for readers that have opened it."""
_FORGET = "forget-"
"""Begins the name of a mark in staging: the run behind it is to be taken out of the lake."""
SPILL_LIMIT = "16GB"
"""Most that a reading session spills: an endless sort must not fill the disk."""
_TRIES = 20
_T = TypeVar("_T")

_RUNS_VIEW = """
CREATE VIEW runs AS
WITH judged AS (
    SELECT run_id, build_id,
        CASE WHEN bool_or(NOT is_passed AND severity = 'fail') THEN 'fail'
             WHEN bool_or(NOT is_passed AND severity = 'warn') THEN 'warn' ELSE 'pass' END AS verdict
    FROM quality GROUP BY run_id, build_id
)
SELECT run_facts.run_id, source, traces, ranks, ranks_expected, decode_steps, prefill_steps, gpu_name, engine, run_facts.build_id,
    rules_sha, models_sha, coalesce(judged.verdict, 'unchecked') AS verdict
FROM run_facts LEFT JOIN judged ON run_facts.run_id = judged.run_id AND run_facts.build_id = judged.build_id
"""
"""Only results of the same build count: a rebuilt run is unchecked until it is checked again."""


def tidy(home: Home) -> None:
    """Finish or remove what earlier processes left: unfinished work at once, replaced builds after the grace time."""
    _finish_forgetting(home)
    for path in home.staging.iterdir():
        if path.name.startswith(SCRATCH):
            is_over = is_abandoned(path)
        else:
            is_over = not path.name.startswith("old-") or time.time() - path.stat().st_ctime > GRACE_SECONDS
        if is_over:
            remove(path)
    for path in home.root.glob(".stepledger.duckdb.*"):
        path.unlink(missing_ok=True)
    for folder in (home.quarantine, home.compact):
        remove_asides(folder)
    remove_compacted(home, GRACE_SECONDS)


def forget(home: Home, run_id: str) -> None:
    """Take a run out of the lake, with what was said of it and its pages; originals in the archive stay.

    A mark is written first, so that a forgetting that was stopped is finished by whoever writes next.
    """
    write_file(home.staging / f"{_FORGET}{run_id}", b"")
    _finish_forgetting(home)


def _finish_forgetting(home: Home) -> None:
    for mark in home.staging.glob(f"{_FORGET}*"):
        run_id = mark.name.removeprefix(_FORGET)
        for folder in (home.raw_run(run_id), home.mart_run(run_id), home.quality_lake_run(run_id), home.config_run(run_id), home.quality_run(run_id)):
            if folder.is_dir():
                folder.rename(home.staging / f"old-{uuid.uuid4().hex}")
        mark.unlink()


def inputs_sha(home: Home, run_id: str) -> str:
    """Hash of the files that a run holds now, and of what was said of it."""
    files = sorted(p.name for p in home.raw_run(run_id).glob("file_id=*"))
    config = home.config_run(run_id) / "run_config.parquet"
    if config.is_file():
        files.append(hashlib.sha256(config.read_bytes()).hexdigest())
    return hashlib.sha256("\n".join(files).encode()).hexdigest()[:16]


def build_run(home: Home, run_id: str, rules: RuleSet, settings: Settings) -> str:
    """(Re)build the marts of one run and put them in place in one step. Returns the build's id."""
    staging = home.staging / uuid.uuid4().hex
    out, spill = staging / "out", (settings.spill or staging) / f"spill-{uuid.uuid4().hex}"
    out.mkdir(parents=True)
    spill.mkdir(parents=True)
    build_id = uuid.uuid4().hex[:12]
    try:
        build_marts(
            home.raw_run(run_id),
            run_id,
            out,
            rules,
            build_id,
            inputs_sha(home, run_id),
            home.config_run(run_id) / "run_config.parquet",
            spill=spill,
            threads=settings.threads,
            memory_limit=settings.memory_limit,
        )
        exchange_folder(out, home.mart_run(run_id), home.staging)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        shutil.rmtree(spill, ignore_errors=True)
    return build_id


def stale_runs(home: Home, rules: RuleSet) -> list[str]:
    """Runs whose marts are missing, or were built from other files, by other models or rules, or to an older contract."""
    built: dict[str, set[tuple[Any, ...]]] = {}
    for facts in built_facts(home):
        made_by = tuple(facts.get(name) for name in ("inputs_sha", "models_sha", "rules_sha", "contract_version"))
        built.setdefault(str(facts["run_id"]), set()).add(made_by)
    return [r for r in home.run_ids() if built.get(r) != {(inputs_sha(home, r), models_sha(), rules.sha, CONTRACT_VERSION)}]


def unchecked_runs(home: Home) -> list[str]:
    """Runs whose present build has no results of checks: whoever built it was stopped in between, or a check failed to run."""
    checked = checked_builds(home)
    known = {*home.run_ids()}
    found = {str(f["run_id"]) for f in built_facts(home) if (str(f["run_id"]), str(f["build_id"])) not in checked}
    return sorted(found & known)


def write_database(home: Home, pinned: Iterable[str] = ()) -> None:
    """Write the database of views aside and move it into place; readers that have the old one open keep it.

    `pinned`: runs served from a generation that are about to be built: they are served from there until the next call.
    """
    _write_templates(home)
    settle(home)
    aside = home.root / f".stepledger.duckdb.{uuid.uuid4().hex}"
    with duck.database(aside, read_only=False) as con:
        con.execute("CREATE SCHEMA raw")
        for layer in ("raw", "config", "quality", "marts"):
            for table, contract in contracts(layer).items():
                name = f"raw.{table}" if layer == "raw" else table
                scan = lake_scan(home, layer, table)
                reads = relation(home, table, scan, [*pinned]) if layer in COMPACTED else f"FROM {scan}"
                # The union with no rows keeps DuckDB 2.0 from rewriting windows over the view as a join of it with itself: the
                # copy forgets a filter on run_id that pruned files, and all runs are counted (duck.NO_SELF_JOINED_WINDOWS).
                reads += f" UNION ALL BY NAME FROM {_no_rows(home, layer, table)}"
                con.execute(f"CREATE VIEW {name} AS {reads}")
                con.execute(f"COMMENT ON VIEW {name} IS {literal(contract.doc)}")
                for column in contract.columns:
                    con.execute(f'COMMENT ON COLUMN {name}."{column.name}" IS {literal(column.doc)}')
        con.execute(_RUNS_VIEW)
    aside.replace(home.database)


def lake_scan(home: Home, layer: str, table: str) -> str:
    """The table function that reads one table of all runs, with run_id as text (a run may be called 2026)."""
    if layer == "raw":
        files = duck.files(home.raw.resolve(), f"*/*/{table}.parquet")
        return f"read_parquet({files}, hive_types = {{'run_id': VARCHAR, 'file_id': VARCHAR}}, union_by_name = true)"
    root = {"config": home.config, "quality": home.quality_lake}.get(layer, home.marts)
    files = duck.files(root.resolve(), f"*/{table}.parquet")
    by_name = ", union_by_name = true" if layer == "config" else ""  # facts said to an older version lack columns that came later
    return f"read_parquet({files}, hive_types = {{'run_id': VARCHAR}}{by_name})"


def _no_rows(home: Home, layer: str, table: str) -> str:
    """A file of this table without rows."""
    folder = home.raw / f"run_id={TEMPLATE}" / f"file_id={TEMPLATE}" if layer == "raw" else home.compact / f"gen={TEMPLATE}"
    folder = home.config / f"run_id={TEMPLATE}" if layer == "config" else folder
    return f"read_parquet({duck.files(folder.resolve(), f'{table}.parquet')}, hive_partitioning = false)"


def _write_templates(home: Home) -> None:
    """A zero-row file of every table, so that no view is without a file; rewritten when a contract changes."""
    one = f"run_id={TEMPLATE}"
    for target, tables in (
        (home.raw / one / f"file_id={TEMPLATE}", contracts("raw")),
        (home.config / one, contracts("config")),
        (home.quality_lake / one, contracts("quality")),
        (home.marts / one, contracts("marts")),
        (home.compact / f"gen={TEMPLATE}", contracts("quality") | contracts("marts")),
    ):
        stamp = hashlib.sha256(repr(tables).encode()).hexdigest()[:16]
        if (target / f"{stamp}.stamp").is_file():
            continue
        staged = home.staging / uuid.uuid4().hex
        staged.mkdir(parents=True)
        with duckdb.connect() as con:
            for table, contract in tables.items():
                con.execute(f"COPY ({contract.empty_query()}) TO {literal(staged / f'{table}.parquet')} (FORMAT parquet)")
        (staged / f"{stamp}.stamp").touch()
        exchange_folder(staged, target, home.staging)


def opened(home: Home) -> duckdb.DuckDBPyConnection:
    """The database of views, read-only. Raises UsageError where there is none yet."""
    if not home.database.is_file():
        raise UsageError(f"{home.root}: no warehouse yet. Drop traces into {home.inbox} and say `stepledger run`, or try `stepledger demo`.")
    return duck.database(home.database, read_only=True)


@contextmanager
def reading(home: Home) -> Iterator[duckdb.DuckDBPyConnection]:
    """A read-only session that sees the lake only: no other file, no extension, no changed setting.

    It spills into a folder of the system's, so that it writes nothing into the home, which may be somebody else's.
    """
    with session.folder() as spill, opened(home) as con:
        lake = home.raw.parent.resolve()
        con.execute(f"SET temp_directory = {literal(spill)}")
        con.execute(f"SET max_temp_directory_size = {literal(SPILL_LIMIT)}")
        con.execute(f"SET allowed_directories = [{literal(f'{lake}/')}, {duck.files(lake, '')}]")  # files by name, and views' patterns
        con.execute("SET enable_external_access = false")
        con.execute("SET lock_configuration = true")
        yield con


def stable(home: Home, read: Callable[[], _T]) -> _T:
    """Run `read` so that no build is exchanged while it reads: a statement over several marts never mixes two builds."""
    for _ in range(_TRIES):
        before = builds(home)
        try:
            found = read()
        except (duckdb.PermissionException, duckdb.IOException) as error:
            raise UsageError(f"{home.root}: its views do not find their files (was the home moved?); say `stepledger build`. {error}") from error
        if builds(home) == before:
            return found
    raise UsageError("the runs are being rebuilt all the time; try again when the writer has finished")


def builds(home: Home) -> dict[str, tuple[int, int]]:
    """What tells the present build of each run from any other."""
    found: dict[str, tuple[int, int]] = {}
    for path in home.marts.glob("run_id=*"):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        found[path.name] = (status.st_ino, status.st_mtime_ns)
    return found


def find_run(con: duckdb.DuckDBPyConnection, run: str) -> str:
    """The run_id that a user means: exactly, ignoring case, or by the name given when it was dropped."""
    known: list[tuple[Any, ...]] = duck.rows(
        con, "SELECT run_id, run_name FROM raw.trace UNION SELECT run_id, run_name FROM raw.microbench ORDER BY ALL"
    )
    folded = run.casefold()
    for matches in (
        {r[0] for r in known if r[0] == run},
        {r[0] for r in known if r[1] == run},
        {r[0] for r in known if r[0].casefold() == folded},
    ):
        if len(matches) == 1:
            return str(matches.pop())
    names = ", ".join(sorted({r[0] for r in known})) or "none yet"
    raise UsageError(f"no run {run!r}; known runs: {names}")
