"""Errors at a chosen point: a watcher works on a home, and its n-th touch of the file system or DuckDB there
fails once.

`python -m tests.tools.faults --points 100` (`make soak`) does that at a hundred points spread over ingest,
build, check and export, lets the same process go on, and compares with undisturbed work. `run` is a watcher's
round and an export.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import duckdb

from pipeline.lake.home import Home
from pipeline.progress import Progress
from tests.support.homes import HANG_S, settled
from tests.tools.crash import CONTEXT, contents, counted, debris, filled, finish, points

ROUNDS = 12
KINDS = ("EIO", "ENOSPC", "EACCES", "duckdb")


def fault(kind: str) -> Exception:
    """The error that is put in."""
    if kind == "duckdb":
        return duckdb.IOException("IO Error: put in by a test")
    number = getattr(errno, kind)
    return OSError(number, os.strerror(number))


def _watch(root: Path, at: int, kind: str, result: Path) -> None:
    """A watcher that runs until nothing is left to do, and writes the error that escaped it to `result`."""
    from pipeline.ingest import watch
    from pipeline.ingest.execution import ExecutionConfig
    from pipeline.ingest.quarantine import quarantined, retry
    from pipeline.present.export import export_built

    touched = 0

    def hit() -> None:
        nonlocal touched
        touched += 1
        if touched == at:
            raise fault(kind)

    watch.QUIET_SECONDS = watch.RETRY_SECONDS = watch.LONGEST_RETRY_SECONDS = 0.0
    home, quiet = Home(root), Progress(quiet=True)
    made = watch.Watcher(
        home, ExecutionConfig(), quiet, lambda outcome: export_built(home, outcome.verdicts, quiet.say)
    )
    try:
        with counted(root, hit):
            for _ in range(ROUNDS):
                made.cycle()
        for name, found in quarantined(
            home
        ).items():  # an error while a file is read is the file's: it is tried again
            if "retry" in found.error:
                settled(home.inbox / retry(home, [name])[0])
        for _ in range(ROUNDS):
            made.cycle()
        result.write_text("" if touched >= at else f"only {touched} points")
    except BaseException:
        result.write_text(traceback.format_exc())


def difference(root: Path, at: int, kind: str, expected: dict[str, Any]) -> str | None:
    """Inject an error at `at`, and return what is wrong, if anything."""
    home = filled(root)
    result = root.with_name(f"{root.name}.result")
    process = CONTEXT.Process(target=_watch, args=(root, at, kind, result))
    process.start()
    process.join(HANG_S)
    if process.is_alive():
        process.kill()
        return f"{kind} at point {at}: the watcher hangs"
    if escaped := result.read_text():
        return f"{kind} at point {at}: {escaped}"
    finish(home)  # in another process, which must find the lock free
    found = contents(home)
    if left := debris(home):
        return f"{kind} at point {at}: debris: {left}"
    wrong = [name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)]
    return f"{kind} at point {at}: not as undisturbed: {sorted(wrong)}" if wrong else None


def main() -> int:
    """Inject errors at many points; exit 1 if any of them left a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=100)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        home = filled(folder / "undisturbed")
        total = points(home.root, folder / "points")
        finish(home)
        expected = contents(home)
        wanted = sorted(
            {1 + number * (total - 1) // max(1, chosen.points - 1) for number in range(chosen.points)}
        )
        wrong = 0
        for number, at in enumerate(wanted):
            if found := difference(folder / f"home-{number}", at, KINDS[number % len(KINDS)], expected):
                wrong += 1
                print(found, flush=True)
        print(f"errors at {len(wanted)} of {total} points: {wrong} left a difference")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
