"""Data quality: questions in sql/checks that return the rows that are wrong, and the contracts, judged for one build of a run."""

from __future__ import annotations

import re
import shutil
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import orjson

from pipeline import duck
from pipeline.atomic import commit_folder, exchange_folder
from pipeline.contracts import contracts
from pipeline.duck import literal
from pipeline.errors import StepledgerError, UsageError
from pipeline.home import Home
from pipeline.models import prepare
from pipeline.resources import resource
from pipeline.rules import load_rules
from pipeline.sources.issues import issue_codes

SAMPLE_ROWS = 3
_HEADER = re.compile(r"^-- (severity|means|do): (.+)$", re.MULTILINE)
_SEVERITIES = {"fail", "warn", "info"}


class CheckError(StepledgerError):
    """A check could not be carried out: that is a fault of the check, never a statement about the data."""


@dataclass(frozen=True)
class Check:
    """One question about a run: its severity, what a hit means and what to do then."""

    name: str
    severity: str
    means: str
    todo: str
    sql: str


@dataclass(frozen=True)
class Result:
    """What a check found."""

    check: str
    severity: str
    failing_rows: int
    sample: str | None
    means: str
    todo: str

    @property
    def is_passed(self) -> bool:
        """Was nothing wrong found?"""
        return self.failing_rows == 0


@cache
def checks() -> tuple[Check, ...]:
    """All questions of sql/checks, by name. Raises CheckError for a file without a full header."""
    found = []
    for path in sorted((resource("sql") / "checks").glob("*.sql")):
        text = path.read_text(encoding="utf-8")
        header = dict(_HEADER.findall(text))
        if header.keys() != {"severity", "means", "do"} or header["severity"] not in _SEVERITIES:
            raise CheckError(f"sql/checks/{path.name}: the header must give severity (fail, warn or info), means and do")
        found.append(Check(path.stem, header["severity"], header["means"], header["do"], text))
    return tuple(found)


def check_run(home: Home, run_id: str, *, with_docs: bool = True) -> list[Result]:
    """Check the marts of a run as they are now, write the results, and return them; `with_docs`: through Great Expectations,
    with pages in the home's quality folder. Raises CheckError if a check itself fails, UsageError if there are no marts."""
    if not (home.mart_run(run_id) / "run_facts.parquet").is_file():
        raise UsageError(f"run {run_id} has no marts yet: say `stepledger build --run {run_id}`")
    spill = home.staging / uuid.uuid4().hex
    spill.mkdir(parents=True)
    try:
        with duck.working(spill, threads=2, memory_limit="1GB") as con:
            open_run(con, home, run_id)
            results = [ask(con, check) for check in checks()]
            if with_docs:
                from pipeline.expectations import judge

                results = judge(con, results, home.quality_run(run_id))
            build_id = duck.scalar(con, "SELECT min(build_id) FROM run_facts")
            _write(con, home, run_id, build_id, results)
    finally:
        shutil.rmtree(spill, ignore_errors=True)
    return results


def open_run(con: duckdb.DuckDBPyConnection, home: Home, run_id: str) -> None:
    """Give the connection what checks ask about: raw tables and marts of one run, facts said of it, issue codes."""
    prepare(con, home.raw_run(run_id), run_id, load_rules(home.user_rules), "", "", home.config_run(run_id) / "run_config.parquet")
    for table in contracts("marts"):
        con.execute(f"CREATE VIEW {table} AS FROM read_parquet({duck.files(home.mart_run(run_id), f'{table}.parquet')}, hive_partitioning = false)")
    codes = ", ".join(f"({literal(code)}, {literal(bool(entry.get('skip')))})" for code, entry in issue_codes().items())
    con.execute(f"CREATE TABLE issue_code AS FROM (VALUES {codes}) AS issue_code (code, is_skip)")


def ask(con: duckdb.DuckDBPyConnection, check: Check) -> Result:
    """Carry out one check."""
    try:
        rows = duck.dicts(con, f"SELECT *, count(*) OVER () AS found FROM ({check.sql}) LIMIT {SAMPLE_ROWS}")
    except duckdb.Error as error:
        raise CheckError(f"sql/checks/{check.name}.sql cannot be carried out: {error}") from error
    failing = rows[0]["found"] if rows else 0
    return Result(check.name, check.severity, failing, _sample(rows), check.means, check.todo)


def _sample(rows: list[dict[str, Any]]) -> str | None:
    if not rows:
        return None
    return orjson.dumps([{k: v for k, v in row.items() if k != "found"} for row in rows], default=str).decode()


def _write(con: duckdb.DuckDBPyConnection, home: Home, run_id: str, build_id: str, results: list[Result]) -> None:
    now = str(datetime.now(UTC).replace(tzinfo=None))
    values = ", ".join(
        "(" + ", ".join(map(literal, (run_id, build_id, r.check, r.severity, r.is_passed, r.failing_rows, r.sample, r.means, r.todo, now))) + ")"
        for r in results
    )
    contract = contracts("quality")["quality"]
    names = ", ".join(f'"{c.name}"' for c in contract.columns)
    staged = home.staging / uuid.uuid4().hex
    staged.mkdir(parents=True)
    try:
        con.execute(
            f"COPY (SELECT {contract.select_list()} FROM (VALUES {values}) AS result ({names}) ORDER BY ALL) "
            f"TO {literal(staged / 'quality.parquet')} (FORMAT parquet)"
        )
        target = home.quality_lake_run(run_id)
        if target.exists():
            exchange_folder(staged, target, home.staging)
        else:
            commit_folder(staged, target)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def verdict(results: list[Result]) -> str:
    """pass, warn or fail: the worst severity that failed (info never counts)."""
    failed = {r.severity for r in results if not r.is_passed}
    return "fail" if "fail" in failed else "warn" if "warn" in failed else "pass"


def docs_page(home: Home, run_id: str) -> Path:
    """The entry page of a run's quality pages."""
    return home.quality_run(run_id) / "index.html"
