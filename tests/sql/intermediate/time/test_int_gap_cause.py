"""int_gap_cause: why the device waited before a step."""

from __future__ import annotations

import pytest

from tests.support.tables import Tables, run_model


@pytest.mark.parametrize(
    ("launch_ns", "cause"),
    [(80, "host_late"), (51, "host_late"), (50, "unknown"), (10, "unknown"), (None, "unknown")],
)
def test_the_host_is_late_when_it_launches_after_the_device_is_empty(
    launch_ns: int | None, cause: str
) -> None:
    """A launch after the last end is late; one before it, or without record, leaves the cause unknown."""
    tables: Tables = {
        "int_activity": [{"activity_id": 1, "start_ns": 100, "launch_ns": launch_ns}],
        "int_step_window": [{"step": 1, "start_ns": 100}],
        "int_busy_interval": [
            {"level": 3, "start_ns": 0, "end_ns": 50},
            {"level": 3, "start_ns": 100, "end_ns": 150},
            {"level": 2, "start_ns": 0, "end_ns": 90},
        ],
    }
    assert run_model("int_gap_cause", tables, "start_ns, gap_cause") == [(100, cause)]


def test_the_first_step_has_no_known_cause() -> None:
    """Before the first work of the device the cause is unknown."""
    tables: Tables = {
        "int_activity": [{"activity_id": 1, "start_ns": 100, "launch_ns": 80}],
        "int_step_window": [{"step": 0, "start_ns": 100}],
        "int_busy_interval": [{"level": 3, "start_ns": 100, "end_ns": 150}],
    }
    assert run_model("int_gap_cause", tables, "gap_cause") == [("unknown",)]
