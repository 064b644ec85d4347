"""Two ranks that serve a model of one dense and one MoE layer, described and measured: runs for tests of
analyses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pipeline.lake.home import Home
from pipeline.lake.run_config import describe
from tests.support.builders import ALL_REDUCE, DECODE, GEMM, MARLIN_MOE, header, ingest_into, write_trace
from tests.support.known_answer import ACTIVATION, ARGMAX, MLA, NORM
from tests.support.planted_ranks import ALL_GATHER, EMBED, Planted

CACHE = (
    "void vllm::concat_and_cache_mla_kernel<__nv_bfloat16, __nv_bfloat16, "
    "(vllm::Fp8KVCacheDataType)0>(__nv_bfloat16 const*)"
)
DENSE = (NORM, GEMM, CACHE, MLA, GEMM, ALL_REDUCE, NORM, GEMM, ACTIVATION, GEMM, ALL_REDUCE)
MOE = (NORM, GEMM, CACHE, MLA, GEMM, ALL_REDUCE, NORM, GEMM, MARLIN_MOE, ACTIVATION, MARLIN_MOE, ALL_REDUCE)
STEP = (EMBED, ALL_REDUCE, *DENSE, *MOE, NORM, GEMM, ALL_GATHER, ARGMAX)
"""Five all-reduces of 7 us: the embedding's, two of each layer."""
FACTS: dict[str, Any] = {
    "layers": 2, "dense_layers": 1, "hidden_size": 7168, "experts": 64, "experts_per_token": 8,
    "shared_experts": 1, "moe_intermediate_size": 2048, "intermediate_size": 18432, "heads": 64,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "vocab_size": 1000, "dtype": "bfloat16",
    "weight_dtype": "int4", "tp": 2, "link": "nvlink4", "context_tokens": 100,
}  # fmt: skip
TABLE = "op,mode,ranks,input_bytes,us\n" + "".join(
    f"{op},graph,2,{14336 * tokens},{us}\n"
    for op, us in (("all_reduce", 14.0), ("all_gather", 10.0), ("reduce_scatter", 10.0), ("all_to_all", 12.0))
    for tokens in (1, 1024)
)
"""Flat latencies of 1 to 1024 tokens per rank: a trace's kernel of 7 us is half of the table's wall time."""


def serve(
    folder: Path,
    home: Home,
    run: str,
    *,
    tokens: int = 1,
    steps: int = 3,
    table: str | None = TABLE,
    facts: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Put a run into a home: its traces at a batch, a table beside them, and its given facts (None takes a
    fact of FACTS back)."""
    planted = Planted(names=STEP, steps=steps, args={CACHE: {"grid": [tokens, 1, 1]}})
    paths = []
    place = folder / run
    for rank, events in enumerate(planted.events()):
        label = f"execute_context_0(0)_generation_{tokens}({tokens})"
        renamed = [event | {"name": label} if event["name"] == DECODE else event for event in events]
        paths.append(write_trace(place / f"serve-rank-{rank}.json", renamed, header(rank, 2)))
    if table is not None:
        (place / "latency.csv").write_text(table, encoding="utf-8")
        paths.append(place / "latency.csv")
    given = {name: value for name, value in (FACTS | dict(facts)).items() if value is not None}
    if given:
        describe(home, home.run_id_for(run), given)
    assert ingest_into(home, *paths, run=run).codes == []
