"""What expert parallelism would do to a step: pure arithmetic on a traced step and a latency table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.analyses import formulas
from pipeline.analyses.formulas import Interval
from pipeline.analyses.latency import Curve

Mode = Literal["tp_ep", "dp_ep", "tp_attn_a2a"]
MODES: dict[Mode, str] = {
    "tp_ep": (
        "tensor-parallel attention, experts distributed: every all-reduce stays, experts keep their "
        "full width"
    ),
    "dp_ep": (
        "data-parallel attention, experts distributed: no all-reduce is left, each MoE layer gathers "
        "and scatters tokens"
    ),
    "tp_attn_a2a": (
        "tensor-parallel attention, two all-to-alls for each MoE layer's all-reduce; attention's "
        "all-reduces stay"
    ),
}
NOTHING = Interval(0, 0)
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Compute:
    """GPU time of a traced step without communication, ms. `attention_load`: share of the memory's
    bandwidth that attention uses."""

    moe_ms: float
    gemm_ms: float
    attention_ms: float
    rest_ms: float
    attention_load: float | None = None


@dataclass(frozen=True)
class Case:
    """A traced step and the model it ran. `allreduce_ms`: all of its all-reduces; `call_us`: one of them,
    without waiting and as it was."""

    mode: Mode
    ranks: int
    layers: int
    moe_layers: int
    token_bytes: float
    experts: int | None
    top_k: int | None
    calls: int
    moe_calls: int
    traced_tokens: int
    allreduce_ms: float
    call_us: Interval
    compute: Compute | None = None
    load: float | None = None

    def global_tokens(self, tokens: int) -> int:
        """Tokens of a step of all ranks: under tensor parallelism every rank holds the same ones."""
        return tokens * self.ranks if self.mode == "dp_ep" else tokens

    def traced_bytes(self) -> float:
        """Message of a traced all-reduce."""
        return self.traced_tokens * self.token_bytes

    def removed_calls(self) -> int:
        """All-reduces of a step that are removed."""
        return {"tp_ep": 0, "dp_ep": self.calls, "tp_attn_a2a": self.moe_calls}[self.mode]


@dataclass(frozen=True)
class Estimate:
    """One number of tokens: ms per step now and after. `outside`: why there is no answer."""

    tokens: int
    global_tokens: int
    now_ms: float = 0.0
    removed_ms: float = 0.0
    added: Interval = NOTHING
    after: Interval = NOTHING
    outside: str | None = None

    @property
    def verdict(self) -> bool | None:
        """Is it faster after (True), slower (False), or open?"""
        if self.outside:
            return None
        return True if self.after.high < self.now_ms else False if self.after.low > self.now_ms else None

    @property
    def is_same(self) -> bool:
        """Does nothing change?"""
        return not self.outside and self.after == Interval(self.now_ms, self.now_ms)


def messages(case: Case, tokens: int, ops: tuple[str, ...]) -> list[tuple[str, Interval]]:
    """What one MoE layer exchanges: operation, and the bytes that a rank puts in at least and at most.

    all-gather: its own tokens; reduce-scatter: sums for the tokens of all ranks. all-to-all: its tokens once,
    up to one copy for each distinct remote rank of a token (as the input of an even exchange, of which 1/N
    stays on the rank).
    """
    own = tokens * case.token_bytes
    made = []
    for op in ops:
        size = Interval(own * case.ranks, own * case.ranks) if op == "reduce_scatter" else Interval(own, own)
        if op == "all_to_all" and case.mode == "dp_ep" and case.experts and case.top_k and case.ranks > 1:
            sent = formulas.dispatch_bytes(
                tokens, case.token_bytes, case.ranks, case.experts, case.top_k, is_replicated=False
            )
            copies = sent * case.ranks / (case.ranks - 1)
            size = Interval(min(own, copies), max(own, copies))
        made.append((op, size))
    return made


def communication(
    case: Case, tokens: int, curves: dict[str, Curve], ops: tuple[str, ...], *, extrapolate: bool
) -> Estimate:
    """Communication of a step at some tokens per rank, now and after. Table latencies are scaled by the
    traced all-reduce over the table's at the traced size: at least without waiting, at most as it was."""
    global_tokens = case.global_tokens(tokens)
    allreduce = curves["all_reduce"]
    reference = allreduce.at(case.traced_bytes(), extrapolate=extrapolate)
    here = allreduce.at(global_tokens * case.token_bytes, extrapolate=extrapolate)
    if reference is None or here is None:
        return Estimate(tokens, global_tokens, outside="all_reduce of that size is outside the table")
    growth = here / reference
    scale = (case.call_us.low / reference, case.call_us.high / reference)
    added = NOTHING
    for op, size in messages(case, tokens, ops):
        low, high = (curves[op].at(end, extrapolate=extrapolate) for end in (size.low, size.high))
        if low is None or high is None:
            return Estimate(tokens, global_tokens, outside=f"{op} of that size is outside the table")
        added += Interval(min(low, high), max(low, high)).times(*scale).times(case.moe_layers / 1e3)
    now = case.allreduce_ms * growth
    removed = now if case.mode == "dp_ep" else case.removed_calls() * case.call_us.high * growth / 1e3
    return Estimate(tokens, global_tokens, now, removed, added, formulas.replaced(now, removed, added))


def with_compute(case: Case, row: Estimate, points: dict[str, Curve]) -> Estimate:
    """The same with compute, by rule or by measured points (`gemm`, `moe_gemm`: us of one layer at so many
    tokens).

    Rules: experts' time follows the distinct experts read, and the fullest rank takes load factor times the
    mean; without tensor parallelism GEMMs take between as long (same arithmetic) and N times as long (N times
    the weights), attention between 1/N (its share of the requests) and as long. GEMMs do not grow with
    tokens; attention does once it fills the memory's bandwidth.
    """
    if row.outside or case.compute is None or not case.experts or not case.top_k:
        return row
    part, tokens = case.compute, row.global_tokens
    read = formulas.distinct_experts(case.experts, case.top_k, tokens) / formulas.distinct_experts(
        case.experts, case.top_k, case.traced_tokens
    )
    load = case.load or formulas.load_factor(tokens * case.top_k, case.ranks)
    attention = part.attention_ms * max(1.0, (part.attention_load or 0.0) * tokens / case.traced_tokens)
    moe, gemm, attend = (
        Interval(part.moe_ms * read, part.moe_ms * read * load),
        Interval(part.gemm_ms, part.gemm_ms),
        Interval(attention, attention),
    )
    if case.mode == "dp_ep":
        gemm, attend = gemm.times(1, case.ranks), attend.times(1 / case.ranks, 1)
    measured = {"moe_gemm": (case.moe_layers, tokens), "gemm": (case.layers, row.tokens)}
    for op, (layers, at) in measured.items():
        us = points[op].at(at) if op in points else None
        if us is not None:
            found = Interval(us * layers / 1e3, us * layers / 1e3)
            moe, gemm = (found, gemm) if op == "moe_gemm" else (moe, found)
    now = row.now_ms + part.moe_ms * read + part.gemm_ms + attention + part.rest_ms
    after = row.after + moe + gemm + attend + Interval(part.rest_ms, part.rest_ms)
    return Estimate(row.tokens, tokens, now, row.removed_ms, row.added, after)
