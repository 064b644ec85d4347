"""All-reduce audit: collectives per step as integers by kind and position, compared with what the model's
layout requires."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import duckdb

from pipeline.analyses import sql
from pipeline.analyses.audit.calls import Count, Expectation, deviating, evidence, prepare, spread
from pipeline.analyses.audit.expected import Expected, Layout, expected, position_text, without_positions
from pipeline.analyses.audit.layout import ShapeKey, known_facts, layout_of, shapes_of, stages_of
from pipeline.analyses.audit.totals import totals
from pipeline.analyses.report import Report
from pipeline.errors import UsageError

COUNTS = (
    "source",
    "stage",
    "step",
    "steps",
    "position",
    "what",
    "kind",
    "expected",
    "min",
    "mode",
    "max",
    "us_per_call",
    "reason",
)
DEVIATIONS = (
    "source",
    "stage",
    "step",
    "position",
    "what",
    "kind",
    "expected",
    "found",
    "extra",
    "in_steps",
    "us_per_step",
    "first_step",
    "first_rank",
)


@dataclass(frozen=True)
class _Source:
    """One source of a run: its layout, its complete steps, and what each shape of them should hold."""

    run_id: str
    source: str
    layout: Layout
    notes: list[str]
    steps: dict[ShapeKey, int]
    rows: dict[ShapeKey, list[Expected]]
    unproven: list[ShapeKey]
    unjudged: list[ShapeKey]


def audit(con: duckdb.DuckDBPyConnection, run_id: str) -> list[Report]:
    """Counts against the expectation, what deviates, and the simple explanations. Raises UsageError for a run
    without complete steps."""
    sources = [row[0] for row in sql.rows(con, "audit/sources", run_id=run_id)]
    if not sources:
        raise UsageError(
            f"run {run_id} has no complete step, so nothing can be counted per step; record with the "
            "engine's step markers"
        )
    counts: list[tuple[Any, ...]] = []
    deviations: list[tuple[Any, ...]] = []
    notes: list[str] = []
    closing: list[str] = []
    for source in sources:
        one = _source(con, run_id, source)
        counts += _counts(con, one)
        deviations += _deviations(con, one)
        closing += _closing(one)
        notes += [f"{source}: {note}" if len(sources) > 1 else note for note in one.notes]
    if not deviations:
        closing.insert(
            0,
            "none among the judged steps"
            if closing
            else "none: each complete step holds what was expected, at every position",
        )
    else:
        closing.insert(
            0,
            (
                "us_per_step: the share of the extra calls in the time of all calls at their position "
                "in these steps"
            ),
        )
    ruled_out = totals(con, run_id, sources)
    notes = [f"ruled out first: {text}" for text in dict.fromkeys(row[-1] for row in ruled_out.rows)] + notes
    if not counts:
        notes.append("the steps hold no collective, and none is expected")
    return [
        Report(
            f"Collectives per step of run {run_id}, complete steps, integers over steps and ranks",
            COUNTS,
            counts,
            notes,
        ),
        Report(
            "Deviations: extra calls, and missing calls as negative numbers",
            DEVIATIONS,
            deviations,
            closing,
        ),
        ruled_out,
    ]


def _closing(one: _Source) -> list[str]:
    """What of the complete steps was not judged, or not by position."""
    notes = [
        (
            f"not judged: {_step_text(key)} ({one.source}), whose layers neither the order of kernels "
            "nor run_config gives"
        )
        for key in one.unjudged
    ]
    return notes + [
        f"judged as a whole, not by position: {_step_text(key)} ({one.source})" for key in one.unproven
    ]


def _source(con: duckdb.DuckDBPyConnection, run_id: str, source: str) -> _Source:
    known = known_facts(con, run_id, source)
    layout, notes = layout_of(known, **evidence(con, run_id, source))
    stages = stages_of(con, run_id, source, layout)
    shapes, unproven, more = shapes_of(con, run_id, source, stages, known, layout)
    prepare(con, run_id, source, stages, exchanges=layout.exchanges, unplaced=unproven)
    rows = {
        key: without_positions(expected(layout, s)) if key in unproven else expected(layout, s)
        for key, s in shapes.items()
    }
    steps = {row[:3]: row[3] for row in sql.rows(con, "audit/step_counts")}
    unjudged = sorted(steps.keys() - rows.keys(), key=_order)
    if unjudged:
        more.append(
            "steps without an expectation are only counted: run `stepledger describe RUN layers=N` "
            "where the order of kernels proves no layers"
        )
    return _Source(run_id, source, layout, notes + more, steps, rows, sorted(unproven, key=_order), unjudged)


def _counts(con: duckdb.DuckDBPyConnection, one: _Source) -> list[tuple[Any, ...]]:
    """Rows of each shape of step: the expected ones, unexpected ones, and the whole step by kind."""
    by_part, by_operation = spread(con, "part", "operation"), spread(con, "operation")
    kinds_of_part = spread(con, "part", "operation", "kind")
    kinds_of_step = spread(con, "operation", "kind")
    rows: list[tuple[Any, ...]] = []
    for key in sorted(one.steps, key=_order):
        wanted = one.rows.get(key, [])
        head = (one.source, key[0] if one.layout.pp > 1 else None, _step_text(key))
        for row in wanted:
            rows.append((*head, one.steps[key], *_cells(row, by_part.get((*key, row.part, row.operation)))))
            rows += _by_kind(
                head,
                position_text(row.part, None),
                row.operation,
                kinds_of_part,
                (*key, row.part, row.operation),
            )
        known = {(row.part, row.operation) for row in wanted}
        for (part, operation), count in sorted(
            (k[3:], c) for k, c in by_part.items() if k[:3] == key and k[3:] not in known
        ):
            if part == "unknown" and not wanted:
                continue  # the rows of the whole step below hold the same
            reason = "not expected" if wanted else ""
            rows.append(
                (
                    *head,
                    count.steps,
                    position_text(part, None),
                    operation,
                    ", ".join(count.kinds),
                    0 if wanted else None,
                    *_numbers(count),
                    reason,
                )
            )
        whole_step = {row.operation for row in wanted if row.part in {"unknown", "any"}}
        for (operation,), count in sorted(
            (k[3:], c) for k, c in by_operation.items() if k[:3] == key and k[3] not in whole_step
        ):
            total = _total([row for row in wanted if row.operation == operation])
            rows.append(
                (
                    *head,
                    count.steps,
                    "whole step",
                    operation,
                    count.kinds[0] if len(count.kinds) == 1 else "all",
                    total if wanted else None,
                    *_numbers(count),
                    "",
                )
            )
            rows += _by_kind(head, "whole step", operation, kinds_of_step, (*key, operation))
    return rows


def _by_kind(
    head: tuple[Any, ...],
    where: str,
    operation: str,
    counts: dict[tuple[Any, ...], Count],
    key: tuple[Any, ...],
) -> list[tuple[Any, ...]]:
    """A row for each kind (nccl, custom, fused_norm, ...) where there is more than one."""
    found = sorted((k[-1], count) for k, count in counts.items() if k[:-1] == key)
    return [
        (*head, count.steps, where, operation, kind, None, *_numbers(count), "")
        for kind, count in found
        if len(found) > 1
    ]


def _cells(row: Expected, count: Count | None) -> tuple[Any, ...]:
    where = position_text(row.part, row.layers[0] if row.layers and row.positions == 1 else None).replace(
        ", by layer", f" in {row.positions} layers"
    )
    kinds = ", ".join(count.kinds) if count else ""
    return (
        where,
        row.operation,
        kinds,
        row.text(),
        *(_numbers(count) if count else (0, 0, 0, None)),
        row.reason,
    )


def _numbers(count: Count) -> tuple[Any, ...]:
    return count.least, count.mode, count.most, count.us_per_call


def _total(rows: Iterable[Expected]) -> str:
    low = high = 0
    is_open = False
    for row in rows:
        low += row.low * row.positions
        is_open |= row.high is None
        high += (row.high or 0) * row.positions
    return f"{low}+" if is_open else str(low) if low == high else f"{low}-{high}"


def _deviations(con: duckdb.DuckDBPyConnection, one: _Source) -> list[tuple[Any, ...]]:
    """Every position at which some complete step holds more or fewer calls than expected."""
    made = []
    for row in deviating(con, _broken(con, one)):
        key = row["stage"], row["phase"], row["graph_tokens"]
        us = row["us_per_step"]
        made.append(
            (
                one.source,
                row["stage"] if one.layout.pp > 1 else None,
                _step_text(key),
                position_text(row["part"], row["layer"]),
                row["operation"],
                ", ".join(kind for kind in row["kinds"] or () if kind),
                Expected(row["part"], row["operation"], None, row["low"], row["high"], "").text(),
                row["calls"],
                row["extra"],
                row["steps"],
                round(us, 3) if us else None,
                row["first_step"],
                row["first_rank"],
            )
        )
    return made


def _broken(con: duckdb.DuckDBPyConnection, one: _Source) -> list[Expectation]:
    """Expectations that not every complete step meets."""
    found = spread(con, "part", "layer", "operation")
    broken: list[Expectation] = []
    for key, rows in one.rows.items():
        cells = {
            (row.part, layer, row.operation): (row.low, row.high)
            for row in rows
            for layer in (row.layers or (None,))
        }
        cells |= {k[3:]: (0, 0) for k in found if k[:3] == key and k[3:] not in cells}
        for (part, layer, operation), (low, high) in cells.items():
            count = found.get((*key, part, layer, operation))
            least, most = (count.least, count.most) if count else (0, 0)
            if least < low or (high is not None and most > high):
                broken.append(Expectation(*key, part, layer, operation, low, high))
    return broken


def _step_text(key: ShapeKey) -> str:
    _, phase, tokens = key
    return (
        f"{phase}, no graph"
        if tokens is None
        else f"{phase}, graph" + (f" of {tokens} token{'s' * (tokens != 1)}" if tokens else "")
    )


def _order(key: ShapeKey) -> tuple[Any, ...]:
    return key[0], key[1] != "decode", key[1], key[2] if key[2] is not None else -1
