"""Waiting: how much of each rank's collectives was waiting for the last rank, whose clock, who was late, and
what is refused."""

from __future__ import annotations

from typing import Any

import duckdb

from pipeline import duck
from pipeline.analyses.report import Report
from pipeline.errors import UsageError

WAITING = (
    "source", "phase", "what", "rank", "steps", "calls", "ms", "wait_ms", "floor_ms", "first_wait_ms", "jitter_ms", "min_ms", "wait_share", "flagged",
)  # fmt: skip
LATE = ("source", "phase", "straggler_rank", "made_late_by", "steps", "wait_caused_ms", "late_by_ms")
CLOCKS = ("source", "rank", "ranks", "offset_us", "residual_us", "residual_p99_us", "calls")
REFUSED = ("source", "what", "reason", "calls", "ms", "first_position")

_WHAT = """CASE category WHEN 'allreduce' THEN 'all-reduce' WHEN 'all_to_all' THEN 'all-to-all'
    ELSE replace(coalesce(subcategory, category), '_', '-') END AS what"""

_WAITING = f"""
WITH whole AS (SELECT trace_id, device, step FROM step_waiting WHERE run_id = $run AND is_complete),
call AS (
    SELECT call.*, {_WHAT}
    FROM collectives AS call JOIN whole USING (trace_id, device, step) WHERE run_id = $run AND refusal IS NULL
),
step AS (
    SELECT source, phase, what, rank, trace_id, device, step, count(*) AS calls, sum(dur_ns) AS ns, sum(floor_ns) AS floor_ns,
        sum(wait_ns) FILTER (NOT is_first AND NOT is_jitter) AS wait_ns, sum(wait_ns) FILTER (is_first) AS first_ns,
        sum(wait_ns) FILTER (is_jitter AND NOT is_first) AS jitter_ns, sum(min_over_ranks_ns) AS min_ns, count(flag) AS flagged
    FROM call GROUP BY ALL
)
SELECT source, phase, what, rank, count(*), sum(calls)::BIGINT, avg(ns) / 1e6, avg(coalesce(wait_ns, 0)) / 1e6, avg(floor_ns) / 1e6,
    avg(coalesce(first_ns, 0)) / 1e6, avg(coalesce(jitter_ns, 0)) / 1e6, avg(min_ns) / 1e6,
    (sum(ns) - sum(floor_ns)) / nullif(sum(ns), 0), sum(flagged)::BIGINT
FROM step GROUP BY ALL ORDER BY ALL
"""

_LATE = """
WITH step AS (
    SELECT DISTINCT source, phase, match_id, straggler_rank, late_category, caused_ns, late_ns
    FROM step_waiting WHERE run_id = $run AND is_complete AND straggler_rank IS NOT NULL
)
SELECT source, phase, straggler_rank, coalesce(late_category, 'not known'), count(*), sum(caused_ns) / 1e6, sum(coalesce(late_ns, 0)) / 1e6
FROM step GROUP BY ALL ORDER BY source, phase, sum(caused_ns) DESC, straggler_rank, 4
"""

_CLOCKS = """
SELECT source, rank, members, offset_ns / 1e3, residual_ns / 1e3, residual_p99_ns / 1e3, calls FROM rank_clock WHERE run_id = $run ORDER BY ALL
"""

_REFUSED = f"""
WITH odd AS (
    SELECT source, {_WHAT},
        refusal, dur_ns, match_id,
        CASE WHEN refused_call IS NOT NULL THEN first_value(concat('step ', step, ', call ', call, ', ', position)) OVER (
            PARTITION BY source, match_id, communicator, refusal ORDER BY call <> refused_call, rank
        ) END AS first_at
    FROM collectives WHERE run_id = $run AND refusal IS NOT NULL
)
SELECT source, what, refusal, count(*), sum(dur_ns) / 1e6, arg_min(first_at, match_id)
FROM odd GROUP BY ALL ORDER BY ALL
"""

REASONS = {
    "no_step": "in no step",
    "kind": (
        "ranks need not wait for each other in it, or its name does not tell (broadcast, reduce, gather, "
        "send and receive)"
    ),
    "one_rank": "only one rank was recorded",
    "ranks_unknown": "rank labels are missing, or one stands twice",
    "groups_unknown": (
        "several groups are possible: say `stepledger describe RUN --groups 'tp:0,1;tp:2,3'` "
        "(or --tp, --dp, --pp)"
    ),
    "no_match": "the other ranks lack the step, or the call in it",
    "ranks_missing": "ranks of its group were not recorded: the last to arrive may be one of them",
    "counts_differ": "the ranks have different numbers of calls in the step",
    "order_differs": "the ranks have other kinds of calls in the step",
    "uneven": "all-to-all whose ranks are not shown to send the same",
}
"""What `collectives.refusal` means, in words."""


