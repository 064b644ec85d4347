"""Bytes that a step must read: known answers."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.analyses.memory import Part, parts
from tests.support.served import FACTS


def part(name: str, *, tokens: int = 1, requests: int | None = 1, **facts: Any) -> Part:
    """One part, of FACTS with changes."""
    return next(p for p in parts(FACTS | facts, tokens, requests) if p.name == name)


EXPERT = 3 * 7168 * 2048


def test_one_token_reads_its_experts_with_their_scales() -> None:
    """8 of 64, half of each on a rank, half a byte and a 2-byte scale per 32 weights; resident are all."""
    found = part("routed experts")
    assert found.read_bytes == pytest.approx(8 * EXPERT * 0.5625 / 2)
    assert found.resident_bytes == pytest.approx(64 * EXPERT * 0.5625 / 2)
    assert "upper bound" in found.note


def test_expert_parallel_ranks_hold_a_share_of_the_experts() -> None:
    """Whole experts over 8 ranks, read by all ranks' tokens."""
    found = part("routed experts", tokens=8, tp=1, ep=8)
    assert found.read_bytes == pytest.approx(64 * (1 - (7 / 8) ** 8) * EXPERT * 0.5625 / 8)


def test_tensor_parallelism_does_not_divide_mlas_cache() -> None:
    """2 layers, 3 requests of 100 tokens, 512 + 64 values of 2 bytes, whatever tp."""
    assert (
        part("KV cache", requests=3).read_bytes
        == part("KV cache", requests=3, tp=8).read_bytes
        == 2 * 3 * 100 * 576 * 2
    )


def test_replicated_weights_are_whole_on_every_rank() -> None:
    """Between tp 1 and tp 2 half of the sharded weights go; q_a, kv_a and the router stay."""
    one, two = (part("other weights", tp=tp).read_bytes for tp in (1, 2))
    assert one is not None
    assert two is not None
    whole = 2 * (2 * (7168 * 1536 + 7168 * 576) + 7168 * 64)
    assert 2 * two - one == pytest.approx(whole)


def test_a_dense_model_has_no_router() -> None:
    """All layers have an MLP; experts are not needed."""
    found = part("other weights", experts=None, shared_experts=None, moe_intermediate_size=None, tp=1)
    attention = 7168 * 1536 + 7168 * 576 + 1536 * 64 * 192 + 512 * 64 * 256 + 64 * 128 * 7168
    assert found.read_bytes == pytest.approx(2 * (2 * (attention + 3 * 7168 * 18432) + 1000 * 7168))


@pytest.mark.parametrize(
    ("name", "facts", "missing"),
    [
        ("routed experts", {"weight_dtype": None}, ("weight_dtype",)),
        ("routed experts", {"weight_dtype": "int3"}, ("a known weight_dtype (not int3)",)),
        ("other weights", {"heads": None, "shared_experts": None}, ("heads", "shared_experts")),
        ("other weights", {"dtype": "strange"}, ("a known dtype",)),
        ("KV cache", {"context_tokens": None}, ("context_tokens",)),
        ("KV cache", {"requests": None}, ("the requests of a step, or a known dtype",)),
    ],
)
def test_what_is_missing_is_named(name: str, facts: dict[str, Any], missing: tuple[str, ...]) -> None:
    """No bytes are made up."""
    found = part(name, **facts)
    assert (found.read_bytes, found.missing) == (None, missing)
