"""stg_annotation: annotations of the CPU side."""

from __future__ import annotations

from tests.models.tables import Row, run_model


def _annotation(**fields: object) -> Row:
    return {"name": "execute", "start_ns": 100, "dur_ns": 20} | fields


def test_an_annotation_ends_after_its_duration() -> None:
    """end_ns is start plus duration."""
    assert run_model("stg_annotation", {"raw.annotation": [_annotation()]}, "name, pid, tid, start_ns, end_ns") == [("execute", 1, 1, 100, 120)]


def test_gpu_twins_are_left_out() -> None:
    """The twin that the profiler draws on each stream is no annotation of its own."""
    assert run_model("stg_annotation", {"raw.annotation": [_annotation(), _annotation(side="gpu", stream=7)]}, "start_ns") == [(100,)]


def test_an_open_range_is_left_out() -> None:
    """A range without an end bounds nothing."""
    assert run_model("stg_annotation", {"raw.annotation": [_annotation(dur_ns=None, is_open=True)]}, "name") == []
