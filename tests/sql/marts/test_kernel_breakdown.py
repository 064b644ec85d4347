"""kernel_breakdown: calls and time of each kernel name."""

from __future__ import annotations

import pytest

from pipeline.duck import rows
from tests.support.builders import GEMM, MARLIN_MOE
from tests.support.tables import Scene, build_scenes, evaluate


def test_a_name_has_calls_time_and_share_in_its_phase() -> None:
    """Total, mean and median per name, and the share of the phase's GPU time."""
    scene = (
        Scene()
        .step(0, 5)
        .launch(1, (GEMM, 10_000, 1_000), (GEMM, 20_000, 2_000), (MARLIN_MOE, 30_000, 9_000))
    )
    with build_scenes(scene, wanted=["kernel_breakdown"]) as con:
        found = rows(
            con,
            (
                "SELECT name, calls, calls_mode, ms_total, us_mean, us_p50, share FROM kernel_breakdown "
                "ORDER BY "
                "name"
            ),
        )
    assert found == [(GEMM, 2, 2, 0.003, 1.5, 1.5, 0.25), (MARLIN_MOE, 1, 1, 0.009, 9.0, 9.0, 0.75)]


def test_what_belongs_to_no_step_is_in_phase_unknown() -> None:
    """It has calls and time, and no number per step."""
    with build_scenes(Scene().launch(1, (GEMM, 10, 5), (GEMM, 20, 5)), wanted=["kernel_breakdown"]) as con:
        assert rows(con, "SELECT phase, calls, calls_mode, share FROM kernel_breakdown") == [
            ("unknown", 2, None, 1.0)
        ]


def test_one_name_under_two_rules_has_two_rows() -> None:
    """Where the operator or the place decides, each use is listed under its own rule."""
    total = "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float> >(x)"
    with build_scenes(
        Scene().step(0, 5).launch(1, (MARLIN_MOE, 10, 5), (total, 20, 5), (total, 30, 5)),
        wanted=["kernel_breakdown"],
    ) as con:
        found = rows(
            con, "SELECT rule_id, calls FROM kernel_breakdown WHERE name = ? ORDER BY rule_id", [total]
        )
    assert found == [("moe_sum_after_experts", 1), ("torch_reduce", 1)]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void f<int>(int const*, int*)", "f<int>"),
        ("void f<int>(const T1 *, int *)", "f<int>"),
        ("void n::f<(n::Kind)1, (int)8>(const T1 *)", "n::f<(n::Kind)1, 8>"),
        ("void f<4, &(a g<a>(a const&)), true>(a*, a const*, int, float)", "f<4, &g<a>, true>"),
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        ),
        ("void g<f()::{lambda(int)#1}>(int, f()::{lambda(int)#1})", "g<f()::{lambda(int)#1}>"),
        ("nvjet_sm90_tst_64x8", "nvjet_sm90_tst_64x8"),
        ("triton_red_fused_4", "triton_red_fused_4"),
    ],
)
def test_short_names_drop_return_type_and_parameters(name: str, short: str) -> None:
    """Template arguments stay, also those with parentheses, so that the two spellings of a kernel meet."""
    assert evaluate("short_name(?)", name) == short
