"""The questions of the what-ifs."""

from __future__ import annotations

from typing import Any

from tests.support.questions import DECODE, RUN, ask
from tests.support.tables import Row


def step(number: int, **fields: Any) -> Row:
    """A complete decode step that another follows."""
    return {"step": number, "phase": "decode", "next_phase": "decode", "wall_ns": 1_000_000} | fields


def test_the_curve_has_a_median_per_size() -> None:
    """Padded tokens; a step that no decode step follows, or of unknown size, is no point."""
    steps = [
        step(0, graph_tokens=8, generation_tokens=5),
        step(1, generation_tokens=8, wall_ns=3_000_000),
        step(2, generation_tokens=16, wall_ns=5_000_000),
        step(3, generation_tokens=16, next_phase="prefill"),
        step(4),
    ]
    assert ask("whatif/decode_curve", {"steps": steps}, **RUN) == [(8, 2.0), (16, 5.0)]


def test_layers_follow_from_the_all_reduces() -> None:
    """The most frequent numbers of a step; halves of a two-kernel all-reduce are no calls."""
    calls: list[Row] = [
        {
            "activity_id": 10 * number + at,
            "step": number,
            "phase": "decode",
            "category": "allreduce",
            "layer": at,
            "is_half": False,
            "part": part,
        }
        for number in range(2)
        for at, part in enumerate(("after_mlp", "after_moe", "after_moe"))
    ]
    calls.append(
        {
            "activity_id": 99,
            "step": 0,
            "phase": "decode",
            "category": "allreduce",
            "layer": 9,
            "is_half": True,
        }
    )
    assert ask("whatif/layers", {"collectives": calls}, **DECODE) == [(2, 3)]


def test_exposed_time_is_split() -> None:
    """Medians over steps and ranks; hidden communication costs nothing."""
    booked: list[Row] = [
        {"trace_id": trace, "step": 0, "phase": "decode", "category": "x", "rollup": rollup, "exposed_ns": ns}
        for trace in ("t", "u")
        for rollup, ns in (("GEMM", 3_000_000), ("AllReduce", 1_000_000), ("Other collectives", 0))
    ]
    tables = {"steps": [step(0), step(0, trace_id="u")], "step_breakdown": booked}
    assert ask("whatif/exposed", tables, **DECODE, communication=["AllReduce", "Other collectives"]) == [
        (3.0, 1.0)
    ]
