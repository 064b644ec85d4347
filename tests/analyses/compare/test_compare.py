"""Two runs against each other, as answered: planted changes are found, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.analyses.compare.compare import COLUMNS, calls_text, compare, fail_limit
from pipeline.analyses.compare.masked import percent
from pipeline.analyses.report import Report
from pipeline.errors import UsageError
from pipeline.ingest.inbox import named
from pipeline.ingest.ingest import ingest
from pipeline.lake.database import write_database
from pipeline.lake.home import Home
from pipeline.lake.run_config import describe
from pipeline.progress import Progress
from tests.support.builders import ALL_REDUCE, GEMM, StepBuilder, header, ingest_into, write_trace
from tests.support.compared import CASTS, STEP, plant, put, renamed, scaled, write
from tests.support.homes import copied
from tests.support.known_answer import CUSTOM
from tests.support.planted_ranks import Planted

SIXTEEN = "execute_context_0(0)_generation_16(16)"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Runs: base, the same bytes, three repeats, GEMMs 10 % slower, casts in front, other all-reduces, a
    batch of 16, few steps, a broken one."""
    folder = tmp_path_factory.mktemp("compare")
    home = Home(folder / "home")
    home.ensure()
    put(home, plant(home, folder, "base", STEP), "same-bytes")
    for seed in (1, 2, 3):
        plant(home, folder, f"repeat-{seed}", STEP, seed=seed)
    plant(home, folder, "slower", scaled(STEP, GEMM, 1.1), seed=4)
    plant(home, folder, "casts", [*CASTS, *STEP], seed=5)
    plant(home, folder, "custom", renamed(STEP, ALL_REDUCE, CUSTOM), seed=6)
    plant(home, folder, "sixteen", STEP, seed=7, label=SIXTEEN)
    plant(home, folder, "short", STEP, steps=4, seed=8)
    put(home, write(folder / "broken", [STEP] * 8)[:1], "broken", {"ranks": "all"})
    return home


def compared(home: Home, a: str, b: str, **options: Any) -> tuple[list[Report], bool]:
    """The reports, and whether something is over the limit."""
    return compare(home, a, b, wide=True, **options)


def rows(home: Home, a: str, b: str, **options: Any) -> dict[str, dict[str, Any]]:
    """The table by row."""
    return {
        row[0]: dict(zip(COLUMNS, row, strict=True)) for row in compared(home, a, b, **options)[0][0].rows
    }


def changed(home: Home, a: str, b: str, **options: Any) -> dict[str, str]:
    """What is called a change."""
    return {
        name: row["change"]
        for name, row in rows(home, a, b, **options).items()
        if row["change"] != "within noise"
    }


def test_identical_captures_do_not_differ(home: Home) -> None:
    """Nothing is a change, and no delta is other than 0."""
    found = rows(home, "base", "same-bytes")
    assert {row["change"] for row in found.values()} == {"within noise"}
    assert {row["delta_ms"] for row in found.values()} == {0.0}


@pytest.mark.parametrize("other", ["repeat-1", "repeat-2", "repeat-3"])
def test_repeats_of_one_configuration_do_not_differ(home: Home, other: str) -> None:
    """Other steps of the same: no change in any row, either way round."""
    assert changed(home, "base", other) == {}
    assert changed(home, other, "base") == {}


def test_a_row_that_was_slowed_by_ten_per_cent_is_found_alone(home: Home) -> None:
    """GEMM: 8 ms to 8.8; wall and all GPU time with it; no other row."""
    assert changed(home, "base", "slower") == {
        "Wall per step": "higher",
        "All GPU time": "higher",
        "GEMM": "higher",
    }
    row = rows(home, "base", "slower")["GEMM"]
    assert row["delta_pct"] == pytest.approx(10, abs=0.1)
    assert row["low_ms"] < row["delta_ms"] < row["high_ms"]
    assert row["low_ms"] > 0.78
    assert row["high_ms"] < 0.82
    assert row["q"] < 0.01
    assert (row["calls_before"], row["calls_after"], row["exposed_change"]) == ("8", "8", "higher")


