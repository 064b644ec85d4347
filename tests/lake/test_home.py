"""The home: safe run ids, and one writer at a time."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pipeline.errors import HomeError, UsageError
from pipeline.ingest.execution import ExecutionConfig
from pipeline.ingest.watch import Watcher
from pipeline.lake.home import TEMPLATE, Home
from pipeline.progress import Progress
from tests.support.homes import HANG_S
from tests.support.paths import ROOT

HOLDER = """
import sys, time
from pathlib import Path
from pipeline.lake.home import Home
with Home(Path(sys.argv[1])).writing(print):
    print("held", flush=True)
    time.sleep(60)
"""

OTHER_USER = """
import os
from pathlib import Path
from pipeline.errors import UsageError
from pipeline.lake.home import Home
from pipeline.ingest.execution import ExecutionConfig
from pipeline.progress import Progress
from pipeline.ingest.status import status_rows
from pipeline.ingest.watch import Watcher
os.setegid(65534)
os.seteuid(65534)
home = Home(Path("."))
"""
"""Begins a program that runs in a home as a user who owns nothing."""


@pytest.mark.parametrize("name", ["a", "2026", "glm-5.1_tp8", "A.b", "x" * 100])
def test_a_safe_name_is_its_own_id(home: Home, name: str) -> None:
    """People find their runs under the names they gave."""
    assert home.run_id_for(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "..",
        ".",
        "",
        "a/b",
        "it's",
        'say "x"',
        "two\nlines",
        "müller",
        "日本",
        "-rf",
        "_template",
        "x" * 101,
        "a b",
        "50%",
        "a\n",
    ],
)
def test_an_unsafe_name_becomes_a_safe_one_of_its_own(home: Home, name: str) -> None:
    """Whatever the name, its folder has only letters, digits, dot, underscore and hyphen, and starts with
    none of the last three."""
    run_id = home.run_id_for(name)
    assert run_id != name
    assert run_id[0].isascii()
    assert run_id[0].isalnum()
    assert all(c.isascii() and (c.isalnum() or c in "._-") for c in run_id)
    assert len(run_id) <= 100
    assert home.raw_run(run_id).parent == home.raw


def test_names_that_look_alike_when_made_safe_stay_apart(home: Home) -> None:
    """`a b` and `a/b` are two runs."""
    assert home.run_id_for("a b") != home.run_id_for("a/b")


def test_the_same_name_always_gets_the_same_id(home: Home) -> None:
    """A file dropped later finds its run."""
    (home.raw_run("Run") / "file_id=x").mkdir(parents=True)
    first = home.run_id_for("RUN")
    (home.raw_run(first) / "file_id=y").mkdir(parents=True)
    assert home.run_id_for("RUN") == first
    assert home.run_id_for("Run") == "Run"


def test_ids_are_unique_ignoring_case(home: Home) -> None:
    """On a filesystem that ignores case two runs still have two folders."""
    (home.raw_run("Run") / "file_id=x").mkdir(parents=True)
    assert home.run_id_for("RUN").casefold() != "run"


def test_runs_are_those_with_a_committed_trace(home: Home) -> None:
    """Neither the template nor an empty folder is a run."""
    (home.raw_run(TEMPLATE) / "file_id=_template").mkdir(parents=True)
    (home.raw_run("b") / "file_id=x").mkdir(parents=True)
    (home.raw_run("a") / "file_id=x").mkdir(parents=True)
    home.raw_run("empty").mkdir()
    assert home.run_ids() == ["a", "b"]


def test_a_home_that_cannot_be_made_is_a_usage_error(tmp_path: Path) -> None:
    """The message says to choose another."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="--home"):
        Home(tmp_path / "file" / "home").ensure()


@pytest.mark.parametrize("folder", ["phase=decode", "what?"])
def test_a_home_that_duckdb_would_misread_is_refused(tmp_path: Path, folder: str) -> None:
    """A folder `phase=decode` above the lake would be read as a column and hide ours; `?` would cut the
    database's name."""
    with pytest.raises(UsageError, match=re.escape(folder)):
        Home(tmp_path / folder / "home").ensure()


