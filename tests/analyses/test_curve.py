"""Time by kind of work against the size of a step, over runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.analyses.curve import COLUMNS, SHAPES, curve
from pipeline.analyses.report import Report
from pipeline.errors import UsageError
from pipeline.ingest.inbox import named
from pipeline.ingest.ingest import ingest
from pipeline.lake.home import Home
from pipeline.progress import Progress
from tests.support.builders import GEMM, StepBuilder, header, write_trace
from tests.support.compared import STEP, plant, put, scaled, write


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """`one` (batch 1), `eight` (batch 8, GEMMs half slower, a context given), `mixed` (batch 2, then 1),
    `deep` (another model), `broken`."""
    folder = tmp_path_factory.mktemp("curve")
    home = Home(folder / "home")
    home.ensure()
    plant(home, folder, "one", STEP, facts={"layers": 2})
    plant(
        home,
        folder,
        "eight",
        scaled(STEP, GEMM, 1.5),
        label=label(8),
        facts={"layers": 2, "context_tokens": 700},
    )
    built = StepBuilder()
    for batch in (2, 2, 2, 1, 1):
        built.step(scaled(STEP, GEMM, batch), label(batch), graph=True)
    put(
        home,
        [
            write_trace(folder / "m" / f"serve-rank-{rank}.json", built.events, header(rank, 2))
            for rank in range(2)
        ],
        "mixed",
        {"layers": 2},
    )
    plant(home, folder, "deep", [*STEP, *STEP], facts={"layers": 4})
    put(home, write(folder / "broken", [STEP] * 8)[:1], "broken", {"ranks": "all"})
    return home


def label(batch: int) -> str:
    """The marker of a decode step."""
    return f"execute_context_0(0)_generation_{batch}({batch})"


def table(report: Report, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    """Rows by column."""
    return [dict(zip(columns, row, strict=True)) for row in report.rows]


def test_each_kind_of_work_is_shown_at_each_size(home: Home) -> None:
    """GEMMs by batch, over runs, smallest first; integers of calls."""
    rows = [row for row in table(curve(home, ["eight", "one"])[0], COLUMNS) if row["category"] == "gemm"]
    assert [(row["global_batch"], row["run"], row["calls"], row["steps"]) for row in rows] == [
        (1, "one", 8, 8),
        (8, "eight", 8, 8),
    ]
    assert [row["ms_p50"] for row in rows] == pytest.approx([8.0, 12.0], rel=0.001)
    assert [row["us_per_request"] for row in rows] == pytest.approx([8000, 1500], rel=0.001)
    assert [row["context_tokens"] for row in rows] == [None, 700]


def test_a_run_whose_batch_changes_gives_a_point_for_each(home: Home) -> None:
    """Three steps of two requests, two of one."""
    rows = [row for row in table(curve(home, ["mixed"])[0], COLUMNS) if row["category"] == "gemm"]
    assert [(row["global_batch"], row["steps"], row["ms_p50"]) for row in rows] == [(1, 2, 8.0), (2, 3, 16.0)]


def test_sizes_have_their_wall_and_their_whole(home: Home) -> None:
    """Wall of each point, and all GPU time: the sum of its rows where nothing varies."""
    work, shapes = curve(home, ["mixed"])
    points = table(shapes, SHAPES)
    assert [(row["global_batch"], row["steps"]) for row in points] == [(1, 2), (2, 3)]
    for point in points:
        parts = [
            row["ms_p50"] for row in table(work, COLUMNS) if row["global_batch"] == point["global_batch"]
        ]
        assert point["gpu_ms_p50"] == pytest.approx(sum(parts), abs=1e-5)
        assert point["wall_ms_p50"] > point["gpu_ms_p50"]


def test_runs_that_differ_in_more_than_size_are_named(home: Home) -> None:
    """A curve over two models is not one of batch alone."""
    notes = " ".join(curve(home, ["one", "eight", "deep"])[0].notes)
    assert "the runs differ in more than size: model: layers (2, 4)" in notes
    assert "differ in more than size" not in " ".join(curve(home, ["one", "eight"])[0].notes)


def test_what_is_not_known_is_said(home: Home) -> None:
    """Context that neither markers nor run_config tell."""
    assert any("context_tokens is empty" in note for note in curve(home, ["one", "eight"])[0].notes)
    assert not any("context_tokens is empty" in note for note in curve(home, ["eight"])[0].notes)


def test_a_run_named_twice_is_one(home: Home) -> None:
    """No point is shown twice."""
    assert curve(home, ["one", "one"]) == curve(home, ["one"])


def test_a_run_that_failed_its_checks_is_refused(home: Home) -> None:
    """Its points are not to be trusted."""
    with pytest.raises(UsageError, match="run broken failed its checks"):
        curve(home, ["one", "broken"])


def test_runs_without_the_phase_are_refused(home: Home) -> None:
    """With the run that lacks it."""
    with pytest.raises(UsageError, match="run one has no complete prefill step"):
        curve(home, ["one", "eight"], "prefill")


def test_no_run_is_refused(home: Home) -> None:
    """Nothing to draw."""
    with pytest.raises(UsageError, match="at least one run"):
        curve(home, [])


def test_the_recorded_batches_make_a_curve(shared_traces: Path, tmp_path: Path) -> None:
    """Captures A and C: batch 1 and 16, whose experts' GEMMs grow and whose collectives stay at 123."""
    home = Home(tmp_path / "home")
    for name in ("A_nccl_graph_b1", "C_nccl_graph_b16"):
        folder = shared_traces / "captures" / name
        if not folder.is_dir():
            pytest.skip(f"{name} is not among the shared traces")
        ingest(home, named([folder], name), Progress(quiet=True))
    rows = {
        (row["category"], row["global_batch"]): row
        for row in table(curve(home, ["A_nccl_graph_b1", "C_nccl_graph_b16"])[0], COLUMNS)
    }
    assert [rows["moe_gemm", batch]["ms_p50"] for batch in (1, 16)] == pytest.approx([2.776, 4.431], abs=0.01)
    assert [rows["allreduce", batch]["calls"] for batch in (1, 16)] == [123, 123]
    assert [rows["gemm", batch]["graph_tokens"] for batch in (1, 16)] == [1, 16]
