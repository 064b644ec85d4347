"""Facts from a Hugging Face config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UsageError
from pipeline.lake.model_config import read_model_config

# As published with the models, the keys that matter.
DEEPSEEK_V3: dict[str, Any] = {
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "moe_intermediate_size": 2048,
    "intermediate_size": 18432,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "vocab_size": 129280,
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
QWEN3_MOE: dict[str, Any] = {
    "num_hidden_layers": 94,
    "hidden_size": 4096,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 1536,
    "intermediate_size": 12288,
    "num_attention_heads": 64,
    "vocab_size": 151936,
    "torch_dtype": "bfloat16",
}
MIXTRAL: dict[str, Any] = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "torch_dtype": "bfloat16",
}


def facts(folder: Path, config: Any) -> dict[str, Any]:
    """The facts that a configuration gives."""
    path = folder / "config.json"
    path.write_bytes(orjson.dumps(config))
    return read_model_config(path).facts


def test_a_deepseek_model(tmp_path: Path) -> None:
    """Every fact of MLA and of the experts; the number of key-value heads is no fact of run_config."""
    assert facts(tmp_path, DEEPSEEK_V3) == {
        "layers": 61,
        "hidden_size": 7168,
        "experts": 256,
        "experts_per_token": 8,
        "shared_experts": 1,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "heads": 128,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "vocab_size": 129280,
        "dtype": "bfloat16",
        "dense_layers": 3,
        "weight_dtype": "fp8",
    }


def test_a_qwen_model(tmp_path: Path) -> None:
    """No layer is listed as dense, so none is; there is no quantization, so no type of weights is given."""
    assert facts(tmp_path, QWEN3_MOE) == {
        "layers": 94,
        "hidden_size": 4096,
        "experts": 128,
        "experts_per_token": 8,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "heads": 64,
        "vocab_size": 151936,
        "dtype": "bfloat16",
        "dense_layers": 0,
    }


def test_a_mixtral_model(tmp_path: Path) -> None:
    """The width of its experts has the name of a dense model's."""
    assert facts(tmp_path, MIXTRAL)["moe_intermediate_size"] == 14336


def test_the_language_model_of_a_multimodal_one(tmp_path: Path) -> None:
    """Nested keys win over those around them."""
    outer = {"hidden_size": 1, "torch_dtype": "float16", "text_config": DEEPSEEK_V3}
    assert facts(tmp_path, outer) == facts(tmp_path, DEEPSEEK_V3)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """With the keys that were used."""
    path = tmp_path / "config.json"
    path.write_bytes(orjson.dumps({"n_layer": 12, "q_lora_rank": None, "num_experts_per_tok": ""}))
    found = read_model_config(path)
    assert found.taken_from == {"layers": "n_layer"}
    assert {"q_lora_rank", "experts_per_token", "weight_dtype"} <= set(found.missing)
    assert "layers" not in found.missing


@pytest.mark.parametrize(
    ("more", "dense"),
    [
        ({"moe_layer_freq": [0, 1, 1, 0]}, 2),
        ({"moe_layer_freq": 2, "first_k_dense_replace": 1}, None),
        ({"mlp_only_layers": [0, 5]}, 2),
        ({"mlp_only_layers": [], "decoder_sparse_step": 2}, None),
        ({}, None),
    ],
)
def test_dense_layers(tmp_path: Path, more: dict[str, Any], dense: int | None) -> None:
    """Counted where the configuration lists them; not given where experts are in every nth layer."""
    assert facts(tmp_path, {"num_hidden_layers": 4, **more}).get("dense_layers") == dense


def compressed(**weights: Any) -> dict[str, Any]:
    """A compressed-tensors configuration with one group."""
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}


@pytest.mark.parametrize(
    ("quantization", "weight_dtype"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4_g128"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "int8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        (compressed(type="int", num_bits=4, group_size=32), "int4"),
        (compressed(type="float", num_bits=8), "fp8"),
        (compressed(type="float", num_bits=4, group_size=16), "nvfp4"),
        (compressed(type="float", num_bits=6), None),
        ({"quant_method": "novel"}, None),
        (None, None),
    ],
)
def test_the_type_of_weights(tmp_path: Path, quantization: Any, weight_dtype: str | None) -> None:
    """By method, bits and group, as weight_dtype writes them; unknown methods give none."""
    config = {"num_hidden_layers": 4, "quantization_config": quantization}
    assert facts(tmp_path, config).get("weight_dtype") == weight_dtype


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "invalid JSON"),
        (b"[]", "not a model configuration"),
        (b'{"weight_map": {}}', "no known key"),
        (b'{"num_hidden_layers": "61"}', "layers = '61' is not an integer"),
        (b'{"num_hidden_layers": -1}', "out of range"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: bytes, message: str) -> None:
    """With the file's name and what is wrong."""
    path = tmp_path / "config.json"
    path.write_bytes(text)
    with pytest.raises(UsageError, match=rf"config\.json: .*{message}"):
        read_model_config(path)


KEYS = st.sampled_from([*DEEPSEEK_V3, *MIXTRAL, "mlp_only_layers", "text_config", "bits", "config_groups"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_any_values_are_facts_or_wrong_usage(
    tmp_path_factory: pytest.TempPathFactory, config: dict[str, Any]
) -> None:
    """Nothing in a config.json ends in another error."""
    path = tmp_path_factory.getbasetemp() / "any-config.json"
    path.write_bytes(orjson.dumps(config))
    try:
        found = read_model_config(path)
    except UsageError:
        return
    assert found.facts.keys() == found.taken_from.keys()
    assert found.facts.keys().isdisjoint(found.missing)
