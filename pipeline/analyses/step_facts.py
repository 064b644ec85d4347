"""What several analyses need to know of a run: its config, its usual step, and the time by kind of work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import duckdb

from pipeline.analyses import sql
from pipeline.errors import UsageError


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
    """The facts that the user gave for a run; empty if none."""
    found = sql.dicts(con, "step_facts/config", run_id=run_id)
    return found[0] if found else {}


def step_facts(con: duckdb.DuckDBPyConnection, run_id: str, phase: str = "decode") -> StepFacts:
    """Facts of a run's complete steps of a phase, from the source that has most of them. Raises UsageError
    where there is none."""
    source = sql.scalar(con, "step_facts/largest_source", run_id=run_id, phase=phase)
    if source is None:
        raise UsageError(f"run {run_id} has no complete {phase} step to start from")
    steps = {"run_id": run_id, "source": source, "phase": phase}
    step = sql.one(con, "step_facts/usual_step", **steps)
    global_tokens = sql.scalar(con, "step_facts/global_tokens", **steps)
    rollups = sql.dicts(con, "step_facts/rollups", **steps)
    gpu = sql.scalar(con, "step_facts/gpu_name", run_id=run_id, source=source)
    return StepFacts(
        run_id,
        source,
        phase,
        config_of(con, run_id),
        gpu,
        step["tokens"],
        global_tokens or step["tokens"],
        step["requests"],
        step["steps"],
        step["wall_ms"],
        {row["rollup"]: row for row in rollups},
    )


def main_allreduce(con: duckdb.DuckDBPyConnection, facts: StepFacts) -> dict[str, Any]:
    """The most frequent all-reduce of the step with a known size, a row of the mart `bandwidth`. Raises
    UsageError where sizes are unknown."""
    rows = sql.dicts(
        con, "step_facts/main_allreduce", run_id=facts.run_id, source=facts.source, phase=facts.phase
    )
    if not rows:
        raise UsageError(
            f"run {facts.run_id} has no all-reduce in its {facts.phase} steps: there is nothing to replace"
        )
    if rows[0]["size_bytes"] is None:
        raise UsageError(
            f"run {facts.run_id}: the size of its all-reduces is unknown; give hidden_size and dtype "
            "(run.toml or `stepledger describe`)"
        )
    return rows[0]
