"""What if two half-batches hid each other's communication: the ceiling of a step, beside lock-step."""

from __future__ import annotations

from dataclasses import dataclass

import duckdb

from pipeline.analyses import sql
from pipeline.analyses.formulas import overlap_ceiling
from pipeline.analyses.report import Report
from pipeline.analyses.step_facts import StepFacts, step_facts
from pipeline.errors import UsageError
from pipeline.models.rules import communication_rollups
from pipeline.text import counted

_COLUMNS = (
    "compute_ms",
    "communication_ms",
    "lock_step_ms",
    "compute_half_ms",
    "communication_half_ms",
    "overlapped_ms",
    "saved_ms",
    "saved_share",
)


@dataclass(frozen=True)
class Halves:
    """Exposed compute and communication of a step, ms."""

    compute_ms: float
    communication_ms: float

    @property
    def lock_step_ms(self) -> float:
        """One after the other."""
        return self.compute_ms + self.communication_ms


def overlapped(whole: Halves, half: Halves | None) -> tuple[Halves, float]:
    """Compute and communication at half batch, and the least time of two of them that hide each other.
    Without a measured half: half of the whole, which ignores that weights are read twice and that short
    messages are no faster."""
    half = half or Halves(whole.compute_ms / 2, whole.communication_ms / 2)
    return half, overlap_ceiling(half.compute_ms, half.communication_ms)


def overlap_reports(
    con: duckdb.DuckDBPyConnection, run_id: str, half_run_id: str | None = None
) -> list[Report]:
    """The ceiling of overlapping a run's decode steps; `half_run_id`: a run of the same at half the batch.
    Raises UsageError where there is nothing to split, or the other run is not at half the batch."""
    facts = step_facts(con, run_id)
    if facts.requests is None:
        raise UsageError(f"run {run_id}: the number of requests per decode step is unknown")
    if facts.requests < 2:
        raise UsageError(f"run {run_id} serves batch 1: nothing to split")
    whole, half = _exposed(con, facts), None
    notes = [
        (
            f"{counted(facts.steps, 'decode step')} of batch {facts.requests}, {facts.source}; exposed "
            "time, so time that is already hidden is not counted again"
        ),
        (
            "overlapped = max(2C, 2M), C and M at half batch: each half computes while the other "
            "communicates, on disjoint resources"
        ),
    ]
    title = "ceiling that ignores the cost of the split, assuming that half the batch takes half the time"
    if half_run_id is not None:
        other = step_facts(con, half_run_id)
        if other.requests is None or other.requests * 2 != facts.requests:
            raise UsageError(f"run {half_run_id} serves batch {other.requests}, not half of {facts.requests}")
        half = _exposed(con, other)
        title = f"ceiling of overlap, with the halves measured in run {half_run_id}"
    split, ms = overlapped(whole, half)
    saved = whole.lock_step_ms - ms
    if saved <= 0:
        notes.append("nothing to gain: two half-batches cost more than the step in lock-step")
    values = (*_pair(whole), whole.lock_step_ms, *_pair(split), ms, saved, saved / whole.lock_step_ms)
    return [Report(f"Overlap in run {run_id}: {title}", _COLUMNS, [[round(v, 3) for v in values]], notes)]


def _pair(halves: Halves) -> tuple[float, float]:
    return halves.compute_ms, halves.communication_ms


def _exposed(con: duckdb.DuckDBPyConnection, facts: StepFacts) -> Halves:
    """Medians over complete steps and ranks of exposed time."""
    found = sql.one(
        con,
        "whatif/exposed",
        run_id=facts.run_id,
        source=facts.source,
        phase=facts.phase,
        communication=list(communication_rollups()),
    )
    return Halves(float(found["compute_ms"]), float(found["communication_ms"]))