def test_on_a_screen_the_table_stands_in_two_parts(home: Home) -> None:
    """No cell is lost: all columns are in one of the two, rows of rollups in both; the rest follows as it
    is."""
    (whole, *others), _ = compared(home, "base", "slower")
    (first, second, *same), _ = compare(home, "base", "slower")
    assert same == others
    assert (first.title, first.notes) == (whole.title, whole.notes)
    assert sorted([*first.columns, *second.columns]) == sorted([*COLUMNS, "row"])
    for row in whole.rows:
        cells = dict(zip(COLUMNS, row, strict=True))
        for part in (first, second):
            found = [dict(zip(part.columns, one, strict=True)) for one in part.rows if one[0] == row[0]]
            assert found == [{name: cells[name] for name in part.columns}] or (
                part is second and cells["calls_before"] is None and not found
            )


def test_the_same_question_has_the_same_answer(home: Home) -> None:
    """To the last digit."""
    assert compared(home, "base", "slower") == compared(home, "base", "slower")


def test_the_noise_floor_is_two_per_cent_unless_it_is_measured(home: Home) -> None:
    """2 % of 8 ms of GEMM; repeats that differ by less lower it, and are named with their number."""
    assert rows(home, "base", "slower")["GEMM"]["noise_ms"] == pytest.approx(0.16, abs=0.001)
    repeats = ["repeat-1", "repeat-2", "repeat-3"]
    measured = rows(home, "base", "slower", noise=repeats)["GEMM"]["noise_ms"]
    assert 0 < measured < 0.05
    notes = compared(home, "base", "slower", noise=repeats[:1])[0][0].notes
    assert any(
        "repeats (base, repeat-1)" in note and "of 2 captures, so a further one may differ by more" in note
        for note in notes
    )


def test_a_measured_floor_finds_what_two_per_cent_hide(home: Home, tmp_path: Path) -> None:
    """GEMMs 1.5 % slower are noise without repeats, and a change beside them."""
    plant(home, tmp_path, "little", scaled(STEP, GEMM, 1.015), seed=9)
    assert changed(home, "base", "little") == {}
    assert changed(home, "base", "little", noise=["repeat-1", "repeat-2", "repeat-3"])["GEMM"] == "higher"


def test_a_repeat_of_other_work_is_refused(home: Home) -> None:
    """It would call every difference noise; so would one of the two runs themselves."""
    with pytest.raises(
        UsageError, match="sixteen is not a repeat of base: different work: global batch 1 vs 16"
    ):
        compared(home, "base", "slower", noise=["sixteen"])
    with pytest.raises(UsageError, match="named twice"):
        compared(home, "base", "slower", noise=["slower"])


def test_the_masked_bottleneck_is_told_from_the_numbers(home: Home) -> None:
    """The casts of a run before an upgrade hid its all-reduces."""
    notes = compared(home, "casts", "base")[0][0].notes
    assert notes[0] == (
        "cast fell by 40.1 ms; all-reduce is now 51.5 % (was 16 %), its ms, calls and exposed time unchanged "
        "within noise at the same batch: "
        "it was masked, not created"
    )


def test_at_another_batch_only_the_share_rose(home: Home) -> None:
    """The same numbers, and no claim."""
    notes = compared(home, "casts", "sixteen", anyway=True)[0][0].notes
    assert notes[0] == (
        "cast fell by 40.1 ms; all-reduce is now 51.5 % (was 16 %): its share rose (the batch is not "
        "known to be the same)"
    )


def test_a_custom_all_reduce_that_fell_back_to_nccl_is_named(home: Home) -> None:
    """At its places, with its calls; and as a sentence."""
    table, _, kernels = compared(home, "custom", "base")[0]
    assert "custom all-reduce fell back to NCCL in 4 calls per step" in table.notes
    (row,) = kernels.rows
    assert row[:2] == ["renamed", "allreduce"]
    assert row[3:5] == ["layers 0-1", 4]
    assert "cross_device_reduce_2stage" in row[5]
    assert "ncclDevKernel_AllReduce" in row[6]


def test_different_work_is_compared_only_when_asked_to(home: Home) -> None:
    """The reason and the option are named; with it, the title has the reason."""
    with pytest.raises(UsageError, match=r"different work: global batch 1 vs 16.*use --anyway"):
        compared(home, "base", "sixteen")
    table, verdict, _ = compared(home, "base", "sixteen", anyway=True)[0]
    assert "different work: global batch 1 vs 16" in table.title
    assert ["global batch", "1", "16", "differs", "different work: refused without --anyway"] in verdict.rows


