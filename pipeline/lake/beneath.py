"""Work below a folder that other users may write to: list, open and move files without following a link.

Every call that takes a path looks it up again, so a user who may write to the folder can exchange what it
names between two calls. Everything here goes from the folder's descriptor to the file's, never through a
symbolic link, and examines what it opened.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

MAX_DEPTH = 32
MAX_ENTRIES = 100_000
MAX_PLACE_BYTES = 1_000
"""Longest path below the folder: with the home's own path and what is added to it, it must stay below
PATH_MAX."""
EXPORT_MARKS = frozenset({"StringIds.parquet", "StringIds.arrow"})
"""A folder that holds one of these files is one nsys export, not a folder of files."""

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

Kind = Literal["file", "export", "link", "other", "closed", "deep", "many"]


@dataclass(frozen=True)
class Entry:
    """One thing found below a folder. `place` is relative to it; `changed_s` is the latest change of it or in
    it.

    Kinds: a regular file, an nsys export (a folder), a symbolic link, a pipe or the like, a folder that
    cannot be listed, one nested too deep, and one that holds more entries than one pass reads.
    """

    place: Path
    kind: Kind
    size_bytes: int = 0
    changed_s: float = 0.0
    inode: int = 0
    note: str = ""


@contextmanager
def folder(root: Path, parts: Iterable[str] = ()) -> Iterator[int]:
    """The descriptor of a folder below `root` (which itself may be a link). Raises OSError, ELOOP or ENOTDIR
    for a link."""
    handle = os.open(root, FOLDER_FLAGS)
    try:
        for part in parts:
            inner = os.open(part, FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=handle)
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


def entries(root: Path, *, hidden: bool = False) -> list[Entry]:
    """Everything below a folder, by path; never raises because of its contents. Hidden names are left out
    unless `hidden`."""
    found: list[Entry] = []
    waiting: list[tuple[tuple[str, ...], int]] = [((), 0)]
    budget = MAX_ENTRIES
    while waiting:
        parts, inode = waiting.pop()
        listed, budget = _listed(root, parts, budget, hidden=hidden)
        if isinstance(listed, Entry):
            found.append(listed)
        elif parts and any(name in EXPORT_MARKS and stat.S_ISREG(status.st_mode) for name, status in listed):
            found.append(_export(parts, inode, listed))
        else:
            if budget < 0:
                found.append(Entry(Path(*parts), "many", note=f"more than {MAX_ENTRIES} files and folders"))
            for name, status in listed:
                inner = (*parts, name)
                if not stat.S_ISDIR(status.st_mode):
                    found.append(_entry(root, inner, status))
                elif len(inner) > MAX_DEPTH or len(os.fsencode("/".join(inner))) > MAX_PLACE_BYTES:
                    found.append(Entry(Path(*inner), "deep", note=f"a path of {len(inner)} folders"))
                elif budget >= 0:
                    waiting.append((inner, status.st_ino))
    return sorted(found, key=lambda entry: entry.place)


def _listed(
    root: Path, parts: tuple[str, ...], budget: int, *, hidden: bool
) -> tuple[list[tuple[str, os.stat_result]] | Entry, int]:
    """Names and states in one folder, and the rest of the budget; an Entry for a folder that cannot be
    listed."""
    found: list[tuple[str, os.stat_result]] = []
    try:
        with folder(root, parts) as handle, os.scandir(handle) as listing:
            for one in listing:
                budget -= 1
                if budget < 0:
                    break
                if hidden or not one.name.startswith("."):
                    with suppress(FileNotFoundError):
                        found.append((one.name, one.stat(follow_symlinks=False)))
    except OSError as error:
        if not parts or error.errno in {
            errno.ENOENT,
            errno.ENOTDIR,
            errno.ELOOP,
        }:  # removed or exchanged just now
            return [], budget
        return Entry(Path(*parts), "closed", note=error.strerror or str(error)), budget
    return found, budget


def _entry(root: Path, parts: tuple[str, ...], status: os.stat_result) -> Entry:
    place = Path(*parts)
    if stat.S_ISLNK(status.st_mode):
        return Entry(place, "link", 0, status.st_mtime, status.st_ino, _link_text(root, parts))
    kind: Kind = "file" if stat.S_ISREG(status.st_mode) else "other"
    return Entry(place, kind, status.st_size, status.st_mtime, status.st_ino, kind_of(status.st_mode))


def _link_text(root: Path, parts: tuple[str, ...]) -> str:
    with suppress(OSError), folder(root, parts[:-1]) as handle:
        return os.readlink(parts[-1], dir_fd=handle)
    return ""


def _export(parts: tuple[str, ...], inode: int, listed: list[tuple[str, os.stat_result]]) -> Entry:
    """`note`: the first name in it that is not a regular file, if any."""
    odd = next((name for name, status in sorted(listed) if not stat.S_ISREG(status.st_mode)), "")
    size_bytes = sum(status.st_size for _, status in listed)
    return Entry(Path(*parts), "export", size_bytes, max(status.st_mtime for _, status in listed), inode, odd)


def kind_of(mode: int) -> str:
    """The kind of file that a mode means, in words; empty for a regular file."""
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFLNK: "a symbolic link",
    }
    kinds |= {stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    return kinds.get(stat.S_IFMT(mode), "")
