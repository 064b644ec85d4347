"""The breakdown of a step: verdict and steps, wall time per rank, the rollups, and what could not be
named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import duckdb

from pipeline import duck
from pipeline.duck import literal
from pipeline.errors import UsageError

_PHASES = ("decode", "verify", "mixed", "prefill", "unknown")
_COMMUNICATION = ("AllReduce", "MoE dispatch and combine", "Other collectives")


@dataclass(frozen=True)
class Screen:
    """Everything that `show` prints of one source of one run, as read in one go."""

    facts: dict[str, Any]
    phase: str | None
    steps: list[dict[str, Any]]
    left_out: list[dict[str, Any]]
    no_step: list[dict[str, Any]]
    methods: list[dict[str, Any]]
    measured_tpot_ms: float | None
    ranks: list[dict[str, Any]]
    rollups: list[dict[str, Any]]
    subtotals: list[dict[str, Any]]
    capture: list[dict[str, Any]]
    unclassified: list[dict[str, Any]]


def screens(con: duckdb.DuckDBPyConnection, run_id: str, phase: str | None) -> list[Screen]:
    """One screen per source. Raises UsageError for a phase that the run does not have."""
    facts = duck.dicts(con, "SELECT * FROM runs WHERE run_id = $1 ORDER BY source", [run_id])
    if not facts:
        raise UsageError(f"run {run_id} has no marts yet: say `stepledger build {run_id}`")
    return [_screen(con, fact, phase) for fact in facts]


def _screen(con: duckdb.DuckDBPyConnection, facts: dict[str, Any], phase: str | None) -> Screen:
    where = f"run_id = {literal(facts['run_id'])} AND source = {literal(facts['source'])}"
    steps = duck.dicts(
        con,
        f"SELECT phase, count(DISTINCT (trace_id, step)) AS steps, count(DISTINCT trace_id) AS ranks, "
        f"count(*) FILTER (WHERE label IS NULL) AS unmarked FROM steps WHERE {where} GROUP BY phase",
    )
    present = {row["phase"] for row in steps}
    if phase is not None and phase not in present and present:
        raise UsageError(f"run {facts['run_id']} has no {phase} step; it has {', '.join(sorted(present))}")
    chosen = phase or next((p for p in _PHASES if p in present), None)
    within = f"{where} AND phase = {literal(chosen)}"
    return Screen(
        facts=facts,
        phase=chosen,
        steps=steps,
        left_out=duck.dicts(
            con,
            (
                f"SELECT phase, incomplete_reason AS reason, count(*) AS steps FROM steps WHERE {where} AND "
                "NOT "
                "is_complete GROUP BY ALL ORDER BY ALL"
            ),
        ),
        no_step=duck.dicts(
            con,
            "SELECT no_step_reason AS reason, count(*) AS activities, sum(dur_ns)::BIGINT AS busy_ns FROM "
            "activity "
            f"WHERE {where} AND step IS NULL GROUP BY ALL ORDER BY ALL",
        ),
        methods=duck.dicts(
            con,
            "SELECT method, is_used, is_agreed, sum(steps)::BIGINT AS steps, sum(compared_with)::BIGINT AS "
            "compared_with, "
            f"(SELECT min(confidence) FROM steps WHERE {within}) AS confidence FROM step_methods WHERE "
            f"{where} GROUP BY ALL ORDER BY method",
        ),
        measured_tpot_ms=duck.scalar(
            con, f"SELECT max(measured_tpot_ms) FROM run_config WHERE run_id = {literal(facts['run_id'])}"
        ),
        ranks=duck.dicts(con, _RANKS.format(within=within)),
        rollups=duck.dicts(con, f"SELECT * FROM run_breakdown WHERE {within} ORDER BY ms_mean DESC, rollup"),
        subtotals=duck.dicts(
            con, _SUBTOTALS.format(within=within, communication=", ".join(map(literal, _COMMUNICATION)))
        ),
        capture=duck.dicts(
            con,
            "SELECT rollup, count(*) AS calls, sum(dur_ns)::BIGINT AS busy_ns, sum(exposed_ns)::BIGINT AS "
            "exposed_ns FROM activity "
            f"WHERE {where} GROUP BY rollup ORDER BY busy_ns DESC",
        ),
        unclassified=duck.dicts(
            con,
            f"SELECT short_name, sum(calls)::BIGINT AS calls, sum(ms_total) AS ms FROM kernel_breakdown "
            f"WHERE {where} AND category = 'unclassified' GROUP BY ALL ORDER BY ms DESC LIMIT 5",
        ),
    )


# Mean wall of a rank's steps, split so that the parts add up to it: own exposed time by owner, the rest
# (copies, and work of other steps inside the wall less own work outside it), idle and gap.
_RANKS = """
WITH step AS (SELECT * FROM steps WHERE {within} AND is_complete AND wall_ns IS NOT NULL AND next_phase = phase),
owned AS (
    SELECT trace_id, device, step,
        sum(exposed_ns) FILTER (WHERE rollup IN ('AllReduce', 'MoE dispatch and combine', 'Other collectives')) AS communication_ns,
        sum(exposed_ns) FILTER (WHERE category IN ('memcpy', 'memset')) AS copy_ns, sum(exposed_ns) AS exposed_ns
    FROM step_breakdown WHERE {within} GROUP BY ALL
)
SELECT step.trace_id, any_value(step.rank) AS rank, step.device, count(*) AS steps,
    quantile_cont(wall_ns, 0.5) AS wall_p50, quantile_cont(wall_ns, 0.9) AS wall_p90, avg(wall_ns) AS wall_mean,
    avg(owned.exposed_ns - coalesce(communication_ns, 0) - coalesce(copy_ns, 0)) AS compute,
    avg(coalesce(communication_ns, 0)) AS communication,
    avg(coalesce(copy_ns, 0) + borrowed_ns - exposed_outside_ns) AS other,
    avg(idle_inside_ns) AS idle_inside, avg(gap_after_ns) AS gap, median(launch_lag_p50_ns) AS lag,
    count(*) FILTER (WHERE gap_cause = 'host_late') AS host_late