@pytest.mark.parametrize("sides", [("broken", "base"), ("base", "broken")])
def test_a_side_that_failed_its_checks_is_refused(home: Home, sides: tuple[str, str]) -> None:
    """With the check, whatever the options."""
    with pytest.raises(UsageError, match=r"run broken failed its checks \(ranks_asked_for\)"):
        compared(home, *sides, anyway=True)


def test_a_broken_repeat_is_refused_too(home: Home) -> None:
    """Its numbers would make the floor."""
    with pytest.raises(UsageError, match="run broken failed its checks"):
        compared(home, "base", "slower", noise=["broken"])


def test_a_run_that_nobody_checked_is_compared_with_a_note(home: Home, tmp_path: Path) -> None:
    """It did not fail; the note names the command."""
    unchecked = copied(home, tmp_path / "home")
    shutil.rmtree(unchecked.quality_lake_run("slower"))
    write_database(unchecked)
    assert "not checked: slower (run `stepledger check`)" in compared(unchecked, "base", "slower")[0][0].notes
    assert not any("not checked" in note for note in compared(home, "base", "slower")[0][0].notes)


def test_a_limit_looks_at_rollups_where_too_few_steps_have_a_wall(home: Home, tmp_path: Path) -> None:
    """Five steps have four walls: noted beside the verdict."""
    plant(home, tmp_path, "five", STEP, steps=5, seed=10)
    reports, over = compared(home, "base", "five", fail_over=0.05)
    assert not over
    assert [
        note for note in reports[0].notes if ("over" in note and "limit" in note) or "--fail-over" in note
    ] == [
        "nothing is over the limit of 5 %",
        "--fail-over looks at rollups only: too few steps have a wall time",
    ]


@pytest.mark.parametrize(("limit", "is_over"), [(0.05, True), (0.095, True), (0.15, False)])
def test_what_is_slower_than_the_limit_fails(home: Home, limit: float, is_over: bool) -> None:
    """GEMM + 10 %; wall + 4.4 %."""
    reports, over = compared(home, "base", "slower", fail_over=limit)
    assert over is is_over
    text = f"over the limit of {percent(limit)}: GEMM +" if is_over else "nothing is over the limit of 15 %"
    assert [note.startswith(text) for note in reports[0].notes if "over the limit" in note] == [True]


def test_what_is_faster_or_within_noise_passes(home: Home) -> None:
    """A limit of 0 is not exceeded by a run that is faster, nor by a repeat."""
    assert not compared(home, "slower", "base", fail_over=0.0)[1]
    assert not compared(home, "base", "repeat-1", fail_over=0.0)[1]
    assert not compared(home, "base", "slower")[1]


def test_wall_alone_can_be_over_the_limit(home: Home, tmp_path: Path) -> None:
    """Idle time between the kernels of a step is in no row of the table."""
    for run, gap in (("tight", 1_000), ("loose", 500_000)):
        built = StepBuilder()
        for _ in range(8):
            built.step(STEP, gap_ns=gap, graph=True)
        put(home, [write_trace(tmp_path / run / "serve-rank-0.json", built.events, header(0, 1))], run)
    reports, over = compared(home, "tight", "loose", fail_over=0.05)
    assert over
    assert next(note for note in reports[0].notes if note.startswith("over the limit")).startswith(
        "over the limit of 5 %: Wall per step +"
    )
    assert changed(home, "tight", "loose") == {"Wall per step": "higher"}


def test_too_few_steps_are_not_judged(home: Home) -> None:
    """Numbers without a verdict; a limit that cannot be judged is an error, not a pass."""
    found = rows(home, "base", "short")
    assert {row["change"] for row in found.values()} == {"not judged"}
    assert found["GEMM"]["low_ms"] is None
    with pytest.raises(UsageError, match="too few steps"):
        compared(home, "base", "short", fail_over=0.05)


def test_a_run_against_itself_is_refused(home: Home) -> None:
    """There is nothing to compare."""
    with pytest.raises(UsageError, match="named twice"):
        compared(home, "base", "base")


def test_a_phase_that_a_side_lacks_is_refused(home: Home) -> None:
    """With what it has."""
    with pytest.raises(UsageError, match="run base has no complete prefill step; it has decode"):
        compared(home, "base", "slower", phase="prefill")


