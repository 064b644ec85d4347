"""stg_annotation: annotations of the CPU side."""

from __future__ import annotations

from tests.support.tables import Row, run_model


def _annotation(**fields: object) -> Row:
    return {"name": "execute", "start_ns": 100, "dur_ns": 20} | fields


def test_an_annotation_ends_after_its_duration() -> None:
    """end_ns is start plus duration."""
    assert run_model(
        "stg_annotation", {"raw.annotation": [_annotation()]}, "name, pid, tid, start_ns, end_ns"
    ) == [("execute", 1, 1, 100, 120)]


def test_gpu_twins_are_left_out() -> None:
    """The twin that the profiler draws on each stream is no annotation of its own."""
    assert run_model(
        "stg_annotation", {"raw.annotation": [_annotation(), _annotation(side="gpu", stream=7)]}, "start_ns"
    ) == [(100,)]


def test_an_annotation_without_an_end_is_left_out() -> None:
    """One whose duration could not be read bounds nothing."""
    assert run_model("stg_annotation", {"raw.annotation": [_annotation(dur_ns=None)]}, "name") == []


def test_an_open_range_ends_with_the_last_event_of_its_trace() -> None:
    """A range still open when recording stopped lasts until the trace's last launch or activity, whichever is
    later."""
    tables: dict[str, list[Row]] = {
        "raw.annotation": [
            _annotation(dur_ns=None, is_open=True),
            _annotation(trace_id="u", dur_ns=None, is_open=True),
        ],
        "raw.launch": [
            {"name": "cudaLaunchKernel", "start_ns": 150, "dur_ns": 5},
            {"trace_id": "u", "name": "c", "start_ns": 400, "dur_ns": None},
        ],
        "raw.gpu_activity": [
            {"activity_id": 0, "name": "k", "start_ns": 170, "dur_ns": 30},
            {"trace_id": "u", "name": "k", "start_ns": 1, "dur_ns": 1},
        ],
    }
    assert run_model("stg_annotation", tables, "trace_id, end_ns, is_open") == [
        ("t", 200, True),
        ("u", 400, True),
    ]


def test_an_open_range_after_the_last_event_is_empty() -> None:
    """Nothing was recorded in it: it ends where it starts."""
    tables: dict[str, list[Row]] = {
        "raw.annotation": [_annotation(dur_ns=None, is_open=True)],
        "raw.gpu_activity": [{"name": "k", "start_ns": 1, "dur_ns": 1}],
    }
    assert run_model("stg_annotation", tables, "start_ns, end_ns") == [(100, 100)]
