"""int_launch_step: the step that made each launch."""

from __future__ import annotations

from itertools import chain

from tests.support.tables import Row, run_model

BEGUN: list[Row] = [{"step": i, "start_ns": 100 * i, "method": "annotation"} for i in range(1, 5)]
"""Steps 1 to 4 on thread 1, begun at 100, 200, 300, 400."""


def _call(correlation: int, launch_ns: int, **fields: object) -> list[Row]:
    return [{"correlation": correlation, "launch_ns": launch_ns} | fields]


def _steps(
    *calls: list[Row], begun: list[Row] | None = None
) -> dict[int, tuple[int | None, str, str | None]]:
    tables = {
        "int_launch": list(chain.from_iterable(calls)),
        "int_step_begin": BEGUN if begun is None else begun,
    }
    return {
        c: (step, by, why)
        for c, step, by, why in run_model(
            "int_launch_step", tables, "correlation, step, placed_by, no_step_reason"
        )
    }


def test_a_launch_belongs_to_the_step_begun_last_on_its_thread() -> None:
    """The own thread's step is taken, though another thread has begun a later one."""
    begun = [*BEGUN, {"step": 9, "start_ns": 105, "tid": 2, "method": "annotation"}]
    assert _steps(_call(1, 110), _call(2, 110, tid=2), begun=begun) == {
        1: (1, "launch_same_thread", None),
        2: (9, "launch_same_thread", None),
    }


def test_a_thread_without_steps_is_placed_by_time() -> None:
    """A launch from another thread belongs to the step that any thread has begun last."""
    assert _steps(_call(1, 250, tid=77)) == {1: (2, "launch_time", None)}


def test_before_the_first_step_there_is_none() -> None:
    """A launch before the first step has none, and says why."""
    found = _steps(_call(1, 99), _call(2, 99, tid=77))
    assert [found[c][::2] for c in (1, 2)] == [(None, "before_first_step")] * 2


def test_without_markers_the_reason_is_that_there_is_none() -> None:
    """A trace without any marker gets no step, and the reason is no_marker."""
    assert _steps(_call(1, 99), begun=[])[1][::2] == (None, "no_marker")


def test_sampling_behind_the_annotation_belongs_to_the_step() -> None:
    """A step lasts until the next begins, whenever its annotation ended."""
    found = _steps(_call(1, 110), _call(2, 150), _call(3, 199), _call(4, 200))
    assert [found[c][0] for c in (1, 2, 3, 4)] == [1, 1, 1, 2]


def test_steps_found_by_kernel_order_place_no_launch() -> None:
    """Steps by pattern begin in GPU time, so launches are not compared with them."""
    assert _steps(_call(1, 150), begun=[{"step": 0, "start_ns": 100, "method": "pattern"}])[1][::2] == (
        None,
        "no_marker",
    )
