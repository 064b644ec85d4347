"""bandwidth: bytes over time by operation and size."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.tables import Row, run_model
from tests.support.wire import OPS, algbw_gbps, busbw_gbps, wire_bytes, wire_factor


def tables(*calls: dict[str, Any], config: Row | None = None) -> dict[str, list[Row]]:
    """Calls with a size (`op`, `bytes`, `ranks`, `kind`, `algorithm`), a duration and perhaps a floor, in
    complete steps by default."""
    sized: list[Row] = []
    made: list[Row] = []
    steps: dict[int, Row] = {}
    for number, call in enumerate(calls):
        key = {"trace_id": "t", "activity_id": number}
        size = call.get("bytes")
        sized.append(
            key
            | {
                "op": call.get("op", "all_reduce"), "kind": call.get("kind", "nccl"),
                "algorithm": call.get("algorithm", "convention"),
                "group_size": call.get("ranks", 2), "in_bytes": size, "out_bytes": call.get("out", size),
                "size_bytes": None if size is None else max(size, call.get("out", size)),
                "size_source": call.get("size_source"),
            }
        )  # fmt: skip
        floor = call.get("floor")
        step = call.get("step", 0)
        if step is not None:
            steps[step] = {"step": step, "phase": "decode", "is_complete": call.get("complete", True)}
        made.append(
            key
            | {
                "step": step, "phase": "decode" if step is not None else "unknown", "dur_ns": call["dur"],
                "floor_ns": floor,
                "wait_ns": None if floor is None else call["dur"] - floor, "flag": call.get("flag"),
            }
        )  # fmt: skip
    return {
        "int_message_size": sized,
        "collectives": made,
        "steps": [*steps.values()],
        "run_config": [config] if config else [],
    }


def test_bytes_over_the_floor() -> None:
    """2 MB in 100 us without waiting are 20 GB/s; 8 ranks of an all-reduce send 1.75 times that."""
    call = {"bytes": 2_000_000, "ranks": 8, "dur": 150_000, "floor": 100_000}
    found = run_model(
        "bandwidth",
        tables(call, call),
        "calls, us_p50, floor_us, floor_source, algbw_gbps, busbw_gbps, wire_bytes, wait_share",
    )
    assert found == [(2, 150.0, 100.0, "last rank", 20.0, 35.0, 3_500_000, 0.333333333)]


def test_where_ranks_cannot_be_compared_the_fast_calls_tell() -> None:
    """The 10th percentile of durations, named as such; no share of waiting."""
    calls = [{"bytes": 1000, "dur": 10_000 + 1_000 * n, "step": None} for n in range(11)]
    found = run_model("bandwidth", tables(*calls), "phase, floor_us, floor_source, wait_share")
    assert found == [("unknown", 11.0, "p10 of durations", None)]


def test_steps_that_are_not_complete_do_not_count() -> None:
    """What enters means elsewhere enters here."""
    calls = [{"bytes": 1000, "dur": 10, "step": 0}, {"bytes": 1000, "dur": 10, "step": 1, "complete": False}]
    assert run_model("bandwidth", tables(*calls), "calls") == [(1,)]


def test_factor_of_each_operation() -> None:
    """One-shot all-reduces send a copy to every other rank; a name that proves no algorithm has no factor."""
    kinds = [
        ("all_reduce", "one_shot"), ("all_reduce", "two_shot"), ("all_reduce", "unknown"),
        ("all_to_all", "convention"), ("send_recv", "convention"),
    ]  # fmt: skip
    calls = [
        {"op": op, "algorithm": algorithm, "bytes": 1000, "ranks": 4, "dur": 1000} for op, algorithm in kinds
    ]
    found = run_model("bandwidth", tables(*calls), "op, algorithm, wire_ratio")
    assert {(op, algorithm): factor for op, algorithm, factor in found} == dict(
        zip(kinds, [3.0, 1.5, None, 0.75, 1.0], strict=True)
    )


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_the_mart_and_the_formulas_agree(ranks: int) -> None:
    """Every operation and algorithm, and the busbw that follows."""
    kinds = [
        (op, algorithm)
        for op in OPS
        for algorithm in ("convention", "one_shot", "two_shot")
        if op == "all_reduce" or algorithm == "convention"
    ]
    calls = [
        {"op": op, "algorithm": algorithm, "bytes": 10**9, "ranks": ranks, "dur": 10**6, "floor": 10**6}
        for op, algorithm in kinds
    ]
    found = run_model(
        "bandwidth", tables(*calls), "op, algorithm, wire_ratio, wire_bytes, algbw_gbps, busbw_gbps"
    )
    assert len(found) == len(kinds)
    for op, algorithm, ratio, sent, algbw, busbw in found:
        assert ratio == pytest.approx(wire_factor(op, ranks, algorithm))
        assert sent == pytest.approx(wire_bytes(op, 10**9, ranks, algorithm))
        assert algbw == pytest.approx(algbw_gbps(10**9, 1000))
        assert busbw == pytest.approx(busbw_gbps(op, 10**9, 1000, ranks, algorithm))


def test_short_messages_are_latency_bound() -> None:
    """The floor of messages up to 32 KiB of the same kind is the latency floor; up to three times it, size
    does not matter."""
    calls = [
        {"bytes": size, "dur": us * 1000, "floor": us * 1000}
        for size, us in ((14336, 7), (100_000, 20), (10_000_000, 60))
    ]
    found = run_model(
        "bandwidth",
        tables(*calls),
        "size_bytes, latency_floor_us, latency_floor_source, is_latency_bound",
        "size_bytes",
    )
    source = "messages up to 32 KiB"
    assert found == [
        (14336, 7.0, source, True),
        (100_000, 7.0, source, True),
        (10_000_000, 7.0, source, False),
    ]


def test_without_short_messages_the_link_tells() -> None:
    """NCCL's model: 6.6 us and, over PCIe, 1 us for each of 14 steps of a ring of 8; busbw beside what the
    link carries."""
    call = {"bytes": 10_000_000, "ranks": 8, "dur": 1_000_000, "floor": 1_000_000}
    columns = "latency_floor_us, latency_floor_source, is_latency_bound, link, link_gbps, link_share"
    assert run_model("bandwidth", tables(call, config={"link": "pcie4_x16"}), columns) == [
        (20.6, "NCCL's model of the link", False, "pcie4_x16", 31.508, 0.555414)
    ]
    assert run_model("bandwidth", tables(call, config={"link": "string"}), columns) == [
        (None, None, None, None, None, None)
    ]


def test_sizes_that_are_not_known_keep_their_row() -> None:
    """Calls and times without a bandwidth."""
    found = run_model(
        "bandwidth",
        tables({"dur": 9_000, "flag": "fused"}),
        "size_bytes, calls, floor_us, algbw_gbps, is_latency_bound, is_fused",
    )
    assert found == [(None, 1, 9.0, None, None, True)]
