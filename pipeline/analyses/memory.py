"""Bytes that a decode step must read from a GPU's memory, by part: pure arithmetic on the given facts
of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.analyses.formulas import distinct_experts, weight_bytes

ROPE, NOPE, VALUE = 64, 128, 128
"""MLA's widths per head of the positional part, the rest of a key, and a value (DeepSeek-V2, V3, Kimi-K2)."""


@dataclass(frozen=True)
class Part:
    """What one kind of kernel reads in a step on one rank. `missing`: facts that are needed; bytes are then
    None."""

    name: str
    categories: tuple[str, ...]
    resident_bytes: float | None
    read_bytes: float | None
    note: str
    missing: tuple[str, ...] = ()
    expert_bytes: float | None = None
    """Bytes that one more distinct expert per layer costs a rank."""


def parts(config: Mapping[str, Any], tokens: int, requests: int | None) -> list[Part]:
    """The parts of a step over `tokens` (of all ranks that share the experts) and `requests` of this rank."""
    return [_experts(config, tokens), _weights(config), _kv(config, requests)]


def _lacking(config: Mapping[str, Any], *names: str) -> tuple[str, ...]:
    return tuple(name for name in names if config.get(name) is None)


def _shards(config: Mapping[str, Any]) -> int:
    """Over how many ranks the experts are spread, by width (tensor parallel) or by number (expert
    parallel)."""
    return max(config.get("ep") or 1, config.get("tp") or 1)


def _experts(config: Mapping[str, Any], tokens: int) -> Part:
    missing = _lacking(
        config,
        "hidden_size",
        "moe_intermediate_size",
        "experts",
        "experts_per_token",
        "layers",
        "dense_layers",
        "weight_dtype",
        "tp",
    )
    name, categories = "routed experts", ("moe_gemm",)
    if missing:
        return Part(name, categories, None, None, "", missing)
    each = weight_bytes(config["weight_dtype"])
    if each is None:
        return Part(
            name,
            categories,
            None,
            None,
            "",
            (f"a known weight_dtype (not {config['weight_dtype']})",),
        )
    layers, experts, top_k = (
        config["layers"] - config["dense_layers"],
        config["experts"],
        config["experts_per_token"],
    )
    per_expert = 3 * config["hidden_size"] * config["moe_intermediate_size"] * each / _shards(config) * layers
    read = distinct_experts(experts, top_k, tokens)
    note = (
        f"{read:.1f} of {experts} distinct experts per layer for {tokens} tokens, uniform routing: an upper "
        f"bound; {each:.4g} bytes per weight with its scales; 1/{_shards(config)} of them on a rank"
    )
    return Part(name, categories, experts * per_expert, read * per_expert, note, expert_bytes=per_expert)


def _weights(config: Mapping[str, Any]) -> Part:
    name, categories = "other weights", ("gemm",)
    wanted = (
        "hidden_size",
        "layers",
        "dense_layers",
        "heads",
        "kv_lora_rank",
        "q_lora_rank",
        "intermediate_size",
        "vocab_size",
        "dtype",
        "tp",
    )
    missing = _lacking(config, *wanted)
    if config.get("experts"):
        missing += _lacking(config, "shared_experts", "moe_intermediate_size")
    each = weight_bytes(config["dtype"]) if config.get("dtype") else None
    if missing or each is None:
        return Part(name, categories, None, None, "", missing or ("a known dtype",))
    hidden, layers, tp = config["hidden_size"], config["layers"], config["tp"]
    heads, kv, q = config["heads"] / tp, config["kv_lora_rank"], config["q_lora_rank"]
    replicated = hidden * q + hidden * (kv + ROPE)
    sharded = q * heads * (NOPE + ROPE) + kv * heads * (NOPE + VALUE) + heads * VALUE * hidden
    dense = config["dense_layers"] if config.get("experts") else layers
    mlp = dense * 3 * hidden * config["intermediate_size"] / tp
    moe = layers - dense
    shared = (
        moe
        * 3
        * hidden
        * (config.get("shared_experts") or 0)
        * (config.get("moe_intermediate_size") or 0)
        / tp
    )
    router = moe * hidden * (config.get("experts") or 0)
    total = each * (
        layers * (replicated + sharded) + mlp + shared + router + config["vocab_size"] * hidden / tp
    )
    whole = each * (layers * replicated + router) / 1e6
    note = (
        f"attention's projections, dense MLPs, shared experts, router and lm_head in {config['dtype']}; "
        f"{whole:.0f} MB of them (q_a, kv_a, router) are whole on every rank; heads of {NOPE} + {ROPE} and "
        f"{VALUE}"
    )
    return Part(name, categories, total, total, note)


def _kv(config: Mapping[str, Any], requests: int | None) -> Part:
    name, categories = "KV cache", ("attention",)
    missing = _lacking(config, "layers", "kv_lora_rank", "context_tokens", "dtype")
    each = weight_bytes(config["dtype"]) if config.get("dtype") else None
    if missing or each is None or requests is None:
        return Part(
            name, categories, None, None, "", missing or ("the requests of a step, or a known dtype",)
        )
    read = config["layers"] * requests * config["context_tokens"] * (config["kv_lora_rank"] + ROPE) * each
    return Part(
        name, categories, read, read, "MLA: every rank holds all of it, tensor parallelism does not divide it"
    )
