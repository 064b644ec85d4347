"""The failures stepledger names, and the exit code that each one means."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


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


class TraceError(StepledgerError):
    """A trace cannot be read: which file, where in it, what was found, what was wanted, what to do."""

    exit_code = ExitCode.TRACE

    def __init__(self, file: str, *, where: str, found: str, wanted: str, advice: str = "") -> None:
        self.file, self.where, self.found, self.wanted, self.advice = file, where, found, wanted, advice
        text = f"{file}: {where}: found {found}, wanted {wanted}."
        super().__init__(f"{text} {advice}".strip())


class UnfinishedFile(TraceError):
    """A compressed file without its end: somebody may still be writing it."""


class SideFile(StepledgerError):
    """A file that belongs to a capture but is no GPU trace: it is archived with a note."""

    def __init__(self, file: str, note: str) -> None:
        self.file, self.note = file, note
        super().__init__(f"{file}: {note}")


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
