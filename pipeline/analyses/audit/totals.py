"""The simple explanations of an odd count of all-reduces: more passes than annotations, and operators' rows
beside their kernels'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb

from pipeline.analyses import sql
from pipeline.analyses.report import Report
from pipeline.text import counted

TOTALS = (
    "source", "rank", "trace", "all_reduces", "in_no_step", "per_step", "decode_steps", "other_steps",
    "annotated_steps", "per_annotated_step", "explained",
)  # fmt: skip


def totals(con: duckdb.DuckDBPyConnection, run_id: str, sources: Sequence[str]) -> Report:
    """Per rank: all all-reduces, and whether they are the usual number of a step times all steps that ran."""
    rows: list[tuple[Any, ...]] = []
    notes: list[str] = []
    for row in sql.dicts(con, "audit/totals", run_id=run_id):
        if row["source"] not in sources:
            continue
        rows.append(_cells(row))
        if note := _passes_note(row):
            notes.append(note)
    for op, kernels, ms in sql.rows(con, "audit/operators", run_id=run_id):
        notes.append(
            f"{kernels} of these kernels run inside the operator {op}: its row in key_averages repeats "
            f"their {ms:.3f} ms; count one of the two"
        )
    if rows and not any("operator" in note for note in notes):
        notes.append("no all-reduce kernel runs inside a recorded operator, so no operator's row repeats one")
    return Report(
        "Simple explanations first: is the total the usual count times the steps that ran?",
        TOTALS,
        rows,
        notes,
    )


def _per_annotation(row: dict[str, Any]) -> float | None:
    return round(row["all_reduces"] / row["annotated_steps"], 2) if row["annotated_steps"] else None


def _cells(row: dict[str, Any]) -> tuple[Any, ...]:
    calls, outside, mode = row["all_reduces"], row["in_no_step"], row["calls_mode"]
    decode, other = row["decode_steps"], row["other_steps"]
    return (
        row["source"],
        row["rank"],
        row["trace_id"],
        calls,
        outside,
        mode,
        decode,
        other,
        row["annotated_steps"],
        _per_annotation(row),
        explain(calls, outside, mode, decode, other, row["difference"], row["odd_steps"]),
    )


def _passes_note(row: dict[str, Any]) -> str | None:
    """Steps that no annotation covers make the quotient of all-reduces and annotations too large."""
    calls, annotated, mode, odd = (
        row[name] for name in ("all_reduces", "annotated_steps", "calls_mode", "odd_steps")
    )
    steps, share = row["decode_steps"] + row["other_steps"], _per_annotation(row)
    if not annotated or annotated >= steps or share == mode:
        return None
    return (
        f"rank {row['rank']}: {counted(steps, 'step')} ran under {counted(annotated, 'annotation')}; "
        f"{calls} / {annotated} = {share:.2f} would read as {round(calls / annotated)} per step, but it "
        f"is {mode} in each" + (f" but {odd}" if odd else "")
    )


def explain(calls: int, outside: int, mode: int, decode: int, other: int, rest: int, odd: int) -> str:
    """total = mode x (decode + other steps) + what some steps hold more or less + what is in no step; an
    exact sum in words."""
    text = f"{calls} = {mode} x ({decode} decode + {other} other)"
    if rest or odd:
        text += f" {'+' if rest >= 0 else '-'} {abs(rest)} in {counted(odd, 'step')} with another count"
    return text + (f" + {outside} in no step" if outside else "")
