"""int_foreign_pass: forward passes that nothing marks, after the end of a marked step."""

from __future__ import annotations

from itertools import chain

from tests.support.sequence import RULE
from tests.support.tables import Row, run_model

MARKERS: list[Row] = [{"step": i, "start_ns": 100 * i, "end_ns": 100 * i + 40} for i in range(1, 5)]
"""Steps 1 to 4 on thread 1, annotated from 100, 200, 300, 400 on for 40 ns each."""


def _call(correlation: int, launch_ns: int, activities: int = 1, **fields: object) -> list[Row]:
    return [{"correlation": correlation, "launch_ns": launch_ns, "activities": activities} | fields]


def _kernels(first: int, launch_ns: int, words: str) -> tuple[list[Row], list[Row]]:
    """Eager calls, one per kernel and 1 ns apart, in words of RULE."""
    calls = [_call(first + i, launch_ns + i)[0] for i, _ in enumerate(words.split())]
    rules: list[Row] = [
        {
            "activity_id": first + i,
            "correlation": first + i,
            "launch_ns": launch_ns + i,
            "rule_id": RULE[word],
        }
        for i, word in enumerate(words.split())
    ]
    return calls, rules


def _eager(*passes: tuple[int, int, str]) -> list[tuple[int, str]]:
    made = [_kernels(*one) for one in passes]
    tables = {
        "int_launch": [row for calls, _ in made for row in calls],
        "int_activity": [row for _, rules in made for row in rules],
        "int_marked_pass": MARKERS,
    }
    return [
        (start, phase)
        for start, phase in run_model("int_foreign_pass", tables, "start_ns, phase", "start_ns")
    ]


def _replay(correlation: int, launch_ns: int, activities: int) -> list[Row]:
    return _call(correlation, launch_ns, activities, is_graph=True)


def _passes(*calls: list[Row], table: str = "int_marked_pass") -> list[tuple[int, str]]:
    tables = {"int_launch": list(chain.from_iterable(calls)), table: MARKERS}
    return [
        (start, phase)
        for start, phase in run_model("int_foreign_pass", tables, "start_ns, phase", "start_ns")
    ]


def test_an_unannotated_replay_is_a_pass_of_its_own() -> None:
    """A full replay after an annotation begins a dummy pass; sampling before it does not."""
    assert _passes(
        _replay(1, 110, 10), _call(2, 150, 2), _replay(3, 160, 10), _call(4, 170), _replay(5, 210, 10)
    ) == [(160, "dummy")]


def test_every_such_replay_is_one_pass() -> None:
    """Two full replays behind one annotation are two passes."""
    assert _passes(_replay(1, 110, 10), _replay(2, 160, 10), _replay(3, 180, 9), _replay(5, 210, 10)) == [
        (160, "dummy"),
        (180, "dummy"),
    ]


def test_drafts_are_small_replays_and_stay() -> None:
    """Replays of less than half the usual size begin no pass, however many."""
    drafts = [_replay(10 + i, 150 + i, 3) for i in range(5)]
    assert _passes(_replay(1, 110, 10), *drafts, _call(2, 180, 2), _replay(3, 210, 10)) == []


def test_an_eager_tail_as_large_as_a_step_is_a_pass() -> None:
    """Without graphs, a tail of more than half the usual launches is an unannotated pass, from its first
    launch on."""
    inside = [_call(10 + i, 110 + i) for i in range(30)] + [_call(40 + i, 210 + i) for i in range(30)]
    assert _passes(*inside, *[_call(80 + i, 150 + i) for i in range(20)]) == [(150, "dummy")]


def test_a_short_tail_is_no_pass_however_short_the_steps() -> None:
    """Fewer than 20 launches are no forward pass, though a capture's steps hold hardly more."""
    inside = [_call(10 + i, 110 + i) for i in range(10)]
    assert _passes(*inside, *[_call(80 + i, 150 + i) for i in range(19)]) == []


def test_an_eager_tail_without_attention_is_no_pass() -> None:
    """Where steps have attention, a long tail without any (sampling of many requests) is their own."""
    model = "norm gemm attention gemm norm gemm activation gemm " * 3
    assert _eager((100, 110, model), (200, 210, model), (300, 150, "sample cast " * 15)) == []


def test_an_eager_pass_begins_behind_the_sampling_of_the_step_before() -> None:
    """Sampling and the copy after it are the marked step's own; the pass begins at the first kernel of a
    model after them."""
    model = "norm gemm attention gemm norm gemm activation gemm " * 3
    assert _eager((100, 110, model), (200, 210, model), (300, 150, "sample cast embed " + model)) == [
        (152, "dummy")
    ]


def test_a_small_eager_tail_is_sampling() -> None:
    """Half the usual launches or fewer are the step's own."""
    inside = [_call(10 + i, 110 + i // 2) for i in range(40)]
    assert _passes(*inside, *[_call(60 + i, 150 + i) for i in range(20)]) == []


def test_between_unannotated_replays_an_eager_pass_is_not_called_dummy() -> None:
    """Where replays mark the steps, a pass between them may be a prefill: its phase is unknown."""
    inside = [_replay(1, 110, 10), _replay(2, 210, 10)]
    assert _passes(*inside, *[_call(50 + i, 150 + i) for i in range(20)], table="int_replay_pass") == [
        (150, "unknown")
    ]