def ranks(con: duckdb.DuckDBPyConnection, run_id: str) -> list[Report]:
    """Waiting by rank, stragglers, clocks, refusals. Raises UsageError where no collective can be compared
    across ranks."""
    arguments = {"run": run_id}
    refused = [
        (source, what, REASONS[why], calls, round(ms, 3), at)
        for source, what, why, calls, ms, at in con.execute(_REFUSED, arguments).fetchall()
    ]
    clocks = [
        (*row[:3], *(round(v, 3) for v in row[3:6]), row[6])
        for row in con.execute(_CLOCKS, arguments).fetchall()
    ]
    if not clocks:
        why = (
            "; ".join(
                f"{what}: {reason}" for what, reason in dict.fromkeys((row[1], row[2]) for row in refused)
            )
            or "it holds no collective"
        )
        raise UsageError(f"run {run_id}: no collective can be compared across ranks. {why}")
    waiting = [_rounded(row) for row in con.execute(_WAITING, arguments).fetchall()]
    late = [
        (*row[:5], round(row[5], 3), round(row[6], 3)) for row in con.execute(_LATE, arguments).fetchall()
    ]
    notes = _mostly_waiting(waiting) + _waiting_notes(con, run_id)
    return [
        Report(
            f"Collectives of run {run_id}: ms per step in complete steps, and what of it was waiting",
            WAITING,
            waiting,
            notes,
        ),
        Report("Who was waited for, and what made it late", LATE, late, _late_notes(late)),
        Report(
            "Clocks, from the common ends of collectives",
            CLOCKS,
            clocks,
            ["offset: this rank's clock - that of the lowest rank of its group"],
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
    """Ranks whose all-reduces are waiting more than anything else: their time is not the network's."""
    found = [dict(zip(WAITING, row, strict=True)) for row in rows]
    return [
        (
            f"{row['phase']}: {row['wait_share']:.1%} of rank {row['rank']}'s {row['ms']:.3f} ms of "
            "all-reduce a "
            "step is waiting for other ranks"
        )
        for row in found
        if row["what"] == "all-reduce" and (row["wait_share"] or 0) >= 0.5
    ]


def _waiting_notes(con: duckdb.DuckDBPyConnection, run_id: str) -> list[str]:
    limit, smallest = duck.rows(
        con,
        "SELECT max(2000 + residual_ns) / 1e3, min(calls) FROM rank_clock WHERE run_id = ?",
        [run_id],
    )[0]
    sources = [
        row[0]
        for row in duck.rows(
            con,
            "SELECT DISTINCT group_source FROM collectives WHERE run_id = ? AND refusal IS NULL ORDER BY 1",
            [run_id],
        )
    ]
    notes = [
        (
            "ms = wait + floor + first_wait + jitter. Floor: what a call took on the rank that arrived last "
            "(starts aligned by the clocks below)"
        ),
        "wait_share: what is not floor",
        (
            "first_wait: in the first collective of a step, skew of the hosts. min: the shortest over ranks, "
            "biased low where ranks are many"
        ),
        f"jitter: waits under {limit:.2f} us (2 us and the clocks' residual) are not told from none",
        f"groups known from: {', '.join(sources)}; clocks rest on {smallest} calls or more",
    ]
    flagged = duck.rows(
        con,
        (
            "SELECT flag, count(*) FROM collectives WHERE run_id = ? AND refusal IS NULL AND flag IS NOT "
            "NULL "
            "GROUP BY ALL ORDER BY ALL"
        ),
        [run_id],
    )
    why = {
        "fused": "fused with other work",
        "programmatic_launch": "started before the kernel before them had ended",
    }
    notes += [
        (
            f"{count} calls are flagged, {why[flag]}: their start is not their arrival, so their split is "
            "uncertain"
        )
        for flag, count in flagged
    ]
    return notes


def _late_notes(late: list[tuple[Any, ...]]) -> list[str]:
    if not late:
        return ["nobody: no wait beyond jitter outside the first collective of a step"]
    notes = [
        (
            "made late by: what it ran most more of than the mean of the others before the collectives to "
            "which "
            "it came last"
        )
    ]
    if any(row[3] == "idle" for row in late):
        notes.append(
            "idle: its device had nothing to run (launch-bound, or waiting for its host); the others' time "
            "in the collective is waiting"
        )
    return notes
