"""Counting problems by code and event class."""

from __future__ import annotations

import pytest

from pipeline.sources.issues import EXAMPLE_CHARS, IssueBook, issue_codes


def test_one_problem_is_counted_in_one_row() -> None:
    """Counts and durations of one code and class add up; the first example stays."""
    book = IssueBook()
    book.add("bad_value", "ts", example="first")
    book.add("bad_value", "ts", 2, dur_ns=5, example="second")
    book.add("bad_value", "ts", dur_ns=7)
    assert book.rows() == [("bad_value", "ts", "warn", 4, 12, "first")]


def test_classes_and_codes_have_their_own_rows() -> None:
    """Each code and event class has a row of its own, in a fixed order."""
    book = IssueBook()
    book.add("unknown_rank", "trace")
    book.add("bad_value", "ts")
    book.add("bad_value", "dur")
    assert [row[:2] for row in book.rows()] == [
        ("bad_value", "dur"),
        ("bad_value", "ts"),
        ("unknown_rank", "trace"),
    ]


def test_duration_is_missing_until_one_is_known() -> None:
    """Without a duration the sum is NULL, not 0."""
    book = IssueBook()
    book.add("repaired_text", "kernel")
    assert book.rows()[0][4] is None


def test_example_is_shortened() -> None:
    """A long example is shortened to fit a line."""
    book = IssueBook()
    book.add("bad_value", "ts", example="x" * 1000)
    assert book.rows()[0][5] == "x" * EXAMPLE_CHARS


def test_unknown_code_is_a_bug() -> None:
    """A code that issues.toml does not name cannot be counted."""
    with pytest.raises(KeyError):
        IssueBook().add("no_such_code", "kernel")


@pytest.mark.parametrize("code", issue_codes())
def test_every_code_says_what_it_means_and_what_to_do(code: str) -> None:
    """Each code has a severity, a meaning and a next step."""
    entry = issue_codes()[code]
    assert entry["severity"] in {"info", "warn", "fail"}
    assert entry["meaning"].endswith(".")
    assert entry["todo"].endswith(".")
