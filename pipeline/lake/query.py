"""Users' SQL: one read-only statement over the lake, in a session that can neither write nor read other
files."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import orjson

from pipeline import duck
from pipeline.errors import UsageError
from pipeline.lake.builds import builds
from pipeline.lake.home import Home
from pipeline.lake.reading import print_left_out, reading, stable
from pipeline.lake.views import left_out_of
from pipeline.text import counted

_T = TypeVar("_T")
TIMEOUT_S = 600.0
"""How long a statement and the printing of its rows may take before it is stopped."""
MEMORY = 4 * 2**30
"""Bytes that a statement and the printing of its rows may add to the process. DuckDB itself bounds its tables
and sorts, to less, but neither the values that functions make nor the Python objects of an answer."""
_BATCH_ROWS = 2048
_HELD_ROWS = 10_000
"""Rows held before the first is returned: a smaller answer is queried again when a run is rebuilt
meanwhile."""

# Comments and strings are not matched: only words and brackets may precede the explained statement, so that
# DuckDB and this expression cannot disagree on where it begins.
_EXPLAIN = re.compile(r"\s*EXPLAIN\b\s*(?:ANALYZE\b\s*)?(?:\([\w\s,]*\)\s*)?", re.IGNORECASE | re.ASCII)
_TOO_LARGE = "{}: the statement needs more memory than allowed. Select fewer or shorter values at once."
_ADVICE = "Use one SELECT (or FROM, VALUES, WITH, DESCRIBE, SHOW, SUMMARIZE, EXPLAIN)."
# A statement that parses as SELECT may still write: DuckDB 2 takes COPY, INSERT and the like inside WITH, and
# a table function may run SQL from a string or change the session. So both are lists of what is known to be
# read-only.
_READING_NODES = {"SELECT_NODE", "SET_OPERATION_NODE", "CTE_NODE", "RECURSIVE_CTE_NODE"}
_READING_FUNCTIONS = re.compile(
    r"(duckdb|parquet|read)_\w+|pragma_(table_info|show|version|database_size)|range|generate_series|unnest|repeat|glob|sniff_csv"
    r"|json_each|json_tree|summary|histogram|histogram_values|query_table"
)


@dataclass(frozen=True)
class Answer:
    """Column names, and rows as they come: the rest of a large answer is read while the first are printed.

    `is_plan`: it is DuckDB's drawing of a plan, which has several lines.
    """

    columns: list[str]
    rows: Iterator[tuple[Any, ...]]
    is_plan: bool = False


@contextmanager
def open_query(home: Home, sql: str, timeout_s: float = TIMEOUT_S) -> Iterator[Answer]:
    """The answer of one statement, for as long as the context lasts; a `timeout_s` of 0 sets no limit.

    Raises UsageError for anything but one read-only statement, for one that fails, takes too long or needs
    too much memory (also while its rows are printed), and, from `rows`, when a run was rebuilt after the
    first row was returned: then the rows may be from two builds.
    """
    _refuse_no_text(sql)
    patience = duck.Patience(
        timeout_s,
        (
            f"the query was not finished after {timeout_s:g} s and was stopped; select less, or allow more "
            "with --timeout SECONDS (0: no limit)"
        ),
    )
    with ExitStack() as session:

        def begin() -> tuple[list[str], _Stream, list[tuple[Any, ...]]]:
            session.close()  # of an attempt that a rebuild made obsolete
            con = session.enter_context(reading(home))
            session.enter_context(_bounded_memory())
            stream = _Stream(home, con, patience)
            columns = stream.start(sql)
            held: list[tuple[Any, ...]] = []
            while len(held) < _HELD_ROWS and (batch := stream.batch()):
                held += batch
            return columns, stream, held

        try:
            columns, stream, held = stable(home, begin, across_runs=True)
            print_left_out(stream.left_out)
            yield Answer(columns, chain(held, stream.rest()), stream.is_plan)
        except MemoryError as error:
            raise UsageError(_TOO_LARGE.format("Out of Memory")) from error


def _refuse_no_text(sql: str) -> None:
    """Raise UsageError for a statement that DuckDB would not read at all, or not to its end."""
    if "\0" in sql:
        raise UsageError("the statement contains a NUL byte; is it a text file?")
    try:
        sql.encode()
    except UnicodeEncodeError as error:
        problem = f"{error.reason} at character {error.start + 1}"
        raise UsageError(f"the statement is not UTF-8: {problem}") from error


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """Let this process allocate MEMORY more than it has; beyond that, allocations fail in DuckDB or in
    Python."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])
    bounds = [limit for limit in before if limit != resource.RLIM_INFINITY]
    bounds.append(pages * os.sysconf("SC_PAGESIZE") + MEMORY)
    resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


