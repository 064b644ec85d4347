"""A comparison in words: a masked bottleneck, waiting separate from the floor, an unknown
context."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from pipeline.analyses.compare.changes import RowChange
from pipeline.analyses.compare.comparable import Fact
from pipeline.analyses.compare.masked import Moved, milliseconds, sentences
from pipeline.analyses.compare.sample import Sample

_SEVERAL = {"Cast and quantize", "Everything else"}
"""Rows whose categories are named instead of the row."""


def in_short(rows: Sequence[RowChange], before: Sample, after: Sample, known: Sequence[Fact]) -> list[str]:
    """What changed and why, in sentences: masked bottlenecks, waiting, context."""
    return [
        *_masked(rows, before, after, known),
        *_waiting_words(rows, before, after),
        *_context_words(rows, known),
    ]


def _masked(rows: Sequence[RowChange], before: Sample, after: Sample, known: Sequence[Fact]) -> list[str]:
    moved = [
        Moved(
            row.name,
            row.before,
            row.after,
            row.noise,
            row.change,
            row.exposed or "not judged",
            before.share(row.name),
            after.share(row.name),
            before.calls.get(row.name),
            after.calls.get(row.name),
            _part_of(row, before, after),
        )
        for row in rows
        if row.is_rollup
    ]
    return sentences(
        moved,
        is_same_batch=all(
            fact.verdict == "same" for fact in known if fact.name in {"global batch", "graph tokens"}
        ),
    )


def _part_of(row: RowChange, before: Sample, after: Sample) -> str | None:
    """The category that makes up at least nine tenths of a row's change, of a row that holds several."""
    if row.name not in _SEVERAL or not row.delta:
        return None
    kinds = sorted(
        {category for side in (before, after) for rollup, category in side.by_category if rollup == row.name}
    )
    for kind in kinds:
        one, other = (median(side.by_category.get((row.name, kind), [0.0])) for side in (before, after))
        if (other - one) / row.delta >= 0.9:
            return kind
    return None


def _waiting_words(rows: Sequence[RowChange], before: Sample, after: Sample) -> list[str]:
    """For rows of communication: how much of a change was waiting, or that it cannot be separated."""
    texts = []
    for row in rows:
        sides = [side.waiting.get(row.name) for side in (before, after)]
        known_sides = [found for found in sides if found is not None]
        refusals = [
            f"{side.run_id} ({found.refusal})"
            for side, found in zip((before, after), sides, strict=True)
            if found and found.refusal
        ]
        if refusals:
            texts.append(
                f"{row.name}: waiting cannot be separated in run {', '.join(refusals)}; see `stepledger "
                "ranks`"
            )
        elif len(known_sides) == 2 and row.change in {"higher", "lower"}:
            floor = round(median(known_sides[1].floor) - median(known_sides[0].floor), 3) + 0.0
            wait = round(median(known_sides[1].wait) - median(known_sides[0].wait), 3) + 0.0
            texts.append(
                f"{row.name} {'rose' if row.delta > 0 else 'fell'} by {milliseconds(abs(row.delta))} "
                f"ms: waiting {wait:+.3f}, floor {floor:+.3f}"
            )
    return texts


def _context_words(rows: Sequence[RowChange], known: Sequence[Fact]) -> list[str]:
    """Attention that changed where the context is unknown."""
    is_unknown = any(fact.name == "context" and fact.verdict == "unknown" for fact in known)
    if is_unknown and any(row.name == "Attention" and row.change in {"higher", "lower"} for row in rows):
        return [
            (
                "Attention changed, and the context is not known for both runs: the context may have "
                "changed (give context_tokens)"
            )
        ]
    return []
