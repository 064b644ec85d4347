"""int_activity_step: the step of each activity."""

from __future__ import annotations

from tests.support.tables import Row, run_model


def _linked(activity_id: int, start_ns: int, end_ns: int, step: int, **fields: object) -> Row:
    """An activity whose launch was recorded; its correlation is 100 + step."""
    return {
        "activity_id": activity_id,
        "start_ns": start_ns,
        "end_ns": end_ns,
        "correlation": 100 + step,
        "launch_ns": 1,
    } | fields


def _unlinked(start_ns: int, end_ns: int, activity_id: int = 99, **fields: object) -> Row:
    return {"activity_id": activity_id, "start_ns": start_ns, "end_ns": end_ns} | fields


LAUNCHES: list[Row] = [
    {"correlation": 100 + step, "step": step, "placed_by": "launch_same_thread"} for step in range(3)
]
TWO_STEPS = [_linked(0, 0, 10, 0), _linked(1, 90, 100, 0), _linked(2, 200, 210, 1), _linked(3, 290, 300, 1)]
NONE = (None, None, "no_launch_record")


def _placed(*activities: Row, of: int = 99) -> tuple[object, ...]:
    tables = {"int_activity_launch": [*activities], "int_launch_step": LAUNCHES}
    rows = run_model("int_activity_step", tables, "activity_id, step, placed_by, no_step_reason")
    assert len(rows) == len(activities)
    return next(row[1:] for row in rows if row[0] == of)


def test_a_recorded_launch_decides_whatever_the_gpu_time() -> None:
    """An activity that runs inside another step's work still belongs to the step that launched it."""
    assert _placed(*TWO_STEPS, _linked(99, 250, 260, 0)) == (0, "launch_same_thread", None)


def test_without_a_record_gpu_time_decides_inside_one_steps_work() -> None:
    """An activity between the kernels of one step is taken for the step's."""
    assert _placed(*TWO_STEPS, _unlinked(90, 100)) == (0, "gpu_time", None)
    assert _placed(*TWO_STEPS, _unlinked(240, 250)) == (1, "gpu_time", None)


def test_between_steps_nothing_is_invented() -> None:
    """Before, between, across and after the steps' work an unlinked activity belongs to none."""
    for start_ns, end_ns in (
        (-10, -5),
        (-5, 5),
        (120, 130),
        (95, 105),
        (195, 205),
        (100, 200),
        (295, 305),
        (400, 410),
    ):
        assert _placed(*TWO_STEPS, _unlinked(start_ns, end_ns)) == NONE


def test_where_two_steps_overlap_nothing_is_invented() -> None:
    """While kernels of two steps run side by side, an unlinked activity could be either's."""
    overlapping = [
        _linked(0, 0, 10, 0),
        _linked(1, 90, 100, 0),
        _linked(2, 80, 90, 1),
        _linked(3, 190, 200, 1),
    ]
    assert _placed(*overlapping, _unlinked(85, 95)) == NONE
    assert _placed(*overlapping, _unlinked(50, 60)) == (0, "gpu_time", None)
    assert _placed(*overlapping, _unlinked(150, 160)) == (1, "gpu_time", None)


def test_copies_that_run_ahead_do_not_claim_the_step_before() -> None:
    """An input copy of the next step inside this step's work does not move this step's unlinked kernels."""
    ahead = [*TWO_STEPS, _linked(4, 30, 35, 1, kind="memcpy")]
    assert _placed(*ahead, _unlinked(50, 60)) == (0, "gpu_time", None)


def test_a_late_copy_does_not_claim_the_step_behind() -> None:
    """The token's copy to the host that ends inside the next step does not hide that step's unlinked
    kernels."""
    late = [*TWO_STEPS, _linked(4, 240, 280, 0, kind="memcpy")]
    assert _placed(*late, _unlinked(230, 235)) == (1, "gpu_time", None)


def test_another_device_says_nothing() -> None:
    """GPU time is compared on the activity's own device only."""
    assert _placed(*TWO_STEPS, _unlinked(50, 60, device=1)) == NONE


def test_a_launch_without_step_keeps_its_reason() -> None:
    """What was launched before the first step or by an unannotated pass stays without one, also inside a
    step's work."""
    launches = [
        *LAUNCHES,
        {"correlation": 7, "placed_by": "launch_same_thread", "no_step_reason": "unannotated_pass"},
    ]
    tables = {
        "int_activity_launch": [*TWO_STEPS, _linked(99, 50, 60, 0, correlation=7)],
        "int_launch_step": launches,
    }
    found = run_model("int_activity_step", tables, "step, placed_by, no_step_reason", "activity_id")
    assert found[-1] == (None, None, "unannotated_pass")
