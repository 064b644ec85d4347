"""int_launch: calls that launched GPU work."""

from __future__ import annotations

from tests.support.tables import run_model


def test_a_replay_is_one_launch_of_all_its_activities() -> None:
    """All activities of a replay share one row, so that they can never be torn apart."""
    activities = [
        {"activity_id": i, "correlation": 1, "launch_ns": 110, "is_graph": True} for i in range(500)
    ]
    assert run_model(
        "int_launch", {"int_activity_launch": activities}, "correlation, is_graph, activities"
    ) == [(1, True, 500)]


def test_activities_without_a_launch_record_are_left_out() -> None:
    """What has no launch time is left to GPU time."""
    assert (
        run_model(
            "int_launch",
            {"int_activity_launch": [{"activity_id": 0, "correlation": 5, "launch_ns": None}]},
            "correlation",
        )
        == []
    )
