"""How each kind of work grows: its time per step against global batch, graph tokens and context, over many
runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import duckdb

from pipeline import duck
from pipeline.analyses.compare.comparable import Fact, facts
from pipeline.analyses.compare.compare import passed_checks
from pipeline.analyses.compare.sample import chosen, phases_of, sample_of
from pipeline.analyses.compare.workload import workload_of
from pipeline.analyses.report import Report
from pipeline.errors import UsageError
from pipeline.lake.home import Home
from pipeline.lake.reading import find_run, reading, stable

COLUMNS = (
    "category",
    "global_batch",
    "graph_tokens",
    "context_tokens",
    "ms_p50",
    "exposed_ms_p50",
    "us_per_request",
    "calls",
    "steps",
    "run",
)
SHAPES = (
    "global_batch",
    "graph_tokens",
    "context_tokens",
    "wall_ms_p50",
    "gpu_ms_p50",
    "us_per_request",
    "steps",
    "run",
)
_SIZE_FACTS = {"global batch", "prompt tokens", "graph tokens", "context", "inflation", "kernels of a step"}
"""What may differ along a curve; anything else that differs is a second cause, and is named."""
# Steps of one size of a run: `context` is the median of what the markers tell of a request, else what was
# said of the run.
_POINTS = """
WITH size AS (
    SELECT match_id, coalesce(context_requests + generation_requests, generation_requests, context_requests) AS batch, graph_tokens
    FROM run_steps WHERE run_id = $run AND source = $source
),
step AS (
    SELECT s.*, coalesce(size.batch, t.context_requests + t.generation_requests, t.generation_requests, t.context_requests) AS batch,
        coalesce(size.graph_tokens, t.graph_tokens) AS graph_tokens, t.kv_tokens / nullif(t.generation_requests, 0) AS context
    FROM side_step AS s JOIN (FROM steps WHERE run_id = $run AND source = $source) AS t
        ON s.trace_id = t.trace_id AND s.device = t.device AND s.step = t.step
    LEFT JOIN size ON s.match_id = size.match_id
),
unit AS (
    SELECT unit, batch, graph_tokens, median(context) AS context, CASE WHEN count(wall_ns) = count(*) THEN avg(wall_ns) END AS wall_ns
    FROM step GROUP BY unit, batch, graph_tokens
),
point AS (
    SELECT batch, graph_tokens, count(*) AS steps, median(context) AS context, median(wall_ns) / 1e6 AS wall_ms FROM unit GROUP BY ALL
),
work AS (
    SELECT step.unit, step.batch, step.graph_tokens, b.category, any_value(step.ranks) AS ranks, sum(b.busy_ns) AS busy_ns,
        sum(b.exposed_ns) AS exposed_ns, sum(b.calls) AS calls
    FROM step JOIN step_breakdown AS b ON step.trace_id = b.trace_id AND step.device = b.device AND step.step = b.step
    WHERE b.run_id = $run GROUP BY GROUPING SETS ((step.unit, step.batch, step.graph_tokens, b.category), (step.unit, step.batch, step.graph_tokens))
)
SELECT point.batch, point.graph_tokens, point.context, point.wall_ms, point.steps, work.category,
    list(work.busy_ns / work.ranks / 1e6), list(work.exposed_ns / work.ranks / 1e6), quantile_disc(work.calls // work.ranks, 0.5)::BIGINT
FROM work JOIN point ON work.batch IS NOT DISTINCT FROM point.batch AND work.graph_tokens IS NOT DISTINCT FROM point.graph_tokens
GROUP BY ALL ORDER BY ALL
"""


def curve(home: Home, runs: Sequence[str], phase: str | None = None) -> list[Report]:
    """Every category at every size of step that the runs hold, and each size's wall. Raises UsageError where
    a run failed its checks, or lacks complete steps of the phase."""

    def read() -> list[Report]:
        with reading(home) as con:
            return _curve(con, runs, phase)

    return stable(home, read)


def _curve(con: duckdb.DuckDBPyConnection, runs: Sequence[str], phase: str | None) -> list[Report]:
    run_ids = list(dict.fromkeys(find_run(con, name) for name in runs))
    if not run_ids:
        raise UsageError("name at least one run")
    notes = passed_checks(con, run_ids)
    keys = chosen([phases_of(con, run_id) for run_id in run_ids], run_ids, phase)
    if len({p for _, p in keys}) > 1:
        raise UsageError(
            "the runs have no phase in common: "
            f"{', '.join(f'{run} {p}' for run, (_, p) in zip(run_ids, keys, strict=True))}"
        )
    rows: list[list[Any]] = []
    shapes: list[list[Any]] = []
    seen = []
    for run_id, key in zip(run_ids, keys, strict=True):
        side = sample_of(con, run_id, *key)
        work = workload_of(con, side)
        seen.append((side, work))
        for point in duck.rows(con, _POINTS, {"run": run_id, "source": side.source}):
            _add(point, run_id, work.config.get("context_tokens"), rows, shapes)
    rows.sort(key=_order)
    shapes.sort(key=lambda row: _order(["", *row]))
    found = [other for side, work in seen[1:] for other in facts(seen[0][0], side, seen[0][1], work)]
    phase = keys[0][1]
    notes = [
        *_mixed(found, run_ids),
        (
            "ms: median over steps of the mean over ranks, summed kernel time; graph_tokens: the padded size "
            "replayed"
        ),
        *notes,
    ]
    if any(row[2] is None for row in shapes):
        notes.append(
            "context_tokens is empty where neither markers nor run_config tell it (`stepledger describe RUN "
            "--context-tokens N`)"
        )
    return [
        Report(
            f"Time of a {phase} step by kind of work against its size, {len(run_ids)} runs",
            COLUMNS,
            rows,
            notes,
        ),
        Report(
            "The sizes",
            SHAPES,
            shapes,
            ["wall_ms_p50: of steps that a step of the same phase follows; gpu_ms_p50: all kernels, summed"],
        ),
    ]


def _add(
    point: tuple[Any, ...],
    run_id: str,
    said_context: int | None,
    rows: list[list[Any]],
    shapes: list[list[Any]],
) -> None:
    batch, graph, context, wall, steps, category, busy, exposed, calls = point
    size = [batch, graph, said_context if context is None else round(context)]
    ms, shown = (_median_with_zeros(values, steps) for values in (busy, exposed))
    each = round(1e3 * ms / batch, 3) if batch else None
    if category is None:
        shapes.append([*size, None if wall is None else round(wall, 6), round(ms, 6), each, steps, run_id])
    else:
        rows.append([category, *size, round(ms, 6), round(shown, 6), each, calls, steps, run_id])


def _median_with_zeros(values: list[float], steps: int) -> float:
    """The median over all steps; one that lacks the kind of work has none of it."""
    every = sorted([0.0] * (steps - len(values)) + values)
    return (every[(len(every) - 1) // 2] + every[len(every) // 2]) / 2


def _order(row: Sequence[Any]) -> tuple[Any, ...]:
    """By category, then size, unknown sizes last, then run."""
    return (row[0], *((value is None, value or 0) for value in row[1:4]), row[-1])


def _mixed(found: Sequence[Fact], run_ids: Sequence[str]) -> list[str]:
    """What differs between the runs beside the size of their steps."""
    values: dict[str, set[str]] = defaultdict(set)
    for fact in found:
        if fact.verdict == "differs" and fact.name not in _SIZE_FACTS:
            values[fact.name] |= {str(fact.before), str(fact.after)}
    notes = [
        f"the runs differ in more than size: {name} ({', '.join(sorted(those))})"
        for name, those in values.items()
    ]
    unknown = sorted(
        {fact.name for fact in found if fact.verdict == "not known" and fact.name not in _SIZE_FACTS}
    )
    if unknown and len(run_ids) > 1:
        notes.append(f"not known of all runs, so taken to be the same: {', '.join(unknown)}")
    return notes
