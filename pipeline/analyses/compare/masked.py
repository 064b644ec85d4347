"""The masked bottleneck: a row whose share rose because another one fell. In words, from the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Change = Literal["higher", "lower", "within noise", "not judged"]
LEAST_RISE, LEAST_SHARE = 0.02, 0.10
"""A share that rose by less than 2 points, or is still under 10 %, is no masked bottleneck."""
WIDEST_NOISE = 0.10
"""Where noise is more than this part of a row's time, "unchanged within noise" has no meaning."""
MOST_SENTENCES = 3
_WORDS = {"AllReduce": "all-reduce"}
_KEPT = ("MoE", "GEMM")


@dataclass(frozen=True)
class Moved:
    """One row on both sides: medians in ms, shares as fractions, calls as (fewest, usual, most), and whether
    it moved beyond noise."""

    name: str
    before_ms: float
    after_ms: float
    noise_ms: float
    change: Change
    exposed_change: Change
    share_before: float
    share_after: float
    calls_before: tuple[int, int, int] | None
    calls_after: tuple[int, int, int] | None
    part: str | None = None
    """The one category that makes up nearly all of its change, where the row holds several."""


def percent(share: float) -> str:
    """A share as it is read: 51.5 %, 16 %."""
    return f"{share * 100:.1f}".removesuffix(".0") + " %"


def word(name: str) -> str:
    """The name of a row, or of a category, within a sentence."""
    return _WORDS.get(name) or (name if name.startswith(_KEPT) else name[0].lower() + name[1:]).replace(
        "_", " "
    )


def milliseconds(ms: float) -> str:
    """A time as it is read: 40.1; below 1 ms to the microsecond."""
    return f"{ms:.1f}" if abs(ms) >= 1 else f"{ms:.3f}"


def sentences(rows: Sequence[Moved], *, is_same_batch: bool) -> list[str]:
    """One for each row whose share rose while another row fell beyond noise by enough to do that, largest
    share first; none where nothing fell."""
    fallen = [row for row in rows if row.change == "lower"]
    if not fallen:
        return []
    cause = max(fallen, key=lambda row: row.before_ms - row.after_ms)
    fall, whole = cause.before_ms - cause.after_ms, sum(row.before_ms for row in rows)
    lift = fall / (whole - fall) if whole > fall else 0.0
    risen = [
        row
        for row in rows
        if row is not cause
        and row.share_after >= LEAST_SHARE
        and row.share_after - row.share_before >= LEAST_RISE
        # share x fall / (whole - fall): what the fall alone does to a share; less than half of the rise is no
        # explanation
        and row.share_before * lift * 2 >= row.share_after - row.share_before
    ]
    risen.sort(key=lambda row: (-row.share_after, row.name))
    return [_sentence(cause, row, is_same_batch=is_same_batch) for row in risen[:MOST_SENTENCES]]


def _sentence(cause: Moved, row: Moved, *, is_same_batch: bool) -> str:
    begin = f"{word(cause.part or cause.name)} fell by {milliseconds(cause.before_ms - cause.after_ms)} ms; "
    begin += f"{word(row.name)} is now {percent(row.share_after)} (was {percent(row.share_before)})"
    doubts = _doubts(row, is_same_batch=is_same_batch)
    if doubts:
        return f"{begin}: its share rose ({', '.join(doubts)})"
    return (
        f"{begin}, its ms, calls and exposed time unchanged within noise at the same batch: it was masked, "
        "not created"
    )


def _doubts(row: Moved, *, is_same_batch: bool) -> list[str]:
    """Why a row may have changed itself, or why that is unknown."""
    doubts = []
    if row.change == "not judged" or row.exposed_change == "not judged":
        doubts.append("too few steps to tell noise")
    elif row.change != "within noise" or row.exposed_change != "within noise":
        which = " and ".join(
            what
            for what, change in (("its ms", row.change), ("its exposed time", row.exposed_change))
            if change != "within noise"
        )
        doubts.append(f"{which} changed")
    elif row.noise_ms > WIDEST_NOISE * max(row.before_ms, row.after_ms):
        doubts.append(f"noise of {row.noise_ms:.3f} ms hides any change of its own")
    if row.calls_before is None or row.calls_before != row.calls_after:
        doubts.append("its calls changed")
    if not is_same_batch:
        doubts.append("the batch is not known to be the same")
    return doubts
