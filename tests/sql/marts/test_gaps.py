"""gaps: every stretch in which a device ran nothing."""

from __future__ import annotations

import pytest

from pipeline.duck import rows, scalar
from tests.support.builders import ALL_REDUCE, GEMM
from tests.support.sequence import Sequence
from tests.support.tables import Row, Scene, build_scenes, run_model

COPY = "Memcpy HtoD (Pinned -> Device)"


def _gaps(made: Sequence, columns: str, **tables: list[Row]) -> list[tuple[object, ...]]:
    return run_model("gaps", made.tables() | {"stg_trace": [{}]} | tables, columns, "device, start_ns")


def test_a_gap_lies_between_two_activities() -> None:
    """It begins where the device went empty, and says what ran before and after."""
    made = Sequence().run("gemm", gap_ns=90).run("attention")
    assert _gaps(made, "start_ns, dur_ns, category_before, category_after, step") == [
        (1_010, 90, "gemm", "attention", 0)
    ]


def test_overlapping_work_leaves_no_gap() -> None:
    """What runs on another stream meanwhile fills the gap of the first."""
    made = Sequence().run("gemm", gap_ns=90).run("gemm")
    made.run("allreduce", start_ns=1_005, end_ns=1_100, stream=20)
    assert _gaps(made, "start_ns") == []


def test_the_longest_runner_comes_before_the_gap() -> None:
    """The gap begins after the activity that ended last, not after the one that started last."""
    made = (
        Sequence()
        .run("allreduce", start_ns=1_000, end_ns=1_500, stream=20)
        .run("gemm", start_ns=1_100, end_ns=1_200)
    )
    made.run("norm", start_ns=1_600, end_ns=1_610)
    assert _gaps(made, "start_ns, dur_ns, category_before, category_after") == [
        (1_500, 100, "allreduce", "norm")
    ]


def test_inside_a_replay_the_host_is_not_late() -> None:
    """Kernels of one replay share a call, which came long before."""
    made = Sequence().run("gemm gemm", gap_ns=50, graph=True, launch_ns=900)
    assert _gaps(made, "place, is_host_late") == [("inside_replay", False)]


@pytest.mark.parametrize(("launch_ns", "late"), [(1_009, False), (1_010, False), (1_011, True), (None, None)])
def test_the_host_is_late_when_its_call_came_after_the_device_went_empty(
    launch_ns: int | None, late: bool | None
) -> None:
    """The call that launched what ended the gap decides; without its record it is unknown."""
    made = Sequence().run("gemm", gap_ns=50, launch_ns=500).run("gemm", launch_ns=launch_ns)
    assert _gaps(made, "place, is_host_late") == [("between_launches", late)]


def test_two_replays_of_a_step_are_two_launches() -> None:
    """Piecewise graphs: the gap from one replay to the next is between launches."""
    made = Sequence().run("gemm", gap_ns=50, graph=True).run("gemm", graph=True)
    assert _gaps(made, "place") == [("between_launches",)]


def test_eager_kernels_of_one_correlation_are_no_replay() -> None:
    """Only graphs have gaps inside a replay."""
    made = Sequence().run("gemm gemm", gap_ns=50, correlation=7)
    assert _gaps(made, "place") == [("between_launches",)]


def test_between_steps() -> None:
    """From one step's work to another's, or to work of no step; the gap belongs to the step before it."""
    made = (
        Sequence()
        .run("gemm", 0, gap_ns=50)
        .run("gemm", 1, gap_ns=60)
        .run("gemm", None, gap_ns=70)
        .run("gemm", None)
    )
    assert _gaps(made, "step, place, dur_ns") == [
        (0, "between_steps", 50),
        (1, "between_steps", 60),
        (None, "between_launches", 70),
    ]


def test_the_phase_is_that_of_the_step_before() -> None:
    """Unknown without a step."""
    made = Sequence().run("gemm", 0, gap_ns=50).run("gemm", None, gap_ns=50).run("gemm", 1)
    steps: list[Row] = [{"step": 0, "phase": "decode"}, {"step": 1, "phase": "prefill"}]
    assert _gaps(made, "phase", steps=steps) == [("decode",), ("unknown",)]


@pytest.mark.parametrize(
    ("dur_ns", "size_class"),
    [
        (1, "under 1 us"), (999, "under 1 us"), (1_000, "1 to 10 us"), (9_999, "1 to 10 us"),
        (10_000, "10 to 100 us"),
        (100_000, "100 us to 1 ms"), (999_999, "100 us to 1 ms"), (1_000_000, "1 ms and more"),
    ],
)  # fmt: skip
def test_size_classes(dur_ns: int, size_class: str) -> None:
    """Each class has its lower bound, not its upper."""
    assert _gaps(Sequence().run("gemm", gap_ns=dur_ns).run("gemm"), "dur_ns, size_class") == [
        (dur_ns, size_class)
    ]


def test_an_activity_of_no_length_parts_a_gap() -> None:
    """Both parts are gaps, and their sum is the whole."""
    made = Sequence().run("gemm", gap_ns=100).run("gemm").run("fill", start_ns=1_050, end_ns=1_050, dur_ns=0)
    assert _gaps(made, "start_ns, dur_ns") == [(1_010, 40), (1_050, 60)]


def test_devices_are_apart() -> None:
    """Work of another device ends no gap here."""
    first, second = (
        Sequence().run("gemm", gap_ns=100).run("gemm"),
        Sequence(device=1, now_ns=1_050).run("gemm"),
    )
    for row in second.kernels:
        row["activity_id"] = 9
    second.places = [{"trace_id": "t", "activity_id": 9, "step": 0}]
    tables = {table: made + second.tables()[table] for table, made in first.tables().items()}
    assert run_model("gaps", tables | {"stg_trace": [{}]}, "device, dur_ns") == [(0, 100)]


def test_the_sum_of_gaps_is_the_time_lines_idle_and_unknown() -> None:
    """Whatever overlaps, whatever was lost: gaps and the closing line of the books agree on every device."""
    scene = Scene()
    for step, count in enumerate((5, 5, 3, 5, 5)):
        scene.step(1_000 * step, 40).launch(
            1_000 * step + 1, (GEMM, 1_000 * step + 90, 0), (COPY, 1_000 * step + 50, 20), stream=3
        )
        scene.unlaunched((ALL_REDUCE, 1_000 * step + 330, 300), device=1)
        for number in range(count):
            scene.launch(
                1_000 * step + 3 + number,
                (
                    GEMM if number % 2 else ALL_REDUCE,
                    1_000 * step + 100 + 150 * number,
                    100 + 60 * (number % 2),
                ),
            )
    with build_scenes(scene, wanted=["gaps", "timeline"]) as con:
        found = rows(con, "SELECT device, sum(dur_ns)::BIGINT FROM gaps GROUP BY device ORDER BY device")
        assert found == rows(con, "SELECT device, idle_ns + unknown_ns FROM timeline ORDER BY device")
        assert scalar(con, "SELECT max(unknown_ns) FROM timeline") > 0
