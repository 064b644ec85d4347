"""What NCCL's documentation says that a message costs: an oracle for the mart `bandwidth`."""

from __future__ import annotations

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv")
"""Operations with a factor; others have none and no bus bandwidth."""


def wire_factor(op: str, ranks: int, algorithm: str = "ring") -> float | None:
    """Bytes that each GPU sends / bytes of the message; the message is the larger buffer of a rank (input or
    output).

    ring (also two-shot): all-reduce 2(N-1)/N; all-gather, reduce-scatter and all-to-all (N-1)/N; broadcast,
    reduce and send 1 (nccl-tests, doc/PERFORMANCE.md). one_shot all-reduce: every GPU sends its whole message
    to N-1 others. None: no factor known.
    """
    if op == "all_reduce":
        return float(ranks - 1) if algorithm == "one_shot" else 2 * (ranks - 1) / ranks
    if op in {"all_gather", "reduce_scatter", "all_to_all"}:
        return (ranks - 1) / ranks
    return 1.0 if op in {"broadcast", "reduce", "send_recv"} else None


def wire_bytes(op: str, size_bytes: float, ranks: int, algorithm: str = "ring") -> float | None:
    """Bytes that each GPU sends for one message."""
    factor = wire_factor(op, ranks, algorithm)
    return None if factor is None else size_bytes * factor


def algbw_gbps(size_bytes: float, dur_us: float) -> float:
    """Algorithm bandwidth: message bytes / time, GB/s (10^9)."""
    return size_bytes / dur_us / 1e3


def busbw_gbps(
    op: str, size_bytes: float, dur_us: float, ranks: int, algorithm: str = "ring"
) -> float | None:
    """Bus bandwidth: algorithm bandwidth x wire_factor, GB/s: what one link must carry (nccl-tests,
    doc/PERFORMANCE.md)."""
    factor = wire_factor(op, ranks, algorithm)
    return None if factor is None else algbw_gbps(size_bytes, dur_us) * factor
