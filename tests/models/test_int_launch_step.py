"""int_launch_step: the step that made each launch."""

from __future__ import annotations

from itertools import chain

from tests.models.tables import Row, run_model

MARKERS: list[Row] = [{"step": i, "start_ns": 100 * i, "end_ns": 100 * i + 40} for i in range(1, 5)]
"""Steps 1 to 4 on thread 1, annotated from 100, 200, 300, 400 on for 40 ns each."""


def _calls(correlation: int, launch_ns: int, activities: int = 1, **fields: object) -> list[Row]:
    made = {"correlation": correlation, "launch_ns": launch_ns} | fields
    return [made | {"activity_id": 1000 * correlation + i} for i in range(activities)]


def _replay(correlation: int, launch_ns: int, activities: int) -> list[Row]:
    return _calls(correlation, launch_ns, activities, is_graph=True)


def _steps(*calls: list[Row], markers: list[Row] | None = None) -> dict[int, tuple[int | None, str, str | None]]:
    tables = {"int_activity_launch": list(chain.from_iterable(calls)), "int_step_begin": MARKERS if markers is None else markers}
    return {c: (step, by, why) for c, step, by, why in run_model("int_launch_step", tables, "correlation, step, placed_by, no_step_reason")}


def test_a_launch_belongs_to_the_annotation_begun_last_on_its_thread() -> None:
    """The own thread's annotation is taken, though another thread has begun a later one."""
    markers = [*MARKERS, {"step": 9, "start_ns": 105, "end_ns": 130, "tid": 2}]
    assert _steps(_calls(1, 110), _calls(2, 110, tid=2), markers=markers) == {
        1: (1, "launch_same_thread", None),
        2: (9, "launch_same_thread", None),
    }


def test_a_thread_without_annotations_is_placed_by_time() -> None:
    """A launch from another thread belongs to the step that any thread has begun last."""
    assert _steps(_calls(1, 250, tid=77)) == {1: (2, "launch_time", None)}


def test_before_the_first_step_there_is_none() -> None:
    """A launch before the first annotation has no step, and says why."""
    found = _steps(_calls(1, 99), _calls(2, 99, tid=77))
    assert [found[c][::2] for c in (1, 2)] == [(None, "before_first_step")] * 2


def test_without_markers_the_reason_is_that_there_is_none() -> None:
    """A trace without any marker gets no step, and the reason is no_marker."""
    assert _steps(_calls(1, 99), markers=[])[1][::2] == (None, "no_marker")


def test_sampling_behind_the_annotation_belongs_to_the_step() -> None:
    """A few launches between the annotation's end and the next start are the step's own."""
    found = _steps(_calls(1, 110, 8), _calls(2, 150, 2), _calls(3, 199), _calls(4, 200, 8))
    assert [found[c][0] for c in (1, 2, 3, 4)] == [1, 1, 1, 2]


def test_an_unannotated_replay_is_no_steps_while_sampling_stays() -> None:
    """A second full replay behind the annotation is a forward pass of its own; what came before it stays."""
    found = _steps(_replay(1, 110, 10), _calls(2, 150, 2), _replay(3, 160, 10), _calls(4, 170), _replay(5, 210, 10))
    assert {c: v[0] for c, v in found.items()} == {1: 1, 2: 1, 3: None, 4: None, 5: 2}
    assert found[3][2] == found[4][2] == "unannotated_pass"


def test_drafts_are_small_replays_and_stay() -> None:
    """Replays of less than half the usual size stay, however many, together with the sampling behind them."""
    drafts = [_replay(10 + i, 150 + i, 3) for i in range(5)]
    found = _steps(_replay(1, 110, 10), *drafts, _calls(2, 180, 2), _replay(3, 210, 10))
    assert {v[0] for c, v in found.items() if c != 3} == {1}


def test_an_eager_tail_as_large_as_a_step_is_no_steps() -> None:
    """Without graphs, a tail of more than half the usual launches is an unannotated pass."""
    inside = [_calls(10 + i, 110 + i) for i in range(10)] + [_calls(30 + i, 210 + i) for i in range(10)]
    tail = [_calls(50 + i, 150 + i) for i in range(6)]
    found = _steps(*inside, *tail)
    assert {found[50 + i][::2] for i in range(6)} == {(None, "unannotated_pass")}
    assert {found[10 + i][0] for i in range(10)} == {1}


def test_a_small_eager_tail_is_sampling() -> None:
    """Half the usual launches or fewer stay with the step."""
    inside = [_calls(10 + i, 110 + i) for i in range(10)]
    found = _steps(*inside, *[_calls(50 + i, 150 + i) for i in range(5)])
    assert {v[0] for v in found.values()} == {1}


def test_activities_without_a_launch_record_are_not_placed_here() -> None:
    """What has no launch time is left to GPU time."""
    assert _steps([{"activity_id": 0, "correlation": 5, "launch_ns": None}]) == {}


def test_one_replay_is_one_launch() -> None:
    """All activities of a replay share one row, so that they can never be torn apart."""
    assert len(_steps(_replay(1, 110, 500))) == 1