def _holder(home: Home) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(home.root)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_writer_waits_with_a_message_until_the_first_is_killed(home: Home) -> None:
    """One writer at a time, by a lock that dies with its process, even by kill -9."""
    messages: list[str] = []
    waits, entered = threading.Event(), threading.Event()

    def say(text: str) -> None:
        messages.append(text)
        waits.set()

    def write() -> None:
        with home.writing(say):
            entered.set()

    with _holder(home) as process:
        second = threading.Thread(target=write)
        second.start()
        try:
            assert waits.wait(HANG_S)
            assert not entered.is_set()
        finally:
            process.kill()
    second.join(HANG_S)
    assert entered.is_set()
    assert messages == [f"waiting: another stepledger is writing to {home.root}"]


def test_a_writer_alone_prints_nothing(home: Home) -> None:
    """No message without another writer; and the lock is free again afterwards."""
    messages: list[str] = []
    for _ in range(2):
        with home.writing(messages.append):
            pass
    assert messages == []


def _held(home: Home, what: str) -> AbstractContextManager[None]:
    watcher = Watcher(home, ExecutionConfig(), Progress(quiet=True), print)
    return home.writing(print) if what == "writer" else watcher.alone()


def test_each_writer_has_a_token_of_its_own_in_the_same_file(home: Home) -> None:
    """The file stays, since the lock is on it; its content distinguishes one writer from the next."""
    home.lock("writer").write_text("longer than a token, from who knows where")
    tokens = set()
    with home.lock("writer").open() as file:
        for _ in range(3):
            with home.writing(print):
                file.seek(0)
                tokens.add(home.lock_token())
                assert file.read() == home.lock_token()
    assert len(tokens) == 3
    assert all(re.fullmatch("[0-9a-f]{32}", token) for token in tokens)


def test_a_disk_without_space_for_the_token_is_a_home_error(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`watch` waits for space and goes on; and the home is free again."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(HomeError, match="its disk is full"), home.writing(print):
        pass
    assert home.at_work() == []


@pytest.mark.parametrize("what", ["writer", "watch"])
@pytest.mark.parametrize("is_old", [False, True], ids=["new", "made by an older version"])
def test_only_its_owner_can_open_a_lock(
    home: Home,
    what: str,
    is_old: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the umask lets through, a new one from the start, and one that an older version made."""
    lock = home.lock(what)
    mask = os.umask(0)
    try:
        if is_old:
            lock.touch(0o644)
        else:
            monkeypatch.delattr(os, "fchmod")
        with _held(home, what):
            assert lock.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(mask)


def _as_other_user(home: Home, code: str) -> str:
    if os.geteuid() != 0:
        pytest.skip("it takes an administrator to be another user")
    done = subprocess.run(
        [sys.executable, "-c", OTHER_USER + code],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
        cwd=home.root,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("what", ["writer", "watch"])
def test_a_lock_of_another_user_is_a_usage_error(home: Home, what: str) -> None:
    """It cannot be opened, and so not be held for ever; the message names the home and not a bug."""
    with _held(home, what):
        pass
    watcher = "Watcher(home, ExecutionConfig(), Progress(quiet=True), print)"
    hold = "home.writing(print)" if what == "writer" else f"{watcher}.alone()"
    code = f"try:\n    with {hold}:\n        print('held')\nexcept UsageError as error:\n    print(error)"
    printed = _as_other_user(home, code)
    assert "the home cannot be written: Permission denied" in printed


def test_status_of_another_users_home_shows_no_locks(home: Home) -> None:
    """They cannot be opened: that is no reason to fail."""
    with home.writing(print):
        rows = "[row for row in status_rows(home)[1] if row[0] != 'disk']"
        printed = _as_other_user(home, f"print(home.at_work(), {rows})")
    assert printed == "[] []"
