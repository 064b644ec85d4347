"""Move files below a folder that other users may write to, without following a link or replacing a file."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
import sys
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.lake.atomic import numbered
from pipeline.lake.beneath import EXPORT_MARKS, FOLDER_FLAGS, folder, kind_of

_RENAME_NOREPLACE = 1
_UNSUPPORTED = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}


class Replaced(OSError):
    """The file at a path is not the one that was read: it was replaced."""


def move(
    source_root: Path, source: Path, target_root: Path, target: Path, inode: int, *, aside: Path | None = None
) -> Path:
    """Move the file or folder with this inode, never over another: a taken name gets a number. Returns its
    new place.

    `aside`: a folder of ours on the target's file system. With it, what is moved becomes ours: it is put into
    folders of ours only, an nsys export file by file, and it may come from another file system. Raises
    OSError: FileNotFoundError for a file that was removed, Replaced for one that was exchanged (that stays
    where it is).
    """
    owners = None if aside is None else {os.geteuid(), os.stat(target_root).st_uid}
    with (
        folder(source_root, source.parent.parts) as before,
        _made(target_root, target.parent.parts, owners) as (after, parts),
    ):
        status = os.stat(source.name, dir_fd=before, follow_symlinks=False)
        _must_be(status, inode, source)
        if aside is not None and stat.S_ISDIR(status.st_mode) and status.st_uid != os.geteuid():
            return Path(*parts, _moved_one_by_one(before, source.name, after, target.name))
        try:
            name = _renamed(before, source.name, after, target.name)
        except OSError as error:
            if error.errno != errno.EXDEV or aside is None:
                raise
            return Path(*parts, _copied(before, source.name, after, target.name, aside))
        moved = os.stat(name, dir_fd=after, follow_symlinks=False)
        if moved.st_ino != inode:
            _renamed(after, name, before, source.name)
            _must_be(moved, inode, source)
        if aside is not None and os.geteuid() == 0:  # its owner could change it otherwise
            os.chown(name, 0, 0, dir_fd=after, follow_symlinks=False)
    return Path(*parts, name)


def free_place(root: Path, place: Path) -> Path:
    """The place where `move` with `aside` puts something that should go here; its folder is made. Raises
    OSError."""
    with _made(root, place.parent.parts, {os.geteuid(), os.stat(root).st_uid}) as (handle, parts):
        return Path(*parts, _free(handle, place.name))


def _must_be(found: os.stat_result, inode: int, source: Path) -> None:
    if found.st_ino != inode:
        raise Replaced(errno.ESTALE, "it was replaced by another file", str(source))


@contextmanager
def _made(root: Path, parts: Iterable[str], owners: set[int] | None) -> Iterator[tuple[int, list[str]]]:
    """The descriptor of a folder below `root`, made where it is missing, and its parts as they are."""
    handle = os.open(root, FOLDER_FLAGS)
    names: list[str] = []
    try:
        for part in parts:
            inner, name = _made_in(handle, part, owners)
            os.close(handle)
            handle = inner
            names.append(name)
        yield handle, names
    finally:
        os.close(handle)


def _made_in(handle: int, part: str, owners: set[int] | None) -> tuple[int, str]:
    """A folder of one of these owners, under this name or, where something else has it, under one with a
    number."""
    for name in numbered(part):
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=handle)
        try:
            inner = os.open(name, FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=handle)
        except OSError as error:
            if error.errno not in {errno.ENOTDIR, errno.ELOOP}:
                raise
            continue
        if owners is None or os.fstat(inner).st_uid in owners:
            return inner, name
        os.close(inner)
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), part)


def _renamed(before: int, source: str, after: int, target: str) -> str:
    """Rename to the first free name; returns it."""
    for name in numbered(target):
        with suppress(FileExistsError):
            _rename_new(before, source, after, name)
            return name
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)


def _rename_new(before: int, source: str, after: int, target: str) -> None:
    """Rename, never over another. Where the file system cannot promise that (NFS), after a look."""
    libc = ctypes.CDLL(None, use_errno=True)
    sys.audit("os.rename", source, target, before, after)  # as os.rename does, for those who listen
    if libc.renameat2(before, os.fsencode(source), after, os.fsencode(target), _RENAME_NOREPLACE) == 0:
        return
    number = ctypes.get_errno()
    if number not in _UNSUPPORTED:
        raise OSError(number, os.strerror(number), source)
    with suppress(FileNotFoundError):
        os.stat(target, dir_fd=after, follow_symlinks=False)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
    os.rename(source, target, src_dir_fd=before, dst_dir_fd=after)


def _moved_one_by_one(before: int, source: str, after: int, target: str) -> str:
    """Move the content of someone else's folder into one of ours; returns its name. What makes it an export
    goes last."""
    for name in numbered(target):
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=after)
            break
    with _inside(before, source) as there, _inside(after, name) as here:
        for one in sorted(os.listdir(there), key=lambda one: one in EXPORT_MARKS):
            _renamed(there, one, here, one)
    os.rmdir(source, dir_fd=before)
    return name


@contextmanager
def _inside(handle: int, name: str) -> Iterator[int]:
    inner = os.open(name, FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=handle)
    try:
        yield inner
    finally:
        os.close(inner)


def _copied(before: int, source: str, after: int, target: str, aside: Path) -> str:
    """Bring a file or an export over from another file system: a whole copy first, then its name, then the
    original goes."""
    copy = aside / uuid.uuid4().hex
    try:
        with _inside(before, source) as there:
            copy.mkdir()
            names = os.listdir(there)
            for one in names:
                _copy_file(there, one, copy / one)
    except NotADirectoryError:
        _copy_file(before, source, copy)
        os.rename(copy, target := _free(after, target), dst_dir_fd=after)
        os.unlink(source, dir_fd=before)
        return target
    os.rename(copy, target := _free(after, target), dst_dir_fd=after)
    with _inside(before, source) as there:
        for one in names:
            os.unlink(one, dir_fd=there)
    os.rmdir(source, dir_fd=before)
    return target


def _free(handle: int, target: str) -> str:
    """The first free name; only the holder of the home's lock writes into this folder."""
    return next(name for name in numbered(target) if not _is_taken(handle, name))


def _is_taken(handle: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=handle, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _copy_file(before: int, source: str, copy: Path) -> None:
    with (
        open(os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=before), "rb") as read,
        copy.open("xb") as write,
    ):
        status = os.fstat(read.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EXDEV, f"{kind_of(status.st_mode)} on another file system", source)
        shutil.copyfileobj(read, write, 1 << 20)
        write.flush()
        os.fchmod(write.fileno(), stat.S_IMODE(status.st_mode) & 0o666)
        os.fsync(write.fileno())
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
