"""allreduce_audit: collectives per step as integers, by kind and position."""

from __future__ import annotations

from typing import Any

from tests.support.tables import Row, run_model

Call = dict[str, Any]


def call(step: int, **fields: Any) -> Call:
    """One all-reduce after layer 3's experts, of 10 ns by default."""
    made = {
        "step": step,
        "category": "allreduce",
        "subcategory": "nccl",
        "part": "after_moe",
        "layer": 3,
        "position": "layer 3 after MoE",
    }
    return made | {"is_half": False, "dur_ns": 10} | fields


def audit(
    calls: list[Call], columns: str, steps: list[Row] | None = None, count: int = 3
) -> list[tuple[Any, ...]]:
    """These columns of the audit of `count` decode steps of one graph of 4 tokens."""
    made = [
        {"step": step, "phase": "decode", "graph_launches": 1, "graph_tokens": 4} for step in range(count)
    ]
    rows = [{"activity_id": number} | one for number, one in enumerate(calls)]
    return run_model(
        "allreduce_audit", {"collectives": rows, "steps": made if steps is None else steps}, columns
    )


COUNTS = "steps, steps_with, calls_min, calls_mode, calls_max"


def test_counts_are_integers_over_the_steps_of_a_shape() -> None:
    """Fewest, most frequent, most."""
    assert audit([call(0), call(1), call(2), call(2)], COUNTS) == [(3, 3, 1, 1, 2)]
    assert audit([call(0), call(1), call(1), call(2), call(2)], COUNTS) == [(3, 3, 1, 2, 2)]


def test_a_step_without_such_a_call_counts_as_0() -> None:
    """It is the fewest, and the most frequent where most steps lack it."""
    assert audit([call(0), call(2)], COUNTS) == [(3, 2, 0, 1, 1)]
    assert audit([call(0)], COUNTS) == [(3, 1, 0, 0, 1)]
    assert audit([call(0)], COUNTS, count=2) == [(2, 1, 0, 0, 1)]


def test_kinds_and_positions_are_apart() -> None:
    """Custom beside NCCL, after attention beside after experts, a logits gather by its role."""
    calls = [
        call(0),
        call(0, subcategory="custom"),
        call(0, part="after_attention"),
        call(0, layer=None, part="after_layers", role="logits"),
    ]
    found = audit(calls, "part, layer, subcategory, role, calls", count=1)
    assert found == [
        ("after_attention", 3, "nccl", None, 1), ("after_layers", None, "nccl", "logits", 1),
        ("after_moe", 3, "custom", None, 1), ("after_moe", 3, "nccl", None, 1),
    ]  # fmt: skip


def test_shapes_of_steps_are_apart() -> None:
    """By phase, by tokens of the graph, complete ones from the others."""
    steps: list[Row] = [
        {"step": 0, "phase": "decode", "graph_launches": 1, "graph_tokens": 4},
        {"step": 1, "phase": "decode", "graph_launches": 1, "graph_tokens": 8},
        {"step": 2, "phase": "decode", "graph_launches": 0, "graph_tokens": 4}, {"step": 3,
            "phase": "prefill", "graph_launches": 0},
        {"step": 4, "phase": "decode", "graph_launches": 1, "graph_tokens": 4, "is_complete": False},
    ]  # fmt: skip
    found = audit([call(step) for step in range(5)], "phase, is_complete, graph_tokens, steps", steps)
    assert found == [
        ("decode", False, 4, 1), ("decode", True, 4, 1), ("decode", True, 8, 1), ("decode", True, None, 1),
        ("prefill", True, None, 1),
    ]  # fmt: skip


def test_an_all_reduce_made_of_two_kernels_is_one_call() -> None:
    """Both kernels' time is there, and both are counted as kernels."""
    half = call(0, subcategory="fused_norm", is_half=True, dur_ns=4)
    assert audit(
        [call(0, subcategory="fused_norm"), half], "calls_mode, calls, kernels, busy_ns, us_per_call", count=1
    ) == [(1, 1, 2, 14, 0.014)]


def test_calls_in_no_step_are_not_audited() -> None:
    """They are of no step's count."""
    assert audit([call(0) | {"step": None}], COUNTS) == []
