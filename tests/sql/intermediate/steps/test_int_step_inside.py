"""int_step_inside: a step's own exposed time inside its own wall."""

from __future__ import annotations

from tests.support.tables import Row, Tables, run_model

WALL = {"step": 0, "start_ns": 100, "next_ns": 200}


def _inside(*stretches: tuple[int, int, int, int], islands: list[Row] | None = None) -> int | None:
    """Inside time of (owner, own start, end, exposed) stretches of step 0, whose wall is [100, 200)."""
    rows = [
        {"activity_id": i, "owner": o, "own_ns": a, "end_ns": b, "exposed_ns": e}
        for i, (o, a, b, e) in enumerate(stretches)
    ]
    tables: Tables = {
        "int_exposed": rows,
        "int_activity_step": [{"activity_id": i, "step": 0} for i in range(len(rows))],
        "int_step_window": [WALL],
        "int_busy_interval": islands or [],
    }
    found = run_model("int_step_inside", tables, "inside_ns")
    return int(found[0][0]) if found else None


def test_stretches_inside_count_as_a_whole() -> None:
    """What lies within the wall counts with its exposed time, hidden parts already taken off."""
    assert _inside((1, 100, 120, 20), (2, 150, 200, 30)) == 50


def test_stretches_outside_do_not_count() -> None:
    """An input copy before the first kernel and a copy after the next step's start are outside."""
    assert _inside((3, 50, 100, 50), (3, 200, 220, 20)) is None


def test_a_stretch_across_the_end_counts_up_to_it() -> None:
    """Work that overhangs into the next step counts up to that step's start."""
    assert _inside((1, 180, 230, 50)) == 20


def test_a_stretch_across_the_start_counts_from_it() -> None:
    """A copy that runs on under the first kernel counts from the start."""
    assert _inside((1, 80, 130, 50)) == 30


def test_hidden_parts_of_a_split_stretch_are_taken_off_where_they_lie() -> None:
    """Of communication across the end only what compute leaves free before the end counts."""
    compute: list[Row] = [
        {"level": 1, "start_ns": 190, "end_ns": 195, "covered_ns": 0},
        {"level": 1, "start_ns": 210, "end_ns": 220, "covered_ns": 5},
    ]
    assert _inside((2, 180, 230, 35), islands=compute) == 15


def test_the_last_step_has_no_wall() -> None:
    """Without a next step there is no inside and no outside."""
    tables: Tables = {
        "int_exposed": [{"activity_id": 0, "owner": 1, "own_ns": 100, "end_ns": 110, "exposed_ns": 10}],
        "int_activity_step": [{"activity_id": 0, "step": 0}],
        "int_step_window": [WALL | {"next_ns": None}],
    }
    assert run_model("int_step_inside", tables, "inside_ns") == []
