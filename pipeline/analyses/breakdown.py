"""The breakdown of a step: verdict and steps, wall time per rank, the rollups, and what could not be
named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import duckdb

from pipeline.analyses import sql
from pipeline.errors import UsageError
from pipeline.models.rules import communication_rollups

_PHASES = ("decode", "verify", "mixed", "prefill", "unknown")


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
    facts = sql.dicts(con, "breakdown/sources", run_id=run_id)
    if not facts:
        raise UsageError(f"run {run_id} has no marts yet: run `stepledger build {run_id}`")
    return [_screen(con, fact, phase) for fact in facts]


def _screen(con: duckdb.DuckDBPyConnection, facts: dict[str, Any], phase: str | None) -> Screen:
    run = {"run_id": facts["run_id"], "source": facts["source"]}
    steps = sql.dicts(con, "breakdown/phases", **run)
    present = {row["phase"] for row in steps}
    if phase is not None and phase not in present and present:
        raise UsageError(f"run {facts['run_id']} has no {phase} step; it has {', '.join(sorted(present))}")
    shown = phase or next((p for p in _PHASES if p in present), None)
    of_phase = run | {"phase": shown}
    communication = list(communication_rollups())
    config = sql.dicts(con, "step_facts/config", run_id=facts["run_id"])
    return Screen(
        facts=facts,
        phase=shown,
        steps=steps,
        left_out=sql.dicts(con, "breakdown/left_out", **run),
        no_step=sql.dicts(con, "breakdown/no_step", **run),
        methods=sql.dicts(con, "breakdown/methods", **of_phase),
        measured_tpot_ms=config[0]["measured_tpot_ms"] if config else None,
        ranks=sql.dicts(con, "breakdown/ranks", **of_phase, communication=communication),
        rollups=sql.dicts(con, "step_facts/rollups", **of_phase),
        subtotals=sql.dicts(con, "breakdown/subtotals", **of_phase, communication=communication),
        capture=sql.dicts(con, "breakdown/capture", **run),
        unclassified=sql.dicts(con, "breakdown/unclassified", **run),
    )
