"""Exit codes: which failure means which, and which of several wins."""

from __future__ import annotations

import pytest

from pipeline.errors import (
    ContractError,
    ExitCode,
    ModelError,
    SideFile,
    StepledgerError,
    TraceError,
    UnfinishedFile,
    UsageError,
    exit_code_for,
)

TRACE = TraceError("f.json", where="byte 7", found="a comma", wanted="an event", advice="Record it again.")


@pytest.mark.parametrize(
    ("codes", "wins"),
    [
        ([], ExitCode.OK),
        ([ExitCode.OK, ExitCode.OK], ExitCode.OK),
        ([ExitCode.QUALITY], ExitCode.QUALITY),
        ([ExitCode.QUALITY, ExitCode.TRACE], ExitCode.TRACE),
        ([ExitCode.QUALITY, ExitCode.TRACE, ExitCode.MODEL], ExitCode.MODEL),
        ([ExitCode.QUALITY, ExitCode.TRACE, ExitCode.MODEL, ExitCode.BUG], ExitCode.BUG),
        ([ExitCode.USAGE], ExitCode.USAGE),
    ],
)
def test_of_several_outcomes_1_wins_before_4_before_3_before_5(codes: list[ExitCode], wins: ExitCode) -> None:
    """One exit code speaks for all files and runs of a command."""
    assert exit_code_for(codes) is wins
    assert exit_code_for(reversed(codes)) is wins


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2),
        (TRACE, 3),
        (UnfinishedFile("f", where="end", found="none", wanted="one"), 3),
        (ModelError("x"), 4),
        (ContractError("x"), 4),
        (StepledgerError("x"), 1),
    ],
)
def test_every_failure_has_its_exit_code(error: StepledgerError, code: int) -> None:
    """Scripts depend on these numbers."""
    assert int(error.exit_code) == code


def test_a_trace_error_has_file_place_found_wanted_and_advice() -> None:
    """A user can act on the one line that they see."""
    assert str(TRACE) == "f.json: byte 7: found a comma, wanted an event. Record it again."


def test_a_trace_error_without_advice_ends_with_its_sentence() -> None:
    """No blank is left where the advice would stand."""
    assert str(TraceError("f", where="w", found="x", wanted="y")) == "f: w: found x, wanted y."


def test_a_side_file_keeps_its_note() -> None:
    """The note is what the user reads about the file."""
    assert SideFile("capture.json", "notes").note == "notes"
