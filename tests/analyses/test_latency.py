"""Latency tables as curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.analyses.latency import Curve, LatencyTable, table_of
from pipeline.errors import TraceError, UsageError
from pipeline.lake.home import Home
from pipeline.lake.reading import reading
from tests.support.builders import ingest_into

LINE = {
    "op": "all_reduce",
    "bytes": 1000,
    "bytes_of": "input",
    "us": 10.0,
    "mode": "eager",
    "measured": "wall",
}


def table(*lines: dict[str, Any]) -> LatencyTable:
    """A table of lines that differ from LINE."""
    return LatencyTable([LINE | line for line in lines], "t")


def points(
    *lines: dict[str, Any], op: str = "all_reduce", ranks: int | None = None
) -> tuple[tuple[float, float], ...] | None:
    """The points of a table's curve."""
    found = table(*lines).curve(op, ranks)
    return found.points if found else None


def test_between_neighbors_latency_is_straight_in_logarithms() -> None:
    """Measured sizes are exact; half way in the logarithm is the geometric mean."""
    curve = Curve("op", ((100, 10), (400, 40), (1600, 40)), "")
    assert [curve.at(size) for size in (100, 400, 1600, 800)] == [10, 40, 40, 40]
    assert curve.at(200) == pytest.approx(20)


def test_outside_the_range_there_is_no_answer_unless_asked_for() -> None:
    """Below it the shortest latency, above it in proportion to bytes."""
    curve = Curve("op", ((100, 10), (400, 40)), "")
    assert [curve.at(size) for size in (99, 401)] == [None, None]
    assert [curve.at(size, extrapolate=True) for size in (50, 800)] == [10, 80]
    assert Curve("op", (), "").at(100, extrapolate=True) is None


def test_sizes_are_what_a_rank_puts_in() -> None:
    """An all-gather's output and a reduce-scatter's output are taken back by the ranks; without ranks they do
    not count."""
    out = {"bytes": 8000, "bytes_of": "output"}
    assert points({"op": "all_gather", "ranks": 8, **out}, op="all_gather") == ((1000, 10),)
    assert points({"op": "reduce_scatter", "ranks": 8, **out}, op="reduce_scatter") == ((64000, 10),)
    assert points({"op": "all_gather", **out}, op="all_gather") is None
    assert points({"op": "all_gather", "bytes_of": None}, op="all_gather") is None
    assert points({"op": "moe_gemm", "bytes": None, "tokens": 16}, op="moe_gemm") == ((16, 10),)


def test_one_mode_and_one_clock() -> None:
    """Graphs before eager, walls before kernels, and never two mixed; the same size twice is averaged; in
    place is left out."""
    assert points({}, {"mode": "graph", "us": 5.0}) == ((1000, 5),)
    assert points({"mode": "graph", "measured": "kernel"}, {"us": 20.0}) == ((1000, 20),)
    assert points({}, {"us": 20.0}, {"us": 90.0, "is_in_place": True}) == ((1000, 15),)


def test_only_the_ranks_that_are_asked_for() -> None:
    """Or where the table gives none, which the curve reports."""
    assert points({"ranks": 8}, ranks=8) == ((1000, 10),)
    assert points({"ranks": 4}, ranks=8) is None
    found = table({}).need("all_reduce", 8)
    assert (found.points, found.are_ranks_known, found.what) == (
        ((1000, 10),),
        False,
        "all_reduce, eager, wall time",
    )
    with pytest.raises(UsageError, match="has those of 4 ranks"):
        table({"ranks": 4}).need("all_reduce", 8)


def test_a_table_may_be_a_file_a_run_or_the_runs_own(tmp_path: Path, home: Home) -> None:
    """A file is read where it is; the refusal for a run without one tells how to give one."""
    path = tmp_path / "lat.csv"
    path.write_text("op,bytes,us\nall_reduce,1000,10\n", encoding="utf-8")
    (tmp_path / "bad.csv").write_text("op,bytes,us\nall_reduce,x,10\n", encoding="utf-8")
    ingest_into(home, path, run="measured")
    with reading(home) as con:
        for run, named in (("none", str(path)), ("none", "measured"), ("measured", None)):
            assert table_of(con, run, named).need("all_reduce", None).points == ((1000, 10),)
        with pytest.raises(UsageError, match="holds no measured latency"):
            table_of(con, "none", None)
        with pytest.raises(UsageError, match="no run 'nowhere'"):
            table_of(con, "none", "nowhere")
        with pytest.raises(TraceError, match="line 2"):
            table_of(con, "none", str(tmp_path / "bad.csv"))
