"""The shared captures: 14 KB all-reduces in a table of latencies, and as kernels of decode steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import duck
from pipeline.analyses.bench import bench_reports
from pipeline.lake.home import Home
from pipeline.lake.reading import reading
from pipeline.lake.run_config import describe
from tests.support.builders import ingest_into


def test_the_table_and_the_trace_of_14_kb(home: Home, shared_traces: Path) -> None:
    """11.8 us a call in the table, 7.3 us as a kernel; a step's all-reduces are of that size, latency-bound
    over NVLink."""
    captures = shared_traces / "captures"
    files = [
        *sorted((captures / "A_nccl_graph_b1").glob("*.json.gz")),
        captures / "G_micro" / "G_nccl_micro.csv",
    ]
    describe(home, home.run_id_for("a"), {"hidden_size": 7168, "link": "nvlink4"})
    assert ingest_into(home, *files, run="a").codes == []
    with reading(home) as con:
        (found,) = bench_reports(con, "a")
        bound = duck.rows(
            con, "SELECT op, size_bytes, size_source, is_latency_bound FROM bandwidth WHERE op = 'all_reduce'"
        )
    in_graph = next(dict(zip(found.columns, row, strict=True)) for row in found.rows if row[4] == "graph")
    assert (in_graph["op"], in_graph["in_bytes"], in_graph["table_us"]) == ("all_reduce", 14336, 11.76)
    assert in_graph["trace_floor_us"] == pytest.approx(7.3, abs=0.1)
    assert any(note.startswith("DIFFERENT CLOCKS") for note in found.notes)
    assert bound == [("all_reduce", 14336, "graph_tokens x hidden_size, type in the kernel's name", True)]


def test_small_traces_beside_their_own_table(home: Home, shared_traces: Path) -> None:
    """Calls of no step, with arguments: each of four operations at three sizes beside both modes of the
    table."""
    assert ingest_into(home, *sorted((shared_traces / "captures" / "G_micro").iterdir()), run="g").codes == []
    with reading(home) as con:
        counted = duck.rows(
            con,
            (
                "SELECT op, count(*), count(DISTINCT in_bytes), min(wait_share) > 0.5 FROM bench_vs_trace "
                "GROUP "
                "BY op ORDER BY op"
            ),
        )
    assert counted == [
        (op, 6, 3, True) for op in ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")
    ]
