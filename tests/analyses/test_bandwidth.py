"""Messages and memory of a run, as printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.analyses.bandwidth import LATENCY, attention_load, bandwidth_reports, memory_row
from pipeline.analyses.memory import Part
from pipeline.analyses.report import Report
from pipeline.analyses.step_facts import step_facts
from pipeline.errors import UsageError
from pipeline.lake.home import Home
from pipeline.lake.reading import reading
from tests.support.served import serve


def cells(report: Report, *names: str) -> list[tuple[Any, ...]]:
    """Some columns of a report."""
    return [tuple(row[report.columns.index(name)] for name in names) for row in report.rows]


def test_short_messages_have_no_bandwidth(served: Home) -> None:
    """14 KB in 7 us are latency-bound, and labeled so; the logits' gather has no size in a graph."""
    with reading(served) as con:
        messages, _ = bandwidth_reports(con, "x")
    assert cells(messages, "op", "size_bytes", "calls", "floor_us", "algbw", "busbw", "link_share") == [
        ("all_gather", None, 6, 7.0, None, None, None),
        ("all_reduce", 14336, 30, 7.0, LATENCY, LATENCY, None),
    ]
    assert any(
        "link nvlink4: 450 GB/s" in note and "NVIDIA H100 white paper" in note for note in messages.notes
    )


def test_missing_facts_are_named(served: Home) -> None:
    """Without hidden size there are no sizes; without a link no limit; the memory's parts name the facts they
    lack."""
    with reading(served) as con:
        messages, memory = bandwidth_reports(con, "bare")
    assert {row[0] for row in cells(messages, "size_bytes")} == {None}
    assert any("link not given" in note for note in messages.notes)
    assert any("sizes are missing" in note for note in messages.notes)
    assert (
        next(row[-1] for row in memory.rows)
        == "refused: not given: hidden_size, experts, experts_per_token, layers, dense_layers"
    )


def test_memory_is_bytes_over_the_time_of_those_who_read_them(served: Home) -> None:
    """Two expert GEMMs of 4 us read 8 of 64 experts' halves: more than the memory's peak, so that they must
    have been fewer."""
    with reading(served) as con:
        _, memory = bandwidth_reports(con, "x")
    expert = 3 * 7168 * 2048 * 0.5625 / 2
    experts, weights, kv = memory.rows
    assert experts[:4] == ["routed experts", round(64 * expert / 1e9, 3), round(8 * expert / 1e9, 3), 8.0]
    assert experts[4:] == [
        None,
        None,
        f"routing is skewed: at most {4800e3 * 8 / expert:.1f} experts per layer",
    ]
    assert weights[4:6] == [None, None]
    assert weights[6].startswith("above the peak of the memory")
    gbps = 2 * 100 * (512 + 64) * 2 / 8 / 1e3
    assert kv == ["KV cache", 0.0, 0.0, 8.0, round(gbps, 1), round(gbps / 4800, 4), ""]
    assert memory.notes[0] == "ceiling: 4800 GB/s (NVIDIA H200 data sheet)"


def test_attention_knows_how_near_the_memorys_limit_it_is(served: Home) -> None:
    """The share of the bandwidth that reading the KV cache uses; unknown without the context."""
    with reading(served) as con:
        assert attention_load(con, step_facts(con, "x")) == pytest.approx(28.8 / 4800)
        assert attention_load(con, step_facts(con, "bare")) is None


def test_the_parts_make_a_whole(tmp_path: Path, home: Home) -> None:
    """Where each of them can be: their bytes, over the time in which any of their kernels runs."""
    serve(tmp_path, home, "fast", facts={"hbm_gbps": 100_000_000}, table=None)
    with reading(home) as con:
        _, memory = bandwidth_reports(con, "fast")
    *parts, whole = memory.rows
    assert whole[0] == "all of it"
    assert whole[2] == pytest.approx(sum(row[2] for row in parts), abs=0.002)
    assert whole[3] == sum(row[3] for row in parts)
    assert memory.notes[0] == "ceiling: 1e+08 GB/s (given in run_config)"


PART = Part("routed experts", ("moe_gemm",), 64e6, 8e6, "", expert_bytes=1e6)


def test_above_the_ceiling_nothing_is_printed_but_what_follows() -> None:
    """8 MB in 1 us would be 8 TB/s; at 4 TB/s at most 4 experts were read."""
    assert memory_row(PART, 1.0, 4000.0) == [
        "routed experts",
        0.064,
        0.008,
        1.0,
        None,
        None,
        "routing is skewed: at most 4.0 experts per layer",
    ]
    assert memory_row(PART, 2.0, 4000.0)[4:] == [4000.0, 1.0, ""]
    assert memory_row(PART, 2.0, None)[4:] == [4000.0, None, ""]
    assert memory_row(PART, None, 4000.0)[3:] == [None, None, None, "no such kernel in the step"]


def test_a_run_of_tables_alone_has_nothing_to_show(served: Home) -> None:
    """Neither collectives nor steps: a refusal, no empty answer."""
    with reading(served) as con, pytest.raises(UsageError, match="no complete decode step"):
        bandwidth_reports(con, "nothing")


def test_a_phase_without_steps_shows_its_messages_alone(served: Home) -> None:
    """Collectives of no step have bandwidths, and no step whose memory one could ask for."""
    with reading(served) as con, pytest.raises(UsageError, match="no complete prefill step"):
        bandwidth_reports(con, "x", "prefill")
