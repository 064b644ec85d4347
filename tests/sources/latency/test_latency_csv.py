"""Latency tables as CSV."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.latencies import read, refused


def test_a_capture_of_latencies_lands_line_by_line(tmp_path: Path) -> None:
    """Mode, clock, buffer, statistic and line number are kept."""
    header = "op,mode,tokens,bytes_per_rank,median_us,min_us,max_us\n"
    eager, graph = (
        "all_gather_into_tensor,eager,1,14336,37.24,36,48",
        "all_reduce,cudagraph,1,14336,11.76,11,12",
    )
    text = f"{header}{eager}\n{graph}\n"
    first, second = read(tmp_path, text)
    assert first == {
        "bench_id": "f", "run_name": "run", "file_name": "table.csv", "format": "csv", "line": 2,
        "op": "all_gather", "op_name": "all_gather_into_tensor", "mode": "eager", "measured": "wall",
        "bytes": 14336, "bytes_of": "per_rank", "tokens": 1, "ranks": None, "dtype": None, "us": 37.24,
        "statistic": "median", "us_min": 36.0, "us_max": 48.0, "algbw_gbps": None, "busbw_gbps": None,
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
    """A kernel's duration has its own clock; unknown columns are kept as text; comments and empty
    lines are passed over."""
    text = (
        "# made on Monday\nOp\tbytes\tbytes_of\tkernel_us\tranks\tnode\n\nAllToAll\t64\tOUTPUT\t3.5\t8\tn1\n"
    )
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
        ("op,bytes,us\nall_reduce,1024,1_0\n", 2, "us = '1_0'"),
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
        (b"op,bytes,us\nall_reduce,1024,\xff\n", 2, "bytes that are not UTF-8"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str | bytes, line: int, found: str) -> None:
    """The error has the line, what was found and what was wanted, and nothing is written."""
    error = refused(tmp_path, text)
    assert error.where == f"line {line}"
    assert error.found.startswith(found)
