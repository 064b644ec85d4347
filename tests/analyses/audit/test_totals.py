"""The cheap explanations of an odd number of all-reduces."""

from __future__ import annotations

from pipeline.analyses.audit.totals import explain


def test_the_sum_in_words_is_exact() -> None:
    """The usual count times the steps, what some steps hold more or less, and what is in no step."""
    assert explain(19_680, 0, 123, 155, 5, 0, 0) == "19680 = 123 x (155 decode + 5 other)"
    assert (
        explain(1_000, 4, 100, 10, 0, -4, 2)
        == "1000 = 100 x (10 decode + 0 other) - 4 in 2 steps with another count + 4 in no step"
    )
    assert explain(22, 0, 5, 4, 0, 2, 2) == "22 = 5 x (4 decode + 0 other) + 2 in 2 steps with another count"
