"""What if a draft model guessed ahead: verify cost from measured steps of several batches, drafts' cost, and
the acceptance that pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from pipeline.analyses import sql
from pipeline.analyses.formulas import breakeven_acceptance, emitted_tokens
from pipeline.analyses.latency import Curve
from pipeline.analyses.report import Report
from pipeline.analyses.step_facts import StepFacts, main_allreduce, step_facts
from pipeline.errors import UsageError
from pipeline.models.rules import communication_rollups
from pipeline.text import counted

ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)
_COLUMNS = (
    "drafts", "verify_tokens", "verify_ms", "draft_ms", "cost_in_steps", "break_even_acceptance",
    *(f"ms_per_token_at_{int(a * 100)}" for a in ACCEPTANCES), "verdict",
)  # fmt: skip


@dataclass(frozen=True)
class Guess:
    """k drafts and the pass that verifies them, for a batch."""

    drafts: int
    verify_tokens: int
    verify_ms: float
    draft_ms: float
    step_ms: float

    @property
    def cost(self) -> float:
        """Time of all of it, in plain steps."""
        return (self.draft_ms + self.verify_ms) / self.step_ms

    def ms_per_token(self, acceptance: float) -> float:
        """Expected time per token of one request."""
        return (self.draft_ms + self.verify_ms) / emitted_tokens(acceptance, self.drafts)


def guess(curve: Curve, batch: int, drafts: int, draft_pass_ms: float, *, extrapolate: bool) -> Guess | None:
    """Step time at batch x (k + 1) tokens from the curve (tokens, ms), and k draft passes. None where the
    curve does not reach."""
    verify, plain = (curve.at(batch * count, extrapolate=extrapolate) for count in (drafts + 1, 1))
    if verify is None or plain is None:
        return None
    return Guess(drafts, batch * (drafts + 1), verify, drafts * draft_pass_ms, plain)


def draft_pass_ms(draft_layers: int, layers: int, compute_ms: float, call_us: float) -> float:
    """One draft pass, ms: its layers' share of the step's compute, and its own collectives: the embedding's,
    2 a layer, and the logits' all-gather, each taken for one traced all-reduce (0 us without tensor
    parallelism)."""
    return compute_ms * draft_layers / layers + (2 * draft_layers + 2) * call_us / 1e3


def speculate_reports(
    con: duckdb.DuckDBPyConnection,
    run_ids: Sequence[str],
    *,
    drafts: Sequence[int] = (1, 2, 3, 4, 5),
    draft_ms: float | None = None,
    extrapolate: bool = False,
) -> list[Report]:
    """Speculative decoding in the first run's batch; the other runs are the same model at other batches.
    `draft_ms`: one draft pass as measured (else from draft_layers). Raises UsageError where one batch is all
    there is, or the draft's cost is unknown."""
    if any(k < 1 for k in drafts) or (draft_ms is not None and draft_ms < 0):
        raise UsageError("the number of drafts is at least 1, and their time at least 0")
    runs = [step_facts(con, run_id) for run_id in run_ids]
    first = runs[0]
    if first.tokens is None:
        raise UsageError(f"run {first.run_id}: the number of tokens per decode step is unknown")
    curve = _curve(con, runs)
    if not curve.points:
        raise UsageError("no run has decode steps with a wall time and known tokens")
    if len(curve.points) < 2 and not extrapolate:
        raise UsageError(
            f"only steps of {counted(round(curve.points[0][0]), 'token')} were measured: name a run of "
            "the same model at a larger batch too, or use --extrapolate"
        )
    pass_ms, how = (draft_ms, "as given") if draft_ms is not None else _draft(con, first)
    made = [(k, guess(curve, first.tokens, k, pass_ms, extrapolate=extrapolate)) for k in drafts]
    if all(found is None for _, found in made):
        raise UsageError(
            f"verifying takes at least {first.tokens * (min(drafts) + 1)} tokens, and steps were "
            f"measured from {curve.points[0][0]:.0f} to {curve.points[-1][0]:.0f}: name runs at larger "
            "batches, or use --extrapolate"
        )
    measured = ", ".join(f"{tokens:.0f}: {ms:.3f} ms" for tokens, ms in curve.points)
    notes = [
        (
            f"plain steps and verify passes: median wall of decode steps by tokens, {measured}; "
            "interpolated linearly in logarithms"
        ),
        f"one draft pass takes {pass_ms:.3f} ms ({how}); k of them run one after another",
        (
            "tokens of a verify pass: (1 - a^(k+1)) / (1 - a), each draft accepted with the same "
            "probability a, independently"
        ),
        (
            "experts: a verify pass reads those of all its tokens, as the measured batch did for as "
            "many requests"
        ),
    ]
    if extrapolate:
        notes.append(
            "EXTRAPOLATED beyond the measured steps: below them their shortest time, above them in "
            "proportion to tokens"
        )
    return [
        Report(
            f"Speculative decoding in run {first.run_id}, batch {first.tokens}",
            _COLUMNS,
            [_cells(k, found) for k, found in made],
            notes,
        )
    ]


def _cells(drafts: int, found: Guess | None) -> list[object]:
    if found is None:
        return [drafts, *[None] * (len(_COLUMNS) - 2), "refused: outside the measured steps"]
    even = breakeven_acceptance(found.cost, drafts)
    verdict = "never pays" if even is None else "always pays" if even == 0 else f"pays above {even:.0%}"
    values = (found.verify_ms, found.draft_ms, found.cost)
    each = [round(found.ms_per_token(a), 3) for a in ACCEPTANCES]
    return [
        drafts,
        found.verify_tokens,
        *(round(v, 3) for v in values),
        None if even is None else round(even, 4),
        *each,
        verdict,
    ]


def _curve(con: duckdb.DuckDBPyConnection, runs: Sequence[StepFacts]) -> Curve:
    """Median wall of decode steps of all runs, by tokens (padded where a graph was replayed)."""
    points: dict[float, list[float]] = {}
    for facts in runs:
        for tokens, ms in sql.rows(con, "whatif/decode_curve", run_id=facts.run_id, source=facts.source):
            points.setdefault(float(tokens), []).append(float(ms))
    return Curve(
        "step", tuple((tokens, sum(ms) / len(ms)) for tokens, ms in sorted(points.items())), "decode steps"
    )


def _draft(con: duckdb.DuckDBPyConnection, facts: StepFacts) -> tuple[float, str]:
    if facts.config.get("draft_layers") is None or facts.config.get("layers") is None:
        raise UsageError(
            f"run {facts.run_id}: the cost of a draft is unknown; give draft_layers and layers, or use "
            "--draft-ms"
        )
    layers, own = facts.config["layers"], facts.config["draft_layers"]
    compute = sum(facts.ms(name) for name in facts.rollups if name not in communication_rollups())
    is_parallel = "AllReduce" in facts.rollups
    call_us = main_allreduce(con, facts)["us_p50"] if is_parallel else 0.0
    talk = ", its own all-reduces and logits gather" if is_parallel else ""
    return draft_pass_ms(
        own, layers, compute, call_us
    ), f"{own} of {layers} layers of compute{talk}; assuming its layers are like the model's"
