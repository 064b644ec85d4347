"""int_activity: rules by name, and by place on the stream."""

from __future__ import annotations

from pathlib import Path

from pipeline.models.rules import load_rules
from tests.support.builders import ALL_REDUCE, GEMM, MARLIN_MOE
from tests.support.tables import Row, build_all, run_model

SUM = (
    "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16, "
    "at::native::func_wrapper_t<c10::BFloat16>>>(T)"
)
FILL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, std::array<char*, "
    "1ul> >(int)"
)
BY_NAME = {
    SUM: "torch_reduce",
    FILL: "torch_fill",
    MARLIN_MOE: "marlin_moe",
    ALL_REDUCE: "nccl_all_reduce",
    GEMM: "nvjet",
    "Memset (Device)": "memset",
}


def _rules(*names: str, streams: dict[int, int] | None = None) -> list[str]:
    """The rules of activities that run one after another; `streams`: which of them on another stream."""
    activities: list[Row] = [
        {
            "activity_id": i,
            "name": n,
            "start_ns": 10 * i,
            "end_ns": 10 * i + 5,
            "stream": (streams or {}).get(i, 7),
        }
        for i, n in enumerate(names)
    ]
    named = [{"name": n, "rule_id": BY_NAME.get(n)} for n in dict.fromkeys(names)]
    found = run_model(
        "int_activity", {"int_activity_launch": activities, "int_name_rule": named}, "activity_id, rule_id"
    )
    return [rule for _, rule in found]


def test_the_sum_behind_the_experts_is_routing() -> None:
    """moe_sum_after_experts: a plain reduction right after an expert GEMM sums over experts."""
    assert _rules(MARLIN_MOE, SUM, ALL_REDUCE) == ["marlin_moe", "moe_sum_after_experts", "nccl_all_reduce"]


def test_the_same_sum_elsewhere_is_elementwise() -> None:
    """After any other kernel, or first on its stream, the reduction keeps its rule by name."""
    assert _rules(SUM, GEMM, SUM) == ["torch_reduce", "nvjet", "torch_reduce"]


def test_the_fill_before_the_experts_is_routing() -> None:
    """moe_zero_fill: a fill right before an expert GEMM zeroes its output."""
    assert _rules(FILL, MARLIN_MOE) == ["moe_zero_fill", "marlin_moe"]


def test_the_memset_before_the_experts_is_routing_too() -> None:
    """A memset does the same work as a fill kernel."""
    assert _rules("Memset (Device)", MARLIN_MOE, "Memset (Device)", GEMM) == [
        "moe_zero_fill",
        "marlin_moe",
        "memset",
        "nvjet",
    ]


def test_a_neighbor_is_on_the_same_stream() -> None:
    """An expert GEMM on another stream says nothing, even when it runs between."""
    assert _rules(MARLIN_MOE, SUM, streams={1: 20}) == ["marlin_moe", "torch_reduce"]
    assert _rules(MARLIN_MOE, GEMM, SUM, streams={1: 20})[2] == "moe_sum_after_experts"


def test_what_no_rule_claims_is_unclassified() -> None:
    """An unknown name is filed as unclassified, not left out."""
    assert _rules("Kernel", GEMM) == ["unclassified", "nvjet"]


def test_a_users_rule_by_name_beats_our_rule_by_place(tmp_path: Path) -> None:
    """The user's rules are tried before all of ours, those by place included."""
    own = tmp_path / "kernel_rules.toml"
    own.write_text('[[rule]]\nid = "mine"\nname = "reduce_kernel<128"\ncategory = "norm"\n', encoding="utf-8")
    kernels = [
        {"activity_id": i, "name": n, "start_ns": i, "dur_ns": 1} for i, n in enumerate([MARLIN_MOE, SUM])
    ]
    with build_all({"raw.gpu_activity": kernels}, load_rules(own), ["int_activity"]) as con:
        assert con.execute("SELECT rule_id FROM int_activity ORDER BY activity_id").fetchall() == [
            ("marlin_moe",),
            ("mine",),
        ]


def test_operator_and_no_operator_of_one_name_stay_apart() -> None:
    """Each activity takes the rule of its own (name, operator)."""
    activities: list[Row] = [
        {"activity_id": 0, "name": "n", "ops": None},
        {"activity_id": 1, "name": "n", "ops": "aten::bmm", "stream": 8},
    ]
    named: list[Row] = [
        {"name": "n", "ops": None, "rule_id": "nvjet"},
        {"name": "n", "ops": "aten::bmm", "rule_id": "library_bmm"},
    ]
    found = run_model(
        "int_activity", {"int_activity_launch": activities, "int_name_rule": named}, "activity_id, rule_id"
    )
    assert found == [(0, "nvjet"), (1, "library_bmm")]
