"""timeline: the closing line of each device's books."""

from __future__ import annotations

from pipeline.duck import rows
from tests.support.builders import ALL_REDUCE, GEMM
from tests.support.tables import Scene, build_scenes

CLOSES = "exposed_ns + idle_ns + unknown_ns = end_ns - start_ns"


def test_exposed_and_idle_fill_the_time_line() -> None:
    """From the first start to the last end every instant is exposed or idle."""
    scene = Scene().launch(1, (GEMM, 100, 50), (ALL_REDUCE, 120, 60), (GEMM, 300, 10))
    with build_scenes(scene, wanted=["timeline"]) as con:
        found = rows(
            con, f"SELECT start_ns, end_ns, exposed_ns, busy_ns, idle_ns, unknown_ns, {CLOSES} FROM timeline"
        )
    assert found == [(100, 310, 90, 120, 120, 0, True)]


def test_devices_and_traces_close_on_their_own() -> None:
    """Work of another device or rank neither fills nor opens a gap here."""
    first = Scene().launch(1, (GEMM, 0, 10), (GEMM, 20, 10)).launch(2, (GEMM, 10, 10), device=1)
    second = Scene("u", 1).launch(1, (GEMM, 0, 30))
    with build_scenes(first, second, wanted=["timeline"]) as con:
        found = rows(con, "SELECT trace_id, device, exposed_ns, idle_ns FROM timeline ORDER BY ALL")
    assert found == [("t", 0, 20, 10), ("t", 1, 10, 0), ("u", 0, 30, 0)]


def test_activities_without_length_bound_the_time_line() -> None:
    """A zero-length activity before all work opens the line, and the wait after it is idle."""
    with build_scenes(
        Scene().launch(1, (GEMM, 0, 0), (GEMM, 50, 10), (GEMM, 55, 0), (GEMM, 70, 0)), wanted=["timeline"]
    ) as con:
        assert rows(con, f"SELECT exposed_ns, idle_ns, {CLOSES} FROM timeline") == [(10, 60, True)]


def test_only_zero_length_work_closes_too() -> None:
    """A device on which nothing took time has a line of its own."""
    with build_scenes(Scene().launch(1, (GEMM, 5, 0), (GEMM, 9, 0)), wanted=["timeline"]) as con:
        assert rows(con, "SELECT start_ns, end_ns, exposed_ns, idle_ns FROM timeline") == [(5, 9, 0, 4)]


def test_activities_in_steps_are_counted_beside_all() -> None:
    """The line says how many activities belong to a step."""
    scene = Scene().launch(1, (GEMM, 0, 5)).step(10, 5).launch(11, (GEMM, 20, 5), (GEMM, 30, 5))
    with build_scenes(scene, wanted=["timeline"]) as con:
        assert rows(con, "SELECT activities, activities_in_steps FROM timeline") == [(3, 2)]


def _lossy(*kernels: int, every_ns: int = 1_000) -> Scene:
    """Steps of so many kernels each, 100 ns of work every 150 ns."""
    scene = Scene()
    for step, count in enumerate(kernels):
        scene.step(every_ns * step, 40)
        for number in range(count):
            scene.launch(every_ns * step + 1 + number, (GEMM, every_ns * step + 100 + 150 * number, 100))
    return scene


def test_idle_around_lost_records_is_unknown() -> None:
    """Gaps before, within and after a step that lost records are unknown, and the line closes exactly."""
    with build_scenes(_lossy(5, 5, 3, 5, 5), wanted=["timeline"]) as con:
        found = rows(con, f"SELECT exposed_ns, idle_ns, unknown_ns, {CLOSES} FROM timeline")
    # Four whole steps idle 200 inside, three gaps of 300 between whole steps less the one before the lost
    # step; the lost step: 300 before it, 100 inside, 600 after it.
    assert found == [(2_300, 4 * 200 + 2 * 300, 300 + 100 + 600, True)]


def test_neighbors_that_both_lost_records_are_counted_once() -> None:
    """The gap between two such steps is unknown once, and the line closes."""
    with build_scenes(_lossy(5, 5, 3, 2, 5, 5, 5), wanted=["timeline"]) as con:
        found = rows(con, f"SELECT idle_ns, unknown_ns, {CLOSES} FROM timeline")
    assert found == [(5 * 200 + 3 * 300, 300 + (100 + 600) + (50 + 750), True)]


def test_first_and_last_steps_cut_by_the_capture_close_too() -> None:
    """A capture that begins and ends within a step has unknown time at both ends."""
    with build_scenes(_lossy(3, 5, 5, 5, 2), wanted=["timeline"]) as con:
        found = rows(con, f"SELECT idle_ns, unknown_ns, {CLOSES} FROM timeline")
    assert found == [(3 * 200 + 2 * 300, (100 + 600) + 300 + 50, True)]


def test_a_lost_step_that_begins_with_a_kernel_of_no_length_closes_too() -> None:
    """The time line may begin with an activity that took no time, before all work."""
    scene = Scene().step(0, 40).launch(1, (GEMM, 100, 0)).launch(2, (GEMM, 250, 100))
    for step in range(1, 4):
        scene.step(1_000 * step, 40).launch(
            1_000 * step + 1, *[(GEMM, 1_000 * step + 100 + 150 * i, 100) for i in range(5)]
        )
    with build_scenes(scene, wanted=["timeline"]) as con:
        found = rows(con, f"SELECT idle_ns, unknown_ns, {CLOSES} FROM timeline")
    assert found == [(3 * 200 + 2 * 300, 150 + 750, True)]
