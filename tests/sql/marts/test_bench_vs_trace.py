"""bench_vs_trace: a table's line beside the same operation and size of a trace."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.tables import run_model

TRACE = {"phase": "decode", "op": "all_reduce", "kind": "nccl", "algorithm": "convention", "ranks": 2,
    "in_bytes": 14336, "out_bytes": 14336,
         "calls": 5, "us_p50": 7.5, "floor_us": 7.3, "floor_source": "last rank",
         "wait_share": 0.1}  # fmt: skip
BENCH = {"bench_id": "b", "file_name": "f.csv", "line": 2, "op": "all_reduce", "mode": "graph",
    "measured": "wall", "bytes": 14336,
         "bytes_of": "input", "us": 11.8}  # fmt: skip


def beside(trace: dict[str, Any], bench: dict[str, Any], columns: str = "line") -> list[tuple[Any, ...]]:
    """The rows of one trace size and one line."""
    return run_model(
        "bench_vs_trace", {"bandwidth": [TRACE | trace], "raw.microbench": [BENCH | bench]}, columns
    )


def test_two_clocks_are_named() -> None:
    """14 KB: 11.8 us a call in the table, 7.3 us as a kernel; the ratios say so without calling one of them
    faster."""
    columns = (
        "table_clock, table_us, trace_clock, trace_us_p50, trace_floor_us, ratio, floor_ratio, "
        "is_same_clock, wait_share"
    )
    assert beside({}, {}, columns) == [("wall", 11.8, "kernel", 7.5, 7.3, 0.635593, 0.618644, False, 0.1)]
    assert beside({}, {"measured": "kernel"}, "is_same_clock") == [(True,)]


@pytest.mark.parametrize(
    ("trace", "bench"),
    [
        ({}, {"op": "all_gather"}),
        ({}, {"bytes": 14337}),
        ({}, {"ranks": 8}),
        ({"in_bytes": None, "out_bytes": None}, {}),
        ({"out_bytes": 28672}, {"bytes_of": None}),
        ({"out_bytes": 28672}, {"bytes_of": "output"}),
    ],
)
def test_only_the_same_is_compared(trace: dict[str, Any], bench: dict[str, Any]) -> None:
    """Operation, bytes of the same side, and ranks where the table tells."""
    assert beside(trace, bench) == []


@pytest.mark.parametrize(
    ("trace", "bench"),
    [
        ({}, {"ranks": 2}),
        ({"ranks": None}, {"ranks": 8}),
        ({}, {"bytes_of": None}),
        ({}, {"bytes_of": "per_rank"}),
        ({"out_bytes": 28672}, {"bytes_of": "output", "bytes": 28672}),
    ],
)
def test_what_is_known_must_agree(trace: dict[str, Any], bench: dict[str, Any]) -> None:
    """Unknown ranks match any, and bytes of an unknown buffer match where both buffers have one size."""
    assert beside(trace, bench) == [(2,)]
