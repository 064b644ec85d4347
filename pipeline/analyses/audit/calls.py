"""Collectives of complete steps as the audit counts them: by pipeline stage, shape of step, part of it and
kind of call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb

from pipeline import duck
from pipeline.duck import literal

_CALLS = """
stage (trace_id, stage) AS (VALUES {stages}),
one AS (
    SELECT trace_id, device, step, rank, stage, phase, CASE WHEN graph_launches > 0 THEN coalesce(graph_tokens, 0) END AS graph_tokens
    FROM steps JOIN stage USING (trace_id) WHERE run_id = {run} AND source = {source} AND is_complete
),
named AS (
    SELECT one.*, call.part, call.layer, coalesce(call.subcategory, '') AS kind, call.is_half, call.dur_ns,
        CASE
            WHEN call.role IN ('dispatch', 'combine') THEN call.role
            WHEN call.category = 'allreduce' THEN 'all-reduce'
            WHEN call.category = 'p2p' THEN 'send/receive'
            WHEN call.subcategory IN ('notify', 'layout') THEN 'preparation'
            WHEN {exchanges} AND call.layer IS NOT NULL AND call.part <> 'before_attention'
                AND (call.subcategory = 'reduce_scatter' OR (call.category = 'all_to_all' AND call.part = 'after_moe')) THEN 'combine'
            WHEN {exchanges} AND call.layer IS NOT NULL AND call.part <> 'before_attention'
                AND (call.subcategory = 'all_gather' OR call.category = 'all_to_all') THEN 'dispatch'
            WHEN call.category = 'all_to_all' THEN 'all-to-all'
            ELSE replace(coalesce(call.subcategory, call.category), '_', '-')
        END AS what
    FROM collectives AS call JOIN one USING (trace_id, device, step) WHERE call.run_id = {run}
),
call AS (
    SELECT * REPLACE (
        CASE WHEN what = 'send/receive' THEN 'any' WHEN part = 'draft' THEN part WHEN {coarse} THEN 'unknown'
            WHEN what IN ('dispatch', 'combine') THEN 'moe' ELSE part END AS part,
        CASE WHEN what <> 'send/receive' AND NOT ({coarse}) THEN layer END AS layer
    ) FROM named WHERE what <> 'preparation'
)
"""

_SPREAD = """
WITH {calls},
per_step AS (
    SELECT stage, phase, graph_tokens, trace_id, device, step, {by},
        count(*) FILTER (NOT is_half) AS calls, sum(dur_ns) AS ns, list(DISTINCT kind) AS kinds
    FROM call GROUP BY ALL
),
total AS (SELECT stage, phase, graph_tokens, count(*) AS steps FROM one GROUP BY ALL),
often AS (
    SELECT stage, phase, graph_tokens, {by}, calls, count(*) AS times, sum(ns) AS ns, list_sort(list_distinct(flatten(list(kinds)))) AS kinds
    FROM per_step GROUP BY ALL
)
SELECT often.stage, often.phase, often.graph_tokens, {by}, any_value(steps),
    min(calls), arg_min(calls, (-times, calls)), max(calls), sum(times), max(times), sum(ns) / 1e3 / nullif(sum(calls * times), 0),
    list_sort(list_distinct(flatten(list(kinds))))
FROM often JOIN total ON often.stage = total.stage AND often.phase = total.phase AND often.graph_tokens IS NOT DISTINCT FROM total.graph_tokens
GROUP BY ALL
"""

_FIRST = """
WITH {calls},
wanted (stage, phase, graph_tokens, part, layer, what, low, high) AS (VALUES {wanted}),
per_step AS (
    SELECT trace_id, device, step, part, layer, what, count(*) FILTER (NOT is_half) AS calls, sum(dur_ns) AS ns, list(DISTINCT kind) AS kinds
    FROM call GROUP BY ALL
),
off AS (
    SELECT wanted.*, one.step, one.rank, coalesce(per_step.calls, 0) AS calls, coalesce(per_step.ns, 0) AS ns, per_step.kinds,
        greatest(coalesce(per_step.calls, 0) - coalesce(high, 1000000000), 0) - greatest(low - coalesce(per_step.calls, 0), 0) AS extra
    FROM wanted
    JOIN one ON wanted.stage = one.stage AND wanted.phase = one.phase AND wanted.graph_tokens IS NOT DISTINCT FROM one.graph_tokens
    LEFT JOIN per_step ON one.trace_id = per_step.trace_id AND one.device = per_step.device AND one.step = per_step.step
        AND wanted.part = per_step.part AND wanted.what = per_step.what AND wanted.layer IS NOT DISTINCT FROM per_step.layer
)
SELECT stage, phase, graph_tokens, part, layer, what, low, high, mode(calls), mode(extra), count(*), min(step), arg_min(rank, (step, rank)),
    avg(ns * greatest(extra, 0) / nullif(calls, 0)) / 1e3, list_sort(list_distinct(flatten(list(kinds) FILTER (kinds IS NOT NULL))))
