"""activity: every GPU activity, booked once."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from pipeline.duck import rows
from tests.support.builders import ALL_REDUCE, GEMM
from tests.support.tables import Scene, build_scenes


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """One decode step, an unannotated start, an unknown kernel, and work without a launch record."""
    scene = (
        Scene(rank=3)
        .launch(1, ("Kernel", 10, 5))
        .step(100, 50)
        .launch(110, (GEMM, 1000, 100))
        .launch(120, (ALL_REDUCE, 1050, 100), stream=9)
    )
    scene.operators.append({"trace_id": "t", "name": "aten::mm", "start_ns": 105, "dur_ns": 10})
    scene.unlaunched((GEMM, 1100, 10)).unlaunched((GEMM, 5000, 10))
    with build_scenes(scene, wanted=["activity"]) as made:
        yield made


def test_every_activity_is_there_once(con: duckdb.DuckDBPyConnection) -> None:
    """No join drops or repeats an activity, placed or not."""
    assert rows(con, "SELECT count(*), count(DISTINCT activity_id), sum(dur_ns) FROM activity") == [
        (5, 5, 225)
    ]


def test_an_activity_tells_where_it_belongs_and_why(con: duckdb.DuckDBPyConnection) -> None:
    """Step, phase, placement or the reason for none."""
    found = rows(
        con, "SELECT start_ns, step, phase, placed_by, no_step_reason FROM activity ORDER BY start_ns"
    )
    assert found == [
        (10, None, "unknown", None, "before_first_step"),
        (1000, 0, "decode", "launch_same_thread", None),
        (1050, 0, "decode", "launch_same_thread", None),
        (1100, 0, "decode", "gpu_time", None),
        (5000, None, "unknown", None, "no_launch_record"),
    ]


def test_an_activity_tells_what_it_is(con: duckdb.DuckDBPyConnection) -> None:
    """Category, rollup, rule and operator stand beside the name; unknown names stay unclassified."""
    found = rows(
        con,
        (
            "SELECT category, subcategory, rollup, rule_id, op FROM activity WHERE start_ns < 1100 ORDER BY "
            "start_ns"
        ),
    )
    assert found == [
        ("unclassified", None, "Unclassified", "unclassified", None),
        ("gemm", "cublas", "GEMM", "nvjet", "aten::mm"),
        ("allreduce", "nccl", "AllReduce", "nccl_all_reduce", None),
    ]


def test_exposed_time_stands_beside_the_duration(con: duckdb.DuckDBPyConnection) -> None:
    """The all-reduce under the GEMM keeps its duration and is exposed for what sticks out, less the GEMM
    behind."""
    assert rows(con, "SELECT dur_ns, exposed_ns FROM activity WHERE start_ns = 1050") == [(100, 40)]


def test_an_activity_without_a_marker_in_its_trace_says_so() -> None:
    """In a trace without steps a launched activity has the reason no_marker."""
    with build_scenes(Scene().launch(1, (GEMM, 10, 5)), wanted=["activity"]) as con:
        assert rows(con, "SELECT step, phase, no_step_reason FROM activity") == [
            (None, "unknown", "no_marker")
        ]


def test_an_opaque_graph_is_opaque() -> None:
    """A row for a whole graph is neither a kernel nor unclassified."""
    with build_scenes(Scene().unlaunched((GEMM, 10, 5), kind="graph"), wanted=["activity"]) as con:
        assert rows(con, "SELECT category, rollup, rule_id FROM activity") == [
            ("opaque", "Opaque", "opaque_graph")
        ]
