"""run_steps: what all ranks together served in one forward pass."""

from __future__ import annotations

from tests.support.tables import Row, run_model


def _found(ranks: list[Row]) -> tuple[object, ...]:
    steps: list[Row] = [
        {"trace_id": f"t{i}", "step": 0, "match_id": 0, "phase": "decode", "generation_requests": r["batch"]}
        for i, r in enumerate(ranks)
    ]
    traces: list[Row] = [{"trace_id": f"t{i}", "dp_rank": r["dp"]} for i, r in enumerate(ranks)]
    return run_model(
        "run_steps", {"steps": steps, "raw.trace": traces}, "ranks, dp_groups, generation_requests"
    )[0]


def test_ranks_of_one_group_count_their_batch_once() -> None:
    """Tensor-parallel ranks serve the same requests."""
    assert _found([{"dp": 0, "batch": 8}, {"dp": 0, "batch": 8}]) == (2, 1, 8)


def test_data_parallel_groups_are_added() -> None:
    """The global batch is the sum over data-parallel ranks."""
    assert _found(
        [{"dp": 0, "batch": 8}, {"dp": 0, "batch": 8}, {"dp": 1, "batch": 5}, {"dp": 1, "batch": 5}]
    ) == (4, 2, 13)


def test_without_a_name_that_tells_groups_all_ranks_are_one() -> None:
    """Nothing is added that might be the same requests."""
    assert _found([{"dp": None, "batch": 8}, {"dp": None, "batch": 8}]) == (2, 1, 8)
