"""The destination of a file as a user names it: a new file, one to replace, a link, a device or a FIFO."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import uuid
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from pipeline import session
from pipeline.errors import UsageError
from pipeline.text import printable

_OPEN_FILES = re.compile(r"/proc/\d+(/task/\d+)?/fd")
_LINKS = 40
_NAME_CHARACTERS = 50
"""At up to 4 bytes a character, this leaves room for a suffix in the 255 bytes that a file name may have."""


def is_special(path: Path) -> bool:
    """Is this written into and never replaced: something that is not a regular file, or an open file
    (/dev/stdout)?

    Raises UsageError for a folder, OSError for a path that cannot be examined.
    """
    if _is_open_file(path):
        return True
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise UsageError(f"{path} is a folder; name a file in it")
    return not stat.S_ISREG(mode)


def _is_open_file(path: Path) -> bool:
    """Does it name a file that a process has open? That may be a regular file, and it is the shell's."""
    for _ in range(_LINKS):
        if _OPEN_FILES.fullmatch(os.path.realpath(path.parent)):
            return True
        if not path.is_symlink():
            return False
        path = path.parent / path.readlink()
    return False


def put(aside: Path, path: Path) -> None:
    """Put a file at a path in one step. A link stays one; a file that is replaced keeps mode and owner."""
    target = Path(os.path.realpath(path))
    with suppress(FileNotFoundError):
        before = target.stat()
        with suppress(PermissionError):
            os.chown(aside, before.st_uid, before.st_gid)
        aside.chmod(stat.S_IMODE(before.st_mode))
    try:
        aside.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        hidden = hidden_beside(target)
        with session.held(hidden):  # on the other file system
            hidden.mkdir(mode=0o700)
            put(Path(shutil.copy(aside, hidden)), target)


def hidden_beside(path: Path) -> Path:
    """An unused name on the file system that a path leads to."""
    target = Path(os.path.realpath(path))
    return target.with_name(f".{target.name[:_NAME_CHARACTERS]}.{uuid.uuid4().hex}")


def pour_into(path: Path, source: Path, *, is_text: bool) -> None:
    """Write a file's bytes into what exists at a path; a FIFO blocks until a process reads it."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY)
    with os.fdopen(handle, "wb") as out:
        pour(out, source, is_text=is_text)


def pour(out: BinaryIO, source: Path, *, is_text: bool) -> None:
    """Write a file's bytes; on a terminal a text's lines, escaped. Raises UsageError for other data there."""
    if not out.isatty():
        with source.open("rb") as file:
            shutil.copyfileobj(file, out)
    elif not is_text:
        raise UsageError("Parquet is not written to a terminal; name a file with --output, or a pipe")
    else:
        with source.open(encoding="utf-8", newline="\n") as lines:
            out.writelines(f"{printable(line.removesuffix(chr(10)))}\n".encode() for line in lines)
