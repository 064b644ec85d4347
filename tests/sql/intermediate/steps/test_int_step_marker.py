"""int_step_marker: annotations that mark a forward pass."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.builders import DECODE
from tests.support.tables import Row, run_model


def _note(name: str, start_ns: int = 0, end_ns: int = 10, **fields: object) -> Row:
    return {"name": name, "start_ns": start_ns, "end_ns": end_ns} | fields


def _one(name: str, columns: str) -> tuple[Any, ...]:
    (row,) = run_model("int_step_marker", {"stg_annotation": [_note(name)]}, columns)
    return row


COUNTS = (
    "context_requests, scheduled_context_tokens, generation_requests, generation_tokens, graph_tokens, "
    "kv_tokens"
)


@pytest.mark.parametrize(
    ("name", "marker", "counts"),
    [
        ("execute_context_2(512)_generation_3(3)", "vllm_context_generation", (2, 512, 3, 3, None, None)),
        (
            "execute_model context_2(512) generation_0(0)",
            "vllm_context_generation",
            (2, 512, 0, 0, None, None),
        ),
        ("execute_16_context_0(0)_generation_13(13)", "vllm_context_generation", (0, 0, 13, 13, 16, None)),
        (
            "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)",
            "vllm_detailed",
            (0, 0, 32, 32, 32, 55086),
        ),
        (
            "execute_context_1(sq8sk9sqsq64sqsk72)_generation_0(sq0sk0sqsq0sqsk0)",
            "vllm_detailed",
            (1, 8, 0, 0, None, 0),
        ),
        ("execute_new_1_cached_4", "vllm_new_cached", (1, None, 4, None, None, None)),
        ("ProfilerStep#6", "profiler_step", (None, None, None, None, None, None)),
    ],
)
def test_every_form_is_read(name: str, marker: str, counts: tuple[int | None, ...]) -> None:
    """Requests, tokens, the padded size and the KV tokens come out of the text where it has them."""
    assert _one(name, f"marker_id, {COUNTS}") == (marker, *counts)


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("execute_context_0(0)_generation_1(1)", "decode"),
        ("execute_context_0(0)_generation_4(16)", "verify"),
        ("execute_context_1(888)_generation_0(0)", "prefill"),
        ("execute_context_1(888)_generation_4(4)", "mixed"),
        ("execute_context_1(888)_generation_4(16)", "mixed"),
        ("execute_context_0(0)_generation_0(0)", "unknown"),
        ("execute_new_0_cached_4", "decode"),
        ("execute_new_2_cached_0", "prefill"),
        ("execute_new_2_cached_4", "mixed"),
        ("ProfilerStep#0", "unknown"),
    ],
)
def test_the_phase_follows_from_what_is_scheduled(name: str, phase: str) -> None:
    """Context only is prefill, generation only decode, more tokens than requests verify, both mixed."""
    assert _one(name, "phase") == (phase,)


@pytest.mark.parametrize(
    "name",
    [
        "gpu_model_runner: forward",
        "execute_context_1",
        "xexecute_new_0_cached_4",
        "ProfilerStep",
        "execute_dummy_batch",
    ],
)
def test_other_annotations_mark_no_step(name: str) -> None:
    """Scopes inside a step and texts that only look like a marker are left out."""
    assert run_model("int_step_marker", {"stg_annotation": [_note(name)]}, "label") == []


def test_torch_steps_give_way_to_the_engines() -> None:
    """ProfilerStep#N counts only in a trace without an engine's marker."""
    notes = [
        _note("ProfilerStep#1", 0, 100),
        _note("execute_new_0_cached_1", 10, 20),
        _note("ProfilerStep#7", 0, 100, trace_id="u"),
    ]
    assert run_model("int_step_marker", {"stg_annotation": notes}, "trace_id, label") == [
        ("t", "execute_new_0_cached_1"),
        ("u", "ProfilerStep#7"),
    ]


def test_steps_are_numbered_by_time_in_each_trace() -> None:
    """Step numbers start at 0 and follow the start, whatever the order in the file."""
    notes = [
        _note("execute_new_0_cached_1", at, at + 5, trace_id=trace)
        for at, trace in ((20, "t"), (0, "t"), (10, "t"), (99, "u"))
    ]
    found = run_model("int_step_marker", {"stg_annotation": notes}, "trace_id, step, start_ns")
    assert found == [("t", 0, 0), ("t", 1, 10), ("t", 2, 20), ("u", 0, 99)]


def test_nested_repeats_are_dropped() -> None:
    """A marker inside another on the same thread is the same step again."""
    outer, inner = "execute_context_0(0)_generation_1(1)", "execute_new_0_cached_1"
    notes = [_note(outer, 0, 100), _note(inner, 0, 90), _note(inner, 10, 100), _note(outer, 100, 200)]
    assert run_model("int_step_marker", {"stg_annotation": notes}, "step, label, start_ns, end_ns") == [
        (0, outer, 0, 100),
        (1, outer, 100, 200),
    ]


def test_markers_of_two_threads_do_not_nest() -> None:
    """A marker that overlaps one of another thread is a step of its own."""
    notes = [_note("execute_new_0_cached_1", 0, 100), _note("execute_new_0_cached_1", 10, 20, tid=2)]
    assert run_model("int_step_marker", {"stg_annotation": notes}, "step, tid") == [(0, 1), (1, 2)]


def test_confidence_says_how_sure_the_marker_is() -> None:
    """The engine's full text is sure, cached requests may still be in prefill, torch's steps only count
    calls."""
    names = ["execute_context_0(0)_generation_1(1)", "execute_new_0_cached_1", "ProfilerStep#6"]
    assert [_one(n, "engine, confidence") for n in names] == [("vllm", 1.0), ("vllm", 0.7), ("torch", 0.5)]


def test_an_open_marker_ends_where_the_next_of_its_thread_begins() -> None:
    """A range that was never closed must not hide the steps after it; on another thread it changes
    nothing."""
    notes = [
        _note(DECODE, 0, 900, is_open=True),
        _note(DECODE, 100, 120),
        _note(DECODE, 200, 900, is_open=True),
        _note(DECODE, 150, 160, tid=2),
    ]
    found = run_model("int_step_marker", {"stg_annotation": notes}, "start_ns, end_ns, tid", "start_ns")
    assert found == [(0, 100, 1), (100, 120, 1), (150, 160, 2), (200, 900, 1)]
