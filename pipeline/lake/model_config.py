"""Facts about a model from its Hugging Face config.json, under the names of
schemas/config/run_config.toml."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from pipeline.errors import UsageError
from pipeline.lake.run_config import checked

_LARGEST_CONFIG = 1 << 24
"""Bytes of a config.json: most have a few thousand."""
_NESTED = ("text_config", "llm_config", "language_config")
"""Where multimodal models keep the configuration of their language model."""
_KEYS: dict[str, tuple[str, ...]] = {
    "model": ("_name_or_path",),
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "experts": ("n_routed_experts", "num_experts", "num_local_experts"),
    "experts_per_token": ("num_experts_per_tok", "moe_topk", "experts_per_token"),
    "shared_experts": ("n_shared_experts", "num_shared_experts"),
    "intermediate_size": ("intermediate_size_mlp", "intermediate_size"),
    "moe_intermediate_size": ("moe_intermediate_size",),
    "heads": ("num_attention_heads", "n_head"),
    "kv_lora_rank": ("kv_lora_rank",),
    "q_lora_rank": ("q_lora_rank",),
    "vocab_size": ("vocab_size",),
    "dtype": ("torch_dtype", "dtype"),
}
"""The keys that models use for a fact, the most specific first."""


@dataclass(frozen=True)
class ModelConfig:
    """Facts that a config.json gives, the key that each was taken from, and the facts that it does not
    give."""

    facts: dict[str, Any]
    taken_from: dict[str, str]
    missing: tuple[str, ...]


def read_model_config(path: Path) -> ModelConfig:
    """Read a config.json. Raises UsageError for what is none, or holds a value that is not allowed."""
    config = _language_model(_load(path))
    facts: dict[str, Any] = {}
    taken_from: dict[str, str] = {}
    for fact, find in (*((name, _by_key(name)) for name in _KEYS), *_DERIVED):
        if fact not in facts and (found := find(config)) is not None:
            facts[fact], taken_from[fact] = found
    if not facts:
        raise UsageError(f"{path}: no known key of a model configuration, e.g. num_hidden_layers")
    try:
        checked(facts)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    return ModelConfig(facts, taken_from, tuple(name for name in _FACTS if name not in facts))


def _load(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_CONFIG + 1)
        found = orjson.loads(data) if len(data) <= _LARGEST_CONFIG else None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise UsageError(f"{path}: invalid JSON: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path}: not a model configuration (a JSON object with keys like hidden_size)")
    return found


def _language_model(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of the language model: nested keys take precedence over the outer ones."""
    for name in _NESTED:
        if isinstance(inner := config.get(name), dict):
            return {**config, **inner}
    return config


_Found = tuple[Any, str] | None


def _by_key(fact: str) -> Callable[[Mapping[str, Any]], _Found]:
    """Look a fact up under its keys. An empty text and null are no value."""

    def find(config: Mapping[str, Any]) -> _Found:
        return next(((config[key], key) for key in _KEYS[fact] if config.get(key) not in (None, "")), None)

    return find


def _dense_layers(config: Mapping[str, Any]) -> _Found:
    """Layers without experts: the first k, those listed, or those that moe_layer_freq marks with 0."""
    found: dict[str, Any] = {
        "first_k_dense_replace": config.get("first_k_dense_replace"),
        "mlp_only_layers": _length(config.get("mlp_only_layers")),
    }
    frequency = config.get("moe_layer_freq")
    if isinstance(frequency, list):
        return frequency.count(0), "moe_layer_freq"
    if isinstance(frequency, int) and frequency > 1:
        return None  # experts in every nth layer only: the first k are not all dense layers
    if config.get("decoder_sparse_step", 1) != 1:
        return None
    return next(((value, key) for key, value in found.items() if value is not None), None)


def _length(value: Any) -> int | None:
    return len(value) if isinstance(value, list) else None


def _expert_width(config: Mapping[str, Any]) -> _Found:
    """Mixtral and its kin have experts in every layer, whose width is the `intermediate_size`."""
    width = config.get("intermediate_size")
    return (width, "intermediate_size") if config.get("num_local_experts") and width is not None else None


def _weight_dtype(config: Mapping[str, Any]) -> _Found:
    """The type of quantized weights, by the quantization method and its bits."""
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict):
        return None
    method = quantization.get("quant_method")
    if method in {"fp8", "mxfp4"}:
        return method, "quantization_config.quant_method"
    if str(algorithm := quantization.get("quant_algo")).lower() in {"fp8", "nvfp4"}:
        return str(algorithm).lower(), "quantization_config.quant_algo"
    if isinstance(bits := quantization.get("bits"), int):
        return _integer_type(bits, quantization.get("group_size")), "quantization_config.bits"
    return _compressed_tensors(quantization.get("config_groups"))


def _compressed_tensors(groups: Any) -> _Found:
    """The type that all groups of a compressed-tensors configuration give their weights, if it is one."""
    weights = [group.get("weights") for group in groups.values()] if isinstance(groups, dict) else []
    types = {_type_of(one) for one in weights if isinstance(one, dict)}
    only = types.pop() if len(types) == 1 else None
    return (only, "quantization_config.config_groups") if only is not None else None


def _type_of(weights: dict[str, Any]) -> str | None:
    kind, bits, group = weights.get("type"), weights.get("num_bits"), weights.get("group_size")
    if kind == "int" and isinstance(bits, int):
        return _integer_type(bits, group)
    if kind != "float":
        return None
    return "fp8" if bits == 8 else {16: "nvfp4", 32: "mxfp4"}.get(group or 0) if bits == 4 else None


def _integer_type(bits: int, group: Any) -> str:
    """As `weight_dtype` writes it: int4_g128 has a scale for 128 weights each, int4 alone one for 32."""
    has_own_group = bits == 4 and isinstance(group, int) and group not in {-1, 32}
    return f"int{bits}_g{group}" if has_own_group else f"int{bits}"


_DERIVED: tuple[tuple[str, Callable[[Mapping[str, Any]], _Found]], ...] = (
    ("dense_layers", _dense_layers),
    ("moe_intermediate_size", _expert_width),
    ("weight_dtype", _weight_dtype),
)
_FACTS = (*_KEYS, "dense_layers", "weight_dtype")
"""All facts that a config.json can give."""
