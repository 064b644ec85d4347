"""Benjamini-Hochberg."""

from __future__ import annotations

import pytest

from pipeline.analyses.compare.fdr import LIMIT, adjusted


def test_the_published_example() -> None:
    """The 15 p-values of Benjamini and Hochberg (1995), section 4: at 5 % the first four are rejected."""
    published = [
        0.0001,
        0.0004,
        0.0019,
        0.0095,
        0.0201,
        0.0278,
        0.0298,
        0.0344,
        0.0459,
        0.3240,
        0.4262,
        0.5719,
        0.6528,
        0.7590,
        1.0,
    ]
    found = adjusted(published)
    assert [q < LIMIT for q in found] == [True] * 4 + [False] * 11
    assert found[:4] == pytest.approx([0.0015, 0.003, 0.0095, 0.035625])


def test_order_does_not_matter() -> None:
    """Each row keeps its own rate, in the order given."""
    assert adjusted([0.5, 0.01, 0.02]) == pytest.approx([0.5, 0.03, 0.03])


def test_one_row_is_its_own_chance_and_none_is_none() -> None:
    """Nothing to control."""
    assert adjusted([0.04]) == [0.04]
    assert adjusted([]) == []
