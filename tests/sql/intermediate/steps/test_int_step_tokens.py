"""int_step_tokens: the padded number of tokens that a step's graph replays."""

from __future__ import annotations

import pytest

from tests.support.tables import Row, run_model

MLA = (
    "void vllm::concat_and_cache_mla_kernel<__nv_bfloat16, __nv_bfloat16, "
    "(vllm::Fp8KVCacheDataType)0>(__nv_bfloat16 const*)"
)
FLASH = (
    "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, "
    "(vllm::Fp8KVCacheDataType)0>(__nv_bfloat16 const*)"
)


def _tokens(
    *writes: tuple[str | None, bool], name: str = MLA, step: int | None = 3
) -> list[tuple[object, ...]]:
    """(step, graph_tokens) of a step whose kernels have these grids and came from a graph or not."""
    tables: dict[str, list[Row]] = {"int_activity_step": [], "int_activity": [], "raw.gpu_activity": []}
    for number, (grid, is_graph) in enumerate(writes):
        activity = {"activity_id": number}
        tables["int_activity_step"].append(activity | {"step": step})
        tables["int_activity"].append(activity | {"name": name, "is_graph": is_graph})
        tables["raw.gpu_activity"].append(activity | {"grid": grid})
    return run_model("int_step_tokens", tables, "step, graph_tokens")


@pytest.mark.parametrize("name", [MLA, FLASH])
def test_the_grid_of_the_kv_write_is_the_padded_size(name: str) -> None:
    """A batch of 2 replayed in a graph of 16 writes with 16 blocks, one a token, in every layer."""
    assert _tokens(("[16, 1, 1]", True), ("[16,8,1]", True), name=name) == [(3, 16)]


def test_launched_without_a_graph_nothing_is_padded() -> None:
    """Eager writes have the size of the batch, which is no padded size."""
    assert _tokens(("[2, 1, 1]", False)) == []


def test_writes_that_disagree_prove_nothing() -> None:
    """Two graphs in a step, target and draft, replay different sizes: none is given."""
    assert _tokens(("[16, 1, 1]", True), ("[4, 1, 1]", True)) == []


@pytest.mark.parametrize("grid", [None, "", "16"])
def test_without_a_grid_the_size_is_unknown(grid: str | None) -> None:
    """AMD's graph kernels have no grid: no row."""
    assert _tokens((grid, True)) == []


def test_other_kernels_say_nothing() -> None:
    """The grid of a GEMM is not a number of tokens."""
    assert _tokens(("[16, 1, 1]", True), name="nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT") == []


def test_outside_steps_nothing_is_said() -> None:
    """A write that belongs to no step gives no step a size."""
    assert _tokens(("[16, 1, 1]", True), step=None) == []
