"""Commits to the file system: everything appears whole or not at all."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline import lock
from pipeline.errors import StepledgerError

SCRATCH = "scratch-"
"""Begins the name of a folder in staging whose creator holds a lock beside it instead of the home's."""
RETIRED = "old-"
"""Begins the name of a folder in staging that readers may still have open."""
_ASIDE = re.compile(r"\..+\.[0-9a-f]{32}")
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_NAME_BYTES = 255
"""Longest name of a file."""
_LAST_NUMBER = 100_000


def sync_tree(folder: Path) -> None:
    """Flush every file of a folder, and the folder, to disk."""
    for path in (*sorted(folder.rglob("*")), folder):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def commit_folder(staged: Path, target: Path) -> None:
    """Make `staged` appear as `target`, which must not exist."""
    sync_tree(staged)
    target.parent.mkdir(parents=True, exist_ok=True)
    staged.rename(target)
    sync_folder(target.parent)


def exchange_folder(staged: Path, target: Path, old: Path) -> None:
    """Make `staged` appear as `target`; what was there before goes to `old` and is deleted later.

    The exchange is one step (renameat2), so a reader finds the old folder or the new one, never none.
    """
    sync_tree(staged)
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        staged.rename(target)
    else:
        _exchange(staged, target)
        retire(staged, old)
    sync_folder(target.parent)


def retire(folder: Path, staging: Path) -> None:
    """Move a folder out of the lake: it is deleted after a grace time, for readers that have it open."""
    folder.rename(staging / f"{RETIRED}{uuid.uuid4().hex}")


@contextmanager
def staging_folder(staging: Path, prefix: str = "") -> Iterator[Path]:
    """A new folder in staging for the holder of the home; removed at the end with all that is left in it."""
    folder = staging / f"{prefix}{uuid.uuid4().hex}"
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def replacing(target: Path, staging: Path) -> Iterator[Path]:
    """A new folder in staging that takes the place of `target` in one step if all goes well, and is removed
    otherwise."""
    with staging_folder(staging) as folder:
        yield folder
        exchange_folder(folder, target, staging)


def _exchange(one: Path, other: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise StepledgerError("this system has no renameat2; marts cannot be replaced in one step")
    done = libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"renameat2: {os.strerror(number)}", str(other))


def numbered(name: str) -> Iterator[str]:
    """This name, then the same with 2, 3, ... at its end, truncated where it would be longer than a file
    system allows."""
    yield name
    raw = os.fsencode(name)
    for number in range(2, _LAST_NUMBER):
        end = f".{number}"
        kept = raw[: _NAME_BYTES - len(end)]
        if len(kept) < len(raw):
            kept = kept.decode("utf-8", "ignore").encode()  # no half of a character
        yield os.fsdecode(kept) + end


@contextmanager
def scratch(staging: Path) -> Iterator[Path]:
    """A folder in staging for a process that does not hold the home; the lock beside it shows that it is in
    use."""
    folder = staging / f"{SCRATCH}{uuid.uuid4().hex}"
    lock_file = folder.with_suffix(".lock")
    handle = os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        lock.take(handle)
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock_file.unlink(missing_ok=True)
        os.close(handle)


def is_abandoned(folder: Path) -> bool:
    """Has the process that made this scratch folder (or its lock) ended?"""
    try:
        handle = os.open(folder.with_suffix(".lock"), os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        return lock.try_take(handle)
    finally:
        os.close(handle)


def size_of(folder: Path) -> int:
    """Bytes of the files below a folder of ours; files that are removed in the meantime count as nothing."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.lstat().st_size
    return total


def remove(path: Path) -> None:
    """Remove a file, or a folder with its contents; what cannot be removed is left for the next time."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def remove_asides(folder: Path) -> None:
    """Remove what `write_file` leaves of a file when its process is killed."""
    for path in folder.rglob(".*"):
        if _ASIDE.fullmatch(path.name):
            path.unlink(missing_ok=True)


def write_file(target: Path, data: bytes) -> None:
    """Write a file aside and move it into place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        aside.write_bytes(data)
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)
