"""The file that a reader is given: opened once, examined through its descriptor, and read from there no
matter what happens to its path."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import GoneFile, TraceError
from pipeline.lake.beneath import EXPORT_MARKS, folder, kind_of

_BY_PATH = (".sqlite", ".nsys-rep")
"""Read by libraries that look a path up again, and follow a link to a descriptor by its text."""
_SQLITE = b"SQLite format 3\0"
_O_PATH = os.O_PATH | os.O_CLOEXEC
NAME_FILES = "Name the trace files, or the folder that holds them."


@dataclass(frozen=True)
class Dropped:
    """`path`: what readers open, under the file's own name, in a folder that only this user may enter.
    `folder`: where the file lies, to look at the names beside it. `inode` and `mode` are those of what was
    opened."""

    path: Path
    folder: Path
    name: str
    size_bytes: int
    inode: int
    mode: int
    gid: int
    handles: tuple[int, ...]

    def state(self) -> tuple[tuple[int, int], ...]:
        """What changes when someone writes to the file, or to one of an export's."""
        found = [os.fstat(handle) for handle in self.handles]
        return tuple((status.st_size, status.st_mtime_ns) for status in found)


@contextmanager
def opened(path: Path, private: Path, inbox: Path | None = None) -> Iterator[Dropped]:
    """Open a file, or a folder that is one nsys export, and show it to readers below `private`.

    Below `inbox` no symbolic link is followed. Raises GoneFile for a file that was removed, TraceError for
    one that cannot be opened or is not a regular file.
    """
    with ExitStack() as stack:
        try:
            handle = _opened(path, inbox)
            stack.callback(os.close, handle)
            status = os.fstat(handle)
            if stat.S_ISDIR(status.st_mode):
                shown, handles = _export(handle, path.name, private, stack)
            elif stat.S_ISREG(status.st_mode):
                readable = _readable(handle)
                stack.callback(os.close, readable)
                shown, handles = _file(readable, path.name, private), (readable,)
            else:
                found = f"{kind_of(status.st_mode)}, which is not a regular file"
                raise TraceError(
                    path.name, where="the path", found=found, wanted="a trace file", advice=NAME_FILES
                )
        except OSError as error:
            raise unreadable(path, error) from error
        sizes = sum(os.fstat(one).st_size for one in handles)
        modes = [os.fstat(one).st_mode for one in handles]
        mode = modes[0]
        for one in modes[1:]:
            mode &= one
        yield Dropped(
            shown, path.parent, path.name, sizes, status.st_ino, mode & 0o777, status.st_gid, handles
        )


def unreadable(path: Path, error: OSError) -> TraceError:
    """The error for a file that cannot be opened or read."""
    if error.errno in {errno.ENOENT, errno.ESTALE}:
        return GoneFile(
            path.name,
            where="the path",
            found="that it was removed",
            wanted="a file that stays",
            advice="Drop it again.",
        )
    if error.errno == errno.ELOOP:
        return TraceError(
            path.name,
            where="the path",
            found="a symbolic link",
            wanted="the file itself",
            advice="Put the file there.",
        )
    check = "its permissions" if error.errno in {errno.EACCES, errno.EPERM} else "the file and the disk"
    return TraceError(
        path.name,
        where="opening it",
        found=error.strerror or str(error),
        wanted="a readable file",
        advice=f"Check {check}, then run `stepledger retry`.",
    )


def _opened(path: Path, inbox: Path | None) -> int:
    """A descriptor that only names the file: opening a pipe or a device could block, or have side effects."""
    if inbox is None:
        return os.open(path, _O_PATH)
    parts = path.relative_to(inbox).parts
    with folder(inbox, parts[:-1]) as parent:
        handle = os.open(parts[-1], _O_PATH | os.O_NOFOLLOW, dir_fd=parent)
    if stat.S_ISLNK(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path.name)
    return handle


def _readable(handle: int) -> int:
    return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC)


def _file(handle: int, name: str, private: Path) -> Path:
    """The opened file under its own name: a link to its descriptor, or where a path is needed, one more name
    of the file."""
    shown = private / name
    if name.endswith(_BY_PATH) or os.pread(handle, len(_SQLITE), 0) == _SQLITE:
        with folder(private) as here:
            try:
                # A path in /proc with a folder's descriptor beside it: this is how a descriptor gets a name.
                os.link(f"/proc/self/fd/{handle}", name, dst_dir_fd=here)
            except OSError:  # another file system, or a file of another user
                _copy(handle, shown)
    else:
        shown.symlink_to(f"/proc/{os.getpid()}/fd/{handle}")
    return shown


def _copy(handle: int, target: Path) -> None:
    with os.fdopen(os.dup(handle), "rb") as read, target.open("xb") as write:
        read.seek(0)
        shutil.copyfileobj(read, write, 1 << 20)


def _export(handle: int, name: str, private: Path, stack: ExitStack) -> tuple[Path, tuple[int, ...]]:
    """The files of an export under their own names, in a folder of its name."""
    shown = private / name
    shown.mkdir()
    handles = []
    with folder(Path(f"/proc/self/fd/{handle}")) as inside:
        names = sorted(one for one in os.listdir(inside) if not one.startswith("."))
        if not EXPORT_MARKS.intersection(names):
            raise TraceError(
                name,
                where="the path",
                found="a folder, which is not a regular file",
                wanted="a trace file",
                advice=NAME_FILES,
            )
        for one in names:
            entry = os.open(one, _O_PATH | os.O_NOFOLLOW, dir_fd=inside)
            stack.callback(os.close, entry)
            mode = os.fstat(entry).st_mode
            if not stat.S_ISREG(mode):
                raise TraceError(
                    name,
                    where=f"{one} in it",
                    found=kind_of(mode),
                    wanted="the files of an nsys export and nothing else",
                    advice="Export the report again, or put the file itself there.",
                )
            readable = _readable(entry)
            stack.callback(os.close, readable)
            handles.append(readable)
            (shown / one).symlink_to(f"/proc/{os.getpid()}/fd/{readable}")
    return shown, tuple(handles)


def mode_of(*raw_runs: Path) -> int:
    """The mode shared by all files that landed in these runs."""
    mode = 0o666
    for folder_of_run in raw_runs:
        for file in folder_of_run.glob("file_id=*/trace.parquet"):
            mode &= file.stat().st_mode
    return mode


def same_mode(target: Path, mode: int, gid: int | None = None) -> None:
    """Give the files of a folder the read permissions of the files that they were made from.

    `gid`: the group of `mode`; where the files have another one, the group may not read them.
    """
    for file in target.iterdir():
        status = file.stat()
        shared = mode & 0o044 if gid in {None, status.st_gid} else mode & 0o004
        with suppress(PermissionError):
            file.chmod(0o600 | (shared & status.st_mode))
