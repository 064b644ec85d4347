"""Commits to the filesystem: everything appears whole or not at all."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import StepledgerError

SCRATCH = "scratch-"
"""Begins the name of a folder in staging whose maker holds a lock in it, not the home's."""
_ASIDE = re.compile(r"\..+\.[0-9a-f]{32}")
_AT_FDCWD, _RENAME_NOREPLACE, _RENAME_EXCHANGE = -100, 1, 2


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
        staged.rename(old / f"old-{uuid.uuid4().hex}")
    sync_folder(target.parent)


def _exchange(one: Path, other: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise StepledgerError("this system has no renameat2; marts cannot be replaced in one step")
    done = libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"renameat2: {os.strerror(number)}", str(other))


def free_name(target: Path) -> Path:
    """This path, or where something is there already, the first with a number that is free."""
    candidate, number = target, 1
    while os.path.lexists(candidate):
        number += 1
        candidate = target.with_name(f"{target.name}.{number}")
    return candidate


def move_file(source: Path, target: Path) -> Path:
    """Move a file or folder, never over another: a taken name gets a number. Returns where it went."""
    target.parent.mkdir(parents=True, exist_ok=True)
    candidate = free_name(target)
    try:
        source.rename(candidate)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.move(source, candidate)
    return candidate


@contextmanager
def scratch(staging: Path) -> Iterator[Path]:
    """A folder in staging for somebody who does not hold the home; the lock beside it tells for how long."""
    folder = staging / f"{SCRATCH}{uuid.uuid4().hex}"
    lock = folder.with_suffix(".lock")
    handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.unlink(missing_ok=True)
        os.close(handle)


def is_abandoned(folder: Path) -> bool:
    """Has the process that made this scratch folder (or its lock) gone?"""
    try:
        handle = os.open(folder.with_suffix(".lock"), os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it; what cannot be removed is left for the next time."""
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
