"""Rows in, rows out: the SQL of questions over marts made of literal rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import duckdb

from pipeline.analyses import sql
from pipeline.contracts import contracts
from tests.support.tables import Result, Tables, insert, shapes

RUN = {"run_id": "run", "source": "kineto"}
DECODE = RUN | {"phase": "decode"}


@contextmanager
def marts(tables: Tables) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection whose tables hold these rows; tables that are not named are empty."""
    con = shapes()
    con.execute("BEGIN")
    try:
        con.execute(f"CREATE TABLE quality AS {contracts('quality')['quality'].empty_query()}")
        con.execute("CREATE TABLE runs AS SELECT *, NULL::VARCHAR AS verdict FROM run_facts")
        for table, rows in tables.items():
            insert(con, table, rows)
        yield con
    finally:
        con.execute("ROLLBACK")


def ask(question: str, tables: Tables, **parameters: Any) -> Result:
    """The rows of one question over these tables."""
    with marts(tables) as con:
        return sql.rows(con, question, **parameters)
