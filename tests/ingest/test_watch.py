"""The watcher: files that arrive are processed, runs are built when they have settled, signals stop it in
good order."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from pipeline.errors import ExitCode, HomeError, UsageError
from pipeline.ingest import inbox, watch
from pipeline.ingest.execution import ExecutionConfig, Outcome
from pipeline.ingest.ingest import land_inbox
from pipeline.ingest.quarantine import quarantined, retry
from pipeline.ingest.tasks import Landing
from pipeline.ingest.watch import Stop, Watcher
from pipeline.lake.home import Home
from pipeline.progress import Progress
from tests.support.homes import HANG_S, drop, environment, mart_rows, pair, rank_trace, settled

QUIET = Progress(quiet=True)


class Clock:
    """Time that passes on request."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The watcher's clock."""
    made = Clock()
    monkeypatch.setattr("pipeline.ingest.watch.time.monotonic", made.monotonic)
    return made


def watcher(home: Home, built: list[str] | None = None, progress: Progress = QUIET) -> Watcher:
    """A watcher whose cycles a test turns by hand."""
    home.ensure()
    into: list[str] = [] if built is None else built
    return Watcher(home, ExecutionConfig(), progress, lambda outcome: into.extend(outcome.built))


def test_a_run_is_built_when_it_has_been_quiet(home: Home, tmp_path: Path, clock: Clock) -> None:
    """Both ranks land as they come; the marts are made once, when nothing more has come for a while."""
    built: list[str] = []
    made = watcher(home, built)
    for path in pair(tmp_path):
        drop(home, path, f"serve/{path.name}")
        made.cycle()
        clock.now_s += 1
    assert (built, len(list(home.raw_run("serve").iterdir()))) == ([], 2)
    clock.now_s += 3
    made.cycle()
    assert built == ["serve"]
    made.cycle()
    assert built == ["serve"]


def test_a_run_waits_for_a_file_of_it_that_is_still_written(home: Home, tmp_path: Path, clock: Clock) -> None:
    """A copy under way in its folder holds the run back, but not for ever."""
    built: list[str] = []
    made = watcher(home, built)
    first, second = pair(tmp_path)
    drop(home, first, f"serve/{first.name}")
    drop(home, second, f"serve/{second.name}.part")
    made.cycle()
    clock.now_s += 60
    made.cycle()
    assert built == []
    clock.now_s += 600
    made.cycle()
    assert built == ["serve"]


def test_another_run_does_not_wait_for_it(home: Home, tmp_path: Path, clock: Clock) -> None:
    """A stalled copy holds back its own run alone."""
    built: list[str] = []
    made = watcher(home, built)
    first, second = pair(tmp_path)
    drop(home, first, "one/a.json")
    drop(home, second, "two/b.json.part")
    made.cycle()
    clock.now_s += 5
    made.cycle()
    assert built == ["one"]


