"""The kernels of a run's usual step by place: in which layer, in which order, how often and how long."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import duckdb

from pipeline.analyses import sql
from pipeline.analyses.compare.sample import Sample

BEFORE_LAYERS, AFTER_LAYERS, WHOLE_STEP = -1, 1_000_000, 2_000_000


@dataclass(frozen=True)
class Kernel:
    """A name at a place of the usual step: how often, where among the kernels there, and the time of one
    call, ms."""

    place: int
    name: str
    category: str
    subcategory: str | None
    role: str | None
    pos: float
    calls: int
    ms: float


def kernels_of(con: duckdb.DuckDBPyConnection, side: Sample, *, is_whole: bool) -> list[Kernel]:
    """The kernels of a side's usual step by place; `is_whole`: the step as one place."""
    found = sql.rows(
        con, "compare/kernels", run_id=side.run_id, source=side.source, phase=side.phase, is_whole=is_whole
    )
    return [Kernel(*row) for row in found]


def where(places: Iterable[int]) -> str:
    """Places in words: layers 1-60, before the first layer."""
    found = sorted(set(places))
    layers = [place for place in found if BEFORE_LAYERS < place < AFTER_LAYERS]
    parts: list[str] = []
    at = 0
    while at < len(layers):
        end = at
        while end + 1 < len(layers) and layers[end + 1] == layers[end] + 1:
            end += 1
        parts.append(f"{layers[at]}" if end == at else f"{layers[at]}-{layers[end]}")
        at = end + 1
    words = [f"layer{'s' * (len(layers) > 1)} {', '.join(parts)}"] if layers else []
    words += [
        text
        for place, text in (
            (BEFORE_LAYERS, "before the first layer"),
            (AFTER_LAYERS, "after the layers"),
            (WHOLE_STEP, "whole step"),
        )
        if place in found
    ]
    return ", ".join(words)
