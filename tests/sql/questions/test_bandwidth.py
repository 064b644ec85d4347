"""The questions of `bandwidth`, `bench` and of latency tables."""

from __future__ import annotations

from typing import Any

from tests.support.questions import DECODE, ask
from tests.support.tables import Row


def kernel(number: int, category: str, start_ns: int, dur_ns: int, **fields: Any) -> Row:
    """A kernel of step 0."""
    return {
        "activity_id": number,
        "step": 0,
        "category": category,
        "start_ns": start_ns,
        "dur_ns": dur_ns,
    } | fields


def test_messages_of_one_phase_or_of_all() -> None:
    """NULL is every phase."""
    rows = [{"phase": "decode", "op": "all_reduce"}, {"phase": "prefill", "op": "all_reduce"}]
    assert len(ask("bandwidth/messages", {"bandwidth": rows}, run_id="run", phase=None)) == 2
    ((_, _, phase, *_),) = ask("bandwidth/messages", {"bandwidth": rows}, run_id="run", phase="prefill")
    assert phase == "prefill"


def test_kernels_that_overlap_count_once() -> None:
    """Two expert GEMMs side by side, a GEMM in between: 30 us of experts, 30 us of all."""
    activities = [
        kernel(0, "moe_gemm", 0, 20_000),
        kernel(1, "moe_gemm", 10_000, 20_000, stream=8),
        kernel(2, "gemm", 15_000, 5_000, stream=9),
        kernel(3, "norm", 40_000, 5_000),
        kernel(4, "gemm", 50_000, 5_000, step=1),
    ]
    steps: list[Row] = [{"step": 0, "phase": "decode"}, {"step": 1, "phase": "decode", "is_complete": False}]
    found = ask("bandwidth/kernel_time", {"activity": activities, "steps": steps}, **DECODE)
    assert dict(found) == {"routed experts": 30.0, "other weights": 5.0, "all of it": 30.0}


def test_rows_of_the_own_table_are_in_order() -> None:
    """By operation and size."""
    rows = [{"op": "all_reduce", "in_bytes": size, "file_name": str(size)} for size in (8, 4)]
    found = ask("bench/own_tables", {"bench_vs_trace": rows}, run_id="run")
    assert [row[7] for row in found] == [4, 8]


def test_messages_to_match_are_all_of_the_run() -> None:
    """No other run's."""
    rows = [{"op": "all_reduce"}, {"op": "all_gather"}, {"run_id": "other"}]
    found = ask("bench/messages", {"bandwidth": rows}, run_id="run")
    assert [row[3] for row in found] == ["all_gather", "all_reduce"]


def test_measured_latencies_are_in_the_order_of_their_file() -> None:
    """Line by line; other runs have their own."""
    rows = [
        {"bench_id": "b", "line": 2, "op": "all_reduce", "us": 2.0},
        {"bench_id": "b", "line": 1, "op": "all_reduce", "us": 1.0},
        {"bench_id": "b", "line": 3, "op": "all_reduce", "us": 3.0, "run_id": "other"},
    ]
    assert [row[7] for row in ask("latency/measured", {"raw.microbench": rows}, run_id="run")] == [1.0, 2.0]