FROM step JOIN owned ON step.trace_id = owned.trace_id AND step.device = owned.device AND step.step = owned.step
GROUP BY step.trace_id, step.device ORDER BY rank, step.trace_id, step.device
"""

_SUBTOTALS = """
WITH step AS (SELECT trace_id, device, step, coalesce(match_id::VARCHAR, trace_id || ' ' || step) AS match_id FROM steps
    WHERE {within} AND is_complete),
booked AS (
    SELECT step.*, what.name, sum(work.busy_ns) AS busy_ns, sum(work.exposed_ns) AS exposed_ns, sum(work.calls) AS calls
    FROM step JOIN step_breakdown AS work ON step.trace_id = work.trace_id AND step.device = work.device AND step.step = work.step
    JOIN (VALUES ('Communication', true), ('All GPU time', false)) AS what (name, is_part)
        ON NOT what.is_part OR work.rollup IN ({communication})
    WHERE work.run_id IN (SELECT run_id FROM steps WHERE {within})
    GROUP BY ALL
),
by_match AS (SELECT name, match_id, avg(busy_ns) AS busy_ns, avg(exposed_ns) AS exposed_ns FROM booked GROUP BY ALL),
by_rank AS (SELECT name, trace_id, device, median(busy_ns) AS busy_ns FROM booked GROUP BY ALL),
spread AS (SELECT name, min(busy_ns) AS lowest_ns, max(busy_ns) AS highest_ns FROM by_rank GROUP BY name)
SELECT name, median(by_match.busy_ns) / 1e6 AS ms_p50, avg(by_match.busy_ns) / 1e6 AS ms_mean, median(exposed_ns) / 1e6 AS exposed_ms_p50,
    any_value(lowest_ns) / 1e6 AS ms_rank_min, any_value(highest_ns) / 1e6 AS ms_rank_max
FROM by_match JOIN spread USING (name) GROUP BY name ORDER BY name DESC
"""
