"""The failures stepledger names, and the exit code that each one means."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """Exit codes of every command; scripts depend on them."""

    OK = 0
    BUG = 1
    USAGE = 2
    TRACE = 3
    MODEL = 4
    QUALITY = 5
    INTERRUPTED = 130


class StepledgerError(Exception):
    """A failure with a message for the user; a subclass says which exit code it means."""

    exit_code = ExitCode.BUG


class UsageError(StepledgerError):
    """The command cannot do what its arguments request."""

    exit_code = ExitCode.USAGE


class HomeError(StepledgerError):
    """The home cannot be written (its disk is full, its permissions changed), or the cluster that should
    write it fails. No data is lost."""

    exit_code = ExitCode.USAGE


class WorkerDied(StepledgerError):
    """The process that did a task was killed, and killed again when it did that task alone."""


_HOME_PROBLEMS = {
    errno.ENOSPC: "its disk is full",
    errno.EDQUOT: "its quota is used up",
    errno.EROFS: "it is read-only",
}
_HOME_TEXTS = {os.strerror(number): problem for number, problem in _HOME_PROBLEMS.items()}
_WRITE_FAILED = re.compile(rf'\\?": ({"|".join(map(re.escape, _HOME_TEXTS))})(?:",|$)')
"""How DuckDB ends what it reports of a file that it could not write: the path in quotes, then the text of
errno."""
_NO_ROOM_TO_SPILL = "Out of Memory Error: failed to offload data block"


def home_trouble(error: BaseException) -> str | None:
    """What is wrong with the home, if this error, or one that caused it, is about the home.

    An OSError has an errno. DuckDB has text only: it counts in DuckDB's own I/O errors, at a fixed position.
    No other text counts, since it may quote a file.
    """
    return next((found for one in causes(error) if (found := _problem(one)) is not None), None)


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error and those that caused it, each once: an error may be its own cause."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        yield at
        seen.add(id(at))
        at = at.__cause__ or at.__context__


def _problem(error: BaseException) -> str | None:
    if isinstance(error, OSError):
        return _HOME_PROBLEMS.get(error.errno or 0)
    duckdb = sys.modules.get("duckdb")  # not imported here: commands that need no database start without it
    if duckdb is None:
        return None
    if isinstance(error, duckdb.IOException):
        found = _WRITE_FAILED.search(str(error))
        return _HOME_TEXTS[found[1]] if found else None
    if isinstance(error, duckdb.OutOfMemoryException) and str(error).startswith(_NO_ROOM_TO_SPILL):
        return "its disk has no space for data that does not fit in memory"
    return None


class TraceError(StepledgerError):
    """A trace cannot be read: which file, where in it, what was found, what was wanted, what to do."""

    exit_code = ExitCode.TRACE

    def __init__(self, file: str, *, where: str, found: str, wanted: str, advice: str = "") -> None:
        self.file, self.where, self.found, self.wanted, self.advice = file, where, found, wanted, advice
        text = f"{file}: {where}: found {found}, wanted {wanted}."
        super().__init__(f"{text} {advice}".strip())

    def __reduce__(self) -> tuple[Any, ...]:
        return _trace_error, (type(self), self.file, self.where, self.found, self.wanted, self.advice)


def _trace_error(
    kind: type[TraceError], file: str, where: str, found: str, wanted: str, advice: str
) -> TraceError:
    """A TraceError from its parts: it comes back from a worker process whole."""
    return kind(file, where=where, found=found, wanted=wanted, advice=advice)


class UnfinishedFile(TraceError):
    """A truncated file: it may still be being written."""


class GoneFile(TraceError):
    """A file that was removed, or exchanged, before or while it was read."""


class HeldFile(TraceError):
    """Something in the inbox that can be neither read nor moved; it stays where it is."""


class SideFile(StepledgerError):
    """A file that belongs to a capture but is not a GPU trace: it is archived with a note."""

    def __init__(self, file: str, note: str) -> None:
        self.file, self.note = file, note
        super().__init__(f"{file}: {note}")

    def __reduce__(self) -> tuple[Any, ...]:
        return SideFile, (self.file, self.note)


class ContractError(StepledgerError):
    """A table does not have the columns that its contract in schemas/ promises."""

    exit_code = ExitCode.MODEL


class ModelError(StepledgerError):
    """A SQL model failed or broke its contract."""

    exit_code = ExitCode.MODEL


_PRECEDENCE = (ExitCode.BUG, ExitCode.MODEL, ExitCode.TRACE, ExitCode.QUALITY, ExitCode.USAGE)


def exit_code_for(codes: Iterable[ExitCode]) -> ExitCode:
    """The one exit code of several outcomes: 1 before 4 before 3 before 5."""
    seen = set(codes)
    return next((code for code in _PRECEDENCE if code in seen), ExitCode.OK)
