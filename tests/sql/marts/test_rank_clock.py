"""rank_clock: how far ranks' clocks are apart, from the common ends of collectives."""

from __future__ import annotations

from typing import Any

from tests.support.tables import Row, run_model


def clocks(*ends: list[int], refusal: str | None = None, rank: int = 0) -> list[tuple[Any, ...]]:
    """(rank, reference, calls, offset, residual, p99) from the ends of calls 0, 1, ... on each rank, counted
    from `rank`."""
    calls: list[Row] = [
        {
            "trace_id": f"t{number}", "rank": rank + number, "members": "all", "recording": "r",
            "communicator": "all", "match_id": 0,
            "call": call, "end_ns": end, "refusal": refusal,
        }
        for number, of_rank in enumerate(ends)
        for call, end in enumerate(of_rank)
    ]  # fmt: skip
    traces: list[Row] = [{"trace_id": f"t{number}"} for number in range(len(ends))]
    columns = "rank, reference_rank, calls, offset_ns, residual_ns, residual_p99_ns"
    return run_model("rank_clock", {"int_matched_call": calls, "stg_trace": traces}, columns)


def test_a_constant_difference_is_the_offset_and_leaves_nothing() -> None:
    """The lowest rank's clock counts."""
    assert clocks([100, 200, 300], [1_100, 1_200, 1_300]) == [(0, 0, 3, 0, 0, 0), (1, 0, 3, 1_000, 0, 0)]
    assert clocks([100], [90], rank=4) == [(4, 4, 1, 0, 0, 0), (5, 4, 1, -10, 0, 0)]


def test_the_residual_is_the_median_distance_from_it() -> None:
    """One call that ends late on one rank moves neither; the tail shows it."""
    found = clocks([0, 100, 200, 300, 400], [10, 108, 210, 312, 9_410])
    assert found[1][:5] == (1, 0, 5, 10, 2)
    assert found[1][5] > 8_000


def test_calls_that_are_refused_tell_no_clock() -> None:
    """A broadcast ends at different times."""
    assert clocks([100], [200], refusal="kind") == []
