"""int_burst: devices whose kernels came in a burst of equal time stamps."""

from __future__ import annotations

from tests.support.tables import Row, run_model


def _kernels(count: int, **fields: object) -> list[Row]:
    return [{"activity_id": i, "start_ns": 100, "dur_ns": 5, "end_ns": 105} | fields for i in range(count)]


def _bursts(rows: list[Row]) -> list[tuple[object, ...]]:
    return run_model("int_burst", {"stg_activity": rows}, "device, bursts")


def test_twenty_kernels_of_one_start_on_one_stream_are_a_burst() -> None:
    """A stream runs one kernel after another, so equal starts are times of delivery."""
    assert _bursts(_kernels(20)) == [(0, 1)]


def test_nineteen_are_none() -> None:
    """A few equal stamps are the clock's resolution."""
    assert _bursts(_kernels(19)) == []


def test_kernels_on_different_streams_may_start_together() -> None:
    """Only one stream is bound to an order."""
    assert _bursts([{**row, "stream": i} for i, row in enumerate(_kernels(30))]) == []


def test_kernels_of_zero_length_and_copies_do_not_count() -> None:
    """Both can be many at one instant in an honest trace."""
    assert _bursts(_kernels(30, dur_ns=0)) == _bursts(_kernels(30, kind="memcpy")) == []
