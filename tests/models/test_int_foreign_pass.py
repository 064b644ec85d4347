"""int_foreign_pass: forward passes that nothing marks, behind the end of a marked step."""

from __future__ import annotations

from itertools import chain

from tests.models.tables import Row, run_model

MARKERS: list[Row] = [{"step": i, "start_ns": 100 * i, "end_ns": 100 * i + 40} for i in range(1, 5)]
"""Steps 1 to 4 on thread 1, annotated from 100, 200, 300, 400 on for 40 ns each."""


def _call(correlation: int, launch_ns: int, activities: int = 1, **fields: object) -> list[Row]:
    return [{"correlation": correlation, "launch_ns": launch_ns, "activities": activities} | fields]


def _replay(correlation: int, launch_ns: int, activities: int) -> list[Row]:
    return _call(correlation, launch_ns, activities, is_graph=True)


def _passes(*calls: list[Row], table: str = "int_step_marker") -> list[tuple[int, str]]:
    tables = {"int_launch": list(chain.from_iterable(calls)), table: MARKERS}
    return [(start, phase) for start, phase in run_model("int_foreign_pass", tables, "start_ns, phase", "start_ns")]


def test_an_unannotated_replay_is_a_pass_of_its_own() -> None:
    """A full replay behind an annotation begins a dummy pass; sampling before it does not."""
    assert _passes(_replay(1, 110, 10), _call(2, 150, 2), _replay(3, 160, 10), _call(4, 170), _replay(5, 210, 10)) == [(160, "dummy")]


def test_every_such_replay_is_one_pass() -> None:
    """Two full replays behind one annotation are two passes."""
    assert _passes(_replay(1, 110, 10), _replay(2, 160, 10), _replay(3, 180, 9), _replay(5, 210, 10)) == [(160, "dummy"), (180, "dummy")]


def test_drafts_are_small_replays_and_stay() -> None:
    """Replays of less than half the usual size begin no pass, however many."""
    drafts = [_replay(10 + i, 150 + i, 3) for i in range(5)]
    assert _passes(_replay(1, 110, 10), *drafts, _call(2, 180, 2), _replay(3, 210, 10)) == []


def test_an_eager_tail_as_large_as_a_step_is_a_pass() -> None:
    """Without graphs, a tail of more than half the usual launches is an unannotated pass, from its first launch on."""
    inside = [_call(10 + i, 110 + i) for i in range(10)] + [_call(30 + i, 210 + i) for i in range(10)]
    assert _passes(*inside, *[_call(50 + i, 150 + i) for i in range(6)]) == [(150, "dummy")]


def test_a_small_eager_tail_is_sampling() -> None:
    """Half the usual launches or fewer are the step's own."""
    inside = [_call(10 + i, 110 + i) for i in range(10)]
    assert _passes(*inside, *[_call(50 + i, 150 + i) for i in range(5)]) == []


def test_between_unannotated_replays_an_eager_pass_is_not_called_dummy() -> None:
    """Where replays mark the steps, a pass between them may be a prefill: its phase is unknown."""
    inside = [_replay(1, 110, 10), _replay(2, 210, 10)]
    assert _passes(*inside, *[_call(50 + i, 150 + i) for i in range(8)], table="int_replay_pass") == [(150, "unknown")]
