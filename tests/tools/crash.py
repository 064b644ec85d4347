"""Kill the command at a chosen point: a process that works on a home and dies at its n-th access to the
filesystem there.

Every opening, renaming, making and removing of a file or folder of the home by Python is a point, and so is
the moment before each COPY, since DuckDB writes past Python. `python -m tests.tools.crash --points 100`
(`make soak`) kills the processing of an inbox at a hundred points spread over ingest, build, check and
export, lets another process continue, and compares.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

import duckdb

from pipeline import duck
from pipeline.contracts import contracts
from pipeline.lake.home import Home
from pipeline.lake.reading import opened
from pipeline.progress import Progress
from tests.support.homes import drop, fingerprint, mart_rows, pair, rank_trace

EVENTS = {
    "open",
    "os.rename",
    "os.mkdir",
    "os.remove",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.chmod",
    "os.chown",
}
CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(["pipeline.ingest.ingest", "pipeline.present.export"])


def filled(root: Path) -> Home:
    """A home with an inbox: two ranks, a loose file, one that is no trace, a side file, facts about the
    run."""
    home = Home(root)
    home.ensure()
    with tempfile.TemporaryDirectory() as folder:
        for path in pair(Path(folder)):
            drop(home, path, f"serve/{path.name}")
        drop(home, rank_trace(Path(folder) / "loose.json", 0, ranks=1, seed=3), "loose-rank-0.json")
        for name, text in (
            ("serve/bad.json", '{"traceEvents": 3}'),
            ("serve/profiler_out_0.txt", "x"),
            ("serve/run.toml", "layers = 2\n"),
        ):
            (Path(folder) / "made").write_text(text)
            drop(home, Path(folder) / "made", name)
    return home


def process_inbox(home: Home) -> None:
    """What `stepledger run` does: ingest, build, check, export."""
    from pipeline.ingest.ingest import drain
    from pipeline.present.export import export_built

    quiet = Progress(quiet=True)
    export_built(home, drain(home, quiet).verdicts, quiet.say)


def finish(home: Home) -> None:
    """What the next start does; every run is exported again, as a user would do who finds no export."""
    from pipeline.present.export import DEFAULT_MART, export_run

    process_inbox(home)
    for run_id in home.run_ids():
        export_run(home, run_id, DEFAULT_MART, "csv", None, wide=False)


def contents(home: Home) -> dict[str, Any]:
    """Everything in a home except times and ids of builds."""
    found: dict[str, Any] = {f"marts.{name}": rows for name, rows in mart_rows(home).items()}
    with opened(home) as con:
        for table in contracts("raw"):
            without = "* EXCLUDE (ingested_at)" if table == "trace" else "*"
            found[f"raw.{table}"] = duck.rows(con, f"SELECT {without} FROM raw.{table} ORDER BY ALL")
        found["quality"] = duck.rows(
            con, 'SELECT run_id, "check", severity, is_passed, failing_rows FROM quality ORDER BY ALL'
        )
        found["facts"] = duck.rows(con, "FROM run_config ORDER BY ALL")
    for folder in (home.inbox, home.archive, home.quarantine, home.exports):
        found[folder.name] = {k: v for k, v in fingerprint(folder).items() if not k.endswith("manifest.json")}
        found[f"{folder.name}, names"] = sorted(fingerprint(folder))
    found["reasons"] = sorted(p.name for p in home.reasons.iterdir())
    return found


def debris(home: Home) -> list[str]:
    """What a finished home may not hold: unfinished work, asides, locks of scratch folders. Replaced builds
    wait for their time."""
    waiting = [p.name for p in home.staging.iterdir() if not p.name.startswith("old-")]
    hidden = [p.name for p in home.root.rglob(".*") if p.name not in {".staging", ".lock", ".watch.lock"}]
    return sorted(waiting + hidden)


@contextmanager
def counted(root: Path, hit: Callable[[], None]) -> Iterator[None]:
    """Call `hit` at every point from now on; the process ends afterwards, since an audit hook stays."""
    place = os.fspath(root)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event in EVENTS and any(
            isinstance(a, str) and _is_of_home(a, place) for a in map(_as_text, arguments)
        ):
            hit()

    working = duck.working

    def counting(spill: Path, **options: Any) -> Any:
        return _Counting(working(spill, **options), hit)

    sys.addaudithook(hook)
    duck.working = counting
    yield


def _is_of_home(path: str, home: str) -> bool:
    """Below the home, by a path or from the descriptor of a folder in it."""
    return path.startswith((home, "/proc/self/fd/")) or not path.startswith("/")


def _as_text(argument: object) -> object:
    return os.fspath(argument) if isinstance(argument, os.PathLike) else argument


class _Counting:
    """A connection that says when it is about to write a file."""

    def __init__(self, con: duckdb.DuckDBPyConnection, hit: Callable[[], None]) -> None:
        self._con, self._hit = con, hit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._con, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._con.close()

    def execute(self, query: str, *rest: Any) -> Any:
        """As DuckDB's own."""
        if "COPY" in query:
            self._hit()
        return self._con.execute(query, *rest)


def _run(root: Path, at: int, count_file: Path | None) -> None:
    touched = 0

    def hit() -> None:
        nonlocal touched
        touched += 1
        if touched == at:
            os.kill(os.getpid(), signal.SIGKILL)

    with counted(root, hit):
        process_inbox(Home(root))
    if count_file is not None:
        count_file.write_text(str(touched))


def killed_at(root: Path, at: int) -> bool:
    """Process the inbox in a process that dies at point `at`; False if it finished before."""
    process = CONTEXT.Process(target=_run, args=(root, at, None))
    process.start()
    process.join()
    return process.exitcode == -signal.SIGKILL


def points(root: Path, count_file: Path) -> int:
    """Process the inbox undisturbed, and return how many points that has."""
    process = CONTEXT.Process(target=_run, args=(root, 0, count_file))
    process.start()
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"undisturbed work ended with {process.exitcode}")
    return int(count_file.read_text())


def difference(root: Path, at: int, expected: dict[str, Any]) -> str | None:
    """Kill at `at`, continue, and return what is wrong, if anything."""
    home = filled(root)
    if not killed_at(root, at):
        return f"point {at} was never reached"
    finish(home)
    found = contents(home)
    if left := debris(home):
        return f"point {at}: debris: {left}"
    wrong = [name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)]
    return f"point {at}: not as undisturbed: {sorted(wrong)}" if wrong else None


def main() -> int:
    """Kill at many points; exit 1 if any of them left a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=100)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        home = filled(folder / "undisturbed")
        total = points(home.root, folder / "points")
        finish(home)
        expected = contents(home)
        wrong = []
        wanted = sorted(
            {1 + number * (total - 1) // max(1, chosen.points - 1) for number in range(chosen.points)}
        )
        for at in wanted:
            root = folder / "home"
            if found := difference(root, at, expected):
                wrong.append(found)
                print(found, flush=True)
            shutil.rmtree(root)
        print(f"killed at {len(wanted)} of {total} points: {len(wrong)} left a difference")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
