"""int_step_window: each step's time line on each device."""

from __future__ import annotations

from tests.support.tables import Row, run_model


def _act(activity_id: int, start_ns: int, end_ns: int, **fields: object) -> Row:
    return {
        "activity_id": activity_id,
        "start_ns": start_ns,
        "end_ns": end_ns,
        "dur_ns": end_ns - start_ns,
    } | fields


def _windows(activities: list[Row], steps: list[int | None], columns: str) -> list[tuple[object, ...]]:
    placed = [{"activity_id": a["activity_id"], "step": s} for a, s in zip(activities, steps, strict=True)]
    return run_model(
        "int_step_window", {"int_activity": activities, "int_activity_step": placed}, columns, "device, step"
    )


def test_a_step_starts_with_its_first_kernel() -> None:
    """Input copies run ahead, inside the step before; they do not start the step, but they can end it."""
    activities = [_act(0, 5, 8, kind="memcpy"), _act(1, 50, 60), _act(2, 70, 90, kind="memcpy")]
    assert _windows(activities, [0, 0, 0], "start_ns, end_ns, busy_ns, activities, kernels") == [
        (50, 90, 33, 3, 1)
    ]


def test_a_step_of_copies_only_starts_with_the_first() -> None:
    """Without any kernel the first activity starts the step."""
    assert _windows([_act(0, 5, 8, kind="memcpy")], [0], "start_ns, kernels") == [(5, 0)]


def test_the_next_step_is_the_next_to_start_on_the_device() -> None:
    """next_ns is the start of the step that starts next on the same device, NULL for the last."""
    activities = [_act(0, 0, 10), _act(1, 100, 110), _act(2, 40, 50, device=1), _act(3, 200, 210, device=1)]
    found = _windows(activities, [0, 1, 0, 1], "device, step, next_ns")
    assert found == [(0, 0, 100), (0, 1, None), (1, 0, 200), (1, 1, None)]


def test_steps_that_skip_a_device_are_skipped_there() -> None:
    """On a device where step 1 did nothing, step 2 follows step 0."""
    found = _windows([_act(0, 0, 10), _act(1, 100, 110)], [0, 2], "step, next_ns")
    assert found == [(0, 100), (2, None)]


def test_replays_are_counted_by_launch() -> None:
    """Two replays of many kernels are two graph launches."""
    activities = [_act(i, 10 * i, 10 * i + 5, is_graph=True, correlation=i // 3) for i in range(6)]
    assert _windows(activities, [0] * 6, "graph_launches, kernels") == [(2, 6)]


def test_launch_lag_is_one_number_per_launch() -> None:
    """The lag of a replay counts once, from the call to its first kernel, however many kernels follow."""
    replay = [_act(i, 1000 + i, 1001 + i, correlation=1, launch_ns=900) for i in range(50)]
    single = [
        _act(60, 500, 510, correlation=2, launch_ns=490),
        _act(61, 520, 530, correlation=3, launch_ns=490),
    ]
    assert _windows([*replay, *single], [0] * 52, "launch_lag_p50_ns") == [(30,)]


def test_what_has_no_step_is_in_no_window() -> None:
    """Unplaced activities move no step's start or end."""
    assert _windows([_act(0, 0, 10), _act(1, 500, 600)], [0, None], "start_ns, end_ns") == [(0, 10)]
