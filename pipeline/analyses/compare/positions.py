"""The kernels of a run's usual step by place: in which layer, in which order, how often and how long."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import duckdb

from pipeline import duck
from pipeline.analyses.compare.sample import Sample

BEFORE_LAYERS, AFTER_LAYERS, WHOLE_STEP = -1, 1_000_000, 2_000_000
# How often each name is at each place of a step: the usual count of the rank that has most, 0 where most of
# its steps lack it. `ns`: of all its calls there in a step, mean over steps, of the same rank. `pos`: where
# among the kernels of the place.
_PLACES = """
WITH step AS (SELECT trace_id, device, step FROM steps WHERE run_id = $run AND source = $source AND phase = $phase AND is_complete),
name AS (SELECT DISTINCT name, short_name FROM kernel_breakdown WHERE run_id = $run AND source = $source),
kernel AS (
    SELECT trace_id, device, step, layer, category, subcategory, role, short_name, start_ns, activity_id, dur_ns
    FROM activity JOIN step USING (trace_id, device, step) JOIN name USING (name)
    WHERE run_id = $run AND source = $source AND kind = 'kernel'
),
inside AS (SELECT trace_id, device, step, min(start_ns) AS layers_ns FROM kernel WHERE layer IS NOT NULL GROUP BY ALL),
placed AS (
    SELECT kernel.*, CASE WHEN $whole THEN 2000000 WHEN layer IS NOT NULL THEN layer WHEN start_ns < layers_ns THEN -1 ELSE 1000000 END AS place
    FROM kernel LEFT JOIN inside USING (trace_id, device, step)
),
ordered AS (
    SELECT *, row_number() OVER (PARTITION BY trace_id, device, step, place ORDER BY start_ns, activity_id) AS pos FROM placed
),
unit AS (
    SELECT trace_id, device, step, place, short_name, role, min(category) AS category, min(subcategory) AS subcategory,
        count(*) AS calls, sum(dur_ns) AS ns, min(pos) AS pos
    FROM ordered GROUP BY trace_id, device, step, place, short_name, role
),
size AS (SELECT trace_id, device, place, count(DISTINCT step) AS units FROM unit GROUP BY ALL),
usual AS (
    SELECT trace_id, device, place, short_name, role, min(category) AS category, min(subcategory) AS subcategory,
        count(*) AS present, quantile_disc(calls, 0.5) AS calls, sum(ns) AS ns, median(pos) AS pos
    FROM unit GROUP BY trace_id, device, place, short_name, role
),
lane AS (
    SELECT place, short_name, category, subcategory, role, pos, ns / units / 1e6 AS ms, CASE WHEN present * 2 > units THEN calls ELSE 0 END AS calls,
        trace_id, device
    FROM usual JOIN size USING (trace_id, device, place)
)
SELECT place, short_name, category, subcategory, role, pos, calls::BIGINT, ms / calls FROM lane WHERE calls > 0
QUALIFY row_number() OVER (PARTITION BY place, short_name, role ORDER BY calls DESC, trace_id, device) = 1
ORDER BY place, pos, short_name, role
"""


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
    arguments = {"run": side.run_id, "source": side.source, "phase": side.phase, "whole": is_whole}
    return [Kernel(*row) for row in duck.rows(con, _PLACES, arguments)]


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
