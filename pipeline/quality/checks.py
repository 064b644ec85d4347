"""The checks of sql/checks: each returns the rows that are wrong; its header gives the severity and the
remedy."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import duckdb
import orjson

from pipeline import duck
from pipeline.errors import StepledgerError
from pipeline.resources import resource

SAMPLE_ROWS = 3
_HEADER = re.compile(r"^-- (severity|means|do): (.+(?:\n--  +.+)*)$", re.MULTILINE)
"""A line of a header; more indented lines continue it."""
_CONTINUED = re.compile(r"\n--  +")
_SEVERITIES = {"fail", "warn", "info"}


class CheckError(StepledgerError):
    """A check could not be run: that is a fault of the check and says nothing about the data."""


@dataclass(frozen=True)
class Check:
    """One check of a run: its severity, what a failure means and what to do."""

    name: str
    severity: str
    means: str
    todo: str
    sql: str


@dataclass(frozen=True)
class Result:
    """The result of a check."""

    check: str
    severity: str
    failing_rows: int
    sample: str | None
    means: str
    todo: str

    @property
    def is_passed(self) -> bool:
        """Is no row wrong?"""
        return self.failing_rows == 0


@cache
def checks() -> tuple[Check, ...]:
    """All checks of sql/checks, by name. Raises CheckError for a file without a full header."""
    found = []
    for path in sorted((resource("sql") / "checks").glob("*.sql")):
        text = path.read_text(encoding="utf-8")
        header = {key: _CONTINUED.sub(" ", value) for key, value in _HEADER.findall(text)}
        if header.keys() != {"severity", "means", "do"} or header["severity"] not in _SEVERITIES:
            raise CheckError(
                f"sql/checks/{path.name}: the header must give severity (fail, warn or info), means and do"
            )
        found.append(Check(path.stem, header["severity"], header["means"], header["do"], text))
    return tuple(found)


def ask(con: duckdb.DuckDBPyConnection, check: Check) -> Result:
    """Run one check. Raises CheckError if its SQL fails."""
    try:
        rows = duck.dicts(
            con, f"SELECT *, count(*) OVER () AS found FROM ({check.sql}) ORDER BY ALL LIMIT {SAMPLE_ROWS}"
        )
    except duckdb.Error as error:
        raise CheckError(f"sql/checks/{check.name}.sql cannot be run: {error}") from error
    failing = rows[0]["found"] if rows else 0
    return Result(check.name, check.severity, failing, _sample(rows), check.means, check.todo)


def _sample(rows: list[dict[str, Any]]) -> str | None:
    if not rows:
        return None
    return orjson.dumps(
        [{k: v for k, v in row.items() if k != "found"} for row in rows], default=str
    ).decode()
