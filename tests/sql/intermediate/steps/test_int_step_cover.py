"""int_step_cover: covered time up to a step's instants."""

from __future__ import annotations

from tests.support.tables import run_model

ISLANDS = [
    {"level": 3, "start_ns": 0, "end_ns": 10, "covered_ns": 0},
    {"level": 3, "start_ns": 20, "end_ns": 40, "covered_ns": 10},
    {"level": 1, "start_ns": 0, "end_ns": 999, "covered_ns": 0},
    {"level": 3, "device": 1, "start_ns": 0, "end_ns": 999, "covered_ns": 0},
]
COLUMNS = "start_covered_ns, end_covered_ns, next_covered_ns"


def test_covered_time_is_counted_up_to_each_instant() -> None:
    """Inside an island up to the instant, behind one the whole island; other levels and devices do not
    count."""
    step = {"step": 0, "start_ns": 5, "end_ns": 25, "next_ns": 60}
    assert run_model(
        "int_step_cover", {"int_busy_interval": ISLANDS, "int_step_window": [step]}, COLUMNS
    ) == [(5, 15, 30)]


def test_in_a_gap_covered_time_stands_still() -> None:
    """Between two islands the covered time is that of the first."""
    step = {"step": 0, "start_ns": 0, "end_ns": 10, "next_ns": 15}
    assert run_model(
        "int_step_cover", {"int_busy_interval": ISLANDS, "int_step_window": [step]}, COLUMNS
    ) == [(0, 10, 10)]


def test_the_last_step_has_no_next_instant() -> None:
    """Without a next step there is no covered time up to it."""
    step = {"step": 0, "start_ns": 20, "end_ns": 40, "next_ns": None}
    assert run_model(
        "int_step_cover", {"int_busy_interval": ISLANDS, "int_step_window": [step]}, COLUMNS
    ) == [(10, 30, None)]


def test_before_the_first_island_nothing_is_covered() -> None:
    """A step of kernels without duration that stand before all work is covered for 0 ns, not for NULL."""
    step = {"step": 0, "start_ns": -5, "end_ns": -5, "next_ns": 0}
    assert run_model(
        "int_step_cover", {"int_busy_interval": ISLANDS, "int_step_window": [step]}, COLUMNS
    ) == [(0, 0, 0)]
