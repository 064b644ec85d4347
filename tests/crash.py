"""Kill the command at a chosen point: a process that works on a home and dies at its n-th touch of the filesystem there.

Every opening, renaming, making and removing of a file or folder of the home is a point; so are the moments just before
DuckDB writes (it does not go through Python's files). `python -m tests.crash` does it at many points: see `main`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import duckdb

from pipeline.home import Home
from pipeline.progress import Progress

EVENTS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.listdir", "os.scandir", "shutil.rmtree", "shutil.move"}


def work_off(home: Home) -> None:
    """What `stepledger run` does with an inbox: ingest, build, check, export."""
    from pipeline.export import DEFAULT_MART, export_run
    from pipeline.ingest import drain

    outcome = drain(home, Progress(quiet=True))
    for run_id in outcome.built:
        export_run(home, run_id, DEFAULT_MART, "csv", None, wide=False)


def _counted(home: Home, hit: Callable[[], None]) -> None:
    """Call `hit` at every point from now on."""
    root = os.fspath(home.root)

    def heard(event: str, arguments: tuple[object, ...]) -> None:
        if event in EVENTS and any(isinstance(a, (str, os.PathLike)) and os.fspath(a).startswith(root) for a in arguments):
            hit()

    sys.addaudithook(heard)
    execute = duckdb.DuckDBPyConnection.execute

    def counted(con: duckdb.DuckDBPyConnection, query: object, *rest: object) -> duckdb.DuckDBPyConnection:
        if isinstance(query, str) and "COPY" in query:
            hit()
        return execute(con, query, *rest)  # type: ignore[arg-type]

    duckdb.DuckDBPyConnection.execute = counted  # type: ignore[method-assign,assignment]


def _run_and_die(root: Path, at: int, count_to: Path | None, work: Callable[[Home], None]) -> None:
    touched = 0

    def hit() -> None:
        nonlocal touched
        touched += 1
        if touched == at:
            os.kill(os.getpid(), signal.SIGKILL)

    home = Home(root)
    _counted(home, hit)
    work(home)
    if count_to is not None:
        count_to.write_text(str(touched))


def killed_at(root: Path, at: int, work: Callable[[Home], None] = work_off) -> bool:
    """Do `work` on the home in a process of its own that dies at point `at`; False if it ended before."""
    process = get_context("forkserver").Process(target=_run_and_die, args=(root, at, None, work))
    process.start()
    process.join()
    return process.exitcode == -signal.SIGKILL


def points(root: Path, scratch: Path, work: Callable[[Home], None] = work_off) -> int:
    """Do `work` on the home undisturbed, and return how many points it has."""
    process = get_context("forkserver").Process(target=_run_and_die, args=(root, 0, scratch, work))
    process.start()
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"the undisturbed run failed: {process.exitcode}")
    return int(scratch.read_text())
