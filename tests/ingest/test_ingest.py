"""Ingest: an error of one file does not affect others, and a kill at any time neither loses nor duplicates
data."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest

from pipeline.errors import ContractError, ExitCode, ModelError
from pipeline.ingest import quarantine, tasks
from pipeline.ingest.execution import ExecutionConfig
from pipeline.ingest.executors import A, B, Done, Processes, WorkerDied
from pipeline.ingest.inbox import InboxItem
from pipeline.ingest.ingest import build, drain, ingest, stale
from pipeline.ingest.land import land
from pipeline.ingest.quarantine import quarantined
from pipeline.ingest.tasks import Landing
from pipeline.lake.database import write_database
from pipeline.lake.home import Home
from pipeline.lake.moving import move
from pipeline.lake.settings import Settings
from pipeline.lake.tidy import forget
from pipeline.models.build import build_run
from pipeline.progress import Progress
from tests.support.homes import command, drop, environment, mart_rows, pair, rank_trace

QUIET = Progress(quiet=True)


def bad(path: Path) -> Path:
    """A file that is no trace."""
    path.write_bytes(b'{"traceEvents": [{"ph": "X"')
    return path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home whose inbox was drained in one go."""
    folder = tmp_path_factory.mktemp("undisturbed")
    home = Home(folder / "home")
    home.ensure()
    for path in pair(folder):
        drop(home, path, f"run/{path.name}")
    assert drain(home, QUIET).built == ["run"]
    return home


def test_one_bad_file_does_not_stop_the_others(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The good file is landed, built and archived; the bad one is quarantined and decides the exit code."""
    drop(home, bad(tmp_path / "bad.json"), "run/a-bad.json")
    drop(home, rank_trace(tmp_path / "good-rank-0.json", ranks=1), "run/good-rank-0.json")
    outcome = drain(home, Progress())
    assert (outcome.runs, outcome.built, outcome.codes) == (["run"], ["run"], [ExitCode.TRACE])
    assert [p.name for p in (home.archive / "run").iterdir()] == ["good-rank-0.json"]
    assert list(quarantined(home)) == ["run/a-bad.json"]
    err = capsys.readouterr().err
    assert "quarantined: a-bad.json" in err
    assert "read: good-rank-0.json into run run" in err


def test_each_file_is_an_event_of_the_log(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its run, its place below the inbox, and the exit code of its failure."""
    drop(home, bad(tmp_path / "bad.json"), "run/a-bad.json")
    drop(home, rank_trace(tmp_path / "good-rank-0.json", ranks=1), "run/good-rank-0.json")
    (home.inbox / "run" / "b.json.part").write_text("")
    drain(home, Progress(json_log=True))
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["event"], line["run"], line["file"], line["code"]) for line in lines] == [
        ("left_in_place", "run", "run/b.json.part", None),
        ("quarantined", "run", "run/a-bad.json", 3),
        ("read", "run", "run/good-rank-0.json", None),
    ]


