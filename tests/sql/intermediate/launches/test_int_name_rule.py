"""int_name_rule: the first rule per distinct name."""

from __future__ import annotations

from tests.support.builders import ALL_REDUCE, GEMM
from tests.support.tables import run_model

RCCL = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"


def test_names_are_ruled_once() -> None:
    """However often a kernel runs, its name has one row."""
    activities = [{"activity_id": i, "name": name} for i, name in enumerate([GEMM, GEMM, ALL_REDUCE, GEMM])]
    assert run_model("int_name_rule", {"int_activity_launch": activities}, "name, rule_id") == [
        (ALL_REDUCE, "nccl_all_reduce"),
        (GEMM, "nvjet"),
    ]


def test_an_operator_refines_a_name() -> None:
    """The same name files by any operator around the launch where one is known, and by name alone where none
    is."""
    activities = [
        {"name": RCCL, "ops": op}
        for op in (None, "vllm::all_reduce\nc10d::allreduce_", "c10d::alltoall_base_", "aten::mul")
    ]
    found = run_model("int_name_rule", {"int_activity_launch": activities}, "ops, rule_id", "ops NULLS FIRST")
    assert found == [
        (None, "nccl_generic"),
        ("aten::mul", "nccl_generic"),
        ("c10d::alltoall_base_", "nccl_generic_all_to_all"),
        ("vllm::all_reduce\nc10d::allreduce_", "nccl_generic_all_reduce"),
    ]


def test_a_name_that_no_rule_knows_has_none() -> None:
    """There is no catch-all."""
    assert run_model("int_name_rule", {"int_activity_launch": [{"name": "Kernel"}]}, "rule_id") == [(None,)]


def test_an_opaque_graph_is_opaque_whatever_its_name() -> None:
    """A row for a whole graph is never filed by a name that looks like a kernel's."""
    assert run_model(
        "int_name_rule", {"int_activity_launch": [{"kind": "graph", "name": GEMM}]}, "rule_id"
    ) == [("opaque_graph",)]