FROM off WHERE extra <> 0 GROUP BY ALL ORDER BY ALL
"""


def calls_sql(
    run_id: str,
    source: str,
    stages: Mapping[str, int],
    *,
    exchanges: bool,
    coarse: Iterable[tuple[int, str, int | None]],
) -> str:
    """The CTEs `one` (complete steps) and `call` (their collectives). `coarse`: shapes of step whose
    positions are not proven."""
    rows = [
        (
            f"stage = {stage} AND phase = {literal(phase)} AND graph_tokens IS NOT DISTINCT FROM "
            f"{literal(tokens)}"
        )
        for stage, phase, tokens in sorted(coarse, key=repr)
    ]
    return _CALLS.format(
        stages=", ".join(f"({literal(trace)}, {stage})" for trace, stage in stages.items()),
        run=literal(run_id),
        source=literal(source),
        exchanges="TRUE" if exchanges else "FALSE",
        coarse=f"({' OR '.join(rows) or 'FALSE'})",
    )


@dataclass(frozen=True)
class Count:
    """Calls per step of something: fewest, most frequent, most."""

    steps: int
    least: int
    mode: int
    most: int
    us_per_call: float | None
    kinds: tuple[str, ...]


def spread(con: duckdb.DuckDBPyConnection, calls: str, by: str) -> dict[tuple[Any, ...], Count]:
    """Calls per step by stage, phase, tokens of the graph and the columns `by`; a step without such a call
    counts as 0."""
    found = {}
    for row in duck.rows(con, _SPREAD.format(calls=calls, by=by)):
        *key, steps, least, mode, most, there, often, us, kinds = row
        missing = steps - there
        found[tuple(key)] = Count(
            steps,
            0 if missing else least,
            0 if missing >= often else mode,
            most,
            us and round(us, 3),
            tuple(k for k in kinds if k),
        )
    return found


@dataclass(frozen=True)
class Wanted:
    """How many calls one place of one shape of step should hold; `high` None: or more."""

    stage: int
    phase: str
    graph_tokens: int | None
    part: str
    layer: int | None
    what: str
    low: int
    high: int | None

    def sql(self) -> str:
        """A row of VALUES; numbers are cast, since they may be NULL."""
        numbers = (self.stage, self.graph_tokens, self.layer, self.low, self.high)
        stage, tokens, layer, low, high = (f"{literal(number)}::BIGINT" for number in numbers)
        return (
            f"({stage}, {literal(self.phase)}, {tokens}, {literal(self.part)}, {layer}, "
            f"{literal(self.what)}, {low}, {high})"
        )


def deviating(con: duckdb.DuckDBPyConnection, calls: str, wanted: list[Wanted]) -> list[tuple[Any, ...]]:
    """For each place at which steps hold other numbers of calls: the columns of _FIRST."""
    return (
        duck.rows(con, _FIRST.format(calls=calls, wanted=", ".join(one.sql() for one in wanted)))
        if wanted
        else []
    )


def shown(con: duckdb.DuckDBPyConnection, run_id: str, source: str) -> dict[str, bool]:
    """What the trace shows of the layout, for facts that were not said."""
    found = con.execute(
        "WITH audit AS (SELECT * FROM allreduce_audit WHERE run_id = $run AND source = $source AND "
        "is_complete), "
        "layered AS (SELECT trace_id, phase, graph_tokens, layer, "
        "sum(calls_mode) FILTER (part = 'after_moe' AND category = 'allreduce') AS after_moe, "
        "sum(calls_mode) FILTER (part = 'after_attention' AND category = 'allreduce') AS reduces, "
        "sum(calls_mode) FILTER (part = 'after_attention' AND subcategory = 'reduce_scatter') AS scatters "
        "FROM audit WHERE layer IS NOT NULL GROUP BY ALL) "
        "SELECT (SELECT count(*) > 0 FROM audit WHERE category = 'allreduce'), "
        "(SELECT count(*) > 0 FROM audit WHERE role IN ('dispatch', 'combine')), "
        "(SELECT coalesce(count(scatters) > 0 AND count(reduces) = 0, FALSE) FROM layered), "
        "(SELECT coalesce(bool_and(after_moe = 2) FILTER (after_moe IS NOT NULL), FALSE) FROM layered), "
        "(SELECT count(*) > 0 FROM activity WHERE run_id = $run AND source = $source AND role = 'shared')",
        {"run": run_id, "source": source},
    ).fetchall()[0]
    return dict(
        zip(
            ("has_reduce", "has_exchange", "has_scatter", "has_two_after_moe", "has_shared"),
            found,
            strict=True,
        )
    )
