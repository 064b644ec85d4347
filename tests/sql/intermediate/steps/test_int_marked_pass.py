"""int_marked_pass: which markers together are one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.tables import Row, run_model

V, D, E, X = (
    "step[TARGET_VERIFY bs=4]",
    "step[DECODE bs=4]",
    "step[DRAFT_EXTEND_V2 bs=4]",
    "step[EXTEND bs=1 toks=64]",
)
COLUMNS = "start_ns, markers, phase, label"


def _markers(*names: str) -> list[Row]:
    """Markers of one thread, 50 ns long, one each 100 ns."""
    notes: list[Row] = [
        {"name": name, "start_ns": 100 * n, "end_ns": 100 * n + 50} for n, name in enumerate(names)
    ]
    columns = (
        "trace_id, step, label, pid, tid, start_ns, end_ns, marker_id, engine, confidence, part, is_cut, "
        "context_requests, "
        "scheduled_context_tokens, generation_requests, generation_tokens, graph_tokens, kv_tokens, phase"
    )
    found = run_model("int_step_marker", {"stg_annotation": notes}, columns, "step")
    return [dict(zip(columns.split(", "), row, strict=True)) for row in found]


def _passes(
    *names: str,
    scopes: Sequence[tuple[int, int]] = (),
    sampled_at: tuple[int, ...] = (),
    columns: str = COLUMNS,
) -> list[tuple[Any, ...]]:
    tables: dict[str, list[Row]] = {
        "int_step_marker": _markers(*names),
        "stg_annotation": [{"name": "scheduler.run_batch", "start_ns": a, "end_ns": b} for a, b in scopes],
        "int_activity": [{"activity_id": ns, "rule_id": "argmax", "launch_ns": ns} for ns in sampled_at],
    }
    return run_model("int_marked_pass", tables, columns, "step")


def test_a_marker_alone_is_a_step() -> None:
    """Decode steps of an engine that verifies nothing are themselves."""
    assert _passes(X, D, D) == [(0, 1, "prefill", X), (100, 1, "decode", D), (200, 1, "decode", D)]


def test_drafts_before_a_verify_and_the_extension_behind_it_are_its_step() -> None:
    """Draft passes marked as DECODE belong to the iteration whose tokens they propose; the step is called
    after the verify."""
    assert _passes(D, D, V, E, D, D, V, E) == [(0, 4, "verify", V), (400, 4, "verify", V)]


def test_a_verify_without_drafts_before_it_is_a_step() -> None:
    """With one draft token the extension of the iteration before has proposed it already."""
    assert _passes(V, E, V, E) == [(0, 2, "verify", V), (200, 2, "verify", V)]


def test_a_prefill_among_verifies_keeps_its_own_step() -> None:
    """Drafts after a prefill begin the next iteration; the draft model's own catching up stays with the
    prefill."""
    assert _passes(X, E, D, V, X) == [(0, 2, "prefill", X), (200, 2, "verify", V), (400, 1, "prefill", X)]


def test_drafts_that_the_capture_cuts_from_their_verify_are_drafts() -> None:
    """They are no decode step of the model."""
    assert _passes(D, V, D, D) == [(0, 2, "verify", V), (200, 2, "draft", D)]


def test_a_scope_around_an_iteration_decides() -> None:
    """What lies inside one scheduler.run_batch is one step, whatever the order; confidence stays the
    marker's."""
    found = _passes(
        V, E, D, D, V, scopes=[(0, 390), (395, 460)], columns="start_ns, end_ns, markers, label, confidence"
    )
    assert found == [(0, 350, 4, V, 1.0), (400, 450, 1, V, 1.0)]


def test_grouping_by_order_costs_confidence() -> None:
    """Without a scope the order of markers is only likely: 0.9 at most."""
    assert _passes(D, V, columns="confidence") == [(0.9,)]


def test_the_pieces_of_a_broken_graph_are_one_step() -> None:
    """Three spans a token, sampling after the third: one step each, at less confidence."""
    found = _passes(
        *[D] * 9, sampled_at=(270, 570, 870), columns="start_ns, end_ns, markers, phase, confidence"
    )
    assert found == [(0, 250, 3, "decode", 0.7), (300, 550, 3, "decode", 0.7), (600, 850, 3, "decode", 0.7)]


def test_a_broken_graph_may_be_cut_at_both_ends() -> None:
    """The first and the last step may hold fewer pieces than the others."""
    found = _passes(*[D] * 8, sampled_at=(70, 270, 470, 670), columns="start_ns, markers")
    assert found == [(0, 1), (100, 2), (300, 2), (500, 2), (700, 1)]


def test_irregular_sampling_breaks_nothing() -> None:
    """Where some spans lack their sampling without a rule, records were lost: every span stays a step."""
    assert len(_passes(*[D] * 8, sampled_at=(70, 170, 370, 670))) == 8
    assert len(_passes(*[D] * 9, sampled_at=(170, 470, 670, 870))) == 9
    assert len(_passes(*[D] * 8)) == 8


def test_a_range_still_open_at_the_end_is_cut() -> None:
    """The last marker of a thread, open when recording stopped, says so; an open one with a successor ended
    there."""
    notes: list[Row] = [
        {"name": D, "start_ns": 100 * n, "end_ns": 100 * n + 50, "is_open": True} for n in range(2)
    ]
    assert run_model("int_step_marker", {"stg_annotation": notes}, "start_ns, is_cut") == [
        (0, False),
        (100, True),
    ]
