"""What a command writes outside the home: private, gone with the command, and nothing else is removed."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline import session
from pipeline.errors import ExitCode, UsageError
from pipeline.lake.home import Home
from tests.support.homes import HANG_S, environment, fingerprint

_LONG = "SELECT repeat('k', 200) || n AS s FROM range(1_000_000_000) AS r (n) ORDER BY hash(n)"
SPILLING = f"SELECT max(s) FROM ({_LONG} LIMIT 900_000_000)"
LITTLE_MEMORY = (
    "from pipeline import duck\nfrom pipeline.cli import app\nduck.READ_MEMORY = '80MB'\napp.main()"
)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder, for this process and those it starts."""
    made = tmp_path / "tmp"
    made.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    monkeypatch.setenv("TMPDIR", str(made))
    return made


def aged(path: Path) -> Path:
    """Make a folder look as old as one that is abandoned."""
    then = time.time() - 2 * session.ABANDONED_S
    os.utime(path, (then, then))
    return path


def left(folder: Path, *files: str, name: str = "stepledger-x", mode: int = 0o700) -> Path:
    """A folder that another process left."""
    made = folder / name
    made.mkdir()
    made.chmod(mode)
    for file in files:
        (made / file).write_text("x")
    return aged(made)


def linked(target: Path) -> None:
    """A link beside a folder, with a session's name."""
    target.with_name("stepledger-x").symlink_to(target)


def started(*program: str | Path) -> subprocess.Popen[str]:
    """A program in a process of its own, with the signals that a shell would leave it."""
    return subprocess.Popen(
        [sys.executable, "-c", *map(str, program)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip


def spilling(home: Home, temporary: Path) -> subprocess.Popen[str]:
    """A query that has begun to spill."""
    process = started(LITTLE_MEMORY, "--home", home.root, "query", SPILLING)
    spilled = "stepledger-*/duckdb_temp_*storage*"
    wait_until(lambda: process.poll() is not None or any(temporary.glob(spilled)))
    assert process.poll() is None, process.communicate()
    return process


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait, not for ever."""
    latest = time.monotonic() + HANG_S
    while not is_so():
        assert time.monotonic() < latest
        time.sleep(0.01)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code and stderr of a process that is about to end."""
    _, err = process.communicate(timeout=HANG_S)
    return process.returncode, err


def test_the_folder_is_private_and_gone_at_the_end(temporary: Path) -> None:
    """Whatever is in it."""
    with session.folder() as made:
        assert (made.parent, made.name.startswith("stepledger-")) == (temporary, True)
        assert made.stat().st_mode & 0o777 == 0o700
        (made / "duckdb_temp_x").write_text("x")
    assert list(temporary.iterdir()) == []


def test_an_error_removes_the_folder_too(temporary: Path) -> None:
    """It is raised to the caller."""
    with pytest.raises(ValueError, match="mine"), session.folder():
        raise ValueError("mine")
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_a_spilling_query_and_leaves_nothing(
    built: Home,
    temporary: Path,
    number: signal.Signals,
    code: int,
) -> None:
    """128 and the number of the signal; neither a file outside the home nor one in it."""
    before = fingerprint(built.root)
    process = spilling(built, temporary)
    process.send_signal(number)
    assert ended(process) == (code, "")
    assert list(temporary.iterdir()) == []
    assert fingerprint(built.root) == before


def test_what_a_killed_query_leaves_is_removed_by_the_next(built: Home, temporary: Path) -> None:
    """Once it is a minute old."""
    process = spilling(built, temporary)
    process.kill()
    assert ended(process)[0] == -signal.SIGKILL
    (abandoned,) = temporary.iterdir()
    assert ended(started(LITTLE_MEMORY, "--home", built.root, "query", "SELECT 1")) == (0, "")
    assert list(temporary.iterdir()) == [abandoned]
    aged(abandoned)
    assert ended(started(LITTLE_MEMORY, "--home", built.root, "query", "SELECT 1")) == (0, "")
    assert list(temporary.iterdir()) == []


def test_the_folder_of_a_live_query_is_left_alone(built: Home, temporary: Path) -> None:
    """However old it is: its process holds a lock on it."""
    process = spilling(built, temporary)
    (live,) = temporary.iterdir()
    process.send_signal(signal.SIGSTOP)  # else it makes another file, and the folder is young again
    aged(live)
    assert ended(started(LITTLE_MEMORY, "--home", built.root, "query", "SELECT 1")) == (0, "")
    assert any(live.glob("duckdb_temp_*storage*"))
    process.send_signal(signal.SIGCONT)
    process.terminate()
    assert ended(process) == (143, "")


@pytest.mark.parametrize("files", [[], ["duckdb_temp_1_storage_S32K-0.tmp", "duckdb_temp_owner"], ["export"]])
def test_an_abandoned_folder_is_removed(temporary: Path, files: list[str]) -> None:
    """With what a session may have written into it."""
    left(temporary, *files)
    with session.folder() as mine:
        assert list(temporary.iterdir()) == [mine]


def test_another_sessions_folder_is_left_alone(temporary: Path) -> None:
    """While a process holds it."""
    one = left(temporary, "duckdb_temp_x")
    handle = os.open(one, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with session.folder():
        assert (one / "duckdb_temp_x").exists()
    os.close(handle)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda folder: left(folder, "stepledger.duckdb", "export"), id="a home of this name"),
        pytest.param(lambda folder: left(folder, mode=0o755), id="a folder that others may read"),
        pytest.param(lambda folder: left(folder, name="stepladder-x"), id="another name"),
        pytest.param(lambda folder: (folder / "stepledger-x").touch(), id="a file"),
        pytest.param(lambda folder: os.mkfifo(folder / "stepledger-x"), id="a FIFO"),
        pytest.param(lambda folder: linked(left(folder, "export", name="mine")), id="a link"),
    ],
)
def test_what_no_session_made_is_left_alone(temporary: Path, make: Callable[[Path], object]) -> None:
    """Whatever its name."""
    make(temporary)
    before = fingerprint(temporary)
    with session.folder():
        pass
    assert fingerprint(temporary) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of another user's")
