"""The failures stepledger names, and the exit code that each one means."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
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
    """The command was asked for something it cannot do."""

    exit_code = ExitCode.USAGE


class HomeError(StepledgerError):
    """The home cannot take what would be written (its disk is full, its permissions changed), or the cluster
    that should write it fails. Nothing is lost by it."""

    exit_code = ExitCode.USAGE


class WorkerDied(StepledgerError):
    """The process that did a piece of work was killed, and again when it did that piece alone."""


_HOME_TROUBLE = {errno.ENOSPC: "its disk is full", errno.EDQUOT: "its quota is used up", errno.EROFS: "it is read-only"}
_HOME_TEXTS = {os.strerror(number): trouble for number, trouble in _HOME_TROUBLE.items()}


def home_trouble(error: BaseException) -> str | None:
    """What is wrong with the home, if that is what this error (or one that caused it) says; DuckDB says it in words only."""
    at: BaseException | None = error
    while at is not None:
        if isinstance(at, OSError) and at.errno in _HOME_TROUBLE:
            return _HOME_TROUBLE[at.errno]
        for text, trouble in _HOME_TEXTS.items():
            if text in str(at):
                return trouble
        at = at.__cause__ or at.__context__
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


def _trace_error(kind: type[TraceError], file: str, where: str, found: str, wanted: str, advice: str) -> TraceError:
    """A TraceError from its parts: it comes back from a worker process whole."""
    return kind(file, where=where, found=found, wanted=wanted, advice=advice)


class UnfinishedFile(TraceError):
    """A compressed file without its end: somebody may still be writing it."""


class SideFile(StepledgerError):
    """A file that belongs to a capture but is no GPU trace: it is archived with a note."""

    def __init__(self, file: str, note: str) -> None:
        self.file, self.note = file, note
        super().__init__(f"{file}: {note}")

    def __reduce__(self) -> tuple[Any, ...]:
        return SideFile, (self.file, self.note)


class ContractError(StepledgerError):
    """A table does not have the columns that its contract in schemas/ promises."""

    exit_code = ExitCode.MODEL


class ModelError(StepledgerError):
    """A SQL model failed or returned something else than its contract."""

    exit_code = ExitCode.MODEL


_PRECEDENCE = (ExitCode.BUG, ExitCode.MODEL, ExitCode.TRACE, ExitCode.QUALITY, ExitCode.USAGE)


def exit_code_for(codes: Iterable[ExitCode]) -> ExitCode:
    """The one exit code of several outcomes: 1 before 4 before 3 before 5."""
    seen = set(codes)
    return next((code for code in _PRECEDENCE if code in seen), ExitCode.OK)
