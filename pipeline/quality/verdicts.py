"""Data quality of one build of a run: the questions of sql/checks and the contracts, judged and kept with the
build's id."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import duckdb

from pipeline import duck
from pipeline.contracts import Layer, contracts
from pipeline.duck import literal
from pipeline.errors import ExitCode, ModelError, StepledgerError, UsageError, home_trouble
from pipeline.events import Event, Say, on_wait
from pipeline.lake.atomic import replacing, staging_folder
from pipeline.lake.damage import damage_of, unreadable_file
from pipeline.lake.database import write_database
from pipeline.lake.dropped import mode_of, same_mode
from pipeline.lake.home import Home
from pipeline.lake.manifest import settle
from pipeline.lake.settings import load_settings
from pipeline.lake.tidy import tidy
from pipeline.models.build import build_run
from pipeline.models.engine import prepare
from pipeline.models.rules import load_rules
from pipeline.quality.check_page import write_page
from pipeline.quality.checks import CheckError, Result, ask, checks
from pipeline.sources.issues import issue_codes

_ASKED: tuple[Layer, ...] = ("raw", "config", "marts")
"""Layers that checks read."""


def check_run(home: Home, run_id: str, *, with_docs: bool = True) -> list[Result]:
    """Check the marts of a run as they are now, write the results, and return them; `with_docs`: through
    Great Expectations, with a page in the home's quality folder (without, an earlier page is removed, since
    it describes another build).

    Raises CheckError if a check itself fails, UsageError if there are no marts, ModelError if they cannot be
    read.
    """
    if not home.mart_run(run_id).is_dir():
        raise UsageError(f"run {run_id} has no marts yet: run `stepledger build {run_id}`")
    if damage := damage_of(home, run_id, layers=_ASKED):
        raise ModelError(str(damage))
    try:
        with (
            staging_folder(home.staging) as spill,
            duck.working(spill, threads=2, memory_limit="1GB") as con,
        ):
            open_run(con, home, run_id)
            results = [ask(con, check) for check in checks()]
            if with_docs:
                from pipeline.quality.expectations import judge

                results = judge(con, results)
            build_id = duck.scalar(con, "SELECT min(build_id) FROM run_facts")
            _write(con, home, run_id, build_id, results)
            if with_docs:
                write_page(home.quality_run(run_id), run_id, build_id, verdict(results), results)
                same_mode(home.quality_run(run_id), mode_of(home.raw_run(run_id)))
            else:
                shutil.rmtree(home.quality_run(run_id), ignore_errors=True)
    except (CheckError, duckdb.Error, OSError) as error:
        if home_trouble(error) is None and (damage := unreadable_file(home, run_id, _ASKED)):
            raise ModelError(str(damage)) from error
        if isinstance(error, CheckError) or (isinstance(error, OSError) and home_trouble(error) is not None):
            raise
        raise ModelError(f"its tables cannot be read: run `stepledger build {run_id}`. ({error})") from error
    return results


def check_runs(home: Home, run_ids: list[str], say: Say) -> tuple[dict[str, list[Result]], list[ExitCode]]:
    """Check runs, each with a page, holding the home for writing; the database then shows their verdicts.

    A run that cannot be checked is reported, and its exit code returned; it keeps the results of an earlier
    check, and the others go on.
    """
    found, codes = {}, []
    with home.writing(on_wait(say)):
        tidy(home)
        for run_id in run_ids:
            try:
                if (
                    run_id in settle(home).serves and not home.mart_run(run_id).is_dir()
                ):  # checks read a folder of its own
                    write_database(home, pinned=[run_id])
                    build_run(
                        home,
                        run_id,
                        load_rules(home.user_rules, home.user_markers),
                        load_settings(home, workers=1),
                    )
                found[run_id] = check_run(home, run_id)
            except StepledgerError as error:
                codes.append(error.exit_code)
                text = f"not checked: run {run_id}: {error}"
                say(text, Event.NOT_CHECKED, run=run_id, code=error.exit_code)
        write_database(home)
    return found, codes


def open_run(con: duckdb.DuckDBPyConnection, home: Home, run_id: str) -> None:
    """Give the connection what checks read: raw tables and marts of one run, its facts, and issue codes."""
    prepare(
        con,
        home.raw_run(run_id),
        run_id,
        load_rules(home.user_rules, home.user_markers),
        "",
        "",
        home.config_run(run_id) / "run_config.parquet",
    )
    for table in contracts("marts"):
        con.execute(
            f"CREATE VIEW {table} AS FROM "
            f"read_parquet({duck.files(home.mart_run(run_id), f'{table}.parquet')}, hive_partitioning = "
            "false)"
        )
    codes = ", ".join(
        f"({literal(code)}, {literal(bool(entry.get('skip')))})" for code, entry in issue_codes().items()
    )
    con.execute(f"CREATE TABLE issue_code AS FROM (VALUES {codes}) AS issue_code (code, is_skip)")


def _write(
    con: duckdb.DuckDBPyConnection, home: Home, run_id: str, build_id: str, results: list[Result]
) -> None:
    now = str(datetime.now(UTC).replace(tzinfo=None))
    values = ", ".join(
        "("
        + ", ".join(
            map(
                literal,
                (
                    run_id,
                    build_id,
                    r.check,
                    r.severity,
                    r.is_passed,
                    r.failing_rows,
                    r.sample,
                    r.means,
                    r.todo,
                    now,
                ),
            )
        )
        + ")"
        for r in results
    )
    contract = contracts("quality")["quality"]
    names = ", ".join(f'"{c.name}"' for c in contract.columns)
    with replacing(home.quality_lake_run(run_id), home.staging) as folder:
        con.execute(
            f"COPY (SELECT {contract.select_list()} FROM (VALUES {values}) AS result ({names}) ORDER BY ALL) "
            f"TO {literal(folder / 'quality.parquet')} (FORMAT parquet)"
        )
        same_mode(folder, mode_of(home.raw_run(run_id)))


def verdict(results: list[Result]) -> str:
    """pass, warn or fail: the worst severity that failed (info never counts)."""
    failed = {r.severity for r in results if not r.is_passed}
    return "fail" if "fail" in failed else "warn" if "warn" in failed else "pass"


def docs_page(home: Home, run_id: str) -> Path:
    """The page of a run's check results."""
    return home.quality_run(run_id) / "index.html"
