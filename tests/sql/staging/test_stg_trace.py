"""stg_trace: the traces of the run."""

from __future__ import annotations

from tests.support.tables import Row, run_model


def test_a_trace_keeps_what_models_use() -> None:
    """Run, source, rank and GPU of each trace, one row per trace."""
    rows: list[Row] = [
        {"rank": 3, "world_size": 8, "gpu_name": "H200", "vendor": "nvidia"},
        {"trace_id": "u", "rank": None},
    ]
    found = run_model(
        "stg_trace", {"raw.trace": rows}, "run_id, trace_id, source, rank, world_size, gpu_name, vendor"
    )
    assert found == [
        ("run", "t", "kineto", 3, 8, "H200", "nvidia"),
        ("run", "u", "kineto", None, None, None, None),
    ]
