"""The SQL of the analyses: sql/questions/<question>/<name>.sql, one SELECT per file, run with named
parameters."""

from __future__ import annotations

from functools import cache
from typing import Any
from weakref import WeakSet

import duckdb

from pipeline.models.macros import install
from pipeline.resources import resource

_PREPARED: WeakSet[duckdb.DuckDBPyConnection] = WeakSet()
"""Sessions that have the macros already."""


def rows(con: duckdb.DuckDBPyConnection, question: str, **parameters: Any) -> list[tuple[Any, ...]]:
    """All rows of a question such as `breakdown/ranks`. Raises duckdb.Error, which names the file where the
    SQL or a parameter is wrong."""
    return _run(con, question, text(question), parameters).fetchall()


def dicts(con: duckdb.DuckDBPyConnection, question: str, **parameters: Any) -> list[dict[str, Any]]:
    """All rows of a question, by column."""
    found = _run(con, question, text(question), parameters)
    columns = [column[0] for column in found.description or []]
    return [dict(zip(columns, row, strict=True)) for row in found.fetchall()]


def one(con: duckdb.DuckDBPyConnection, question: str, **parameters: Any) -> dict[str, Any]:
    """The row of a question that always has exactly one."""
    (found,) = dicts(con, question, **parameters)
    return found


def scalar(con: duckdb.DuckDBPyConnection, question: str, **parameters: Any) -> Any:
    """The first value of a question, or None where it has no row."""
    found = rows(con, question, **parameters)
    return found[0][0] if found else None


def temp_table(con: duckdb.DuckDBPyConnection, table: str, question: str, **parameters: Any) -> None:
    """Keep the rows of a question as a temporary table of the session, for other questions to read."""
    _run(con, question, f"CREATE OR REPLACE TEMP TABLE {table} AS {text(question)}", parameters).fetchall()


@cache
def text(question: str) -> str:
    """The SQL of a question."""
    return (resource("sql") / "questions" / f"{question}.sql").read_text(encoding="utf-8")


def _run(
    con: duckdb.DuckDBPyConnection, question: str, sql: str, parameters: dict[str, Any]
) -> duckdb.DuckDBPyConnection:
    if con not in _PREPARED:
        install(con)
        _PREPARED.add(con)
    try:
        return con.execute(sql, parameters) if parameters else con.execute(sql)
    except duckdb.ProgrammingError as error:  # its class says whether files are damaged, so it stays
        raise type(error)(f"sql/questions/{question}.sql: {error}") from error
