"""CUDA graphs: kernels of replays where they were recorded, opaque where only the replay was, refused where
nothing was."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.duck import rows
from pipeline.errors import TraceError
from tests.support.builders import build_tables, raw_rows
from tests.support.nsys_builders import (
    ALL_REDUCE,
    GEMM,
    Call,
    Process,
    Report,
    Work,
    read_report,
    tables_of,
    write,
)

ADVICE = "nsys profile --cuda-graph-trace=node"


def _graph_level() -> Report:
    """An eager kernel, and two replays of which only the whole was recorded."""
    report = Report([Process(1)], [Work(GEMM, 100, 10, 1)], [Call(50, 1)])
    for number in (2, 3):
        report.calls.append(Call(100 * number, number, "cudaGraphLaunch_v10000"))
        report.work.append(Work("", 1_000 * number, 500, number, "graph"))
    return report


def test_kernels_of_a_replay_share_its_launch(tmp_path: Path) -> None:
    """Node level: every kernel is there with its node, all with the correlation of the one
    cudaGraphLaunch."""
    report = Report([Process(1)]).graph(1_000, 5, [(GEMM, 10), (ALL_REDUCE, 20)], launch=500)
    folder = tmp_path
    read_report(write(folder, tables_of(report, "2026")), folder)
    assert raw_rows(folder, "gpu_activity", "name, correlation, graph_id, graph_node_id", "start_ns") == [
        (GEMM, 5, 5, 1),
        (ALL_REDUCE, 5, 5, 2),
    ]
    assert raw_rows(folder, "launch", "name, correlation") == [("cudaGraphLaunch", 5)]


def test_whole_replays_are_booked_as_opaque(tmp_path: Path) -> None:
    """GRAPH_TRACE rows are activities of kind graph, category and rollup are opaque, and an issue gives the
    advice."""
    run = read_report(write(tmp_path, tables_of(_graph_level(), "2024")), tmp_path)
    assert raw_rows(tmp_path, "gpu_activity", "kind, dur_ns, correlation, graph_id", "start_ns") == [
        ("kernel", 10, 1, None), ("graph", 500, 2, 5), ("graph", 500, 3, 5)
    ]  # fmt: skip
    assert ("opaque_graph", "warn", "graph", 2, 1_000) in raw_rows(
        tmp_path, "issue", "code, severity, event_class, count, dur_ns"
    )
    with build_tables(run, tmp_path / "spill") as con:
        found = rows(
            con,
            (
                "SELECT category, rollup, count(*), sum(dur_ns)::BIGINT FROM activity WHERE kind = 'graph' "
                "GROUP "
                "BY ALL"
            ),
        )
    assert found == [("opaque", "Opaque", 2, 1_000)]


def test_a_report_of_whole_replays_alone_is_read(tmp_path: Path) -> None:
    """Without any kernel table, GRAPH_TRACE rows are still time on the GPU."""
    report = _graph_level()
    report.work = report.work[1:]
    read_report(write(tmp_path, tables_of(report, "2024")), tmp_path)
    assert raw_rows(tmp_path, "gpu_activity", "DISTINCT kind") == [("graph",)]


def test_a_replay_that_was_not_measured_is_counted(tmp_path: Path) -> None:
    """CUPTI writes 0 for both times of a replay that it did not time: no row, but an issue."""
    report = _graph_level()
    report.work.append(Work("", 0, 0, 4, "graph"))
    read_report(write(tmp_path, tables_of(report, "2024")), tmp_path)
    assert ("zero_timestamp", "graph", 1) in raw_rows(tmp_path, "issue", "code, event_class, count")


@pytest.mark.parametrize("eager", [True, False], ids=["beside_eager_kernels", "alone"])
def test_replays_whose_time_is_nowhere_are_refused(tmp_path: Path, eager: bool) -> None:
    """Graph launches with neither kernels nor GRAPH_TRACE rows hide time: refused, with the option that
    records it."""
    report = _graph_level()
    report.work = report.work[:1] if eager else []
    with pytest.raises(TraceError, match="2 graph launches, but none of their kernels") as refused:
        read_report(write(tmp_path, tables_of(report, "2023.4")), tmp_path)
    assert ADVICE in refused.value.advice


def test_replays_of_another_process_hide_no_time_of_this_one(tmp_path: Path) -> None:
    """A correlation id counts within its process: the other process's kernels do not count as this one's
    replays."""
    report = Report(
        [Process(1), Process(2)],
        [Work(GEMM, 100, 10, 7, process=1)],
        [Call(50, 7, "cudaGraphLaunch_v10000", process=0)],
    )
    with pytest.raises(TraceError, match=r"1 graph launches"):
        read_report(write(tmp_path, tables_of(report)), tmp_path)


def test_a_replay_cut_off_by_the_end_does_not_condemn_the_file(tmp_path: Path) -> None:
    """One launch of several without kernels is the end of recording, not a graph-level capture."""
    report = Report([Process(1)]).graph(1_000, 5, [(GEMM, 10)], launch=500)
    report.calls.append(Call(2_000, 6, "cudaGraphLaunch_v10000"))
    read_report(write(tmp_path, tables_of(report)), tmp_path)
    assert raw_rows(tmp_path, "gpu_activity", "name") == [(GEMM,)]


@pytest.mark.parametrize("without", ["CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"])
def test_a_replay_without_a_process_may_be_of_any(tmp_path: Path, without: str) -> None:
    """For kernels or calls without a process, an equal correlation is enough."""
    tables = tables_of(
        Report([Process(1), Process(2)], [Work("other", 5, 5, 99, process=1)]).graph(
            1_000, 5, [(GEMM, 10)], launch=500
        )
    )
    tables[without].drop("globalPid", "globalTid")
    read_report(write(tmp_path, tables), tmp_path)
    assert (GEMM,) in raw_rows(tmp_path, "gpu_activity", "name")
