"""stg_activity: GPU activities with their end."""

from __future__ import annotations

from tests.support.tables import Row, run_model


def _activity(**fields: object) -> Row:
    return {"activity_id": 0, "name": "k", "start_ns": 100, "dur_ns": 20, "correlation": 5} | fields


def test_an_activity_ends_after_its_duration() -> None:
    """end_ns is start plus duration, also for an activity without duration."""
    rows = [_activity(), _activity(activity_id=1, dur_ns=0)]
    assert run_model("stg_activity", {"raw.gpu_activity": rows}, "activity_id, end_ns") == [
        (0, 120),
        (1, 100),
    ]


def test_correlation_zero_is_no_link() -> None:
    """Correlation 0, as RCCL had it, links to nothing."""
    rows = [_activity(correlation=0), _activity(activity_id=1, correlation=7)]
    assert run_model("stg_activity", {"raw.gpu_activity": rows}, "activity_id, correlation") == [
        (0, None),
        (1, 7),
    ]


def test_an_activity_without_device_is_on_device_0() -> None:
    """A missing device is the process's only one."""
    assert run_model("stg_activity", {"raw.gpu_activity": [_activity(device=None)]}, "device") == [(0,)]
