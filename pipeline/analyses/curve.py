"""How each kind of work grows: its time per step by global batch, graph tokens and context, over many
runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import duckdb

from pipeline.analyses import sql
from pipeline.analyses.compare.comparable import Fact, facts
from pipeline.analyses.compare.compare import passed_checks
from pipeline.analyses.compare.sample import chosen, phases_of, sample_of
from pipeline.analyses.compare.workload import workload_of
from pipeline.analyses.report import Report
from pipeline.errors import UsageError
from pipeline.lake.home import Home
from pipeline.lake.reading import find_run, reading, stable
from pipeline.text import counted

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
"""What may differ along a curve; anything else that differs is a second cause and is reported."""


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
        for point in sql.rows(con, "curve/points", run_id=run_id, source=side.source):
            _add(point, run_id, work.config.get("context_tokens"), rows, shapes)
    rows.sort(key=_order)
    shapes.sort(key=lambda row: _order(["", *row]))
    found = [other for side, work in seen[1:] for other in facts(seen[0][0], side, seen[0][1], work)]
    phase = keys[0][1]
    notes = [
        *_mixed(found, run_ids),
        (
            "ms: median over steps of the mean over ranks, summed kernel time; graph_tokens: the "
            "padded size replayed"
        ),
        *notes,
    ]
    if any(row[2] is None for row in shapes):
        notes.append(
            "context_tokens is empty where neither markers nor run_config give it (`stepledger "
            "describe RUN context_tokens=N`)"
        )
    return [
        Report(
            f"Time of a {phase} step by kind of work and size, {counted(len(run_ids), 'run')}",
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
    given_context: int | None,
    rows: list[list[Any]],
    shapes: list[list[Any]],
) -> None:
    batch, graph, context, wall, steps, category, busy, exposed, calls = point
    size = [batch, graph, given_context if context is None else round(context)]
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
    """What differs between the runs besides the size of their steps."""
    values: dict[str, set[str]] = defaultdict(set)
    for fact in found:
        if fact.verdict == "differs" and fact.name not in _SIZE_FACTS:
            values[fact.name] |= {str(fact.before), str(fact.after)}
    notes = [
        f"the runs differ in more than size: {name} ({', '.join(sorted(those))})"
        for name, those in values.items()
    ]
    unknown = sorted(
        {fact.name for fact in found if fact.verdict == "unknown" and fact.name not in _SIZE_FACTS}
    )
    if unknown and len(run_ids) > 1:
        notes.append(f"unknown for some runs, assumed equal: {', '.join(unknown)}")
    return notes
