"""int_step_match: the same forward pass on different ranks."""

from __future__ import annotations

from typing import Any

from tests.support.tables import Row, run_model

Step = tuple[int, int, int]
"""Start, end, number of collectives."""


def _matches(*ranks: list[Step], **fields: list[Any]) -> list[list[int | None]]:
    """match_id of each step of each rank; a rank's steps follow each other."""
    tables: dict[str, list[Row]] = {
        "stg_trace": [],
        "int_step_window": [],
        "int_activity_step": [],
        "int_activity": [],
    }
    for rank, steps in enumerate(ranks):
        trace = {"trace_id": f"t{rank}"}
        tables["stg_trace"].append(
            trace | {"rank": rank} | {key: values[rank] for key, values in fields.items()}
        )
        for number, (start, end, collectives) in enumerate(steps):
            following = steps[number + 1][0] if number + 1 < len(steps) else None
            tables["int_step_window"].append(
                trace | {"step": number, "start_ns": start, "end_ns": end, "next_ns": following}
            )
            for n in range(collectives):
                activity = trace | {"activity_id": 1000 * number + n}
                tables["int_activity_step"].append(activity | {"step": number})
                tables["int_activity"].append(activity | {"rule_id": "nccl_all_reduce"})
    found = run_model("int_step_match", tables, "trace_id, step, match_id")
    return [[match for trace, _, match in found if trace == f"t{rank}"] for rank in range(len(ranks))]


def test_ranks_with_the_same_collectives_go_by_order() -> None:
    """Tensor-parallel ranks match step by step, though their clocks differ by more than a step."""
    first: list[Step] = [(0, 90, 3), (100, 190, 5), (200, 290, 3)]
    assert _matches(first, [(start + 450, end + 450, count) for start, end, count in first]) == [
        [0, 1, 2],
        [0, 1, 2],
    ]


def test_ranks_with_other_collectives_go_by_time() -> None:
    """Data-parallel ranks run prefill, decode and dummy batches side by side: what runs at the same time
    matches."""
    decode: list[Step] = [(0, 90, 3), (100, 190, 3), (200, 290, 3)]
    assert _matches(decode, [(5, 95, 9), (105, 195, 2), (205, 295, 0)]) == [[0, 1, 2], [0, 1, 2]]


def test_a_rank_that_joined_late_matches_by_time() -> None:
    """Its first step is the others' second."""
    decode: list[Step] = [(0, 90, 3), (100, 190, 3), (200, 290, 3)]
    assert _matches(decode, decode[1:]) == [[0, 1, 2], [1, 2]]


def test_the_rank_with_most_steps_is_the_reference() -> None:
    """Of equals the lowest; the others answer to its numbers."""
    few: list[Step] = [(100, 190, 3)]
    assert _matches(few, [(0, 90, 3), (100, 190, 3), (200, 290, 3)]) == [[1], [0, 1, 2]]


def test_a_step_that_runs_while_the_reference_does_not_has_no_match() -> None:
    """After the last step of the reference, and before its first, nothing answers."""
    reference: list[Step] = [(100, 190, 3), (200, 290, 3), (300, 390, 3)]
    assert _matches(reference, [(0, 90, 1), (500, 590, 1)]) == [[0, 1, 2], [None, None]]


def test_two_steps_of_a_rank_never_share_a_match() -> None:
    """Two short batches during one long prefill of the reference: only the one that runs longest beside it is
    the same pass."""
    reference: list[Step] = [(0, 900, 3), (1_000, 1_090, 3), (1_100, 1_190, 3)]
    assert _matches(reference, [(0, 100, 1), (110, 890, 1)]) == [[0, 1, 2], [None, 0]]


def test_sources_are_matched_apart() -> None:
    """A torch trace and an nsys report of one run never answer to each other."""
    found = _matches([(0, 90, 3), (100, 190, 3)], [(100, 190, 3)], source=["kineto", "nsys"])
    assert found == [[0, 1], [0]]


def test_devices_of_one_trace_are_ranks_of_their_own() -> None:
    """One process that drives two GPUs has a match on both."""
    window: list[Row] = [
        {"device": device, "step": step, "start_ns": 100 * step, "end_ns": 100 * step + 90}
        for device in (0, 1)
        for step in (0, 1)
    ]
    found = run_model(
        "int_step_match", {"stg_trace": [{}], "int_step_window": window}, "device, step, match_id"
    )
    assert found == [(0, 0, 0), (0, 1, 1), (1, 0, 0), (1, 1, 1)]
