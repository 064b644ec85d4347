"""int_launch_op: the innermost operator around a launch call."""

from __future__ import annotations

import itertools

import pytest

from tests.support.tables import Row, run_model


def _op(name: str, start_ns: int, end_ns: int, **fields: object) -> Row:
    return {"name": name, "start_ns": start_ns, "dur_ns": end_ns - start_ns} | fields


def _ops(operators: list[Row], *launch_ns: int, **fields: object) -> list[object]:
    """The operator of a launch at each time (its correlation is the time)."""
    calls = [{"correlation": at, "name": "cudaLaunchKernel", "start_ns": at} | fields for at in launch_ns]
    rows = run_model("int_launch_op", {"raw.cpu_op": operators, "stg_launch": calls}, "correlation, op")
    found: dict[int, object] = dict(rows)
    return [found.get(at) for at in launch_ns]


def test_the_innermost_open_operator_is_taken() -> None:
    """Of nested operators the deepest that is open launches."""
    nested = [_op("outer", 0, 100), _op("middle", 10, 90), _op("inner", 20, 30)]
    assert _ops(nested, 5, 15, 25) == ["outer", "middle", "inner"]


def test_an_operator_that_has_ended_no_longer_counts() -> None:
    """After an inner operator the outer one launches again, and after both none."""
    nested = [_op("outer", 0, 100), _op("first", 10, 20), _op("second", 30, 40)]
    assert _ops(nested, 25, 45, 150) == ["outer", "outer", None]


def test_an_operator_holds_from_its_start_up_to_its_end() -> None:
    """A launch at the very start belongs to it, one at the very end does not."""
    assert _ops([_op("op", 10, 20)], 9, 10, 19, 20) == [None, "op", "op", None]


def test_operators_that_touch_do_not_nest() -> None:
    """Where one ends and the next begins, the next launches."""
    assert _ops([_op("first", 0, 10), _op("second", 10, 20)], 10) == ["second"]


def test_of_operators_with_the_same_start_the_shorter_is_inside() -> None:
    """The longer one is the outer one, in any order of the file."""
    operators = [_op("outer", 0, 100), _op("inner", 0, 50), _op("innermost", 0, 20)]
    for order in itertools.permutations(operators):
        assert _ops(list(order), 0, 30, 60) == ["innermost", "inner", "outer"]


def test_of_twins_the_one_with_the_higher_id_is_inside() -> None:
    """Operators with the same start and end nest in the order of their ids, whatever the order in the
    file."""
    twins = [_op("aten::linear", 0, 10, external_id=1), _op("aten::addmm", 0, 10, external_id=2)]
    assert _ops(twins, 5) == _ops(twins[::-1], 5) == ["aten::addmm"]


def test_an_operator_without_length_holds_nothing() -> None:
    """A zero-length operator launches nothing and does not disturb the others."""
    assert _ops([_op("outer", 0, 100), _op("empty", 10, 10)], 10, 20) == ["outer", "outer"]


def test_threads_nest_on_their_own() -> None:
    """Operators of one thread say nothing about the launches of another."""
    operators = [_op("mine", 0, 100), _op("other's", 10, 90, tid=2)]
    assert _ops(operators, 50) == ["mine"]
    assert _ops(operators, 50, tid=2) == ["other's"]
    assert _ops(operators, 50, tid=3) == [None]


@pytest.mark.parametrize("at_ns", [12, 16])
def test_operators_that_cross_never_name_one_that_has_ended(at_ns: int) -> None:
    """Where operators cross instead of nesting the operator is one that is open, or unknown."""
    assert _ops([_op("ended", 0, 10), _op("open", 5, 15)], at_ns)[0] in (
        {"open", None} if at_ns < 15 else {None}
    )
