"""A home that cannot take what is written: a full disk, a read-only one, a clock that runs backwards."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from pipeline.errors import ContractError, HomeError, TraceError, causes, home_trouble
from pipeline.ingest.ingest import drain
from pipeline.lake.home import Home
from pipeline.lake.tidy import tidy
from pipeline.progress import Progress
from tests.support.homes import command, copied, drop, fingerprint, mart_rows, pair, settled

QUIET = Progress(quiet=True)


def _mount(*arguments: str | Path) -> bool:
    return subprocess.run(["mount", *map(str, arguments)], capture_output=True, check=False).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of three megabytes; it takes an administrator to mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if (
        sys.platform != "linux"
        or os.geteuid() != 0
        or not _mount("-t", "tmpfs", "-o", "size=3m", "tmpfs", folder)
    ):
        pytest.skip("a small disk can be mounted by an administrator of Linux only")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def filled(root: Path, traces: Path) -> Home:
    """A home with two ranks in its inbox."""
    home = Home(root)
    home.ensure()
    for path in pair(traces):
        drop(home, path, f"serve/{path.name}")
    return home


def fill(folder: Path, leave_bytes: int) -> Path:
    """Use up the disk but for so much."""
    ballast = folder / "ballast"
    ballast.write_bytes(bytes(max(0, shutil.disk_usage(folder).free - leave_bytes)))
    return ballast


@pytest.mark.parametrize("leave_bytes", [0, 8_000, 40_000, 120_000, 300_000])
def test_a_full_disk_loses_nothing(small_disk: Path, tmp_path: Path, leave_bytes: int) -> None:
    """Wherever the space runs out: exit 2 with the reason, no trace quarantined; with space again everything
    is made."""
    home = filled(small_disk / "home", tmp_path)
    ballast = fill(small_disk, leave_bytes)
    done = command("--home", home.root, "run", "--workers", "1")
    assert done.returncode == 2, done.stderr
    assert "its disk is full" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(home.quarantine.rglob("*.json"))
    assert len(list(home.inbox.rglob("*.json"))) + len(list(home.archive.rglob("*.json"))) == 2
    ballast.unlink()
    for path in home.inbox.rglob("*.json"):
        settled(path)
    again = command("--home", home.root, "run", "--workers", "1")
    assert again.returncode == 0, again.stderr
    other = filled(tmp_path / "other", tmp_path)
    drain(other, QUIET)
    assert mart_rows(home) == mart_rows(other)


def test_a_home_that_became_read_only_is_reported_and_can_be_read(small_disk: Path, tmp_path: Path) -> None:
    """`run` says so and changes nothing; `show` and `query` go on."""
    home = filled(small_disk / "home", tmp_path)
    drain(home, QUIET)
    before = fingerprint(home.root)
    assert _mount("-o", "remount,ro", small_disk)
    done = command("--home", home.root, "run")
    assert (done.returncode, "cannot be written" in done.stderr or "read-only" in done.stderr) == (2, True), (
        done.stderr
    )
    assert command("--home", home.root, "show", "serve").returncode == 0
    assert (
        command("--home", home.root, "query", "SELECT count(*) FROM activity", "--format", "csv").returncode
        == 0
    )
    assert _mount("-o", "remount,rw", small_disk)
    assert fingerprint(home.root) == before


FULL = os.strerror(errno.ENOSPC)
ASYNC = (
    r'{"exception_type":"IO","exception_message":"Could not write file \\"/l/x.parquet\\": '
    + FULL
    + '","errno":"28"}'
)
TROUBLE = [
    OSError(errno.ENOSPC, FULL),
    OSError(errno.EDQUOT, "Disk quota exceeded"),
    OSError(errno.EROFS, "Read-only file system"),
    duckdb.IOException(f'IO Error: Could not write file "/lake/x": {FULL}'),
    duckdb.IOException(f"IO Error: Async write failed for range [offset=1, size=2]: {ASYNC}"),
    duckdb.OutOfMemoryException(
        "Out of Memory Error: failed to offload data block of size 256.0 KiB (864.0 KiB/921.5 KiB used)."
    ),
]
NO_TROUBLE = [
    OSError(errno.EACCES, "Permission denied"),
    ContractError("raw.launch: columns differ"),
    OSError(FULL),
    FileNotFoundError(errno.ENOENT, "No such file or directory", FULL),
    TraceError(f"{FULL}.json", where="start of the file", found=f"b'{FULL}'", wanted="a trace"),
    duckdb.IOException(f'IO Error: No files found that match the pattern "/x/{FULL}"'),
    duckdb.IOException(f'IO Error: Cannot open file "/x/a": {FULL}": No such file or directory'),
    duckdb.InvalidInputException(f'Invalid Input Error: Could not write file "/x": {FULL}'),
    RuntimeError(f'IO Error: Could not write file "/x": {FULL}'),
]


@pytest.mark.parametrize("error", TROUBLE, ids=repr)
def test_trouble_of_the_home_is_known_by_its_number(error: Exception) -> None:
    """Also where it is the cause of another error."""
    assert home_trouble(error) is not None
    outer = TraceError("f", where="w", found="f", wanted="w")
    outer.__cause__ = error
    assert home_trouble(outer) is not None
    assert HomeError("x").exit_code == 2


@pytest.mark.parametrize("error", NO_TROUBLE, ids=repr)
def test_a_text_is_not_a_home_error(error: Exception) -> None:
    """It may be the name or the content of any file."""
    assert home_trouble(error) is None


def test_an_error_that_is_its_own_cause_ends() -> None:
    """`raise error from error` makes one; so do two errors that cause each other."""
    error = TraceError("f", where="w", found="f", wanted="w")
    error.__cause__ = error
    assert home_trouble(error) is None
    other = OSError(errno.EIO, "Input/output error")
    error.__cause__, other.__cause__ = other, error
    assert [*causes(error)] == [error, other]
    assert home_trouble(error) is None


def test_duckdbs_message_for_a_full_disk_is_known(small_disk: Path) -> None:
    """In the words of the installed version: a file that cannot be written, and a spill that does not fit."""
    with duckdb.connect() as con, pytest.raises(duckdb.Error) as caught:
        con.execute(f"COPY (SELECT uuid()::VARCHAR AS u FROM range(1000000)) TO '{small_disk}/x.parquet'")
    assert home_trouble(caught.value) == "its disk is full"
    with duckdb.connect() as con:
        con.execute(f"SET memory_limit = '50MB'; SET temp_directory = '{small_disk}'")
        with pytest.raises(duckdb.Error) as caught:
            con.execute(
                "CREATE TABLE t AS SELECT uuid()::VARCHAR AS u, random() AS r FROM range(3000000) ORDER BY r"
            )
    assert home_trouble(caught.value) is not None


def test_a_clock_that_goes_back_harms_nothing(home: Home, tmp_path: Path) -> None:
    """A build of the future is kept and not removed before its time; files of the future wait, and are read
    in time."""
    traces = pair(tmp_path)
    for path in traces:
        dropped = drop(home, path, f"serve/{path.name}")
        os.utime(dropped, (time.time() + 86_400,) * 2)
    assert drain(home, QUIET).built == []
    for path in (home.inbox / "serve").iterdir():
        settled(path)
    assert drain(home, QUIET).built == ["serve"]
    old = home.staging / "old-future"
    old.mkdir()
    os.utime(old, (time.time() + 86_400,) * 2)
    tidy(home)
    assert old.is_dir()
    assert drain(copied(home, tmp_path / "copy"), QUIET).built == []
