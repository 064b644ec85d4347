"""The audit: known answers, each deviation named by position, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.analyses.audit.audit import COUNTS, DEVIATIONS, audit
from pipeline.analyses.audit.totals import TOTALS
from pipeline.analyses.report import Report
from pipeline.errors import UsageError
from pipeline.ingest.demo import DEMO_TRACES
from pipeline.lake.home import Home
from pipeline.lake.reading import reading
from pipeline.lake.run_config import describe
from tests.support import known_answer
from tests.support.builders import (
    ALL_REDUCE,
    DECODE,
    GEMM,
    MARLIN_MOE,
    StepBuilder,
    annotation,
    header,
    ingest_into,
    kernel,
    launch,
    operator,
    write_trace,
)
from tests.support.known_answer import ACTIVATION, ALIGN, ARGMAX, CUSTOM, MLA, NORM, SUM, TOPK
from tests.support.planted_ranks import (
    ALL_GATHER,
    EMBED,
    FLOOR_NS,
    LAYER,
    REDUCE_SCATTER,
    SEND_RECEIVE,
    TWO_LAYERS,
    WORK_NS,
    Planted,
)

CAMPAIGN = {
    "layers": 61,
    "dense_layers": 1,
    "experts": 384,
    "tp": 8,
    "dp": 1,
    "pp": 1,
    "ep": 1,
    "sequence_parallel": False,
}
MOE_LAYER = (
    NORM,
    GEMM,
    MLA,
    GEMM,
    ALL_REDUCE,
    NORM,
    GEMM,
    TOPK,
    ALIGN,
    MARLIN_MOE,
    ACTIVATION,
    MARLIN_MOE,
    SUM,
    ALL_REDUCE,
)


def answers(home: Home, run: str) -> list[Report]:
    """The three reports."""
    with reading(home) as con:
        return audit(con, run)


def table(report: Report, columns: tuple[str, ...], *wanted: str) -> list[tuple[Any, ...]]:
    """Some columns of a report."""
    return [tuple(row[columns.index(name)] for name in wanted) for row in report.rows]


def campaign_step() -> list[tuple[str, int]]:
    """The campaign's decode step, with the dense layer's activation and the last norm that prove its 61
    layers."""
    names = [name for _, name in known_answer.names_of_step()]
    dense = names.index(NORM, names.index(NORM) + 1) + 2
    names.insert(dense, ACTIVATION)
    names.insert(names.index(CUSTOM), NORM)
    return [(name, 78_000 if name == ALL_REDUCE else 2_000) for name in names]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Two of the campaign's eight ranks, two decode steps each."""
    folder = tmp_path_factory.mktemp("campaign")
    home = Home(folder / "home")
    describe(home, "campaign", CAMPAIGN)
    files = []
    for rank in range(2):
        made = StepBuilder()
        for _ in range(2):
            made.step(campaign_step(), graph=True)
        files.append(write_trace(folder / f"c_rank{rank}.json", made.events, header(rank, 8)))
    ingest_into(home, *files, run="campaign")
    return home


def test_127_is_123_and_four_extras_named_by_position(campaign: Home) -> None:
    """127 NCCL all-reduces = 122 + 1 + 4: one more after the experts of layers 10, 20, 30 and 40, and one
    custom after the last layer."""
    _, deviations, _ = answers(campaign, "campaign")
    found = [
        row
        for row in table(deviations, DEVIATIONS, "position", "what", "kind", "expected", "found", "extra")
        if row[1] == "all-reduce"
    ]
    assert sorted(found) == [
        ("after the last layer", "all-reduce", "custom", "0", 1, 1),
        *((f"layer {layer} after MoE", "all-reduce", "nccl", "1", 2, 1) for layer in (10, 20, 30, 40)),
    ]


def test_an_extra_says_its_time_and_the_first_step(campaign: Home) -> None:
    """Half of the two all-reduces of 78 us that are there; in all four steps from the first."""
    _, deviations, _ = answers(campaign, "campaign")
    found = dict(
        zip(
            table(deviations, DEVIATIONS, "position"),
            table(deviations, DEVIATIONS, "us_per_step", "in_steps", "first_step", "first_rank"),
            strict=True,
        )
    )
    assert found["layer 20 after MoE",] == (78.0, 4, 0, 0)


def test_a_missing_call_is_named_too(campaign: Home) -> None:
    """The campaign's step as planted gathers no logits."""
    _, deviations, _ = answers(campaign, "campaign")
    found = [
        row
        for row in table(deviations, DEVIATIONS, "position", "what", "expected", "found", "extra")
        if row[1] == "all-gather"
    ]
    assert found == [("after the last layer", "all-gather", "1", 0, -1)]


