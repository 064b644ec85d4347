"""People's own SQL: one reading statement over the lake, in a session that can neither write nor look elsewhere."""

from __future__ import annotations

import re
from typing import Any

import duckdb

from pipeline.errors import UsageError
from pipeline.home import Home
from pipeline.warehouse import reading, stable

_EXPLAIN = re.compile(r"^\s*EXPLAIN\s+(?:ANALYZE\s+)?(?:\([^)]*\)\s*)?", re.IGNORECASE)
_ADVICE = "Ask with one SELECT (or FROM, VALUES, WITH, DESCRIBE, SHOW, SUMMARIZE, EXPLAIN)."


def run_query(home: Home, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and rows of one statement. Raises UsageError for anything but one reading statement, or a failing one."""

    def once() -> tuple[list[str], list[tuple[Any, ...]]]:
        with reading(home) as con:
            statement = reading_statement(con, sql)
            try:
                con.execute(statement)
                return [d[0] for d in con.description or []], con.fetchall()
            except duckdb.Error as error:
                raise UsageError(str(error)) from error

    return stable(home, once)


def reading_statement(con: duckdb.DuckDBPyConnection, sql: str) -> duckdb.Statement:
    """The statement, if it is exactly one and only reads; DuckDB's own parser decides."""
    statement = _only(con, sql)
    kind = statement.type
    if kind == duckdb.StatementType.EXPLAIN:
        inner = _EXPLAIN.sub("", _without_comments(statement.query), count=1)
        kind = _only(con, inner).type
    if kind != duckdb.StatementType.SELECT:
        raise UsageError(f"{kind.name} is not a reading statement. {_ADVICE}")
    return statement


def _only(con: duckdb.DuckDBPyConnection, sql: str) -> duckdb.Statement:
    try:
        statements = con.extract_statements(sql)
    except duckdb.Error as error:
        raise UsageError(str(error)) from error
    if len(statements) != 1:
        raise UsageError(f"found {len(statements)} statements, wanted one. {_ADVICE}")
    return statements[0]


def _without_comments(sql: str) -> str:
    """Leading comments removed, so that what follows EXPLAIN can be found."""
    return re.sub(r"^(?:\s+|--[^\n]*(?:\n|$)|/\*.*?\*/)+", "", sql, flags=re.DOTALL)