def test_waiting_stands_apart_from_the_floor(home: Home, tmp_path: Path) -> None:
    """One rank comes 200 us late to an all-reduce of each step: half of that, per rank, is waiting; the floor
    is as it was."""
    late = {(1, step, 3): 200_000 for step in range(8)}
    for run, slow in (("prompt", {}), ("late", late)):
        ingest_into(home, *Planted(steps=8, slow=slow).write(tmp_path / run), run=run)
    row = rows(home, "prompt", "late")["AllReduce"]
    assert (row["floor_before_ms"], row["floor_after_ms"]) == (0.035, 0.035)
    assert (row["wait_before_ms"], row["wait_after_ms"]) == (0.0, 0.1)
    assert (
        "AllReduce rose by 0.100 ms: waiting +0.100, floor +0.000"
        in compared(home, "prompt", "late")[0][0].notes
    )


def test_where_waiting_cannot_be_told_apart_this_is_said(home: Home, tmp_path: Path) -> None:
    """One rank alone: no floor and no waiting, and why."""
    for run, seed in (("alone", 1), ("alone-too", 2)):
        put(home, write(tmp_path / run, [STEP] * 8, seed=seed)[:1], run)
    found = rows(home, "alone", "alone-too")["AllReduce"]
    assert [
        found[name] for name in ("floor_before_ms", "floor_after_ms", "wait_before_ms", "wait_after_ms")
    ] == [None] * 4
    notes = compared(home, "alone", "alone-too")[0][0].notes
    assert any(
        note.startswith(
            "AllReduce: waiting cannot be separated in run alone (one_rank), alone-too (one_rank)"
        )
        for note in notes
    )


@pytest.mark.parametrize(("text", "value"), [("5%", 0.05), ("0.05", 0.05), ("12.5 %", 0.125), ("0", 0.0)])
def test_a_limit_is_a_percentage_or_a_fraction(text: str, value: float) -> None:
    """As people write it."""
    assert fail_limit(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["five", "-5%", "nan", "", "5%%"])
def test_other_limits_are_refused(text: str) -> None:
    """A usage error that tells what is wanted."""
    with pytest.raises(UsageError, match="wanted a percentage"):
        fail_limit(text)


def test_calls_are_integers_with_their_range() -> None:
    """Never a mean."""
    assert (calls_text((123, 123, 123)), calls_text((122, 123, 127))) == ("123", "123 (122-127)")


@pytest.fixture(scope="module")
def captures(shared_traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Capture A, the same with scopes and shapes recorded, and the other model."""
    home = Home(tmp_path_factory.mktemp("captures") / "home")
    for name in ("A_nccl_graph_b1", "A_nccl_graph_b1_scopes", "t8_A_nccl_graph_b1"):
        folder = shared_traces / "captures" / name
        if not folder.is_dir():
            pytest.skip(f"{name} is not among the shared traces")
        ingest(home, named([folder], name), Progress(quiet=True))
    return home


def test_two_captures_of_one_configuration_do_not_differ(captures: Home) -> None:
    """A against itself with scopes and shapes recorded: no row, nor wall, is a change in either direction; no
    kernel has another name."""
    for pair in (
        ("A_nccl_graph_b1", "A_nccl_graph_b1_scopes"),
        ("A_nccl_graph_b1_scopes", "A_nccl_graph_b1"),
    ):
        assert changed(captures, *pair) == {}
        reports, over = compared(captures, *pair, fail_over=0.0)
        assert not over
        assert reports[2].rows == []


def test_captures_of_two_models_differ_and_the_verdict_says_what_is_not_known(captures: Home) -> None:
    """64 experts against 384, and other shapes: without facts the verdict names other kernels and what no one
    said; with facts it refuses."""
    pair = ("A_nccl_graph_b1", "t8_A_nccl_graph_b1")
    title = compared(captures, *pair)[0][0].title
    assert "kernels of a step 1783 vs 1720" in title
    assert "Unknown: context, model facts" in title
    assert changed(captures, *pair)["MoE GEMM"] == "lower"
    for run, experts in zip(pair, (64, 384), strict=True):
        describe(captures, run, {"experts": experts})
    with pytest.raises(UsageError, match="different work: model: experts 64 vs 384"):
        compared(captures, *pair)
