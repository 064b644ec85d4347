"""The masked bottleneck, in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline.analyses.compare.masked import Moved, percent, sentences

CALLS = (123, 123, 123)
CAST = Moved(
    "Cast and quantize", 40.1, 0.0, 0.1, "lower", "lower", 40.1 / 58.173, 0.0, (61, 61, 61), None, "cast"
)
REDUCE = Moved("AllReduce", 9.308, 9.308, 0.186, "within noise", "within noise", 0.16, 0.515, CALLS, CALLS)
REST = Moved("GEMM", 8.765, 8.765, 0.175, "within noise", "within noise", 0.151, 0.485, (1, 1, 1), (1, 1, 1))
BEGIN = "cast fell by 40.1 ms; all-reduce is now 51.5 % (was 16 %)"


def only_sentence(reduce: Moved = REDUCE, *, cast: Moved = CAST, is_same_batch: bool = True) -> str:
    """The sentence on the all-reduce."""
    return sentences([reduce, REST, cast], is_same_batch=is_same_batch)[0]


def test_a_bottleneck_that_was_hidden_is_said_to_have_been_masked() -> None:
    """The sentence, word for word."""
    assert only_sentence() == (
        f"{BEGIN}, its ms, calls and exposed time unchanged within noise at the same batch: it was "
        "masked, not created"
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"change": "higher"}, "its ms changed"),
        ({"exposed_change": "higher"}, "its exposed time changed"),
        ({"change": "lower", "exposed_change": "lower"}, "its ms and its exposed time changed"),
        ({"calls_after": (127, 127, 127)}, "its calls changed"),
        ({"calls_after": (122, 123, 123)}, "its calls changed"),
        ({"noise_ms": 2.0}, "noise of 2.000 ms hides any change of its own"),
        ({"change": "not judged"}, "too few steps to tell noise"),
    ],
)
def test_otherwise_only_its_share_rose(change: dict[str, Any], why: str) -> None:
    """With the reason; masking is not mentioned."""
    assert only_sentence(replace(REDUCE, **change)) == f"{BEGIN}: its share rose ({why})"


def test_another_batch_masks_nothing() -> None:
    """Other work may do the same."""
    assert (
        only_sentence(is_same_batch=False)
        == f"{BEGIN}: its share rose (the batch is not known to be the same)"
    )


def test_where_nothing_fell_nothing_is_only_sentence() -> None:
    """A share that rises by its own growth is in the table."""
    assert sentences([REDUCE, replace(CAST, change="within noise")], is_same_batch=True) == []


def test_a_fall_too_small_to_lift_the_share_is_no_cause() -> None:
    """0.1 ms of 58 lifts no share by 35 points."""
    assert sentences([REDUCE, REST, replace(CAST, after_ms=40.0)], is_same_batch=True) == []


def test_every_large_row_that_rose_has_its_sentence_largest_first() -> None:
    """At most three; small ones and small rises have none."""
    found = sentences(
        [REST, CAST, REDUCE, replace(REST, name="Routing", share_before=0.01, share_after=0.05)],
        is_same_batch=True,
    )
    assert [text.split("; ")[1].split(" is now")[0] for text in found] == ["all-reduce", "GEMM"]


@pytest.mark.parametrize(
    ("share", "text"), [(0.515, "51.5 %"), (0.16, "16 %"), (0.1604, "16 %"), (1.0, "100 %")]
)
def test_shares_are_written_without_idle_decimals(share: float, text: str) -> None:
    """One decimal, where it is one."""
    assert percent(share) == text
