"""int_collective: every communication kernel with its place in its step."""

from __future__ import annotations

from tests.support.sequence import DENSE, HEAD, MOE, Sequence
from tests.support.tables import Row, run_model

Rows = list[tuple[object, ...]]


def collectives(sequence: Sequence, columns: str = "layer, part", **more: list[Row]) -> Rows:
    """These columns of each communication kernel, in order of time."""
    tables: dict[str, list[Row]] = sequence.tables() | {"int_layer": sequence.layer_rows()} | more
    return run_model("int_collective", tables, f"start_ns, {columns}", order="start_ns")


def test_parts_are_told_by_what_came_before() -> None:
    """Before the layers, after attention, after an MLP or experts, after the layers: by order, never by
    name."""
    step = Sequence().run(f"embed allreduce {DENSE} {MOE} {HEAD} gather")
    assert [row[1:] for row in collectives(step)] == [
        (None, "before_layers"),
        (0, "after_attention"),
        (0, "after_mlp"),
        (1, "after_attention"),
        (1, "after_moe"),
        (None, "after_layers"),
    ]


def test_a_gather_before_attention_is_told() -> None:
    """Sequence parallelism gathers between the norm and the first GEMM of a layer."""
    layer = DENSE.replace("norm gemm rope", "norm gather gemm rope").replace("allreduce", "scatter")
    assert [row[1:] for row in collectives(Sequence().run(f"{layer} {layer} {HEAD}"))][:3] == [
        (0, "before_attention"), (0, "after_attention"), (0, "after_mlp"),
    ]  # fmt: skip


def test_a_norm_fused_into_the_sum_belongs_to_the_layer_it_sums() -> None:
    """Fused all-reduces keep the places of plain ones."""
    fused = "gemm cache attention gemm fused gemm activation gemm fused"
    step = Sequence().run(f"embed fused {fused} {fused} gemm sample")
    assert [row[1:] for row in collectives(step)] == [
        (None, "before_layers"), (0, "after_attention"), (0, "after_mlp"), (1, "after_attention"),
        (1, "after_mlp"),
    ]  # fmt: skip


def test_without_layers_the_part_is_unknown() -> None:
    """Where the order of kernels proves nothing, nothing is claimed."""
    assert [row[1:] for row in collectives(Sequence().run("gemm allreduce gemm allreduce"))] == [
        (None, "unknown"),
        (None, "unknown"),
    ]


def test_kernels_of_draft_models_are_apart() -> None:
    """Their collectives are no collectives of the model's layers."""
    step = Sequence().run(f"{DENSE} {DENSE} {HEAD} allreduce")
    last = len(step.kernels) - 1
    found = collectives(step, int_draft=[{"trace_id": "t", "activity_id": last}])
    assert [row[2] for row in found] == [
        "after_attention",
        "after_mlp",
        "after_attention",
        "after_mlp",
        "draft",
    ]


def test_places_are_counted_within_each_step() -> None:
    """From 0 in each step; what belongs to no step has no place."""
    steps = (
        Sequence().run("allreduce gemm gather", step=0).run("allreduce", step=1).run("allreduce", step=None)
    )
    assert [row[1:] for row in collectives(steps, "step, place")] == [(0, 0), (0, 1), (1, 0), (None, None)]


def test_the_second_half_of_an_all_reduce_is_the_same_call() -> None:
    """Two kernels make one fused all-reduce: the second takes the first's number."""
    step = Sequence().run("fused:reduce_scatter_cross_device_store fused:local_device_load_rmsnorm allreduce")
    assert [row[1:] for row in collectives(step, "place, is_half")] == [(0, False), (0, True), (1, False)]


def test_a_start_before_the_end_of_the_one_before_is_early() -> None:
    """On the same stream that is a programmatic launch; on another stream it is only overlap."""
    step = Sequence().run("gemm", stream=1).run("allreduce", gap_ns=5, stream=1)
    step.kernels[0]["end_ns"] = 10_000
    assert [row[1:] for row in collectives(step, "is_early")] == [(True,)]
    step.kernels[1]["stream"] = 2
    assert [row[1:] for row in collectives(step, "is_early")] == [(False,)]


def test_roles_and_kinds_come_along() -> None:
    """Category, kind and the proven role of each."""
    step = Sequence().run("gather fused")
    found = collectives(
        step,
        "category, subcategory, role, is_fused",
        int_role=[{"trace_id": "t", "activity_id": 0, "role": "dispatch"}],
    )
    assert [row[1:] for row in found] == [
        ("collective", "all_gather", "dispatch", False),
        ("allreduce", "fused_norm", None, True),
    ]
