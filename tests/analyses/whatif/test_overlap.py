"""The ceiling of overlapping two half-batches."""

from __future__ import annotations

import pytest

from pipeline.analyses.whatif.overlap import Halves, overlap_reports, overlapped
from pipeline.errors import UsageError
from pipeline.lake.home import Home
from pipeline.lake.reading import reading


def test_with_measured_halves_weights_are_read_twice() -> None:
    """10 ms of compute that halve to 8: two halves take 16, longer than 14 in lock-step."""
    half, ms = overlapped(Halves(10, 4), Halves(8, 3))
    assert (half, ms) == (Halves(8, 3), 16)


def test_without_them_half_the_batch_is_half_the_time() -> None:
    """The ceiling is the dearer of compute and communication."""
    assert overlapped(Halves(10, 4), None) == (Halves(5, 2), 10)


def test_a_run_beside_its_half(served: Home) -> None:
    """Four requests and two: the same kernels here, so two halves take twice the compute, and nothing is
    gained."""
    with reading(served) as con:
        (alone,) = overlap_reports(con, "four")
        (measured,) = overlap_reports(con, "four", "two")
    compute, talk, lock_step = alone.rows[0][:3]
    assert (talk, lock_step) == (0.042, round(compute + talk, 3))
    assert alone.rows[0][5] == max(compute, talk)
    assert "ceiling that ignores the cost of the split" in alone.title
    assert measured.rows[0][5] == pytest.approx(2 * max(compute, talk))
    assert "nothing to gain: two half-batches cost more than the step in lock-step" in measured.notes
    assert "measured in run two" in measured.title


def test_there_must_be_something_to_split(served: Home) -> None:
    """Batch 1 has no halves, and a run at another batch is no half."""
    with reading(served) as con:
        with pytest.raises(UsageError, match="batch 1: nothing to split"):
            overlap_reports(con, "x")
        with pytest.raises(UsageError, match="serves batch 1, not half of 4"):
            overlap_reports(con, "four", "x")
