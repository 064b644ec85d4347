"""step_methods: how many steps each method finds, and whether they agree."""

from __future__ import annotations

from tests.support.tables import Row, run_model

COLUMNS = "method, steps, steps_with_work, is_used, compared_with, is_agreed"


def _steps(count: int, *, graphs: int = 0, empty: int = 0, method: str = "annotation") -> list[Row]:
    """Steps of which the first `graphs` replay one and the last `empty` have no work."""
    return [
        {
            "step": n,
            "method": method,
            "graph_launches": int(n < graphs),
            "activities": 0 if n >= count - empty else 10,
        }
        for n in range(count)
    ]


def _methods(
    *, steps: list[Row], markers: int = 0, replays: int = 0, pattern: int = 0, source: str = "kineto"
) -> list[tuple[object, ...]]:
    def numbered(count: int) -> list[Row]:
        return [{"step": n} for n in range(count)]

    tables: dict[str, list[Row]] = {
        "stg_trace": [{"source": source}],
        "steps": steps,
        "int_marked_pass": numbered(markers),
        "int_replay_pass": numbered(replays),
        "int_pattern_pass": numbered(pattern),
        "int_step_begin": [{"step": step["step"], "method": step["method"]} for step in steps],
    }
    return run_model("step_methods", tables, COLUMNS)


def test_methods_that_find_the_same_steps_agree() -> None:
    """Annotation, replays and kernel order with the same count: all agree."""
    found = _methods(steps=_steps(16, graphs=16), markers=16, replays=16, pattern=16)
    assert found == [
        ("annotation", 16, 16, True, 16, True), ("graph", 16, 16, False, 16, True),
        ("pattern", 16, 16, False, 16, True),
    ]  # fmt: skip


def test_more_replays_than_annotated_steps_disagree() -> None:
    """Five unannotated passes: both counts are in the row."""
    assert _methods(steps=_steps(155, graphs=155), markers=155, replays=160)[1] == (
        "graph",
        160,
        160,
        False,
        155,
        False,
    )


def test_replays_are_held_against_steps_that_replay() -> None:
    """Two prefill steps without graphs are none that replays should find."""
    assert _methods(steps=_steps(18, graphs=16), markers=18, replays=16)[1] == (
        "graph",
        16,
        16,
        False,
        16,
        True,
    )


def test_kernel_order_may_miss_one_step_at_an_edge() -> None:
    """One fewer agrees, two fewer do not."""
    assert _methods(steps=_steps(16, graphs=16), markers=16, pattern=15)[1][-1] is True
    assert _methods(steps=_steps(16, graphs=16), markers=16, pattern=14)[1] == (
        "pattern",
        14,
        14,
        False,
        16,
        False,
    )


def test_steps_without_work_are_counted_apart() -> None:
    """Annotations know of steps that ran nothing on the GPU; other methods are not expected to find those."""
    found = _methods(steps=_steps(10, graphs=8, empty=2), markers=10, replays=8)
    assert found == [("annotation", 10, 8, True, 8, True), ("graph", 8, 8, False, 8, True)]


def test_the_method_in_use_is_said() -> None:
    """Without annotations the replays make the steps, and kernel order is compared with them."""
    found = _methods(steps=_steps(4, graphs=4, method="graph"), replays=4, pattern=4)
    assert found == [("graph", 4, 4, True, 4, True), ("pattern", 4, 4, False, 4, True)]


def test_nsys_ranges_are_called_nvtx() -> None:
    """The same marker in a report is another method by name."""
    assert _methods(steps=_steps(2, method="nvtx"), markers=2, source="nsys") == [
        ("nvtx", 2, 2, True, 2, True)
    ]


def test_a_trace_without_steps_has_no_methods() -> None:
    """No method found anything: no row."""
    assert _methods(steps=[]) == []