class _Stream:
    """One statement being read, batch after batch, and the builds that it reads."""

    def __init__(self, home: Home, con: duckdb.DuckDBPyConnection, patience: duck.Patience) -> None:
        self._home, self._con, self._patience = home, con, patience
        self._builds = builds(home)
        self.is_plan = False
        self.left_out = left_out_of(con)

    def start(self, sql: str) -> list[str]:
        """Begin, and return the names of the columns."""
        statement = reading_statement(self._con, sql)
        self.is_plan = statement.type == duckdb.StatementType.EXPLAIN
        self._wait(lambda: self._con.execute(statement))
        return [d[0] for d in self._con.description or []]

    def batch(self) -> list[tuple[Any, ...]]:
        """The next rows; none at the end."""
        return self._wait(lambda: self._con.fetchmany(_BATCH_ROWS))

    def rest(self) -> Iterator[tuple[Any, ...]]:
        """All further rows. Runs that arrived in the meantime are not among them, so only a replaced build
        matters."""
        is_long = False
        while batch := self.batch():
            is_long = True
            yield from batch
        now = builds(self._home)
        if is_long and any(now.get(run) != build for run, build in self._builds.items()):
            raise UsageError(
                "a run was rebuilt while the rows were printed, so they may be from two builds: "
                "run the query again"
            )

    def _wait(self, call: Callable[[], _T]) -> _T:
        try:
            return self._patience.wait(call, self._con.interrupt)
        except duckdb.OutOfMemoryException as error:
            raise UsageError(_TOO_LARGE.format(str(error).partition("\n")[0])) from error
        except duckdb.Error as error:
            raise UsageError(str(error)) from error


def run_query(home: Home, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and all rows of one statement. Raises UsageError as `open_query` does."""
    with open_query(home, sql) as answer:
        return answer.columns, list(answer.rows)


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
        hint = (
            " A PIVOT must name its values: PIVOT ... ON column IN (...)."
            if statement.type == duckdb.StatementType.MULTI
            else ""
        )
        raise UsageError(f"{statement.type.name} is not a read-only statement.{hint} {_ADVICE}")
    try:
        tree = orjson.loads(duck.scalar(con, "SELECT json_serialize_sql($1)", [statement.query]))
    except (duckdb.Error, orjson.JSONDecodeError) as error:
        raise UsageError(f"the statement cannot be examined: {error}") from error
    for node in _nodes(tree):
        kind = str(node.get("type", ""))
        if node.get("error") is True:
            raise UsageError(f"{node.get('error_message')}. {_ADVICE}")
        if kind.endswith("_NODE") and kind not in _READING_NODES:
            raise UsageError(
                f"{kind.removesuffix('_NODE').removesuffix('_QUERY')} inside a query is not read-only.  "
                f"{_ADVICE}"
            )
        if kind == "TABLE_FUNCTION" and not _READING_FUNCTIONS.fullmatch(
            name := str(node["function"]["function_name"]).lower()
        ):
            raise UsageError(f"the table function {name} is not known to be read-only.  {_ADVICE}")


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
        raise UsageError(f"found {counted(len(statements), 'statement')}, wanted one. {_ADVICE}")
    return statements[0]
