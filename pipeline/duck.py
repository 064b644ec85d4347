"""The one place that opens DuckDB, and the few habits all code shares: finish every result, quote every literal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import duckdb

_OFFLINE = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
"""Extensions are never fetched: where our users are there is often no network, and a missing one must say so."""


def working(spill: Path, *, threads: int, memory_limit: str) -> duckdb.DuckDBPyConnection:
    """An in-memory database for reading or building: bounded memory, spilling to `spill`; row order is not kept."""
    con = duckdb.connect(
        config={
            "threads": threads,
            "memory_limit": memory_limit,
            "temp_directory": str(spill),
            "preserve_insertion_order": False,
            **_OFFLINE,
        }
    )
    con.execute("SET asof_loop_join_threshold = 0")  # a small left side would make ASOF joins quadratic in the right one
    return con


def database(path: Path, *, read_only: bool) -> duckdb.DuckDBPyConnection:
    """A database file. New ones are written in the storage format that DuckDB 1.5 can read too."""
    config: dict[str, Any] = dict(_OFFLINE)
    if not read_only:
        config["storage_compatibility_version"] = "v1.5.0"
    return duckdb.connect(str(path), read_only=read_only, config=config)


def rows(con: duckdb.DuckDBPyConnection, sql: str, params: list[Any] | dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
    """All rows of one query; leaves nothing open on the connection."""
    return con.execute(sql, params or []).fetchall() if params else con.execute(sql).fetchall()


def scalar(con: duckdb.DuckDBPyConnection, sql: str, params: list[Any] | None = None) -> Any:
    """The one value of a query with one row, or None."""
    found = rows(con, sql, params)
    return found[0][0] if found else None


def dicts(con: duckdb.DuckDBPyConnection, sql: str, params: list[Any] | None = None) -> list[dict[str, Any]]:
    """All rows of one query as dicts."""
    con.execute(sql, params) if params else con.execute(sql)
    columns = [d[0] for d in con.description or []]
    return [dict(zip(columns, row, strict=True)) for row in con.fetchall()]


def files(folder: Path, pattern: str) -> str:
    """A SQL literal of the files in `folder` that match `pattern`; the folder's own name is no pattern, whatever is in it."""
    return literal(f"{plain(folder)}/{pattern}")


def plain(path: Path) -> str:
    """A path in which DuckDB sees no pattern."""
    return re.sub(r"([\[*?])", r"[\1]", str(path))


def literal(value: object) -> str:
    """A SQL literal."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (int, float)) else "'" + str(value).replace("'", "''") + "'"
