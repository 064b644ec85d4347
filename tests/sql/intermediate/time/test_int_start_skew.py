"""int_start_skew: first steps that waited for another rank's profiler."""

from __future__ import annotations

import pytest

from tests.support.tables import Tables, run_model

MS = 1_000_000


@pytest.mark.parametrize(
    ("step", "rule", "durations", "is_skewed"),
    [
        (0, "nccl_all_reduce", [9 * MS, 7_000, 7_000], True),
        (0, "nccl_all_reduce", [9 * MS, 9 * MS, 9 * MS], False),
        (0, "nccl_all_reduce", [4 * MS, 7_000, 7_000], False),
        (0, "nvjet", [9 * MS, 7_000, 7_000], False),
        (1, "nccl_all_reduce", [9 * MS, 7_000, 7_000], False),
    ],
)
def test_one_long_collective_among_short_ones_in_the_first_step_is_skew(
    step: int, rule: str, durations: list[int], is_skewed: bool
) -> None:
    """Only a collective, only in the first step, only if its like are short in the same step."""
    activities = [
        {"activity_id": i, "name": "k", "rule_id": rule, "dur_ns": d} for i, d in enumerate(durations)
    ]
    tables: Tables = {
        "int_activity": activities,
        "int_activity_step": [{"activity_id": i, "step": step} for i in range(len(durations))],
        "int_step_window": [{"step": 0}, {"step": step}] if step else [{"step": 0}],
    }
    assert bool(run_model("int_start_skew", tables, "step")) is is_skewed