def test_a_truncated_gz_is_read_once_and_again_when_it_has_stalled(
    home: Home, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not every second: its state has not changed. After the time-out it is read as a truncated file."""
    read: list[bool] = []
    land = land_inbox

    def counted(home: Home, items: list[inbox.InboxItem], *rest: object) -> Outcome:
        read.append(inbox.not_stalled(items[0]) is None)
        return land(home, items, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("pipeline.ingest.watch.land_inbox", counted)
    whole = gzip.compress(rank_trace(tmp_path / "t.json").read_bytes())
    path = home.inbox / "serve" / "t.json.gz"
    made = watcher(home)
    path.parent.mkdir()
    path.write_bytes(whole[: len(whole) * 3 // 4])
    os.utime(path, (time.time() - 20,) * 2)
    for _ in range(3):
        made.cycle()
    assert read == [False]
    assert path.exists()
    os.utime(path, (time.time() - 90,) * 2)
    made.cycle()
    assert read == [False, True]
    assert not path.exists()


def test_a_run_that_landed_before_a_restart_is_built_after_it(
    home: Home, tmp_path: Path, clock: Clock
) -> None:
    """What a watcher knows is in the lake: the next one finds the run unbuilt."""
    (first, _) = pair(tmp_path)
    drop(home, first, "serve/a.json")
    watcher(home).cycle()
    built: list[str] = []
    made = watcher(home, built)
    made.begin()
    clock.now_s += 5
    made.cycle()
    assert built == ["serve"]


def test_after_a_home_error_nothing_is_read_for_a_while(
    home: Home, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk: the file stays, and is tried again after the time, not every second."""
    from pipeline.ingest import files

    tries: list[str] = []

    def full(landing: Landing, **_options: object) -> object:
        tries.append(landing.path.name)
        raise HomeError("its disk is full")

    monkeypatch.setattr(files, "land_file", full)
    (first, _) = pair(tmp_path)
    path = drop(home, first, "serve/a.json")
    made = watcher(home)
    for _ in range(5):
        made.cycle()
        clock.now_s += 1
    assert tries == ["a.json"]
    clock.now_s += 30
    made.cycle()
    assert tries == ["a.json", "a.json"]
    assert path.exists()


def test_what_left_the_inbox_is_read_when_it_comes_back_unchanged(
    home: Home, tmp_path: Path, clock: Clock
) -> None:
    """A quarantined file that is tried again has its old size and time, and so has a file dropped twice with
    its time kept."""
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    drop(home, bad, "serve/bad.json")
    made = watcher(home)
    made.cycle()
    assert not inbox.waiting(home.inbox)
    retry(home, None)
    made.cycle()
    assert not inbox.waiting(home.inbox)
    assert list(quarantined(home)) == ["serve/bad.json"]


def test_a_full_disk_does_not_end_the_watch(
    home: Home, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the home outside any file (its database cannot be written) is reported; the run stays to be
    built."""

    def full(*_rest: object) -> Outcome:
        raise HomeError("its disk is full")

    made = watcher(home)
    made.unbuilt = {"serve": watch._Unbuilt(0, 0)}
    monkeypatch.setattr("pipeline.ingest.watch.build", full)
    made.cycle()
    assert ([*made.unbuilt], made.not_before_s > clock.now_s) == (["serve"], True)


def test_nothing_is_begun_after_a_stop_request(home: Home, tmp_path: Path) -> None:
    """The current file is finished, the next one stays in the inbox."""
    for path in pair(tmp_path):
        drop(home, path, f"serve/{path.name}")
    answers = iter([False, True, True, True, True])
    watcher(home).cycle(lambda: next(answers))
    assert len(list(home.raw_run("serve").iterdir())) == 1
    assert len(inbox.waiting(home.inbox)) == 1


def test_a_second_watcher_is_refused(home: Home) -> None:
    """One is enough; the message says who has the home."""
    first = watcher(home)
    with first.alone(), pytest.raises(UsageError, match="another stepledger already watches"):
        watcher(home).run(Stop())


@contextmanager
def running(home: Home, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`stepledger watch` in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", "--home", str(home.root), "watch", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until(condition: Callable[[], bool]) -> None:
    """Wait for something."""
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, ExitCode.INTERRUPTED.value)]
)
def test_files_that_arrive_become_a_run_and_a_signal_ends_the_watch(
    home: Home, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """Copied or moved in, with a folder: read, built, exported; SIGTERM ends with 0, SIGINT with 130; the log
    is JSON."""
    traces = pair(tmp_path / "traces")
    with running(home, "--json-log", "--workers", "1") as process:
        until((home.root / ".watch.lock").exists)
        dropped = tmp_path / "serve"
        dropped.mkdir()
        for path in traces:
            settled(Path(shutil.copy(path, dropped)))
        dropped.rename(home.inbox / "serve")
        until((home.exports / "serve" / "step_breakdown.csv").exists)
        process.send_signal(number)
        _, log = process.communicate(timeout=HANG_S)
        assert process.returncode == code
    lines = [json.loads(line) for line in log.splitlines()]
    assert (lines[0]["event"], lines[0]["message"]) == ("watching", f"watching {home.inbox}")
    read = {line["file"] for line in lines if (line["event"], line["run"]) == ("read", "serve")}
    assert read == {f"serve/{path.name}" for path in traces}
    csv = str(home.exports / "serve" / "step_breakdown.csv")
    assert [line["file"] for line in lines if line["event"] == "exported"] == [csv]
    assert lines[-1]["event"] == "stopping"
    assert len(mart_rows(home)["run_facts"]) == 1
    assert not list(home.inbox.iterdir())


def test_the_text_log_of_a_watch_has_times(home: Home) -> None:
    """Each line begins with one, since its stderr is no terminal."""
    with running(home) as process:
        until((home.root / ".watch.lock").exists)
        assert process.stderr is not None
        first = process.stderr.readline()
    assert re.fullmatch(rf"\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ watching {re.escape(str(home.inbox))}\n", first)


@pytest.mark.parametrize(
    "error", [KeyError("a bug"), OSError(5, "Input/output error"), UsageError("the home cannot be written")]
)
def test_no_error_ends_the_watch(
    home: Home, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It is reported, and the file is read when a while has passed."""
    (first, _) = pair(tmp_path)
    drop(home, first, "serve/a.json")
    made = watcher(home)
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.ingest.watch.land_inbox", lambda *_rest: (_ for _ in ()).throw(error))
        made.cycle()
    made.cycle()
    assert home.run_ids() == []
    clock.now_s += watch.RETRY_SECONDS
    made.cycle()
    assert home.run_ids() == ["serve"]


def test_what_could_not_be_moved_is_tried_again_less_and_less_often(
    home: Home, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 30 seconds, then after a minute, then after two."""
    (first, _) = pair(tmp_path)
    drop(home, first, "serve/a.json")
    tries: list[float] = []

    def failing(*_rest: object) -> Path:
        tries.append(clock.now_s)
        raise UsageError("cannot be moved")

    monkeypatch.setattr("pipeline.ingest.files.archive", failing)
    made = watcher(home)
    for _ in range(25):
        made.cycle()
        clock.now_s += 10
    assert [later - sooner for sooner, later in pairwise(tries)] == [30, 60, 120]


def test_a_run_whose_export_failed_is_built_and_exported_again(
    home: Home, tmp_path: Path, clock: Clock
) -> None:
    """The error is reported, and the run stays due."""
    (first, _) = pair(tmp_path)
    drop(home, first, "serve/a.json")
    exported: list[list[str]] = []

    def export(outcome: Outcome) -> None:
        exported.append(outcome.built)
        if len(exported) == 1:
            raise OSError(28, "No space left on device")

    made = watcher(home)
    made.on_built = export
    for _ in range(5):
        made.cycle()
        clock.now_s += watch.RETRY_SECONDS
    assert exported == [["serve"], ["serve"]]


def test_a_run_that_landed_before_an_error_is_built(
    home: Home, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database of views could not be renewed after the files had landed: the next rounds find the run
    unbuilt."""
    (first, _) = pair(tmp_path)
    drop(home, first, "serve/a.json")
    built: list[str] = []
    made = watcher(home, built)
    with monkeypatch.context() as patch:
        patch.setattr(
            "pipeline.ingest.ingest.write_database",
            lambda *_rest: (_ for _ in ()).throw(OSError(5, "Input/output error")),
        )
        made.cycle()
    assert home.run_ids() == ["serve"]
    for _ in range(3):
        clock.now_s += watch.RETRY_SECONDS
        made.cycle()
    assert built == ["serve"]