def test_counts_are_by_position_and_by_kind(campaign: Home) -> None:
    """Integers, with the expectation and its reason beside them."""
    counts, _, _ = answers(campaign, "campaign")
    found = table(counts, COUNTS, "position", "what", "kind", "expected", "min", "mode", "max")
    assert found == [
        ("before the first layer", "all-reduce", "nccl", "1", 1, 1, 1),
        ("after attention in 61 layers", "all-reduce", "nccl", "61", 61, 61, 61),
        ("layer 0 after MLP", "all-reduce", "nccl", "1", 1, 1, 1),
        ("after MoE in 60 layers", "all-reduce", "nccl", "60", 64, 64, 64),
        ("after the last layer", "all-gather", "", "1", 0, 0, 0),
        ("after the last layer", "all-reduce", "custom", 0, 1, 1, 1),
        ("whole step", "all-reduce", "all", "123", 128, 128, 128),
        ("whole step", "all-reduce", "custom", None, 1, 1, 1),
        ("whole step", "all-reduce", "nccl", None, 127, 127, 127),
    ]
    assert all(row for row in table(counts, COUNTS, "reason")[:5])


def test_160_steps_under_155_annotations_are_123_a_step(tmp_path: Path) -> None:
    """Recognized as that, not as 127 per step; without layers nothing is judged, and a note reports it."""
    home = Home(tmp_path / "home")
    ingest_into(home, write_trace(tmp_path / "a_rank0.json", known_answer.unannotated_events()), run="oddity")
    counts, deviations, totals = answers(home, "oddity")
    assert {row[1:] for row in table(counts, COUNTS, "step", "expected", "min", "mode", "max")} == {
        (None, 123, 123, 123)
    }
    assert table(
        totals,
        TOTALS,
        "per_step",
        "decode_steps",
        "other_steps",
        "annotated_steps",
        "per_annotated_step",
        "explained",
    ) == [
        (123, 155, 5, 155, 126.97, "19680 = 123 x (155 decode + 5 other)"),
    ]
    assert (
        "160 steps ran under 155 annotations; 19680 / 155 = 126.97 would read as 127 per step, but it is 123 "
        "in each"
    ) in " ".join(totals.notes)
    assert any("19680 = 123 x (155 decode + 5 other)" in note for note in counts.notes)
    assert deviations.rows == []
    assert any(note.startswith("not judged: decode, graph") for note in deviations.notes)


def test_layers_that_are_said_are_judged_as_a_whole(tmp_path: Path) -> None:
    """Where the order of kernels proves none: the number a step, no positions; a note reports it."""
    home = Home(tmp_path / "home")
    describe(home, "oddity", {"layers": 61, "tp": 8})
    ingest_into(
        home, write_trace(tmp_path / "a_rank0.json", known_answer.unannotated_events(12, 10)), run="oddity"
    )
    counts, deviations, _ = answers(home, "oddity")
    rows = table(counts, COUNTS, "position", "what", "expected", "mode")
    assert ("whole step", "all-reduce", "123", 123) in rows
    assert {row[1] for row in table(deviations, DEVIATIONS, "position", "what")} == {"all-gather"}
    assert any(note.startswith("judged as a whole, not by position") for note in deviations.notes)


def test_an_operators_row_is_said_to_repeat_its_kernels(tmp_path: Path) -> None:
    """key_averages shows both; they are the same time."""
    made = StepBuilder()
    for _ in range(3):
        begin = made.now_ns
        made.step([(GEMM, 2_000), (ALL_REDUCE, 5_000)])
        made.events.append(operator("vllm::all_reduce", begin + 500, 10_000))
    home = Home(tmp_path / "home")
    ingest_into(home, write_trace(tmp_path / "o_rank0.json", made.events), run="ops")
    _, _, totals = answers(home, "ops")
    assert (
        "3 of these kernels run inside the operator vllm::all_reduce: its row in key_averages repeats their "
        "0.015 ms; count one of the two"
    ) in totals.notes


