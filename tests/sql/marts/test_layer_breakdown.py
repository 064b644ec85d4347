"""layer_breakdown: calls and time of each kind of work in each layer."""

from __future__ import annotations

from tests.support.tables import Row, run_model

COLUMNS = "phase, layer, category, steps, calls_min, calls_mode, calls_max, us_p50, us_mean, exposed_us_p50"


def _work(
    step: int, layer: int | None, *durations: int, category: str = "gemm", **fields: object
) -> list[Row]:
    made = {
        "step": step,
        "layer": layer,
        "phase": "decode",
        "category": category,
        "rollup": category.upper(),
    } | fields
    return [
        made | {"activity_id": n, "dur_ns": dur, "exposed_ns": dur // 2} for n, dur in enumerate(durations)
    ]


def _broken_down(
    *work: list[Row], steps: list[Row] | None = None, columns: str = COLUMNS
) -> list[tuple[object, ...]]:
    tables = {
        "activity": [row for rows in work for row in rows],
        "steps": steps or [{"step": step} for step in range(5)],
    }
    return run_model("layer_breakdown", tables, columns)


def test_calls_and_time_of_a_layer_are_those_of_a_step() -> None:
    """Counts per step as integers; median and mean over the steps of the sum within each."""
    found = _broken_down(_work(0, 3, 1_000, 2_000), _work(1, 3, 2_000, 3_000), _work(2, 3, 10_000))
    assert found == [("decode", 3, "gemm", 3, 1, 2, 2, 5.0, 6.0, 2.5)]


def test_layers_and_categories_are_kept_apart() -> None:
    """Each layer has a row for each kind of work in it."""
    found = _broken_down(
        _work(0, 0, 1_000),
        _work(0, 0, 5_000, category="norm"),
        _work(0, 1, 2_000),
        columns="layer, category, rollup, us_p50",
    )
    assert found == [(0, "gemm", "GEMM", 1.0), (0, "norm", "NORM", 5.0), (1, "gemm", "GEMM", 2.0)]


def test_what_has_no_layer_is_left_out() -> None:
    """Head, sampling and steps without layers have no row here."""
    assert _broken_down(_work(0, None, 1_000)) == []


def test_incomplete_steps_are_left_out() -> None:
    """A step that lost records does not lower a layer's mean."""
    steps: list[Row] = [{"step": 0}, {"step": 1, "is_complete": False}]
    assert _broken_down(_work(0, 0, 4_000), _work(1, 0, 1_000), steps=steps, columns="steps, us_mean") == [
        (1, 4.0)
    ]


def test_ranks_are_steps_of_their_own() -> None:
    """The same step on two ranks counts twice, and the mean is over both."""
    steps: list[Row] = [{"step": 0}, {"step": 0, "trace_id": "u"}]
    found = _broken_down(
        _work(0, 0, 4_000), _work(0, 0, 2_000, trace_id="u"), steps=steps, columns="steps, us_mean"
    )
    assert found == [(2, 3.0)]


def test_sources_and_phases_are_never_mixed() -> None:
    """A torch trace and an nsys report, prefill and decode, have rows of their own."""
    steps: list[Row] = [
        {"step": step, "source": source} for step, source in enumerate(("kineto", "nsys", "kineto"))
    ]
    found = _broken_down(
        _work(0, 0, 1_000),
        _work(1, 0, 2_000, source="nsys"),
        _work(2, 0, 3_000, phase="prefill"),
        steps=steps,
        columns="source, phase, us_p50",
    )
    assert found == [("kineto", "decode", 1.0), ("kineto", "prefill", 3.0), ("nsys", "decode", 2.0)]
