"""Waiting: how much of each rank's collectives is waiting for the last rank, the ranks' clocks, stragglers,
and what is refused."""

from __future__ import annotations

from typing import Any

import duckdb

from pipeline.analyses import sql
from pipeline.analyses.report import Report
from pipeline.errors import UsageError
from pipeline.text import counted
from pipeline.thresholds import threshold

WAITING = (
    "source", "phase", "what", "rank", "steps", "calls", "ms", "wait_ms", "floor_ms", "first_wait_ms",
    "jitter_ms", "min_ms", "wait_share", "flagged",
)  # fmt: skip
LATE = ("source", "phase", "straggler_rank", "made_late_by", "steps", "wait_caused_ms", "late_by_ms")
CLOCKS = ("source", "rank", "ranks", "offset_us", "residual_us", "residual_p99_us", "calls")
REFUSED = ("source", "what", "reason", "calls", "ms", "first_position")

REASONS = {
    "no_step": "in no step",
    "kind": (
        "the ranks do not wait for each other, or the name does not tell (broadcast, reduce, gather, "
        "send and receive)"
    ),
    "one_rank": "only one rank was recorded",
    "ranks_unknown": "rank labels are missing or duplicated",
    "groups_unknown": (
        "several groups are possible: run `stepledger describe RUN groups='tp:0,1;tp:2,3'` (or give "
        "tp, dp, pp)"
    ),
    "no_match": "the step, or the call in it, is missing on other ranks",
    "ranks_missing": "ranks of its group were not recorded: the last to arrive may be one of them",
    "counts_differ": "the ranks have different numbers of calls in the step",
    "order_differs": "the ranks have different kinds of calls in the step",
    "uneven": "all-to-all whose ranks may send different amounts",
}
"""What `collectives.refusal` means, in words."""


def ranks(con: duckdb.DuckDBPyConnection, run_id: str) -> list[Report]:
    """Waiting by rank, stragglers, clocks, refusals. Raises UsageError where no collective can be compared
    across ranks."""
    sql.temp_table(con, "straggler_call", "stragglers/calls", run_id=run_id)
    refused = [
        (source, what, REASONS[why], calls, round(ms, 3), at)
        for source, what, why, calls, ms, at in sql.rows(con, "stragglers/refused")
    ]
    clocks = [
        (*row[:3], *(round(v, 3) for v in row[3:6]), row[6])
        for row in sql.rows(con, "stragglers/clocks", run_id=run_id)
    ]
    if not clocks:
        why = (
            "; ".join(
                f"{what}: {reason}" for what, reason in dict.fromkeys((row[1], row[2]) for row in refused)
            )
            or "it holds no collective"
        )
        raise UsageError(f"run {run_id}: no collective can be compared across ranks. {why}")
    waiting = [_rounded(row) for row in sql.rows(con, "stragglers/waiting", run_id=run_id)]
    late = [
        (*row[:5], round(row[5], 3), round(row[6], 3))
        for row in sql.rows(con, "stragglers/late", run_id=run_id)
    ]
    notes = _mostly_waiting(waiting) + _waiting_notes(con, run_id)
    return [
        Report(
            f"Collectives of run {run_id}: ms per complete step, and how much of it is waiting",
            WAITING,
            waiting,
            notes,
        ),
        Report(
            "Stragglers: the ranks that the others waited for, and what made them late",
            LATE,
            late,
            _late_notes(late),
        ),
        Report(
            "Clocks, from the common ends of collectives",
            CLOCKS,
            clocks,
            ["offset: this rank's clock minus that of the lowest rank in its group"],
        ),
        Report(
            "Not compared", REFUSED, refused, [] if refused else ["nothing: every collective was compared"]
        ),
    ]


def _rounded(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (
        *row[:6],
        *(round(value, 3) + 0.0 for value in row[6:12]),
        None if row[12] is None else round(row[12], 4),
        row[13],
    )


def _mostly_waiting(rows: list[tuple[Any, ...]]) -> list[str]:
    """Ranks whose all-reduces are mostly waiting: their time is not the network's."""
    found = [dict(zip(WAITING, row, strict=True)) for row in rows]
    return [
        (
            f"{row['phase']}: {row['wait_share']:.1%} of rank {row['rank']}'s {row['ms']:.3f} ms of "
            "all-reduce per step is waiting for other ranks"
        )
        for row in found
        if row["what"] == "all-reduce" and (row["wait_share"] or 0) >= 0.5
    ]


def _waiting_notes(con: duckdb.DuckDBPyConnection, run_id: str) -> list[str]:
    limits = sql.one(con, "stragglers/limits", run_id=run_id)
    sources = [row[0] for row in sql.rows(con, "stragglers/group_sources")]
    notes = [
        (
            "ms = wait + floor + first_wait + jitter. Floor: the duration on the rank that arrived "
            "last (starts aligned by the clocks below)"
        ),
        "wait_share: the part of ms that is not floor",
        (
            "first_wait: waiting in the first collective of a step, from skew between hosts. min: the "
            "shortest over ranks, biased low with many ranks"
        ),
        (
            f"jitter: waits under {limits['jitter_us']:.2f} us ({threshold('jitter_ns') / 1e3:g} us plus "
            "the clocks' residual) are indistinguishable from zero"
        ),
        (
            f"groups known from: {', '.join(sources)}; each clock is based on at least "
            f"{counted(limits['calls'], 'call')}"
        ),
    ]
    flagged = sql.rows(con, "stragglers/flags")
    why = {
        "fused": "fused with other work",
        "programmatic_launch": "started before the kernel before them had ended",
    }
    notes += [
        (
            f"{counted(count, 'flagged call')} ({why[flag]}): the start is not the arrival, so the "
            "split is uncertain"
        )
        for flag, count in flagged
    ]
    return notes


def _late_notes(late: list[tuple[Any, ...]]) -> list[str]:
    if not late:
        return ["none: no waiting beyond jitter outside the first collective of a step"]
    notes = [
        (
            "made_late_by: the category with the largest excess over the mean of the other ranks, "
            "before the collectives to which the rank came last"
        )
    ]
    if any(row[3] == "idle" for row in late):
        notes.append(
            "idle: the device had nothing to run (launch-bound, or waiting for its host); the others' "
            "time in the collective is waiting"
        )
    return notes
