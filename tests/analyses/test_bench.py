"""Latency tables beside traces, as printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.analyses.bench import bench_reports
from pipeline.errors import UsageError
from pipeline.lake.home import Home
from pipeline.lake.reading import reading


def test_the_runs_own_table_and_another_runs_say_the_same(served: Home) -> None:
    """14 KB: 14 us in the table, 7 us as a kernel, by clocks that are named as different."""
    with reading(served) as con:
        (own,) = bench_reports(con, "x")
        (other,) = bench_reports(con, "x", "two")
    assert (
        own.rows
        == other.rows
        == [["decode", "all_reduce", "nccl", 14336, "graph", "wall", 14.0, 7.0, 7.0, 0.5, 0.5, 0.0, 30]]
    )
    assert any(note.startswith("DIFFERENT CLOCKS") for note in own.notes)
    assert not any("how many ranks" in note for note in own.notes)


def test_a_file_may_lie_anywhere(served: Home, tmp_path: Path) -> None:
    """The same clock is not called different; unknown ranks are reported as unknown."""
    (tmp_path / "kernel.csv").write_text(
        "op,bytes,kernel_us\nall_reduce,14336,7\nall_reduce,14337,7\nall_gather,14336,7\n", encoding="utf-8"
    )
    with reading(served) as con:
        (found,) = bench_reports(con, "x", str(tmp_path / "kernel.csv"))
    assert [row[5:] for row in found.rows] == [["kernel", 7.0, 7.0, 7.0, 1.0, 1.0, 0.0, 30]]
    assert not any("DIFFERENT" in note for note in found.notes)
    assert any("does not give the number of ranks" in note for note in found.notes)


def test_nothing_to_compare_is_a_refusal(served: Home, tmp_path: Path) -> None:
    """No table; no size of it in the trace; unknown sizes."""
    (tmp_path / "other.csv").write_text("op,bytes,us\nall_reduce,1,7\n", encoding="utf-8")
    with reading(served) as con:
        with pytest.raises(UsageError, match="holds no measured latency"):
            bench_reports(con, "four")
        with pytest.raises(UsageError, match="none of its collectives matches"):
            bench_reports(con, "x", str(tmp_path / "other.csv"))
        with pytest.raises(UsageError, match="hidden_size"):
            bench_reports(con, "bare", "x")
