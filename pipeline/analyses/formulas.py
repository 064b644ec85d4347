"""Formulas of the analyses, each with its units and where it comes from. Nothing here reads a trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import comb, log, sqrt

CLIFF = 3.0
"""Latency that grows at least this many times faster than bytes is a cliff."""
_EXACT_ROOT = 1e-12


@dataclass(frozen=True)
class Interval:
    """A lowest and a highest value of one quantity, in the same unit."""

    low: float
    high: float

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)

    def times(self, low: float, high: float | None = None) -> Interval:
        """Multiplied by a number above 0, or by an interval of such numbers."""
        return Interval(self.low * low, self.high * (low if high is None else high))


def distinct_experts(experts: int, top_k: int, tokens: float) -> float:
    """Expected distinct experts of T tokens that choose k of E each, uniformly: E (1 - (1 - k/E)^T).

    Real routing is skewed and chooses fewer, so this is an upper bound. With expert parallelism T counts all
    ranks' tokens.
    """
    return float(experts * (1 - (1 - top_k / experts) ** tokens))


def remote_ranks(ranks: int, experts: int, top_k: int) -> float:
    """Expected distinct other ranks that hold one of a token's k experts, uniformly: (N-1) (1 - C(E - E/N, k)
    / C(E, k)).

    Each is sent the token once. `experts` must be a multiple of `ranks`.
    """
    if experts % ranks:
        raise ValueError(f"{experts} experts are not the same number on each of {ranks} ranks")
    return (ranks - 1) * (1 - comb(experts - experts // ranks, top_k) / comb(experts, top_k))


def dispatch_bytes(
    tokens: float, token_bytes: float, ranks: int, experts: int, top_k: int, *, is_replicated: bool
) -> float:
    """Bytes that a rank sends to bring its tokens to their experts: none where every rank already holds them
    (tensor-parallel attention)."""
    return 0.0 if is_replicated else tokens * token_bytes * remote_ranks(ranks, experts, top_k)


def load_factor(choices: float, ranks: int) -> float:
    """Highest over mean number of expert choices of a rank, uniform routing: 1 + sqrt(2 ln N (1 - 1/N) /
    mean), at most N.

    The expected maximum of N normal variables with the variance of a multinomial count. Skewed routing is
    worse: measure it.
    """
    if ranks == 1:
        return 1.0
    return min(float(ranks), 1 + sqrt(2 * log(ranks) * (1 - 1 / ranks) / (choices / ranks)))


def replaced(before_ms: float, removed_ms: float, added: Interval) -> Interval:
    """after = before - removed + added, ms."""
    return Interval(before_ms - removed_ms + added.low, before_ms - removed_ms + added.high)


def emitted_tokens(acceptance: float, drafts: int) -> float:
    """Expected tokens of one verify pass over k drafts, each accepted with probability a: (1 - a^(k+1)) / (1
    - a); k + 1 for a = 1.

    Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", equation 1.
    """
    return float(drafts + 1) if acceptance == 1 else (1 - acceptance ** (drafts + 1)) / (1 - acceptance)


def breakeven_acceptance(cost: float, drafts: int) -> float | None:
    """The acceptance at which k drafts and a verify pass, `cost` plain steps together, emit `cost` tokens.
    None: not even at 1; 0: always."""
    if cost > drafts + 1:
        return None
    if cost <= 1:
        return 0.0
    low, high = 0.0, 1.0
    while high - low > _EXACT_ROOT:
        middle = (low + high) / 2
        low, high = (low, middle) if emitted_tokens(middle, drafts) >= cost else (middle, high)
    return high


def overlap_ceiling(compute_half_ms: float, communication_half_ms: float) -> float:
    """Least time of two half-batches that hide each other: each resource serves both, max(2C, 2M) with C and
    M at half batch, ms."""
    return max(2 * compute_half_ms, 2 * communication_half_ms)


def cliff(points: list[tuple[float, float]]) -> tuple[float, float, float] | None:
    """The stretch of a (bytes, us) curve over which latency grows most against bytes: (from, to, how many
    times faster); None below CLIFF."""
    best: tuple[float, float, float] | None = None
    for place, (size, us) in enumerate(points):
        for larger, longer in points[place + 1 :]:
            times = (longer / us) / (larger / size)
            if times >= CLIFF and (best is None or times > best[2]):
                best = (size, larger, times)
    return best


def crossover(sizes: list[int], is_better: Callable[[int], bool | None]) -> list[tuple[int, bool]]:
    """Where a choice changes sides over ascending sizes: (first size, is it better from there); undecided
    sizes change nothing.

    The first decided size is the beginning, not a change. Empty: none in the range.
    """
    decided = [(size, verdict) for size in sizes if (verdict := is_better(size)) is not None]
    return [(size, now) for (_, before), (size, now) in pairwise(decided) if now != before]


def weight_bytes(weight_dtype: str) -> float | None:
    """Bytes of one weight with its scales. `_gN` gives the group: int4_g32 = half a byte and a 2-byte scale
    per 32; None: unknown type.

    int4 and int8 without group: 32 (Kimi-K2's) and per channel. fp8: one float32 per 128 x 128 block
    (DeepSeek-V3). mxfp4: one byte per 32; nvfp4: one byte per 16 (Open Compute MX 1.0; NVIDIA's NVFP4).
    """
    name, _, group = weight_dtype.lower().partition("_g")
    if group and not group.isdecimal():
        return None
    plain = {
        "bfloat16": 2.0,
        "bf16": 2.0,
        "float16": 2.0,
        "fp16": 2.0,
        "half": 2.0,
        "float32": 4.0,
        "fp32": 4.0,
        "int8": 1.0,
    }
    if name in plain:
        return plain[name] + (2 / int(group) if group and name == "int8" else 0.0)
    scaled = {"int4": (0.5, 2, 32), "mxfp4": (0.5, 1, 32), "nvfp4": (0.5, 1, 16), "fp8": (1.0, 4, 128 * 128)}
    if name not in scaled:
        return None
    each, scale, usual = scaled[name]
    return each + scale / (int(group) if group else usual)
