"""run_breakdown: the table."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb

from pipeline.duck import rows
from tests.support.builders import ALL_REDUCE, GEMM, MARLIN_MOE
from tests.support.tables import Row, Scene, build_scenes, run_model

US = 1_000
PREFILL = "execute_context_1(64)_generation_0(0)"


def _scene(
    steps: Sequence[Sequence[tuple[str, int]]],
    rank: int = 0,
    labels: Sequence[str] = (),
    source: str = "kineto",
) -> Scene:
    """A trace whose steps hold (name, us) kernels one after another, a step every 1000 us."""
    scene = Scene(f"{source}{rank}", rank, source)
    for number, kernels in enumerate(steps):
        begin = number * 1000 * US
        scene.step(begin, 100, *labels[number : number + 1])
        at = begin + 200
        for name, length_us in kernels:
            scene.launch(begin + 50, (name, at, length_us * US))
            at += length_us * US
    return scene


def _table(con: duckdb.DuckDBPyConnection, columns: str, where: str = "true") -> list[tuple[object, ...]]:
    return rows(con, f"SELECT {columns} FROM run_breakdown WHERE {where} ORDER BY source, phase, rollup")


def test_the_headline_is_the_median_over_steps() -> None:
    """One slow step moves the mean and the maximum, not ms_p50; times are exact to the nanosecond."""
    with build_scenes(_scene([[(GEMM, 10)], [(GEMM, 10)], [(GEMM, 100)]]), wanted=["run_breakdown"]) as con:
        assert _table(con, "steps, ms_p50, ms_mean, us_per_call") == [(3, 0.01, 0.04, 40.0)]


def test_calls_are_integers_per_step_and_never_an_average() -> None:
    """127 calls in one step and 123 in three are min 123, mode 123, max 127."""
    steps = [[(ALL_REDUCE, 1)] * n for n in (127, 123, 123, 123)]
    with build_scenes(_scene(steps), wanted=["run_breakdown"]) as con:
        assert _table(con, "calls_min, calls_mode, calls_max") == [(123, 123, 127)]


def test_of_counts_as_frequent_the_lower_is_the_mode() -> None:
    """The mode does not depend on the order of rows."""
    with build_scenes(_scene([[(GEMM, 1)] * 3, [(GEMM, 1)] * 2]), wanted=["run_breakdown"]) as con:
        assert _table(con, "calls_mode") == [(2,)]


def test_a_step_without_a_kind_of_work_counts_as_none_of_it() -> None:
    """A rollup that runs in one of three steps has median 0 and calls_min 0, not the median of the one."""
    with build_scenes(
        _scene([[(GEMM, 10), (MARLIN_MOE, 30)], [(GEMM, 10)], [(GEMM, 10)]]), wanted=["run_breakdown"]
    ) as con:
        assert _table(con, "calls_min, calls_mode, calls_max, ms_p50, ms_mean", "rollup = 'MoE GEMM'") == [
            (0, 0, 1, 0.0, 0.01)
        ]


def test_ranks_are_averaged_within_a_step_and_shown_apart() -> None:
    """ms_p50 is the median over steps of the mean over ranks; lowest, highest and worst rank stand beside
    it."""
    with build_scenes(
        _scene([[(GEMM, 10)]] * 3, 0), _scene([[(GEMM, 30)]] * 3, 1), wanted=["run_breakdown"]
    ) as con:
        assert _table(con, "steps, ranks, ms_p50, ms_rank_min, ms_rank_max, worst_rank") == [
            (3, 2, 0.02, 0.01, 0.03, 1)
        ]


def test_shares_are_of_summed_time_and_add_up() -> None:
    """share is ms_mean over the sum of ms_mean; wall_share is exposed over wall."""
    with build_scenes(_scene([[(GEMM, 30), (ALL_REDUCE, 10)]] * 3), wanted=["run_breakdown"]) as con:
        assert _table(con, "rollup, share, wall_share") == [("AllReduce", 0.25, 0.01), ("GEMM", 0.75, 0.03)]


def test_phases_do_not_mix() -> None:
    """A prefill among decode steps has rows of its own."""
    with build_scenes(
        _scene([[(GEMM, 900)], [(GEMM, 10)], [(GEMM, 10)]], labels=[PREFILL]), wanted=["run_breakdown"]
    ) as con:
        assert _table(con, "phase, steps, ms_p50") == [("decode", 2, 0.01), ("prefill", 1, 0.9)]


def test_sources_do_not_mix() -> None:
    """The same rank in a torch trace and in an nsys report is never averaged."""
    with build_scenes(
        _scene([[(GEMM, 10)]]), _scene([[(GEMM, 20)]], source="nsys"), wanted=["run_breakdown"]
    ) as con:
        assert _table(con, "source, ranks, ms_p50") == [("kineto", 1, 0.01), ("nsys", 1, 0.02)]


def test_incomplete_steps_are_left_out() -> None:
    """An empty step and one with a capture's start skew enter no mean."""
    skewed = [(ALL_REDUCE, 9000), (ALL_REDUCE, 7), (ALL_REDUCE, 7)]
    with build_scenes(_scene([skewed, [(ALL_REDUCE, 7)], []]), wanted=["run_breakdown"]) as con:
        assert _table(con, "phase, steps, ms_mean") == [("decode", 1, 0.007)]


def test_exposed_time_stands_beside_summed_time() -> None:
    """Communication hidden under compute has its summed time and no exposed time."""
    scene = Scene().step(0, 10).launch(1, (GEMM, 100, 5_000)).launch(2, (ALL_REDUCE, 100, 4_000), stream=9)
    with build_scenes(scene, wanted=["run_breakdown"]) as con:
        assert _table(con, "rollup, ms_p50, exposed_ms_p50") == [
            ("AllReduce", 0.004, 0.0),
            ("GEMM", 0.005, 0.005),
        ]


def test_unmatched_steps_of_two_devices_are_two_steps() -> None:
    """Their numbers are equal by accident: the mean of the median is over four steps, not over two pairs."""
    times = {(0, 0): 1, (0, 1): 1, (1, 0): 1, (1, 1): 9}
    steps: list[Row] = [{"device": device, "step": n, "phase": "decode"} for device, n in times]
    booked: list[Row] = [
        {
            "device": device,
            "step": n,
            "rollup": "GEMM",
            "calls": 1,
            "busy_ns": ms * 1_000_000,
            "exposed_ns": 0,
        }
        for (device, n), ms in times.items()
    ]
    found = run_model("run_breakdown", {"steps": steps, "step_breakdown": booked}, "steps, ms_p50, ms_mean")
    assert found == [(4, 1.0, 3.0)]
