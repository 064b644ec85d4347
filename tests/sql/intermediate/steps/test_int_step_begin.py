"""int_step_begin: where steps begin, by the most trusted method that a trace allows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.tables import Row, run_model

MARKER: dict[str, Any] = {
    "step": 0,
    "label": "execute_context_0(0)_generation_2(2)",
    "start_ns": 100,
    "end_ns": 200,
    "phase": "decode",
    "generation_requests": 2,
}
REPLAY: dict[str, Any] = {"step": 0, "start_ns": 110, "end_ns": 111, "phase": "decode", "confidence": 0.8}
PATTERN: dict[str, Any] = {"step": 0, "start_ns": 900, "phase": "decode", "confidence": 0.5}


def _begun(trace: Row | None = None, **rows: list[Row]) -> list[tuple[object, ...]]:
    tables = {"stg_trace": [trace or {}], **{f"int_{table}": made for table, made in rows.items()}}
    return run_model(
        "int_step_begin", tables, "device, step, method, start_ns, confidence, generation_requests, label"
    )


def test_annotations_beat_replays_and_kernel_order() -> None:
    """Where the engine marks its steps nothing else is used."""
    found = _begun(marked_pass=[MARKER], replay_pass=[REPLAY], pattern_pass=[PATTERN])
    assert found == [(None, 0, "annotation", 100, 1.0, 2, "execute_context_0(0)_generation_2(2)")]


def test_replays_beat_kernel_order() -> None:
    """Without annotations graph replays begin the steps; requests are unknown."""
    assert _begun(replay_pass=[REPLAY], pattern_pass=[PATTERN]) == [(None, 0, "graph", 110, 0.8, None, None)]


def test_kernel_order_is_the_last_resort_and_is_per_device() -> None:
    """With neither, the repeating order of kernels begins steps on each device."""
    found = _begun(pattern_pass=[PATTERN, PATTERN | {"device": 1, "start_ns": 950}])
    assert found == [(0, 0, "pattern", 900, 0.5, None, None), (1, 0, "pattern", 950, 0.5, None, None)]


def test_without_any_of_them_there_are_no_steps() -> None:
    """Nothing is invented."""
    assert _begun() == []


def test_the_method_is_chosen_per_trace() -> None:
    """A rank whose annotations are missing goes by its replays, beside ranks that have them."""
    other = {"trace_id": "u"}
    tables = {
        "stg_trace": [{}, other],
        "int_marked_pass": [MARKER],
        "int_replay_pass": [REPLAY, REPLAY | other],
    }
    assert run_model("int_step_begin", tables, "trace_id, method") == [("t", "annotation"), ("u", "graph")]


@pytest.mark.parametrize(("source", "method"), [("kineto", "annotation"), ("nsys", "nvtx")])
def test_ranges_of_nsys_are_called_nvtx(source: str, method: str) -> None:
    """The method says where the annotation came from."""
    (found,) = _begun({"source": source}, marked_pass=[MARKER])
    assert found[2] == method
