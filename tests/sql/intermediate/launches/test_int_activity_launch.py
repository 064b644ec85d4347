"""int_activity_launch: activities beside their launch calls."""

from __future__ import annotations

import pytest

from tests.support.tables import Row, Tables, run_model


def test_an_activity_meets_its_call_and_operator() -> None:
    """The correlation leads to the call's time and thread and to the operator."""
    tables: Tables = {
        "stg_activity": [{"activity_id": 0, "name": "k", "correlation": 5}],
        "stg_launch": [{"correlation": 5, "start_ns": 40, "name": "cudaLaunchKernel", "tid": 9}],
        "int_launch_op": [{"correlation": 5, "op": "aten::mm"}],
    }
    assert run_model("int_activity_launch", tables, "launch_ns, tid, op, is_graph") == [
        (40, 9, "aten::mm", False)
    ]


def test_an_activity_without_a_call_is_kept() -> None:
    """No link and a link to a call that was not recorded both leave the activity, without a launch."""
    activities: list[Row] = [{"activity_id": 0, "correlation": None}, {"activity_id": 1, "correlation": 99}]
    found = run_model(
        "int_activity_launch", {"stg_activity": activities}, "activity_id, launch_ns, is_graph, op"
    )
    assert found == [(0, None, False, None), (1, None, False, None)]


def test_correlations_of_another_trace_do_not_link() -> None:
    """The key of a launch is trace and correlation."""
    tables: Tables = {
        "stg_activity": [{"activity_id": 0, "correlation": 5}],
        "stg_launch": [{"trace_id": "u", "correlation": 5, "start_ns": 40, "name": "cudaLaunchKernel"}],
    }
    assert run_model("int_activity_launch", tables, "launch_ns") == [(None,)]


@pytest.mark.parametrize(
    "name", ["cudaGraphLaunch", "cudaGraphLaunch_v10000", "hipGraphLaunch", "cuGraphLaunch"]
)
def test_graph_replays_are_told_by_the_call(name: str) -> None:
    """Every vendor's graph launch counts as a replay, and one call carries all its activities."""
    tables: Tables = {
        "stg_activity": [{"activity_id": i, "correlation": 5} for i in range(3)],
        "stg_launch": [{"correlation": 5, "start_ns": 40, "name": name}],
    }
    assert run_model("int_activity_launch", tables, "activity_id, is_graph") == [
        (0, True),
        (1, True),
        (2, True),
    ]
