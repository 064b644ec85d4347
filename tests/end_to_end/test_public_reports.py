"""What went wrong for people who read these traces with other tools: one test for each public report.

Here are the reports on overlaps, double counting, graphs and correlation.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.duck import rows, scalar
from tests.support.builders import (
    ALL_REDUCE,
    DECODE,
    GEMM,
    annotation,
    build_from,
    event,
    kernel,
    launch,
    memcpy,
)
from tests.support.tables import Scene, build_scenes

MARTS = ("timeline", "step_breakdown", "run_breakdown", "run_facts")
"""What the tests ask, with all that these read."""

CUSTOM = (
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals, "
    "vllm::Signal*, __nv_bfloat16*, int, int)"
)


def test_kernels_that_share_a_launch_are_booked_one_by_one() -> None:
    """AMD-AGI/TraceLens#827, Hyperloom#946: 1,000 kernels of two replays share 2 launch ids and each keeps
    its own row."""
    scene = Scene()
    for step in range(2):
        begin = 1_000_000 * step
        replay = [(GEMM if i % 2 else ALL_REDUCE, begin + 1_000 + 100 * i, 50) for i in range(500)]
        scene.step(begin, 100).launch(begin + 10, *replay, call="cudaGraphLaunch")
    with build_scenes(scene, wanted=MARTS) as con:
        assert rows(con, "SELECT count(*), count(DISTINCT correlation) FROM activity") == [(1000, 2)]
        found = rows(con, "SELECT step, category, calls, busy_ns FROM step_breakdown ORDER BY ALL")
    assert found == [(step, category, 250, 12_500) for step in (0, 1) for category in ("allreduce", "gemm")]


def test_idle_in_a_graph_is_what_no_kernel_covers() -> None:
    """AMD-AGI/TraceLens#728: inside a replay whose kernels follow each other on two streams nothing is
    idle."""
    scene = (
        Scene()
        .step(0, 100)
        .launch(10, *[(GEMM, 1_000 + 100 * i, 100) for i in range(0, 10, 2)], call="cudaGraphLaunch")
    )
    scene.unlaunched(*[(GEMM, 1_000 + 100 * i, 100) for i in range(1, 10, 2)], stream=20, correlation=1)
    scene.step(500, 100).launch(510, (GEMM, 2_000, 10), call="cudaGraphLaunch")
    with build_scenes(scene, wanted=MARTS) as con:
        assert rows(con, "SELECT exposed_ns, idle_inside_ns, wall_ns FROM steps WHERE step = 0") == [
            (1_000, 0, 1_000)
        ]


def test_devices_of_one_file_are_kept_apart() -> None:
    """AMD-AGI/TraceLens#581: work on two devices of one file is booked to its own device, in steps and on
    time lines."""
    scene = (
        Scene()
        .step(0, 100)
        .launch(10, (GEMM, 1_000, 100), device=0)
        .launch(11, (ALL_REDUCE, 1_000, 300), device=1)
    )
    with build_scenes(scene, wanted=MARTS) as con:
        assert rows(con, "SELECT device, category, busy_ns FROM step_breakdown ORDER BY ALL") == [
            (0, "gemm", 100),
            (1, "allreduce", 300),
        ]
        assert rows(con, "SELECT device, end_ns FROM steps ORDER BY ALL") == [(0, 1_100), (1, 1_300)]


def test_the_gpu_twin_of_an_annotation_ends_no_step(tmp_path: Path) -> None:
    """pytorch/kineto#1022: a GPU annotation that covers only the first kernel neither ends the step nor
    counts as one."""
    events = [
        annotation(DECODE, 1_000, 500, 1),
        launch(1_100, 1),
        launch(1_200, 2),
        kernel(GEMM, 10_000, 100, 1),
        kernel(GEMM, 20_000, 100, 2),
    ]
    events.append(event("gpu_user_annotation", DECODE, 10_000, 100, pid=0, tid=7, External_id=1))
    with build_from(tmp_path, events) as con:
        assert rows(con, "SELECT count(*), min(activities), min(span_ns) FROM steps") == [(1, 2, 10_100)]


def test_kernels_after_the_annotation_belong_to_the_step_that_launched_them() -> None:
    """pytorch/kineto PR#301, PR#305: a kernel that runs after its step's CPU range, in the next one's, is
    still its own step's."""
    scene = Scene().step(0, 100).launch(50, (GEMM, 250, 10)).step(200, 100).launch(210, (GEMM, 900, 10))
    with build_scenes(scene, wanted=MARTS) as con:
        assert rows(con, "SELECT start_ns, step FROM activity ORDER BY start_ns") == [(250, 0), (900, 1)]


def test_annotations_are_never_gpu_time(tmp_path: Path) -> None:
    """pytorch#130730: the total is that of kernels and copies, whatever annotations are drawn over the GPU's
    streams."""
    events = [
        annotation(DECODE, 1_000, 500, 1),
        launch(1_100, 1),
        launch(1_200, 2),
        kernel(GEMM, 10_000, 100, 1),
    ]
    events.append(memcpy("Memcpy DtoH (Device -> Pinned)", 11_000, 20, 2))
    events += [
        event("gpu_user_annotation", DECODE, 10_000, 5_000, pid=0, tid=stream, External_id=1)
        for stream in (7, 20)
    ]
    with build_from(tmp_path, events) as con:
        assert rows(con, "SELECT activities, busy_ns, exposed_ns FROM timeline") == [(2, 120, 120)]


