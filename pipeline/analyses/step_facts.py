"""What several analyses ask of a run: facts said of it, its decode steps, and their time by kind of work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import duckdb

from pipeline import duck
from pipeline.errors import UsageError

COMMUNICATION = ("AllReduce", "MoE dispatch and combine", "Other collectives")


@dataclass(frozen=True)
class StepFacts:
    """The usual step of a phase. `tokens`: padded where a graph was replayed, of one rank; `global_tokens`:
    over data-parallel groups."""

    run_id: str
    source: str
    phase: str
    config: dict[str, Any]
    gpu_name: str | None
    tokens: int | None
    global_tokens: int | None
    requests: int | None
    steps: int
    wall_ms: float | None
    rollups: dict[str, dict[str, Any]]

    def ms(self, *rollups: str) -> float:
        """Median time per step of these rows of the table, ms; 0 where it has none."""
        return float(sum(self.rollups[name]["ms_p50"] for name in rollups if name in self.rollups))


def config_of(con: duckdb.DuckDBPyConnection, run_id: str) -> dict[str, Any]:
    """What was said of a run; empty if nothing."""
    found = duck.dicts(con, "SELECT * FROM run_config WHERE run_id = $1", [run_id])
    return found[0] if found else {}


def step_facts(con: duckdb.DuckDBPyConnection, run_id: str, phase: str = "decode") -> StepFacts:
    """Facts of a run's complete steps of a phase, from the source that has most of them. Raises UsageError
    where there is none."""
    sources = duck.rows(
        con,
        (
            "SELECT source, count(*) FROM steps WHERE run_id = $1 AND phase = $2 AND is_complete GROUP BY "
            "source "
            "ORDER BY 2 DESC, 1 LIMIT 1"
        ),
        [run_id, phase],
    )
    if not sources:
        raise UsageError(f"run {run_id} has no complete {phase} step to start from")
    source = sources[0][0]
    (step,) = duck.dicts(
        con,
        "SELECT mode(coalesce(graph_tokens, generation_tokens)) AS tokens, mode(generation_requests) AS "
        "requests, "
        "count(DISTINCT step) AS steps, median(wall_ns) FILTER (WHERE next_phase = phase) / 1e6 AS wall_ms "
        "FROM steps WHERE run_id = $1 AND source = $2 AND phase = $3 AND is_complete",
        [run_id, source, phase],
    )
    everybody = duck.scalar(
        con,
        (
            "SELECT mode(coalesce(graph_tokens, generation_tokens)) FROM run_steps WHERE run_id = $1 AND "
            "source "
            "= $2 AND phases = $3"
        ),
        [run_id, source, phase],
    )
    rollups = duck.dicts(
        con,
        "SELECT * FROM run_breakdown WHERE run_id = $1 AND source = $2 AND phase = $3",
        [run_id, source, phase],
    )
    gpu = duck.scalar(
        con, "SELECT min(gpu_name) FROM run_facts WHERE run_id = $1 AND source = $2", [run_id, source]
    )
    return StepFacts(
        run_id,
        source,
        phase,
        config_of(con, run_id),
        gpu,
        step["tokens"],
        everybody or step["tokens"],
        step["requests"],
        step["steps"],
        step["wall_ms"],
        {row["rollup"]: row for row in rollups},
    )


def main_allreduce(con: duckdb.DuckDBPyConnection, facts: StepFacts) -> dict[str, Any]:
    """The commonest all-reduce of the step with a known size, a row of the mart `bandwidth`. Raises
    UsageError where sizes are not known."""
    rows = duck.dicts(
        con,
        "SELECT * FROM bandwidth WHERE run_id = $1 AND source = $2 AND phase = $3 AND op = 'all_reduce' "
        "ORDER BY (size_bytes IS NULL), calls DESC, kind LIMIT 1",
        [facts.run_id, facts.source, facts.phase],
    )
    if not rows:
        raise UsageError(
            f"run {facts.run_id} has no all-reduce in its {facts.phase} steps: there is nothing to take out"
        )
    if rows[0]["size_bytes"] is None:
        raise UsageError(
            f"run {facts.run_id}: bytes of its all-reduces are not known; say hidden_size and dtype "
            "(run.toml or `stepledger describe`)"
        )
    return rows[0]
