"""Latency tables: CSV and nccl-tests' text to raw.microbench, and what is wrong with a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline import duck
from pipeline.errors import TraceError
from pipeline.home import Home
from pipeline.sources.job import ReadJob
from pipeline.sources.microbench import has_two_sizes, is_table, mode_of, operation, read_microbench
from pipeline.warehouse import find_run, reading
from tests.builders import ingest_into
from tests.homes import command, pair

RANKS = "".join(f"#  Rank  {rank} Group  0 Pid   689{rank} on   node device  {rank} [0x04] NVIDIA H100\n" for rank in range(8))
NEW = (
    "# nThread 1 nGpus 8 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 1\n#\n# Using devices\n"
    f"{RANKS}#\n#                                        out-of-place                       in-place\n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
    "       14336          7168  bfloat16     sum      -1    37.05    0.39    0.68      0    36.77    0.39    0.68    N/A\n"
    "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0.68\n"
)
OLD = (
    "# nThread 1 nGpus 2 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20 validation: 1\n"
    "#   Rank  0 Pid  12345 on   node device  0 [0x06] Tesla V100\n#   Rank  1 Pid  12345 on   node device  1 [0x07] Tesla V100\n"
    "#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error\n"
    "          64             8   float    28.99    0.01    0.00  0e+00    28.84    0.01    0.00  0e+00\n"
)
OLDEST = (
    "# nThread 1 nGpus 2 minBytes 8 maxBytes 8\n"
    "#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res\n"
    "           8             2   float     sum    0.037   0.00   0.00    0e+00    0.045   0.00   0.00    0e+00\n"
)


def read(folder: Path, text: str | bytes, name: str = "table.csv") -> list[dict[str, Any]]:
    """The rows that the reader writes of a file."""
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    for place in ("out", "work"):
        (folder / place).mkdir(exist_ok=True)
    read_microbench(ReadJob(path, name, "f", path.stat().st_size, "s", "run", folder / "out", folder / "work"))
    with duck.working(folder / "work", threads=1, memory_limit="256MB") as con:
        return duck.dicts(con, f"FROM read_parquet({duck.files(folder / 'out', 'microbench.parquet')}) ORDER BY line, is_in_place")


def refused(folder: Path, text: str | bytes, name: str = "table.csv") -> TraceError:
    """The error that reading this raises."""
    with pytest.raises(TraceError) as caught:
        read(folder, text, name)
    assert not (folder / "out" / "microbench.parquet").exists()
    return caught.value


def test_a_capture_of_latencies_lands_line_by_line(tmp_path: Path) -> None:
    """Mode, clock, whose bytes and what the number is over repetitions are kept; the line tells where it stood."""
    header = "op,mode,tokens,bytes_per_rank,median_us,min_us,max_us\n"
    text = f"{header}all_gather_into_tensor,eager,1,14336,37.24,36,48\nall_reduce,cudagraph,1,14336,11.76,11,12\n"
    first, second = read(tmp_path, text)
    assert first == {
        "bench_id": "f", "run_name": "run", "file_name": "table.csv", "format": "csv", "line": 2, "op": "all_gather",
        "op_name": "all_gather_into_tensor", "mode": "eager", "measured": "wall", "bytes": 14336, "bytes_of": "per_rank", "tokens": 1, "ranks": None,
        "dtype": None, "us": 37.24, "statistic": "median", "us_min": 36.0, "us_max": 48.0, "algbw_gbps": None, "busbw_gbps": None,
        "is_in_place": None, "wrong": None, "other": None,
    }  # fmt: skip
    assert (second["line"], second["op"], second["mode"]) == (3, "all_reduce", "graph")


def test_three_columns_are_enough(tmp_path: Path) -> None:
    """Operation, bytes and microseconds; whose bytes is left open where the operation has two sizes."""
    found = read(tmp_path, "op;bytes;us\nall_reduce;1024;20\nall_gather;1024;21\n")
    assert [(r["op"], r["bytes"], r["bytes_of"], r["us"], r["mode"], r["statistic"]) for r in found] == [
        ("all_reduce", 1024, "input", 20.0, None, None),
        ("all_gather", 1024, None, 21.0, None, None),
    ]


def test_compute_is_measured_by_tokens(tmp_path: Path) -> None:
    """A GEMM or the experts need no bytes."""
    (row,) = read(tmp_path, "op,tokens,us\nmoe_gemm,16,40\n")
    assert (row["op"], row["tokens"], row["bytes"], row["us"]) == ("moe_gemm", 16, None, 40.0)


def test_clock_ranks_and_strange_columns_are_kept(tmp_path: Path) -> None:
    """A kernel's duration is said to be one; columns of no known meaning stay as text; remarks and empty lines are passed over."""
    text = "# made on Monday\nOp\tbytes\tbytes_of\tkernel_us\tranks\tnode\n\nAllToAll\t64\tOUTPUT\t3.5\t8\tn1\n"
    (row,) = read(tmp_path, text)
    assert (row["op"], row["measured"], row["ranks"], row["bytes_of"], row["other"], row["line"]) == (
        "all_to_all", "kernel", 8, "output", '{"node":"n1"}', 4,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ("op,bytes,us\nall_reduce,1024\n", 2, "2 fields"),
        ("op,bytes,us\nall_reduce,1024,1\nall_reduce,x,1\n", 3, "bytes = 'x'"),
        ("op,bytes,us\nall_reduce,-1,1\n", 2, "bytes = '-1'"),
        ("op,bytes,us\nall_reduce,99999999999999999999,1\n", 2, "bytes = "),
        ("op,bytes,us\nall_reduce,1024,nan\n", 2, "us = 'nan'"),
        ("op,bytes,us\nall_reduce,1024,0\n", 2, "us = '0'"),
        ("op,bytes,us\nall_reduce,1024,\n", 2, "no latency"),
        ("op,bytes,us\nall_reduce,,7\n", 2, "no message size"),
        ("op,tokens,us\nall_reduce,16,40\n", 2, "no message size"),
        ("op,bytes,us\nteleport,1024,7\n", 2, "op = 'teleport'"),
        ("op,mode,bytes,us\nall_reduce,lazy,1024,7\n", 2, "mode = 'lazy'"),
        ("op,bytes,us,measured\nall_reduce,1024,7,moon\n", 2, "measured = 'moon'"),
        ("op,bytes,us,bytes_of\nall_reduce,1024,7,nobody\n", 2, "bytes_of = 'nobody'"),
        ("op,bytes,us,ranks\nall_reduce,1024,7,0\n", 2, "ranks = '0'"),
        ('op,bytes,us\n"all_reduce,1024,7\n', 2, "no fields"),
        (f"op,bytes,us\n{'x' * 20_000},1,1\n", 2, "a field longer"),
        ("step,category,calls\n0,gemm,1\n", 1, "the columns step, category, calls"),
        ("op,bytes,size,us\n", 1, "more than one column of bytes"),
        ("op,input_bytes,output_bytes,us\n", 1, "more than one column of bytes"),
        ("# nothing\n", 1, "no header"),
        (b"op,bytes,us\nall_reduce,1024,\xff\n", 2, "bytes that are no UTF-8"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str | bytes, line: int, found: str) -> None:
    """The error says which line, what it found and what it wanted, and nothing is written."""
    error = refused(tmp_path, text)
    assert error.where == f"line {line}"
    assert error.found.startswith(found)


def test_a_table_without_numbers_is_refused(tmp_path: Path) -> None:
    """A header alone measures nothing."""
    assert refused(tmp_path, "op,bytes,us\n").found == "no line of numbers"


def test_a_mountain_of_text_is_no_table(tmp_path: Path) -> None:
    """The limit of bytes holds for tables too."""
    (tmp_path / "big.csv").write_bytes(b"op,bytes,us\n")
    job = ReadJob(tmp_path / "big.csv", "big.csv", "f", 70 * 10**6, "s", "run", tmp_path, tmp_path)
    with pytest.raises(TraceError, match="bytes of text"):
        read_microbench(job)


def test_nccl_tests_of_today(tmp_path: Path) -> None:
    """Out of place and in place, with the ranks that took part, the graph flag, and the number of wrong elements as given."""
    found = read(tmp_path, "$ ./build/all_reduce_perf -b 8 -G 1\n" + NEW, "log.txt")
    assert [(r["is_in_place"], r["us"], r["algbw_gbps"], r["busbw_gbps"], r["wrong"]) for r in found] == [
        (False, 37.05, 0.39, 0.68, "0"),
        (True, 36.77, 0.39, 0.68, "N/A"),
    ]
    first = found[0]
    assert (first["op"], first["mode"], first["ranks"], first["bytes"], first["bytes_of"], first["dtype"], first["statistic"], first["format"]) == (
        "all_reduce", "graph", 8, 14336, "input", "bfloat16", "mean", "nccl_tests",
    )  # fmt: skip


def test_older_columns_are_read_by_their_names(tmp_path: Path) -> None:
    """Without redop and root; `size` of an all-gather is its output; the file's name tells the operation."""
    first, _ = read(tmp_path, OLD, "all_gather_perf.txt")
    assert (first["op"], first["bytes"], first["bytes_of"], first["ranks"], first["mode"], first["us"], first["wrong"]) == (
        "all_gather", 64, "output", 2, "eager", 28.99, "0e+00",
    )  # fmt: skip
    (oldest, _) = read(tmp_path, OLDEST, "reduce_scatter.log")
    assert (oldest["op"], oldest["bytes"], oldest["us"], oldest["wrong"], oldest["ranks"]) == ("reduce_scatter", 8, 0.037, "0e+00", None)


def test_two_programs_in_one_log(tmp_path: Path) -> None:
    """Each table has the operation, ranks and graph flag of its own program; a launcher's tags and NCCL's messages are passed over."""
    log = "# Collective test starting: alltoall_perf\n" + NEW + "node:1:1 [0] NCCL INFO ready\n# Collective test starting: all_gather_perf\n" + OLD
    tagged = "".join(f"[1,0]<stdout>:{line}\n" for line in log.splitlines())
    found = read(tmp_path, tagged, "job.out")
    assert [(r["op"], r["ranks"], r["mode"]) for r in found[::2]] == [("all_to_all", 8, "graph"), ("all_gather", 2, "eager")]


def test_what_was_not_measured_is_no_row(tmp_path: Path) -> None:
    """Where an operation has no in-place form, there is one row."""
    text = OLD.replace("28.84    0.01    0.00  0e+00\n", "N/A    N/A     N/A    N/A\n")
    assert [r["is_in_place"] for r in read(tmp_path, text, "alltoall_perf.txt")] == [False]


def test_groups_of_different_sizes_have_no_number_of_ranks(tmp_path: Path) -> None:
    """A split job runs several communicators at once: their size counts, where it is one size."""
    split = NEW.replace("Rank  7 Group  0", "Rank  7 Group  1")
    assert [r["ranks"] for r in read(tmp_path, split, "all_reduce_perf.txt")] == [None, None]
    halves = NEW
    for rank in range(4):
        halves = halves.replace(f"Rank  {rank} Group  0", f"Rank  {rank} Group  1")
    assert [r["ranks"] for r in read(tmp_path, halves, "all_reduce_perf.txt")] == [4, 4]


@pytest.mark.parametrize(
    ("text", "name", "line", "found"),
    [
        (NEW, "log.txt", 16, "a table that does not say of which operation"),
        (NEW.replace("   0.68    N/A\n", "   0.68\n"), "all_reduce_perf.txt", 16, "12 fields"),
        (NEW.replace("37.05", "37,05"), "all_reduce_perf.txt", 16, "time = '37,05'"),
        (NEW.replace("#wrong     time   algbw   busbw #wrong", "#wrong"), "all_reduce_perf.txt", 16, "the columns size"),
    ],
)
def test_a_bad_line_of_nccl_tests_is_named(tmp_path: Path, text: str, name: str, line: int, found: str) -> None:
    """A line of numbers that was cut, mixed with another or is of an unknown table says so."""
    error = refused(tmp_path, text, name)
    assert (error.where, error.found[: len(found)]) == (f"line {line}", found)


def test_tables_are_told_from_traces() -> None:
    """By suffix, or by the line of column names behind whatever a launcher says; never JSON or gzip."""
    assert is_table("latency.CSV", b"anything")
    assert is_table("job.out", NEW.encode())
    assert is_table("job.out", b"[1,0]<stdout>:# x\n[1,0]<stdout>:#  size  count  type  time\n")
    assert not is_table("t.txt", b"hello")
    assert not is_table("t.csv", b'\xef\xbb\xbf {"traceEvents": []}')
    assert not is_table("t.csv", b"\x1f\x8b\x08")


def test_names_of_operations_and_modes() -> None:
    """Torch's, NCCL's and nccl-tests' spellings mean the same; others mean nothing."""
    assert {operation(n) for n in ("all_to_all_single", "AllToAll", "alltoall_perf", "all_to_allv")} == {"all_to_all"}
    assert operation("reduce_scatter_tensor") == "reduce_scatter"
    assert operation("nothing") is None
    assert [mode_of(m) for m in ("eager", "CUDA Graph", "graph", "?")] == ["eager", "graph", "graph", None]
    assert has_two_sizes("all_gather")
    assert not has_two_sizes("all_reduce")


def test_a_run_of_a_table_alone_is_a_run(tmp_path: Path, home: Home) -> None:
    """It is built, checked, listed without traces, found by name, and not built again."""
    (tmp_path / "Table.csv").write_text("op,bytes,us\nall_reduce,1024,20\n", encoding="utf-8")
    outcome = ingest_into(home, tmp_path / "Table.csv", run="My table")
    assert (outcome.codes, len(outcome.built), [*outcome.verdicts.values()]) == ([], 1, ["pass"])
    with reading(home) as con:
        assert find_run(con, "My table") == outcome.built[0]
        assert duck.rows(con, "SELECT source, traces, ranks, decode_steps, verdict FROM runs") == [("microbench", 0, 0, 0, "pass")]
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
    assert [r["us"] for r in found if (r["op"], r["mode"], r["bytes"]) == ("all_reduce", "graph", 14336)] == [11.76]
