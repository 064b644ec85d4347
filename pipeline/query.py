"""People's own SQL: one reading statement over the lake, in a session that can neither write nor look elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import duckdb
import orjson

from pipeline import duck
from pipeline.errors import UsageError
from pipeline.home import Home
from pipeline.warehouse import reading, stable

# Comments and strings are not looked for: what stands before the explained statement is words and brackets only, so that
# DuckDB and this expression cannot disagree on where it begins.
_EXPLAIN = re.compile(r"\s*EXPLAIN\b\s*(?:ANALYZE\b\s*)?(?:\([\w\s,]*\)\s*)?", re.IGNORECASE | re.ASCII)
_ADVICE = "Ask with one SELECT (or FROM, VALUES, WITH, DESCRIBE, SHOW, SUMMARIZE, EXPLAIN)."
# A statement that parses as SELECT may still write: DuckDB 2 takes COPY, INSERT and the like inside WITH, and a table
# function may run SQL from a string or change the session. So both are lists of what is known to only read.
_READING_NODES = {"SELECT_NODE", "SET_OPERATION_NODE", "CTE_NODE", "RECURSIVE_CTE_NODE"}
_READING_FUNCTIONS = re.compile(
    r"(duckdb|parquet|read)_\w+|pragma_(table_info|show|version|database_size)|range|generate_series|unnest|repeat|glob|sniff_csv"
    r"|json_each|json_tree|summary|histogram|histogram_values|query_table"
)


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
    if statement.type == duckdb.StatementType.EXPLAIN:
        prefix = _EXPLAIN.match(statement.query)
        if prefix is None:
            raise UsageError("EXPLAIN must be the first word, without a comment before it")
        _must_read(con, _only(con, statement.query[prefix.end() :]))
    else:
        _must_read(con, statement)
    return statement


def _must_read(con: duckdb.DuckDBPyConnection, statement: duckdb.Statement) -> None:
    if statement.type != duckdb.StatementType.SELECT:
        hint = " A PIVOT must name its values: PIVOT ... ON column IN (...)." if statement.type == duckdb.StatementType.MULTI else ""
        raise UsageError(f"{statement.type.name} is not a reading statement.{hint} {_ADVICE}")
    try:
        tree = orjson.loads(duck.scalar(con, "SELECT json_serialize_sql($1)", [statement.query]))
    except (duckdb.Error, orjson.JSONDecodeError) as error:
        raise UsageError(f"the statement cannot be examined: {error}") from error
    for node in _nodes(tree):
        kind = str(node.get("type", ""))
        if node.get("error") is True:
            raise UsageError(f"{node.get('error_message')}. {_ADVICE}")
        if kind.endswith("_NODE") and kind not in _READING_NODES:
            raise UsageError(f"{kind.removesuffix('_NODE').removesuffix('_QUERY')} inside a query is not reading. {_ADVICE}")
        if kind == "TABLE_FUNCTION" and not _READING_FUNCTIONS.fullmatch(name := str(node["function"]["function_name"]).lower()):
            raise UsageError(f"the table function {name} is not known to only read. {_ADVICE}")


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every object of a parsed statement, however deep."""
    waiting = [tree]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield item
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item


def _only(con: duckdb.DuckDBPyConnection, sql: str) -> duckdb.Statement:
    try:
        statements = con.extract_statements(sql)
    except duckdb.Error as error:
        raise UsageError(str(error)) from error
    if len(statements) != 1:
        raise UsageError(f"found {len(statements)} statements, wanted one. {_ADVICE}")
    return statements[0]