def test_a_breach_of_contract_does_not_stop_the_others(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is our fault and not the file's: it stays in the inbox, and the next file is read."""

    def one_fails(where: Home, path: Path, *rest: object, **options: object) -> object:
        if path.name == "a.json":
            raise ContractError("raw.launch: columns differ")
        return land(where, path, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(tasks, "land", one_fails)
    first = drop(home, rank_trace(tmp_path / "a.json"), "run/a.json")
    drop(home, rank_trace(tmp_path / "b.json", 1), "run/b.json")
    outcome = drain(home, QUIET)
    assert (outcome.built, outcome.codes) == (["run"], [ExitCode.MODEL])
    assert first.is_file()


@pytest.mark.parametrize(
    ("is_bad", "codes"), [(True, [ExitCode.TRACE, ExitCode.USAGE]), (False, [ExitCode.USAGE])]
)
def test_a_file_that_cannot_be_moved_does_not_stop_the_others(
    home: Home,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_bad: bool,
    codes: list[ExitCode],
) -> None:
    """It stays where it is, with a message; the next file is read and archived."""

    def one_fails(root: Path, source: Path, *rest: Any, **options: Any) -> Path:
        if source.name == "a.json":
            raise PermissionError(13, "Permission denied")
        return move(root, source, *rest, **options)

    monkeypatch.setattr(quarantine, "move", one_fails)
    first = drop(home, (bad if is_bad else rank_trace)(tmp_path / "a.json"), "run/a.json")
    drop(home, rank_trace(tmp_path / "b.json", 1), "run/b.json")
    outcome = drain(home, Progress())
    assert (outcome.built, outcome.codes) == (["run"], codes)
    assert first.is_file()
    assert [p.name for p in (home.archive / "run").iterdir()] == ["b.json"]
    assert "run/a.json: cannot be moved" in capsys.readouterr().err


def test_files_outside_the_inbox_are_left_where_they_are(home: Home, tmp_path: Path) -> None:
    """Good or bad; the exit code still reports the bad one."""
    paths = [bad(tmp_path / "bad.json"), rank_trace(tmp_path / "good.json", ranks=1)]
    outcome = ingest(home, [InboxItem(p, "run", Path("run") / p.name) for p in paths], QUIET)
    assert (outcome.built, outcome.codes) == (["run"], [ExitCode.TRACE])
    assert all(p.is_file() for p in paths)
    assert list(home.quarantine.iterdir()) == []


def test_worker_processes_make_what_one_process_makes(undisturbed: Home, tmp_path: Path) -> None:
    """Two workers read, build and check; raw tables and marts are the same, no matter which is first."""
    home = Home(tmp_path / "home")
    home.ensure()
    for path in sorted((undisturbed.archive / "run").iterdir()):
        drop(home, path, f"run/{path.name}")
        drop(home, path, f"again/{path.name}")
    drop(home, bad(tmp_path / "bad.json"), "run/bad.json")
    outcome = drain(home, QUIET, ExecutionConfig(Processes(2), Settings(workers=2), worth_bytes=0))
    assert (sorted(outcome.built), sorted(outcome.verdicts), outcome.codes) == (
        ["again", "run"],
        ["again", "run"],
        [ExitCode.TRACE],
    )
    forget(home, "again")
    write_database(home)
    assert mart_rows(home) == mart_rows(undisturbed)
    assert list(home.inbox.iterdir()) == []


def test_the_same_bytes_at_once_are_landed_once(home: Home, tmp_path: Path) -> None:
    """Two workers read equal files of one run at the same time: both are archived, one is in the lake."""
    trace = rank_trace(tmp_path / "x.json", ranks=1)
    for name in "ab":
        drop(home, trace, f"run/{name}.json")
    outcome = drain(home, QUIET, ExecutionConfig(Processes(2), Settings(workers=2), worth_bytes=0))
    assert outcome.codes == []
    assert len(list(home.raw_run("run").iterdir())) == 1
    assert len(list((home.archive / "run").iterdir())) == 2


def test_names_that_differ_in_case_alone_are_two_runs_for_workers_too(home: Home, tmp_path: Path) -> None:
    """The folder of each run is chosen before the work is given out."""
    for number, run in enumerate(("Serve", "serve")):
        drop(home, rank_trace(tmp_path / f"{number}.json", ranks=1, seed=number), f"{run}/x.json")
    drain(home, QUIET, ExecutionConfig(Processes(2), Settings(workers=2), worth_bytes=0))
    assert len({run.casefold() for run in home.run_ids()}) == 2


def test_a_file_that_kills_its_reader_is_quarantined_and_the_others_are_read(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was tried twice, the second time alone; the note says that the process was killed."""

    class Fragile(Processes):
        def run(self, work: Callable[[A], B], items: Sequence[A]) -> Iterator[Done[A, B]]:
            for item in items:
                is_killer = isinstance(item, Landing) and item.path.name == "bad.json"
                yield (
                    Done(item, error=WorkerDied("the process was killed"))
                    if is_killer
                    else Done(item, value=work(item))
                )

    drop(home, rank_trace(tmp_path / "good.json", ranks=1), "run/good.json")
    drop(home, bad(tmp_path / "bad.json"), "run/bad.json")
    outcome = drain(home, QUIET, ExecutionConfig(Fragile(2), Settings(workers=2), worth_bytes=0))
    assert (outcome.built, outcome.codes) == (["run"], [ExitCode.TRACE])
    assert "the process was killed" in quarantined(home)["run/bad.json"].error


def test_a_commit_without_archive_is_finished_on_the_next_start(
    undisturbed: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bytes that are in the lake already go to the archive, and nothing is built again."""
    home = Home(tmp_path / "home")
    shutil.copytree(undisturbed.root, home.root)
    for path in list((home.archive / "run").iterdir()):
        drop(home, path, f"run/{path.name}")
        path.unlink()
    outcome = drain(home, Progress())
    assert (outcome.runs, outcome.built, outcome.codes) == (["run"], [], [])
    assert len(list((home.archive / "run").iterdir())) == 2
    assert list(home.inbox.iterdir()) == []
    assert capsys.readouterr().err.count("the same bytes are already in that run") == 2
    assert mart_rows(home) == mart_rows(undisturbed)


def test_a_run_that_landed_but_was_not_built_is_built_on_the_next_start(home: Home, tmp_path: Path) -> None:
    """Killed between commit and build: nothing waits in the inbox, yet the run is found."""
    land(
        home,
        rank_trace(tmp_path / "x.json", ranks=1),
        "run",
        lambda _count: None,
        threads=1,
        memory_limit="256MB",
    )
    assert stale(home) == ["run"]
    assert drain(home, QUIET).built == ["run"]
    assert stale(home) == []


def test_a_failing_model_is_reported_and_the_old_marts_stay(
    undisturbed: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 4, with the run and the model named; people still read the last good build."""
    home = Home(tmp_path / "home")
    shutil.copytree(undisturbed.root, home.root)

    def fail(*_rest: object, **_options: object) -> str:
        raise ModelError("sql/marts/steps.sql: division by zero")

    monkeypatch.setattr(tasks, "build_run", fail)
    outcome = build(home, ["run"], Progress())
    assert (outcome.built, outcome.codes) == ([], [ExitCode.MODEL])
    assert "run run: sql/marts/steps.sql" in capsys.readouterr().err
    assert mart_rows(home) == mart_rows(undisturbed)


def _appears(pattern: str) -> Callable[[Home, float], bool]:
    return lambda home, _since: any(True for _ in home.root.glob(pattern))


def _after(seconds: float) -> Callable[[Home, float], bool]:
    return lambda _home, since: time.monotonic() - since > seconds


_RANDOM = random.Random(20261130)  # noqa: S311 - a seed, so that the instant is the same in every run
_POINTS = {
    "staging": _appears("lake/.staging/*/work"),
    "first file committed": _appears("lake/raw/run_id=run/file_id=*"),
    "marts being written": _appears("lake/.staging/*/out/activity.parquet"),
    "marts in place": _appears("lake/marts/run_id=run"),
    "some time": _after(_RANDOM.uniform(0.5, 2.5)),
}


@pytest.mark.parametrize("point", _POINTS)
def test_after_a_kill_the_next_run_reaches_the_same_marts(
    undisturbed: Home, tmp_path: Path, point: str
) -> None:
    """kill -9 of a real `stepledger run`, then one more run: the marts are those of a run that no one
    disturbed."""
    home = Home(tmp_path / "home")
    home.ensure()
    for path in pair(tmp_path):
        drop(home, path, f"run/{path.name}")
    since = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "pipeline", "--home", str(home.root), "run"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(),
    ) as process:
        while process.poll() is None and not _POINTS[point](home, since):
            time.sleep(0.001)
        process.kill()
    assert drain(home, QUIET).codes == []
    assert list(home.inbox.iterdir()) == []
    assert sorted(p.name for p in (home.archive / "run").iterdir()) == [
        "serve-rank-0.json",
        "serve-rank-1.json",
    ]
    assert [p.name for p in home.staging.iterdir() if not p.name.startswith("old-")] == []
    assert mart_rows(home) == mart_rows(undisturbed)


def test_an_empty_inbox_still_leaves_a_warehouse_that_can_be_queried(home: Home) -> None:
    """The first `run` of a curious user is no failure."""
    done = command("--home", home.root, "run")
    assert (done.returncode, done.stdout) == (0, "")
    assert "nothing new" in done.stderr
    assert command("--home", home.root, "runs", "--format", "json").stdout == "[]\n"


def test_a_bug_of_ours_costs_one_file(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its traceback is printed, exit code 1; the file is quarantined, so that it is not read again and
    again."""

    def wrong(where: Home, path: Path, *rest: object, **options: object) -> object:
        if path.name == "a.json":
            raise KeyError("oops")
        return land(where, path, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(tasks, "land", wrong)
    drop(home, rank_trace(tmp_path / "a.json"), "run/a.json")
    drop(home, rank_trace(tmp_path / "b.json", 1), "run/b.json")
    outcome = drain(home, Progress())
    assert (outcome.built, ExitCode.BUG in outcome.codes) == (["run"], True)
    assert "a bug in stepledger: 'oops' (KeyError)" in quarantined(home)["run/a.json"].error
    assert "Traceback" in capsys.readouterr().err


def test_a_bug_in_one_build_costs_one_run(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run is built; exit code 1."""
    for run in ("one", "two"):
        drop(home, rank_trace(tmp_path / f"{run}.json", ranks=1), f"{run}/t-rank-0.json")

    def wrong(where: Home, run_id: str, *rest: Any) -> str:
        if run_id == "one":
            raise KeyError("oops")
        return build_run(where, run_id, *rest)

    monkeypatch.setattr(tasks, "build_run", wrong)
    outcome = drain(home, QUIET)
    assert (outcome.built, outcome.codes) == (["two"], [ExitCode.BUG])


@pytest.mark.parametrize(
    "error", [OSError(5, "Input/output error", "x.parquet"), duckdb.IOException("IO Error: x"), MemoryError()]
)
def test_an_error_of_the_system_in_one_build_is_of_that_run(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It is a ModelError that says what happened; the other run is built."""
    for run in ("one", "two"):
        drop(home, rank_trace(tmp_path / f"{run}.json", ranks=1), f"{run}/t-rank-0.json")

    def failing(where: Home, run_id: str, *rest: Any) -> str:
        if run_id == "one":
            raise error
        return build_run(where, run_id, *rest)

    monkeypatch.setattr(tasks, "build_run", failing)
    outcome = drain(home, QUIET)
    assert (outcome.built, outcome.codes) == (["two"], [ExitCode.MODEL])


@pytest.mark.parametrize(
    ("place", "codes"),
    [("lake/.staging/x/out", [ExitCode.USAGE]), ("lake/.staging/x/in/a.json", [ExitCode.TRACE])],
)
def test_an_error_of_the_lake_is_not_the_files_fault(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, codes: list[ExitCode]
) -> None:
    """A folder of ours that cannot be made leaves the file in the inbox; a file that cannot be read is
    quarantined."""

    def failing(*_rest: object, **_options: object) -> object:
        raise OSError(5, "Input/output error", str(home.root / place))

    monkeypatch.setattr(tasks, "land", failing)
    path = drop(home, rank_trace(tmp_path / "a.json"), "run/a.json")
    assert drain(home, QUIET).codes == codes
    assert path.exists() == (codes == [ExitCode.USAGE])
