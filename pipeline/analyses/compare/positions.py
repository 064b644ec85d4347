"""The kernels of a run's usual step by position: in which layer, in which order, how often and how long."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import duckdb

from pipeline.analyses import sql
from pipeline.analyses.compare.sample import Sample

BEFORE_LAYERS, AFTER_LAYERS, WHOLE_STEP = -1, 1_000_000, 2_000_000


@dataclass(frozen=True)
class Kernel:
    """A name at a position of the usual step: how often, where among the kernels there, and the time of one
    call, ms."""

    position: int
    name: str
    category: str
    subcategory: str | None
    role: str | None
    pos: float
    calls: int
    ms: float


def kernels_of(con: duckdb.DuckDBPyConnection, side: Sample, *, is_whole: bool) -> list[Kernel]:
    """The kernels of a side's usual step by position; `is_whole`: the step as one position."""
    found = sql.rows(
        con, "compare/kernels", run_id=side.run_id, source=side.source, phase=side.phase, is_whole=is_whole
    )
    return [Kernel(*row) for row in found]


def where(positions: Iterable[int]) -> str:
    """Positions in words: layers 1-60, before the first layer."""
    found = sorted(set(positions))
    layers = [position for position in found if BEFORE_LAYERS < position < AFTER_LAYERS]
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
        for position, text in (
            (BEFORE_LAYERS, "before the first layer"),
            (AFTER_LAYERS, "after the layers"),
            (WHOLE_STEP, "whole step"),
        )
        if position in found
    ]
    return ", ".join(words)
