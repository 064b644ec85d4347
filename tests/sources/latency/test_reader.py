"""Latency tables: how they are recognized, their run, and files that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import duck
from pipeline.errors import TraceError
from pipeline.lake.home import Home
from pipeline.lake.reading import find_run, reading
from pipeline.sources.job import ReadJob
from pipeline.sources.latency.cells import has_two_sizes, mode_of, operation
from pipeline.sources.latency.reader import is_table, read_microbench, rows_of
from tests.support.builders import ingest_into
from tests.support.homes import command, pair
from tests.support.latencies import NEW, read, refused


def test_a_table_without_numbers_is_refused(tmp_path: Path) -> None:
    """A header alone measures nothing."""
    assert refused(tmp_path, "op,bytes,us\n").found == "no line of numbers"


def test_a_mountain_of_text_is_no_table(tmp_path: Path) -> None:
    """The limit of bytes holds for tables too."""
    (tmp_path / "big.csv").write_bytes(b"op,bytes,us\n")
    job = ReadJob(tmp_path / "big.csv", "big.csv", "f", 70 * 10**6, "s", "run", tmp_path, tmp_path)
    with pytest.raises(TraceError, match="bytes of text"):
        read_microbench(job)


@given(
    st.text(alphabet="op,bytesu;\t\"'#\n\r0123456789.-e_ \0\u2028é", max_size=200),
    st.sampled_from(["t.csv", "all_reduce_perf.txt"]),
)
def test_whatever_the_text_it_is_rows_or_a_trace_error(text: str, name: str) -> None:
    """No other failure, and no row without a latency."""
    for head in ("", "op,bytes,us\nall_reduce,", NEW):
        try:
            found = rows_of((head + text).encode(), name)
        except TraceError as error:
            assert error.where  # noqa: PT017 - both outcomes are right
        else:
            assert all(row["us"] > 0 for row in found)


def test_tables_are_told_from_traces() -> None:
    """By suffix, or by the line of column names after a launcher's messages; never JSON or gzip."""
    assert is_table("latency.CSV", b"anything")
    assert is_table("job.out", NEW.encode())
    assert is_table("job.out", b"[1,0]<stdout>:# x\n[1,0]<stdout>:#  size  count  type  time\n")
    assert not is_table("t.txt", b"hello")
    assert not is_table("t.csv", b'\xef\xbb\xbf {"traceEvents": []}')
    assert not is_table("t.csv", b"\x1f\x8b\x08")


def test_names_of_operations_and_modes() -> None:
    """Torch's, NCCL's and nccl-tests' spellings are known; others are not."""
    assert {operation(n) for n in ("all_to_all_single", "AllToAll", "alltoall_perf", "all_to_allv")} == {
        "all_to_all"
    }
    assert operation("reduce_scatter_tensor") == "reduce_scatter"
    assert operation("nothing") is None
    assert [mode_of(m) for m in ("eager", "CUDA Graph", "graph", "?")] == ["eager", "graph", "graph", None]
    assert has_two_sizes("all_gather")
    assert not has_two_sizes("all_reduce")


def test_a_run_of_a_table_alone_is_a_run(tmp_path: Path, home: Home) -> None:
    """It is built, checked, listed without traces, found by name, and not rebuilt."""
    (tmp_path / "Table.csv").write_text("op,bytes,us\nall_reduce,1024,20\n", encoding="utf-8")
    outcome = ingest_into(home, tmp_path / "Table.csv", run="My table")
    assert (outcome.codes, len(outcome.built), [*outcome.verdicts.values()]) == ([], 1, ["pass"])
    with reading(home) as con:
        assert find_run(con, "My table") == outcome.built[0]
        assert duck.rows(con, "SELECT source, traces, ranks, decode_steps, verdict FROM runs") == [
            ("microbench", 0, 0, 0, "pass")
        ]
        assert duck.rows(con, "SELECT op, us FROM raw.microbench") == [("all_reduce", 20.0)]
    assert ingest_into(home, tmp_path / "Table.csv", run="My table").built == []
    shown = command("--home", home.root, "show", outcome.built[0])
    assert (shown.returncode, "microbench" in shown.stdout) == (0, True)


def test_a_table_beside_traces_joins_their_run(tmp_path: Path, home: Home) -> None:
    """The run keeps its traces' source alone, and its checks pass as before."""
    (tmp_path / "table.csv").write_text("op,bytes,us\nall_reduce,1024,20\n", encoding="utf-8")
    outcome = ingest_into(home, *pair(tmp_path), tmp_path / "table.csv", run="both")
    assert outcome.codes == []
    with reading(home) as con:
        assert duck.rows(con, "SELECT source, traces, verdict FROM runs") == [("kineto", 2, "pass")]
        assert duck.rows(con, "SELECT run_id, count(*) FROM raw.microbench GROUP BY ALL") == [("both", 1)]


def test_the_shared_capture_of_latencies(tmp_path: Path, shared_traces: Path) -> None:
    """80 lines: four operations, ten sizes, eager and in a graph."""
    found = read(tmp_path, (shared_traces / "captures" / "G_micro" / "G_nccl_micro.csv").read_bytes())
    assert len(found) == 80
    assert {r["op"] for r in found} == {"all_reduce", "all_to_all", "all_gather", "reduce_scatter"}
    assert [r["us"] for r in found if (r["op"], r["mode"], r["bytes"]) == ("all_reduce", "graph", 14336)] == [
        11.76
    ]