def test_another_users_folder_is_left_alone(temporary: Path) -> None:
    """Root could remove it."""
    other = left(temporary, "export")
    os.chown(other, 12345, 12345)
    with session.folder():
        pass
    assert (other / "export").exists()


def test_no_room_for_a_folder_is_a_usage_error(temporary: Path) -> None:
    """It says where to set another."""
    temporary.rmdir()
    says = r"no temporary folder can be made: No such file or directory\. .*TMPDIR"
    with pytest.raises(UsageError, match=says), session.folder():
        pass


def test_signals_that_somebody_handles_are_theirs() -> None:
    """`watch` finishes the current file on SIGTERM; afterwards all is as before."""

    def handler(_number: int, _frame: object) -> None:
        pytest.fail("no one sends it")

    before = signal.signal(signal.SIGTERM, handler)
    try:
        with session.folder():
            assert signal.getsignal(signal.SIGTERM) is handler
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)
    with session.folder():
        assert signal.getsignal(signal.SIGTERM) not in {signal.SIG_DFL, before}
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_ignored_signal_stays_ignored(temporary: Path) -> None:
    """As `nohup` wants it."""
    program = (
        "import os, signal\nfrom pipeline import session\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "with session.folder(): os.kill(os.getpid(), signal.SIGHUP)\nprint('went on')"
    )
    process = started(program)
    out, err = process.communicate(timeout=HANG_S)
    assert (process.returncode, out, err) == (0, "went on\n", "")
    assert list(temporary.iterdir()) == []


def test_a_session_in_another_thread_has_a_folder_too(temporary: Path) -> None:
    """Signals are the main thread's business."""
    found: list[bool] = []

    def work() -> None:
        with session.folder() as made:
            found.append(made.is_dir())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True]
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(("limit_s", "code"), [(0.2, ExitCode.USAGE), (0, ExitCode.INTERRUPTED)])
def test_what_cannot_be_stopped_leaves_nothing(temporary: Path, limit_s: float, code: ExitCode) -> None:
    """The process ends without unwinding, at the limit as at Ctrl-C."""
    program = (
        "import os, signal, threading, time\nfrom pipeline import duck, session\nduck.STOP_S = 0.1\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"if not {limit_s}: threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "with session.folder() as made:\n    (made / 'export').touch()\n"
        f"    duck.Patience({limit_s}, 'too long').wait(lambda: time.sleep(600), lambda: None)"
    )
    assert ended(started(program))[0] == code
    assert list(temporary.iterdir()) == []


def test_a_signal_during_an_export_leaves_no_unfinished_file(built: Home, tmp_path: Path) -> None:
    """Nor the hidden folder beside it in which it is written."""
    program = (
        "import sys, time\nfrom pathlib import Path\n"
        "from pipeline.present import export\nfrom pipeline.lake.home import Home\n"
        "def slow(_home, _table, aside, *_rest):\n    aside.write_text('half')\n"
        "    print('begun', flush=True)\n    time.sleep(600)\n"
        "export._written = slow\n"
        "export.export_run(Home(Path(sys.argv[1])), 'a', 'steps', 'csv', Path(sys.argv[2]), wide=False)"
    )
    place = tmp_path / "out"
    process = started(program, built.root, place / "x.csv")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    assert [p.name[:7] for p in place.iterdir()] == [".x.csv."]
    process.terminate()
    assert ended(process) == (143, "")
    assert list(place.iterdir()) == []
