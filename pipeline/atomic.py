"""Commits to the filesystem: everything appears whole or not at all."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import uuid
from pathlib import Path

from pipeline.errors import StepledgerError

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


def move_file(source: Path, target: Path) -> Path:
    """Move a file or folder, never over another: a taken name gets a number. Returns where it went."""
    target.parent.mkdir(parents=True, exist_ok=True)
    candidate, number = target, 1
    while os.path.lexists(candidate):
        number += 1
        candidate = target.with_name(f"{target.name}.{number}")
    try:
        source.rename(candidate)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.move(source, candidate)
    return candidate


def write_file(target: Path, data: bytes) -> None:
    """Write a file aside and move it into place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        aside.write_bytes(data)
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)
