"""What several analyses need to know of a run's usual step."""

from __future__ import annotations

from typing import Any

from tests.support.questions import DECODE, RUN, ask
from tests.support.tables import Row


def step(number: int, **fields: Any) -> Row:
    """A complete decode step."""
    return {"step": number, "phase": "decode", "next_phase": "decode"} | fields


def test_the_config_is_of_the_run() -> None:
    """Nothing described, no row."""
    tables: dict[str, list[Row]] = {"run_config": [{"tp": 2}]}
    assert len(ask("step_facts/config", tables, run_id="run")) == 1
    assert ask("step_facts/config", tables, run_id="other") == []


def test_the_source_with_most_steps_is_used() -> None:
    """Incomplete steps do not count; of equals the first by name."""
    steps = [step(0), step(1, source="nsys"), step(2, source="nsys", is_complete=False)]
    assert ask("step_facts/largest_source", {"steps": steps}, run_id="run", phase="decode") == [("kineto", 1)]
    assert ask("step_facts/largest_source", {"steps": steps}, run_id="run", phase="draft") == []


def test_the_usual_step_has_the_most_frequent_size() -> None:
    """Padded tokens before real ones; the wall only of steps that a decode step follows."""
    steps = [
        step(0, graph_tokens=8, generation_tokens=5, generation_requests=5, wall_ns=2_000_000),
        step(1, graph_tokens=8, generation_tokens=6, generation_requests=5, wall_ns=4_000_000),
        step(2, generation_tokens=1, generation_requests=1, wall_ns=90_000_000, next_phase="prefill"),
    ]
    assert ask("step_facts/usual_step", {"steps": steps}, **DECODE) == [(8, 5, 3, 3.0)]


def test_global_tokens_are_of_all_groups() -> None:
    """NULL where no step is matched."""
    steps = [{"phases": "decode", "graph_tokens": 16}, {"phases": "decode, prefill", "graph_tokens": 4}]
    assert ask("step_facts/global_tokens", {"run_steps": steps}, **DECODE) == [(16,)]
    assert ask("step_facts/global_tokens", {}, **DECODE) == [(None,)]


def test_rollups_of_a_phase_are_sorted_by_time() -> None:
    """The largest first."""
    rows = [
        {"phase": "decode", "rollup": "GEMM", "ms_mean": 1.0},
        {"phase": "decode", "rollup": "Norm", "ms_mean": 2.0},
    ]
    assert [row[3] for row in ask("step_facts/rollups", {"run_breakdown": rows}, **DECODE)] == [
        "Norm",
        "GEMM",
    ]


def test_the_gpu_is_the_sources() -> None:
    """Another source may name another."""
    facts = [{"gpu_name": "H200"}, {"source": "nsys", "gpu_name": "A100"}]
    assert ask("step_facts/gpu_name", {"run_facts": facts}, **RUN) == [("H200",)]


def test_the_main_all_reduce_has_a_size() -> None:
    """More frequent ones of unknown size come after it."""
    rows: list[Row] = [
        {"phase": "decode", "op": "all_reduce", "size_bytes": None, "calls": 9, "kind": "nccl"},
        {"phase": "decode", "op": "all_reduce", "size_bytes": 64, "calls": 2, "kind": "custom"},
        {"phase": "decode", "op": "all_gather", "size_bytes": 64, "calls": 99, "kind": "nccl"},
    ]
    ((_, _, _, op, kind, *_),) = ask("step_facts/main_allreduce", {"bandwidth": rows}, **DECODE)
    assert (op, kind) == ("all_reduce", "custom")