def test_no_share_is_above_one() -> None:
    """pytorch PR#94972, PR#45209: with everything overlapping, shares of summed time add up to 1 and shares
    of wall stay below."""
    scene = Scene()
    for step in range(3):
        begin = 10_000 * step
        scene.step(begin, 100)
        for stream, name in enumerate((GEMM, ALL_REDUCE, GEMM, CUSTOM)):
            scene.launch(begin + 10 + stream, (name, begin + 1_000, 9_000), stream=stream)
    with build_scenes(scene, wanted=MARTS) as con:
        assert scalar(con, "SELECT round(sum(share), 6) FROM run_breakdown") == 1
        assert scalar(con, "SELECT sum(wall_share) FROM run_breakdown") == 0.9
        assert rows(
            con,
            (
                "SELECT DISTINCT exposed_ns + idle_inside_ns + gap_after_ns = wall_ns FROM steps WHERE "
                "wall_ns "
                "IS NOT NULL"
            ),
        ) == [(True,)]


def test_communication_is_reported_summed_and_exposed() -> None:
    """HTA#241: an all-reduce that is half hidden under a GEMM shows its whole time and its visible half."""
    scene = Scene().step(0, 100).launch(10, (GEMM, 1_000, 100)).launch(11, (ALL_REDUCE, 1_050, 100), stream=9)
    with build_scenes(scene, wanted=MARTS) as con:
        found = rows(con, "SELECT category, busy_ns, exposed_ns FROM step_breakdown ORDER BY category")
    assert found == [("allreduce", 100, 50), ("gemm", 100, 100)]


def test_summed_and_busy_time_are_two_columns() -> None:
    """sglang#29960: 14.44 ms summed over streams and 11.20 ms of the device's time stand side by side under
    two names."""
    scene = (
        Scene()
        .step(0, 100)
        .launch(10, (GEMM, 1_000, 11_200_000))
        .launch(11, (ALL_REDUCE, 2_000, 3_240_000), stream=9)
    )
    with build_scenes(scene, wanted=MARTS) as con:
        assert rows(con, "SELECT busy_ns, exposed_ns, span_ns FROM steps") == [
            (14_440_000, 11_200_000, 11_200_000)
        ]


def test_a_device_is_never_busy_for_more_than_its_time() -> None:
    """nsys-ai#574, #579: where summed time is 112.5 % of the time line, exposed time is 100 % of it."""
    scene = Scene().launch(1, (GEMM, 0, 80)).launch(2, (GEMM, 70, 10), stream=8)
    with build_scenes(scene, wanted=MARTS) as con:
        assert rows(
            con,
            (
                "SELECT busy_ns * 1.0 / (end_ns - start_ns), exposed_ns * 1.0 / (end_ns - start_ns), idle_ns "
                "FROM timeline"
            ),
        ) == [(1.125, 1, 0)]


def test_gpus_are_not_summed_into_one() -> None:
    """nsys-ai#139, vLLM#10708: two ranks of 10 ms each are 10 ms a step on 2 ranks, not 20 ms on one."""
    ranks = [Scene(f"t{rank}", rank).step(0, 100).launch(10, (GEMM, 1_000, 10_000_000)) for rank in range(2)]
    with build_scenes(*ranks, wanted=MARTS) as con:
        assert rows(con, "SELECT ranks, ms_p50, calls_mode FROM run_breakdown") == [(2, 10.0, 1)]
        assert scalar(con, "SELECT ranks FROM run_facts") == 2


def test_work_of_another_device_hides_nothing() -> None:
    """vLLM's gputrc2graph: the sweep over overlaps runs per device, so that GPUs that work at once are both
    exposed."""
    scene = (
        Scene()
        .launch(1, (GEMM, 0, 100), device=0)
        .launch(2, (ALL_REDUCE, 0, 100), device=1)
        .launch(3, (ALL_REDUCE, 0, 100), device=0, stream=9)
    )
    with build_scenes(scene, wanted=MARTS) as con:
        assert rows(con, "SELECT device, category, exposed_ns FROM activity ORDER BY ALL") == [
            (0, "allreduce", 0),
            (0, "gemm", 100),
            (1, "allreduce", 100),
        ]


def test_nested_time_is_counted_once(tmp_path: Path) -> None:
    """marin#8053: operators that contain each other add nothing, and kernels that overlap are one stretch of
    the time line."""
    events = [
        annotation(DECODE, 1_000, 500, 1),
        launch(1_100, 1),
        launch(1_200, 2),
        kernel(GEMM, 10_000, 100, 1),
        kernel(GEMM, 10_020, 50, 2, stream=9),
    ]
    events += [
        event("cpu_op", name, 1_050, dur, External_id=i)
        for i, (name, dur) in enumerate((("aten::linear", 400), ("aten::addmm", 300)), 2)
    ]
    with build_from(tmp_path, events) as con:
        assert rows(con, "SELECT exposed_ns, busy_ns FROM timeline") == [(100, 150)]
        assert rows(
            con,
            (
                "SELECT op, calls, exposed_ns FROM (SELECT op, count(*) AS calls, sum(exposed_ns) AS "
                "exposed_ns "
                "FROM activity GROUP BY op)"
            ),
        ) == [("aten::addmm", 2, 100)]
