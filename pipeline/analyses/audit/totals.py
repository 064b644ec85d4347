"""The cheap explanations of an odd count of all-reduces: more passes than annotations, and operators' rows
beside their kernels'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb

from pipeline import duck
from pipeline.analyses.report import Report

TOTALS = (
    "source", "rank", "trace", "all_reduces", "in_no_step", "per_step", "decode_steps", "other_steps", "annotated_steps",
    "per_annotated_step", "explained",
)  # fmt: skip

_TOTALS = """
WITH half AS (SELECT trace_id, activity_id FROM collectives WHERE run_id = $run AND is_half),
call AS (
    SELECT activity.source, activity.trace_id, activity.rank, activity.device, activity.step, count(*) AS calls
    FROM activity ANTI JOIN half USING (trace_id, activity_id)
    WHERE run_id = $run AND category = 'allreduce' GROUP BY ALL
),
step AS (
    SELECT trace_id, device, step, phase, label IS NOT NULL AS is_annotated, coalesce(calls, 0) AS calls
    FROM steps LEFT JOIN call USING (trace_id, device, step) WHERE steps.run_id = $run AND phase <> 'empty'
),
often AS (SELECT trace_id, device, calls, count(*) AS times FROM step GROUP BY ALL),
usual AS (SELECT trace_id, device, arg_min(calls, (-times, calls)) AS mode FROM often WHERE calls > 0 GROUP BY ALL),
total AS (
    SELECT source, trace_id, rank, device, sum(calls)::BIGINT AS calls, coalesce(sum(calls) FILTER (step IS NULL), 0)::BIGINT AS outside
    FROM call GROUP BY ALL
)
SELECT total.source, total.rank, total.trace_id, total.calls, total.outside, usual.mode,
    count(*) FILTER (phase = 'decode'), count(*) FILTER (phase <> 'decode'), count(*) FILTER (is_annotated),
    sum(step.calls - usual.mode)::BIGINT, count(*) FILTER (step.calls <> usual.mode)
FROM total JOIN usual USING (trace_id, device) JOIN step USING (trace_id, device) GROUP BY ALL ORDER BY ALL
"""

_OPERATORS = """
SELECT op, count(*) AS kernels, sum(dur_ns) / 1e6 AS ms FROM activity
WHERE run_id = ? AND category = 'allreduce' AND op IS NOT NULL GROUP BY op ORDER BY op
"""


def totals(con: duckdb.DuckDBPyConnection, run_id: str, sources: Sequence[str]) -> Report:
    """Per rank: all all-reduces, and whether they are the usual number of a step times all steps that ran."""
    rows: list[tuple[Any, ...]] = []
    notes: list[str] = []
    found = [row for row in con.execute(_TOTALS, {"run": run_id}).fetchall() if row[0] in sources]
    for source, rank, trace, calls, outside, mode, decode, other, annotated, rest, odd in found:
        share = round(calls / annotated, 2) if annotated else None
        rows.append(
            (
                source,
                rank,
                trace,
                calls,
                outside,
                mode,
                decode,
                other,
                annotated,
                share,
                explain(calls, outside, mode, decode, other, rest, odd),
            )
        )
        if annotated and annotated < decode + other and share != mode:
            notes.append(
                f"rank {rank}: {decode + other} steps ran under {annotated} annotations; {calls} / "
                f"{annotated} = {share:.2f} would read as "
                f"{round(calls / annotated)} a step, but it is {mode} in each"
                + (f" but {odd}" if odd else "")
            )
    for op, kernels, ms in duck.rows(con, _OPERATORS, [run_id]):
        notes.append(
            f"{kernels} of these kernels run inside the operator {op}: its row in key_averages repeats "
            "their "
            f"{ms:.3f} ms; count one of the two"
        )
    if rows and not any("operator" in note for note in notes):
        notes.append("no all-reduce kernel runs inside a recorded operator, so no operator's row repeats one")
    return Report(
        "Cheap explanations first: is the total the usual count times the steps that ran?",
        TOTALS,
        rows,
        notes,
    )


def explain(calls: int, outside: int, mode: int, decode: int, other: int, rest: int, odd: int) -> str:
    """total = mode x (decode + other steps) + what some steps hold more or less + what stands in no step; a
    sum in words, always exact."""
    text = f"{calls} = {mode} x ({decode} decode + {other} other)"
    if rest or odd:
        text += f" {'+' if rest >= 0 else '-'} {abs(rest)} in {odd} steps with another count"
    return text + (f" + {outside} in no step" if outside else "")
