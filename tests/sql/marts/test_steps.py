"""steps: where the time of each forward pass went."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from pipeline.duck import dicts, rows
from tests.support.builders import ALL_REDUCE, DECODE, GEMM
from tests.support.tables import Scene, build_scenes

HTOD, DTOH = "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pinned)"
IDENTITY = "wall_ns = exposed_ns - exposed_outside_ns + borrowed_ns + idle_inside_ns + gap_after_ns"


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """Four steps: the first with a copy that overhangs, the second launched late, the third without work."""
    scene = Scene()
    scene.step(0, 50).launch(1, (GEMM, 1000, 100), (ALL_REDUCE, 1150, 50), call="cudaGraphLaunch")
    scene.launch(40, (DTOH, 1380, 40), stream=23)
    scene.step(200, 50).launch(201, (GEMM, 1400, 100)).launch(202, (HTOD, 1210, 10), stream=20)
    scene.step(2000, 50)
    scene.step(3000, 50, "execute_context_1(64)_generation_0(0)").launch(3001, (GEMM, 4000, 100))
    with build_scenes(scene, wanted=["steps"]) as made:
        yield made


def _step(con: duckdb.DuckDBPyConnection, step: int) -> dict[str, object]:
    return dicts(con, "SELECT * FROM steps WHERE step = ?", [step])[0]


def test_the_terms_of_a_step_are_each_their_own(con: duckdb.DuckDBPyConnection) -> None:
    """Wall to the next first kernel, span to the last end, idle between own work, and a copy of the next step
    is borrowed."""
    found = _step(con, 0)
    assert (found["start_ns"], found["end_ns"], found["span_ns"], found["wall_ns"]) == (1000, 1420, 420, 400)
    assert (found["busy_ns"], found["exposed_ns"], found["exposed_outside_ns"], found["borrowed_ns"]) == (
        190,
        170,
        0,
        10,
    )
    assert (found["idle_inside_ns"], found["gap_after_ns"], found["gap_cause"]) == (220, 0, None)


def test_a_gap_has_a_cause(con: duckdb.DuckDBPyConnection) -> None:
    """After the second step the device waits for a call that comes late."""
    found = _step(con, 1)
    assert (found["wall_ns"], found["gap_after_ns"], found["gap_cause"]) == (2600, 2500, "host_late")
    assert (found["exposed_ns"], found["exposed_outside_ns"], found["borrowed_ns"]) == (110, 10, 0)


def test_the_identity_holds_for_every_step_with_a_wall(con: duckdb.DuckDBPyConnection) -> None:
    """wall = exposed - exposed_outside + borrowed + idle_inside + gap_after, exactly."""
    assert rows(con, f"SELECT step, {IDENTITY} FROM steps WHERE wall_ns IS NOT NULL ORDER BY step") == [
        (0, True),
        (1, True),
    ]


def test_a_step_without_gpu_work_is_empty_and_stays_visible(con: duckdb.DuckDBPyConnection) -> None:
    """It has no time, is left out of means, and says why."""
    found = _step(con, 2)
    assert (found["phase"], found["activities"], found["busy_ns"], found["wall_ns"]) == ("empty", 0, 0, None)
    assert (found["is_complete"], found["incomplete_reason"]) == (False, "no_gpu_work")


def test_the_last_step_has_no_wall(con: duckdb.DuckDBPyConnection) -> None:
    """Nothing follows it, so its wall and gap are NULL, and its idle is that of its span."""
    found = _step(con, 3)
    assert (found["phase"], found["wall_ns"], found["gap_after_ns"], found["exposed_outside_ns"]) == (
        "prefill",
        None,
        None,
        None,
    )
    assert (found["span_ns"], found["idle_inside_ns"]) == (100, 0)


def test_what_was_scheduled_stands_in_the_row(con: duckdb.DuckDBPyConnection) -> None:
    """Label, counts, method and replays come along."""
    found = _step(con, 0)
    assert (found["label"], found["context_requests"], found["generation_requests"]) == (DECODE, 0, 1)
    assert (found["method"], found["confidence"], found["graph_launches"], found["kernels"]) == (
        "annotation",
        1.0,
        1,
        2,
    )


def _pair(*second: tuple[str, int, int]) -> list[Scene]:
    return [
        Scene("t0", 0).step(0, 5).launch(1, (ALL_REDUCE, 100, 10)),
        Scene("t1", 1).step(0, 5).launch(1, *second),
    ]


def test_steps_of_ranks_match() -> None:
    """match_id is the step number where ranks issue the same collectives, else the step that runs at the same
    time, or NULL."""
    for second, match_id in (((ALL_REDUCE, 5_000, 10), 0), ((GEMM, 102, 4), 0), ((GEMM, 5_000, 10), None)):
        with build_scenes(*_pair(second), wanted=["steps"]) as con:
            assert rows(con, "SELECT rank, match_id FROM steps ORDER BY rank") == [(0, 0), (1, match_id)]


def test_a_first_collective_that_waited_leaves_its_step_out_of_means() -> None:
    """capture_start_skew: the step stays, incomplete, with its reason."""
    scene = (
        Scene()
        .step(0, 50)
        .launch(
            1, (ALL_REDUCE, 1000, 9_000_000), (ALL_REDUCE, 9_002_000, 7_000), (ALL_REDUCE, 9_010_000, 7_000)
        )
    )
    scene.step(200, 50).launch(201, (ALL_REDUCE, 9_020_000, 7_000))
    with build_scenes(scene, wanted=["steps"]) as con:
        assert rows(con, "SELECT is_complete, incomplete_reason FROM steps ORDER BY step") == [
            (False, "capture_start_skew"),
            (True, None),
        ]


def test_a_step_has_a_row_on_every_device_it_ran_on() -> None:
    """One process that drives two GPUs gets one row per step and device, each with its own times."""
    scene = Scene().step(0, 50).launch(1, (GEMM, 100, 10)).launch(2, (GEMM, 300, 10), device=1)
    scene.step(60, 50).launch(61, (GEMM, 200, 10)).launch(62, (GEMM, 500, 10), device=1)
    with build_scenes(scene, wanted=["steps"]) as con:
        assert rows(con, "SELECT device, step, wall_ns FROM steps ORDER BY ALL") == [
            (0, 0, 100),
            (0, 1, None),
            (1, 0, 200),
            (1, 1, None),
        ]


def test_without_markers_there_are_no_steps() -> None:
    """Per-step numbers are not invented."""
    with build_scenes(Scene().launch(1, (GEMM, 100, 10)), wanted=["steps"]) as con:
        assert rows(con, "SELECT * FROM steps") == []
