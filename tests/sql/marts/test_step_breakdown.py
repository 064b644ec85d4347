"""step_breakdown: each kind of work in each step."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from pipeline.duck import rows
from tests.support.builders import ALL_REDUCE, GEMM, MARLIN_MOE
from tests.support.tables import Scene, build_scenes


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """Two steps and one activity before them."""
    scene = (
        Scene()
        .launch(1, (GEMM, 0, 7))
        .step(10, 5)
        .launch(11, (GEMM, 100, 30), (GEMM, 140, 10), (ALL_REDUCE, 150, 60))
    )
    scene.step(20, 5).launch(21, (MARLIN_MOE, 300, 50))
    with build_scenes(scene, wanted=["step_breakdown"]) as made:
        yield made


def test_work_is_summed_by_kind_in_each_step(con: duckdb.DuckDBPyConnection) -> None:
    """Calls, busy and exposed time per category and subcategory."""
    found = rows(
        con,
        (
            "SELECT step, category, subcategory, rollup, calls, busy_ns, exposed_ns FROM step_breakdown "
            "WHERE "
            "step = 0 ORDER BY category"
        ),
    )
    assert found == [
        (0, "allreduce", "nccl", "AllReduce", 1, 60, 60),
        (0, "gemm", "cublas", "GEMM", 2, 40, 40),
    ]


def test_work_of_no_step_has_rows_of_its_own(con: duckdb.DuckDBPyConnection) -> None:
    """Step NULL holds it, in phase unknown, so that all rows together are all GPU time."""
    assert rows(con, "SELECT phase, calls, busy_ns, wall_share FROM step_breakdown WHERE step IS NULL") == [
        ("unknown", 1, 7, None)
    ]
    assert rows(con, "SELECT sum(calls), sum(busy_ns) FROM step_breakdown") == rows(
        con, "SELECT count(*), sum(dur_ns) FROM activity"
    )


def test_shares_are_of_the_steps_busy_and_of_its_wall(con: duckdb.DuckDBPyConnection) -> None:
    """busy_share adds up to 1 in each step; wall_share is of the 200 ns to the next step, and NULL in the
    last."""
    found = rows(
        con,
        (
            "SELECT step, category, busy_share, wall_share FROM step_breakdown WHERE step IS NOT NULL ORDER "
            "BY "
            "step, category"
        ),
    )
    assert found == [(0, "allreduce", 0.6, 0.3), (0, "gemm", 0.4, 0.2), (1, "moe_gemm", 1.0, None)]


def test_a_kind_without_time_has_no_share_of_nothing() -> None:
    """A step whose work took no time has NULL shares, not a division by zero."""
    with build_scenes(Scene().step(0, 5).launch(1, (GEMM, 10, 0)), wanted=["step_breakdown"]) as con:
        assert rows(con, "SELECT busy_ns, busy_share FROM step_breakdown") == [(0, None)]