@pytest.fixture(scope="module")
def sometimes(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Five steps of two ranks: in steps 2 and 3 two more custom all-reduces are after layer 0's MLP."""
    folder = tmp_path_factory.mktemp("sometimes")
    extra = list(TWO_LAYERS)
    extra[extra.index(ACTIVATION) + 2 : extra.index(ACTIVATION) + 2] = [CUSTOM, CUSTOM]
    home = Home(folder / "home")
    planted = Planted(steps=5, names_of={(rank, step): tuple(extra) for rank in (0, 1) for step in (2, 3)})
    ingest_into(home, *planted.write(folder), run="x")
    return home


def test_the_first_step_that_deviates_is_named(sometimes: Home) -> None:
    """Two of the three calls that stand there in four of ten steps, with their part of the time."""
    _, deviations, totals = answers(sometimes, "x")
    found = table(
        deviations,
        DEVIATIONS,
        "position",
        "kind",
        "expected",
        "found",
        "extra",
        "in_steps",
        "first_step",
        "first_rank",
    )
    assert found == [("layer 0 after MLP", "custom, nccl", "1", 3, 2, 4, 2, 0)]
    calls = 2 * WORK_NS + FLOOR_NS
    assert table(deviations, DEVIATIONS, "us_per_step") == [(round(calls * 2 / 3 / 1_000, 3),)]
    assert table(totals, TOTALS, "explained")[0] == (
        "29 = 5 x (5 decode + 0 other) + 4 in 2 steps with another count",
    )


def test_steps_without_a_kind_count_as_0_of_it(sometimes: Home) -> None:
    """Fewest, most frequent and most by kind: custom ones are in four of ten steps."""
    counts, *_ = answers(sometimes, "x")
    found = [
        row[1:]
        for row in table(counts, COUNTS, "position", "kind", "min", "mode", "max")
        if row[0] == "whole step" and row[1] != "all_gather"
    ]
    assert found == [("all", 5, 5, 7), ("custom", 0, 0, 2), ("nccl", 5, 5, 5)]


def test_a_run_as_expected_says_so(tmp_path: Path) -> None:
    """Two layers under tensor parallelism, nothing given: five all-reduces, and each assumption is listed."""
    home = Home(tmp_path / "home")
    ingest_into(home, *Planted().write(tmp_path / "x"), run="x")
    counts, deviations, _ = answers(home, "x")
    assert (deviations.rows, list(deviations.notes)) == (
        [],
        ["none: each complete step holds what was expected, at every position"],
    )
    assert ("whole step", "all-reduce", "5", 5) in table(
        counts, COUNTS, "position", "what", "expected", "mode"
    )
    assert {
        "tp not given, assuming 2: all 2 ranks of the job",
        "layers not given: 2 counted in the trace",
    } <= set(counts.notes)


def test_expert_exchange_is_held_against_data_parallel_attention(tmp_path: Path) -> None:
    """All-gather and reduce-scatter around the experts of each MoE layer, and no all-reduce at all."""
    layer = tuple(name for name in MOE_LAYER if name != ALL_REDUCE)
    place = layer.index(ALIGN)
    layer = (*layer[:place], ALL_GATHER, *layer[place:], REDUCE_SCATTER)
    home = Home(tmp_path / "home")
    describe(home, "x", {"dp": 2, "tp": 1, "ep": 2})
    ingest_into(home, *Planted(names=(*layer, *layer, NORM, GEMM, ARGMAX)).write(tmp_path / "x"), run="x")
    counts, deviations, _ = answers(home, "x")
    assert table(counts, COUNTS, "position", "what", "expected", "mode")[:2] == [
        ("around the experts in 2 layers", "dispatch", "2", 2),
        ("around the experts in 2 layers", "combine", "2", 2),
    ]
    assert deviations.rows == []


def test_sequence_parallelism_is_seen_and_held_to(tmp_path: Path) -> None:
    """Reduce-scatter and all-gather in place of each all-reduce, at its place."""
    layer = (
        NORM,
        ALL_GATHER,
        GEMM,
        MLA,
        GEMM,
        REDUCE_SCATTER,
        NORM,
        ALL_GATHER,
        GEMM,
        ACTIVATION,
        GEMM,
        REDUCE_SCATTER,
    )
    names = (TWO_LAYERS[0], REDUCE_SCATTER, *layer, *layer, NORM, ALL_GATHER, GEMM, ALL_GATHER, ARGMAX)
    home = Home(tmp_path / "home")
    ingest_into(home, *Planted(names=names).write(tmp_path / "x"), run="x")
    counts, deviations, _ = answers(home, "x")
    assert deviations.rows == []
    assert ("whole step", "reduce-scatter", "5", 5) in table(
        counts, COUNTS, "position", "what", "expected", "mode"
    )
    assert any(note.startswith("sequence_parallel not given, assuming on") for note in counts.notes)


def test_a_shared_expert_reduced_apart_is_no_extra_where_one_is_known(tmp_path: Path) -> None:
    """Two all-reduces after the experts of every layer: expected with shared_experts given, extra without."""
    layer = (*MOE_LAYER, ALL_REDUCE)
    names = (TWO_LAYERS[0], ALL_REDUCE, *layer, *layer, NORM, GEMM, ALL_GATHER, ARGMAX)
    home = Home(tmp_path / "home")
    files = Planted(names=names).write(tmp_path / "x")
    describe(home, "given", {"shared_experts": 1})
    describe(home, "denied", {"shared_experts": 0})
    for run in ("given", "denied"):
        ingest_into(home, *files, run=run)
    assert answers(home, "given")[1].rows == []
    assert table(answers(home, "denied")[1], DEVIATIONS, "position", "extra") == [
        ("layer 0 after MoE", 1),
        ("layer 1 after MoE", 1),
    ]


def test_layers_that_the_order_of_kernels_merges_are_not_judged_by_position(tmp_path: Path) -> None:
    """The campaign's dense layer without its activation: 61 attentions in 60 layers, so the given 61
    count, as a whole."""
    names = [(name, 2_000) for _, name in known_answer.names_of_step()]
    made = StepBuilder().step(names, graph=True).step(names, graph=True)
    home = Home(tmp_path / "home")
    describe(home, "x", CAMPAIGN)
    ingest_into(home, write_trace(tmp_path / "x_rank0.json", made.events, header(0, 8)), run="x")
    counts, deviations, _ = answers(home, "x")
    assert ("whole step", "all-reduce", "123", 128) in table(
        deviations, DEVIATIONS, "position", "what", "expected", "found"
    )
    assert any("does not prove all of the 61 layers" in note for note in counts.notes)


def test_draft_passes_are_counted_apart(tmp_path: Path) -> None:
    """A replay of one layer after the sampling: its own embedding, two and logits, expected as such."""
    events, at = [], 1_000_000
    draft = (EMBED, ALL_REDUCE, *LAYER, NORM, GEMM, ALL_GATHER, ARGMAX)
    for step in range(3):
        events.append(annotation(DECODE, at, 50_000, external_id=step + 1))
        now = at + 100_000
        for number, names in enumerate((TWO_LAYERS, draft)):
            correlation = 2 * step + number + 1
            events.append(launch(at + 1_000 + 10_000 * number, correlation, "cudaGraphLaunch"))
            for name in names:
                events.append(kernel(name, now, 2_000, correlation))
                now += 2_500
        at = now
    home = Home(tmp_path / "home")
    ingest_into(home, write_trace(tmp_path / "d_rank0.json", events), run="x")
    counts, deviations, _ = answers(home, "x")
    found = [
        row
        for row in table(counts, COUNTS, "position", "what", "expected", "mode")
        if row[0] == "draft passes"
    ]
    assert found == [("draft passes", "all-reduce", "3", 3), ("draft passes", "all-gather", "1", 1)]
    assert deviations.rows == []


def test_pipeline_stages_are_audited_apart(tmp_path: Path) -> None:
    """Two stages of one rank each hand on hidden states; messages are expected, all-reduces are not."""
    layers = tuple(name for name in (*LAYER, *LAYER) if name != ALL_REDUCE)
    first, last = (EMBED, *layers, SEND_RECEIVE), (SEND_RECEIVE, *layers, NORM, GEMM, ARGMAX)
    planted = Planted(names_of={(rank, step): (first, last)[rank] for rank in (0, 1) for step in range(3)})
    home = Home(tmp_path / "home")
    describe(home, "x", {"pp": 2, "tp": 1})
    ingest_into(home, *planted.write(tmp_path / "x"), run="x")
    counts, deviations, _ = answers(home, "x")
    assert table(counts, COUNTS, "stage", "position", "what", "expected", "mode") == [
        (0, "whole step", "send/receive", "1+", 1),
        (1, "whole step", "send/receive", "1+", 1),
    ]
    assert deviations.rows == []


def test_the_recorded_ranks_hold_123_all_reduces_a_step(tmp_path: Path) -> None:
    """2 x 61 + 1 in every complete step, at the places where they belong."""
    home = Home(tmp_path / "home")
    ingest_into(home, *sorted(DEMO_TRACES.glob("*.json.gz")), run="demo")
    counts, deviations, _ = answers(home, "demo")
    assert table(counts, COUNTS, "position", "what", "expected", "min", "mode", "max") == [
        ("before the first layer", "all-reduce", "1", 1, 1, 1),
        ("after attention in 61 layers", "all-reduce", "61", 61, 61, 61),
        ("layer 0 after MLP", "all-reduce", "1", 1, 1, 1),
        ("after MoE in 60 layers", "all-reduce", "60", 60, 60, 60),
        ("after the last layer", "all-gather", "1", 1, 1, 1),
        ("whole step", "all-gather", "1", 1, 1, 1),
        ("whole step", "all-reduce", "123", 123, 123, 123),
    ]
    assert deviations.rows == []


def test_a_run_without_steps_is_refused(tmp_path: Path) -> None:
    """Nothing can be counted per step; the message tells what to do."""
    home = Home(tmp_path / "home")
    made = StepBuilder().step([(GEMM, 2_000)], "training")
    ingest_into(home, write_trace(tmp_path / "x_rank0.json", made.events), run="x")
    with reading(home) as con, pytest.raises(UsageError, match="no complete step"):
        audit(con, "x")
