"""The one place that opens DuckDB, and the few habits all code shares: finish every result, quote every
literal."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import duckdb

from pipeline import session
from pipeline.errors import ExitCode, UsageError

READ_MEMORY = "2GB"
"""Memory of a session that reads the database of views: beyond it spills, and fails where it cannot spill."""
STOP_S = 2.0
"""How long a statement may take to stop. DuckDB checks for an interrupt between chunks of rows, not inside
one function call."""
_T = TypeVar("_T")
_OFFLINE = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
"""Extensions are never downloaded: many users have no network, and a missing extension must be reported."""


NO_SELF_JOINED_WINDOWS = "SET disabled_optimizers = 'window_self_join'"
"""DuckDB 2.0.1 makes `count(*) OVER (PARTITION BY x)` a join of its input with itself, and the copy of the
input forgets a filter that pruned files (on a hive partition, or a file name): every row of every file is
counted, without an error."""


def working(spill: Path, *, threads: int, memory_limit: str) -> duckdb.DuckDBPyConnection:
    """An in-memory database for reading or building: bounded memory, spilling to `spill`; row order is not
    kept."""
    con = duckdb.connect(
        config={
            "threads": threads,
            "memory_limit": memory_limit,
            "temp_directory": str(spill),
            "preserve_insertion_order": False,
            **_OFFLINE,
        }
    )
    con.execute(NO_SELF_JOINED_WINDOWS)
    con.execute(
        "SET asof_loop_join_threshold = 0"
    )  # a small left side would make ASOF joins quadratic in the right one
    return con


def in_memory() -> duckdb.DuckDBPyConnection:
    """A connection for a few small files, or none; it makes no tables.

    Opening a database takes 20 ms, so a process has one.
    """
    return _small(os.getpid()).cursor()


@cache
def _small(_process: int) -> duckdb.DuckDBPyConnection:
    # Files are replaced under their names, so nothing of them may be kept.
    return duckdb.connect(config={**_OFFLINE, "threads": 1, "enable_external_file_cache": False})


def database(path: Path, *, read_only: bool) -> duckdb.DuckDBPyConnection:
    """A database file. New ones are written in the storage format that DuckDB 1.5 can read too."""
    config: dict[str, Any] = dict(_OFFLINE)
    if read_only:
        config["memory_limit"] = READ_MEMORY
    else:
        config["storage_compatibility_version"] = "v1.5.0"
    con = duckdb.connect(str(path), read_only=read_only, config=config)
    con.execute(NO_SELF_JOINED_WINDOWS)
    return con


class Patience:
    """Waits for long calls into DuckDB: each runs in a thread of its own, so that the waiting thread can
    react to Ctrl-C and the limit.

    The limit starts now and covers all calls and what is done between them; 0 is none. A call that cannot be
    stopped then ends the process, after the folders of its sessions are removed.
    """

    def __init__(self, limit_s: float, advice: str) -> None:
        self._latest, self._advice = time.monotonic() + limit_s if limit_s else None, advice

    def wait(self, call: Callable[[], _T], interrupt: Callable[[], None]) -> _T:
        """What `call` returns or raises. When it has ended: UsageError at the limit, and KeyboardInterrupt.

        Raises MemoryError where there is none left for a thread.
        """
        result: Future[_T] = Future()
        try:
            Thread(target=_carry_out, args=(call, result), daemon=True).start()
        except RuntimeError as error:
            raise MemoryError(str(error)) from error
        try:
            return result.result(None if self._latest is None else max(0.0, self._latest - time.monotonic()))
        except TimeoutError:
            _stop(result, interrupt, ExitCode.USAGE, f"stepledger: error: {self._advice}\n")
            raise UsageError(self._advice) from None
        except KeyboardInterrupt:
            _stop(result, interrupt, ExitCode.INTERRUPTED, "")
            raise


def _carry_out(call: Callable[[], _T], result: Future[_T]) -> None:
    try:
        result.set_result(call())
    except BaseException as error:  # raised again by the waiting thread
        result.set_exception(error)


def _stop(result: Future[Any], interrupt: Callable[[], None], code: ExitCode, text: str) -> None:
    """Interrupt a call until it ends; one that does not end takes the process with it, since closing would
    wait for it."""
    try:
        latest = time.monotonic() + STOP_S
        while time.monotonic() < latest:
            interrupt()  # again and again: one that comes before the statement has begun is forgotten
            if wait_for([result], 0.05).done:
                return
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    session.remove_held()
    sys.stderr.write(text)
    sys.stderr.flush()
    os._exit(int(code))


def rows(
    con: duckdb.DuckDBPyConnection, sql: str, params: list[Any] | dict[str, Any] | None = None
) -> list[tuple[Any, ...]]:
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
    """A SQL literal of the files in `folder` that match `pattern`; the folder's own name is no pattern,
    whatever is in it."""
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
