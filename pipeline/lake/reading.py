"""Read the lake through its views: sessions that see the lake only, and answers from one build."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import duckdb

from pipeline import duck, session
from pipeline.duck import literal
from pipeline.errors import UsageError
from pipeline.lake.builds import builds
from pipeline.lake.damage import damage_of, incomplete_runs
from pipeline.lake.database import failing_runs
from pipeline.lake.home import Home
from pipeline.lake.manifest import Manifest
from pipeline.lake.versions import checked
from pipeline.lake.views import home_of, left_out_of, make_views
from pipeline.text import printable

SPILL_LIMIT = "16GB"
"""The most that a reading session spills: an endless sort must not fill the disk."""
_TRIES = 20
_NAMED = 10
"""The most runs that one answer names as left out."""
NAMES = """
SELECT run_id, run_name FROM raw.trace
UNION
SELECT run_id, run_name FROM raw.microbench
ORDER BY ALL
"""
"""The id of each run, and the name that it was given when it was dropped."""
_T = TypeVar("_T")
_LEFT_OUT: ContextVar[Mapping[str, str]] = ContextVar("left_out", default=MappingProxyType({}))
"""Runs that sessions leave out besides those of the database, and why: `stable` found them while reading."""


def opened(home: Home) -> duckdb.DuckDBPyConnection:
    """The database of views, read-only. Raises UsageError where there is none yet, or another version or
    another place wrote it."""
    con = checked(home)
    found = _LEFT_OUT.get()
    if not found or found.keys() <= (recorded := left_out_of(con)).keys():
        return con
    con.close()
    with ExitStack() as opening:
        con = opening.enter_context(duck.database(Path(":memory:"), read_only=False))
        con.execute(f"SET memory_limit = {literal(duck.READ_MEMORY)}")
        con.execute(
            f"ATTACH ':memory:' AS {home.database.stem}; USE {home.database.stem}"
        )  # the name that the file's would have
        make_views(con, home, {**recorded, **found})
        opening.pop_all()
    return con


@contextmanager
def reading(home: Home) -> Iterator[duckdb.DuckDBPyConnection]:
    """A read-only session that sees the lake only: no other file, no extension, no changed setting.

    It spills into the system's temporary folder, so that it writes nothing into the home, which may belong to
    another user.
    """
    with session.folder() as spill, opened(home) as con:
        lake = home.raw.parent.resolve()
        con.execute(f"SET temp_directory = {literal(spill)}")
        con.execute(f"SET max_temp_directory_size = {literal(SPILL_LIMIT)}")
        con.execute(
            f"SET allowed_directories = [{literal(f'{lake}/')}, {duck.files(lake, '')}]"
        )  # files by name, and views' patterns
        con.execute("SET enable_external_access = false")
        con.execute("SET lock_configuration = true")
        yield con


def stable(home: Home, read: Callable[[], _T], *, across_runs: bool = False) -> _T:
    """Run `read` so that no build is replaced while it reads: a statement over several marts never mixes two
    builds.

    Where it fails because files of a run are damaged, it runs again without that run. `across_runs`: it reads
    runs that the user did not name, so runs that lack a file are left out as well, although reading them does
    not fail.
    """
    left_out: dict[str, str] = {}
    if across_runs:
        left_out = {
            run_id: str(damage)
            for run_id, damage in incomplete_runs(home, Manifest.load(home).serves).items()
        }
    for _ in range(_TRIES):
        before = builds(home)
        token = _LEFT_OUT.set(left_out)
        try:
            found = read()
        except (duckdb.Error, UsageError) as error:
            if builds(home) == before:
                left_out = left_out | failing_runs(home, error, left_out)
            continue
        finally:
            _LEFT_OUT.reset(token)
        if builds(home) == before:
            return found
    raise UsageError("runs are being rebuilt continuously; try again when the writer has finished")


def print_left_out(left_out: Mapping[str, str]) -> None:
    """Name on stderr the runs that an answer over all runs leaves out."""
    for run_id, why in [*left_out.items()][:_NAMED]:
        sys.stderr.write(f"left out: run {run_id}: {printable(why)}\n")
    if (more := len(left_out) - _NAMED) > 0:
        sys.stderr.write(f"left out: {more} more: run `stepledger status`\n")


def find_run(con: duckdb.DuckDBPyConnection, run: str) -> str:
    """The run_id that a user means. Raises UsageError for a run that does not exist, or cannot be read as it
    is."""
    run_id, home = known_run(con, run), home_of(con)
    why = left_out_of(con).get(run_id) or damage_of(home, run_id, Manifest.load(home).serves.get(run_id))
    if why is not None:
        raise UsageError(f"run {run_id}: {why}")
    return run_id


def known_run(con: duckdb.DuckDBPyConnection, run: str) -> str:
    """The run_id that a user means, also of a damaged run: exact, ignoring case, or by the name given when it
    was dropped."""
    if run == Path(run).name and next(home_of(con).raw_run(run).glob("file_id=*"), None) is not None:
        return run  # without reading anything: thousands of runs may have landed
    known: list[tuple[Any, ...]] = duck.rows(con, NAMES)
    folded = run.casefold()
    for matches in (
        {r[0] for r in known if r[1] == run},
        {r[0] for r in known if r[0].casefold() == folded},
    ):
        if len(matches) == 1:
            return str(matches.pop())
    names = ", ".join(sorted({r[0] for r in known})) or "none yet"
    raise UsageError(f"no run {run!r}; known runs: {names}")


def run_id_of(home: Home, run: str, find: Callable[[duckdb.DuckDBPyConnection, str], str] = find_run) -> str:
    """The run_id that a user means, for commands that go on without the database. Raises UsageError as `find`
    does."""

    def read() -> str:
        with opened(home) as con:
            return find(con, run)

    return stable(home, read)
