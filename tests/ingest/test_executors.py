"""Executors: the same results from one process, from many, and from a cluster; and what happens when a worker
dies."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import time
from pathlib import Path

import pytest

from pipeline.errors import (
    ContractError,
    HomeError,
    SideFile,
    StepledgerError,
    TraceError,
    UnfinishedFile,
    UsageError,
)
from pipeline.ingest import executors
from pipeline.ingest.executors import Dask, Done, Executor, Processes, Serial, WorkerDied, executor
from pipeline.ingest.tasks import Building, Landing, build_and_check, land_file
from pipeline.lake.home import Home
from pipeline.lake.settings import Settings
from tests.support.homes import HANG_S


def square(number: int) -> int:
    """Work that fails for 3 in the way readers fail."""
    if number == 3:
        raise TraceError("a.json", where="byte 7", found="nothing", wanted="an event", advice="Record again.")
    return number * number


def die_once(marker: Path) -> int:
    """Kill this process the first time; afterwards say which process it is."""
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def die(_: int) -> None:
    """Always kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def summary(done: Done[int, int]) -> tuple[int, int | None, str]:
    """A result as something to compare."""
    return done.item, done.value, str(done.error or "")


EXPECTED = [
    (1, 1, ""),
    (2, 4, ""),
    (3, None, "a.json: byte 7: found nothing, wanted an event. Record again."),
    (4, 16, ""),
]


@pytest.mark.parametrize("made", [Serial(), Processes(2)], ids=["serial", "processes"])
def test_results_and_errors_come_back_whole(made: Executor) -> None:
    """Values and errors of each item, with every executor."""
    found = sorted(made.run(square, [1, 2, 3, 4]), key=lambda done: done.item)
    assert [summary(done) for done in found] == EXPECTED
    error = found[2].error
    assert isinstance(error, TraceError)
    assert (error.file, error.where, error.advice) == ("a.json", "byte 7", "Record again.")


def test_serial_keeps_the_order() -> None:
    """One process goes through the items as they stand."""
    assert [done.item for done in Serial().run(square, [4, 1, 2])] == [4, 1, 2]


def test_work_of_a_worker_that_died_is_done_again(tmp_path: Path) -> None:
    """A killed worker loses no result: its task is run by another."""
    markers = [tmp_path / name for name in "abc"]
    for marker in markers[1:]:
        marker.touch()
    found = {done.item: done for done in Processes(2).run(die_once, markers)}
    assert found.keys() == set(markers)
    assert all(done.error is None and done.value != os.getpid() for done in found.values())


def test_work_that_kills_every_worker_is_an_error_of_its_own() -> None:
    """Twice dead, the second time alone: the item has its error."""
    found = list(Processes(2).run(die, [1, 2]))
    assert sorted(done.item for done in found) == [1, 2]
    assert {type(done.error) for done in found} == {WorkerDied}


@pytest.mark.parametrize(
    "error",
    [
        UsageError("u"),
        HomeError("h"),
        ContractError("c"),
        SideFile("a.txt", "notes"),
        StepledgerError("s"),
        TraceError("f", where="w", found="f", wanted="x", advice="a"),
        UnfinishedFile("f", where="w", found="f", wanted="x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_error_survives_its_way_between_processes(error: StepledgerError) -> None:
    """Type, text and exit code are the same on the other side."""
    back = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (type(back), str(back), back.exit_code, back.__dict__) == (
        type(error),
        str(error),
        error.exit_code,
        error.__dict__,
    )


def test_one_worker_is_this_process() -> None:
    """No process is started for one worker."""
    with executor(1, None) as made:
        assert isinstance(made, Serial)
    with executor(3, None) as made:
        assert (type(made), made.workers) == (Processes, 3)


def test_a_cluster_without_the_extra_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install."""
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r"stepledger\[dask\]"):
        Dask("tcp://127.0.0.1:9")


def test_work_of_an_earlier_writer_is_refused(home: Home) -> None:
    """A cluster may still hold work of a command that is gone: the home belongs to another writer now."""
    with home.writing(print):
        landing = Landing(home.root, home.inbox / "a.json", "a", "a", Settings(1), home.lock_token())
        building = Building(home.root, "a", Settings(1), home.lock_token())
    with home.writing(print):
        for work in (lambda: land_file(landing), lambda: build_and_check(building)):
            with pytest.raises(HomeError, match="does not see the home"):
                work()


def sleepy(number: int) -> int:
    """Work that takes long enough to be interrupted."""
    time.sleep(30)
    return number


def test_an_interrupt_ends_every_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while workers work: they are killed, and the interrupt goes on."""

    def interrupted(_: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(executors, "as_completed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(Processes(2).run(sleepy, [1, 2]))
    deadline = time.monotonic() + HANG_S
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not multiprocessing.active_children()
