"""Whole small traces: one for each engine's way of marking steps, and one for each public report that is not
told elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pytest

from pipeline import duck
from pipeline.duck import rows, scalar
from pipeline.lake.home import Home
from pipeline.lake.reading import opened
from pipeline.models.engine import models, prepare
from pipeline.models.rules import RuleSet, load_rules
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
    memcpy,
    read_raw,
    write_trace,
)
from tests.support.known_answer import ACTIVATION, ALIGN, ARGMAX, COMBINE, MLA, NORM, TOPK
from tests.support.tables import Scene, _needed, build_scenes

EMBED = "triton_poi_fused_embedding_0"
WANTED = ("timeline", "step_breakdown", "run_breakdown", "run_facts", "step_methods", "gaps")
LAYER = (
    NORM,
    GEMM,
    MLA,
    COMBINE,
    GEMM,
    ALL_REDUCE,
    NORM,
    GEMM,
    TOPK,
    ALIGN,
    MARLIN_MOE,
    ACTIVATION,
    MARLIN_MOE,
    ALL_REDUCE,
)
FORWARD = [(name, 2_000) for name in (EMBED, ALL_REDUCE, *LAYER, *LAYER, NORM, GEMM)]
TRAINING = [(name, 2_000) for name in (NORM, GEMM, GEMM, ALL_REDUCE, GEMM)]


@cache
def _rules() -> RuleSet:
    """Our rules for the names used here: a build with all of them takes several times as long."""
    used = {
        "inductor_embedding", "inductor_norm", "nccl_all_reduce", "nvjet", "fa3_forward", "fa3_combine",
        "grouped_topk", "moe_align", "marlin_moe", "act_and_mul", "argmax", "memcpy_dtoh", "nccl_all_gather",
        "nccl_reduce_scatter",
    }  # fmt: skip
    return RuleSet(tuple(rule for rule in load_rules().rules if rule.id in used), "few")


def built_from(
    folder: Path, *ranks: Iterable[Any], wanted: Iterable[str] = ("steps", "run_facts")
) -> duckdb.DuckDBPyConnection:
    """Trace files of these events, a list per rank, read and built: a connection with the models wanted and
    what they read."""
    run = folder
    for rank, events in enumerate(ranks):
        run = read_raw(write_trace(folder / f"r{rank}.json", events, header(rank, len(ranks))), folder)
    con = duck.working(folder / "spill", threads=1, memory_limit="500MB")
    prepare(con, run, "run", _rules(), "build", "inputs")
    names = _needed(wanted)
    for model in models():
        if model.name in names:
            con.execute(f"CREATE TABLE {model.name} AS {model.sql}")
    return con


def query(home: Home, sql: str) -> list[tuple[Any, ...]]:
    """Rows of the home's database."""
    with opened(home) as con:
        return rows(con, sql)


def forward(labels: Iterable[str], *, graph: bool = True) -> list[dict[str, Any]]:
    """A forward pass of the same kernels under each of these annotations."""
    made = StepBuilder()
    for label in labels:
        made.step(FORWARD, label, graph=graph)
    return made.events


def bare(events: list[dict[str, Any]], *, launches: bool = True) -> list[dict[str, Any]]:
    """The events without annotations, and without launches if wanted."""
    dropped = {"user_annotation"} if launches else {"user_annotation", "cuda_runtime"}
    return [e for e in events if e["cat"] not in dropped]


DIALECTS = [
    ("vllm", [DECODE, "execute_context_1(64)_generation_0(0)", DECODE], ["decode", "prefill", "decode"]),
    (
        "vllm",
        ["execute_new_0_cached_2", "execute_new_1_cached_0", "execute_new_0_cached_3"],
        ["decode", "prefill", "decode"],
    ),
    (
        "sglang",
        ["step[EXTEND bs=1 toks=64]", "step[DECODE bs=2]", "step[IDLE bs=0]"],
        ["prefill", "decode", "dummy"],
    ),
    (
        "sglang",
        ["step[TARGET_VERIFY bs=2]", "step[MIXED bs=2]", "step[TARGET_VERIFY bs=2]"],
        ["verify", "mixed", "verify"],
    ),
    (
        "tensorrt_llm",
        [
            "[Executor] _forward_step 1: 1 ctx reqs, 0 gen reqs",
            "[Executor] _forward_step 2: 1 ctx reqs, 64 ctx tokens, 3 gen reqs",
            "[Executor] _forward_step: 0 ctx reqs, 4 gen reqs",
        ],
        ["prefill", "mixed", "decode"],
    ),
    (
        "atom",
        ["prefill[bs=1 tok=64 ctx=64]", "decode[bs=3/4 tok=3 p=0 d=3]", "dummy_decode[bs=4/4 tok=4]"],
        ["prefill", "decode", "dummy"],
    ),
    ("torch", ["ProfilerStep#4", "ProfilerStep#5"], ["unknown", "unknown"]),
]


@pytest.mark.parametrize(("engine", "labels", "phases"), DIALECTS)
def test_each_dialect_gives_its_steps(
    tmp_path: Path, engine: str, labels: list[str], phases: list[str]
) -> None:
    """A trace of each engine: its name, the phase of each step, and every activity in the step that launched
    it."""
    con = built_from(tmp_path, forward(labels))
    assert rows(con, "SELECT engine FROM run_facts") == [(engine,)]
    assert rows(con, "SELECT phase, method, label, activities FROM steps ORDER BY step") == [
        (phase, "annotation", label, len(FORWARD)) for phase, label in zip(phases, labels, strict=True)
    ]


def test_steps_without_annotations_come_from_graph_replays(tmp_path: Path) -> None:
    """An engine that marks nothing and replays a graph a token: decode steps, by replays, at 0.8."""
    replays = bare(forward([DECODE] * 3))
    sampling = [
        e
        for n in range(3)
        for e in (launch(1_070_000 + n, 900 + n), kernel(ARGMAX, 1_900_000 + 10_000 * n, 900, 900 + n))
    ]
    con = built_from(tmp_path, replays + sampling)
    assert rows(con, "SELECT DISTINCT method, phase, confidence FROM steps") == [("graph", "decode", 0.8)]
    assert rows(con, "SELECT count(*) FROM steps") == [(3,)]


def test_steps_without_launches_come_from_the_order_of_kernels(tmp_path: Path) -> None:
    """Only GPU records, as trimmed files have them: the repeating sequence gives the steps, at 0.5."""
    made = StepBuilder()
    for _ in range(4):
        made.step([*FORWARD, (ARGMAX, 2_000)], graph=True)
    con = built_from(tmp_path, bare(made.events, launches=False))
    assert rows(con, "SELECT method, phase, confidence, count(*) FROM steps GROUP BY ALL") == [
        ("pattern", "decode", 0.5, 4)
    ]


def test_eager_kernels_without_any_mark_give_steps_by_their_order(tmp_path: Path) -> None:
    """A plain PyTorch loop: launches, but neither annotations nor graphs."""
    made = StepBuilder()
    for _ in range(4):
        made.step([*FORWARD, (ARGMAX, 2_000)])
    con = built_from(tmp_path, bare(made.events))
    assert rows(con, "SELECT method, count(*) FROM steps GROUP BY ALL") == [("pattern", 4)]


def test_training_without_marks_has_no_steps(tmp_path: Path) -> None:
    """What neither embeds nor samples is no generation: no steps, and no per-step numbers, while all time is
    booked."""
    made = StepBuilder()
    for _ in range(6):
        made.step(TRAINING)
    con = built_from(tmp_path, bare(made.events), wanted=("run_breakdown", "steps", "timeline"))
    assert rows(con, "SELECT * FROM steps") == rows(con, "SELECT * FROM run_breakdown") == []
    assert rows(con, "SELECT activities, busy_ns, activities_in_steps FROM timeline") == [(30, 60_000, 0)]


def test_a_pass_without_annotation_is_no_part_of_the_step_before(tmp_path: Path) -> None:
    """An idle data-parallel rank's dummy batch (vLLM's execute_dummy_batch) after an annotated step is a
    step of its own, phase dummy."""
    made = StepBuilder()
    for number in range(5):
        made.step(FORWARD, graph=True)
        if number == 2:
            made.step(FORWARD, "execute_dummy_batch", graph=True)
    con = built_from(tmp_path, made.events, wanted=("step_methods", "steps"))
    assert rows(con, "SELECT DISTINCT activities FROM steps WHERE phase = 'decode'") == [(len(FORWARD),)]
    assert rows(con, "SELECT step, activities FROM steps WHERE phase = 'dummy'") == [(3, len(FORWARD))]
    assert rows(
        con, "SELECT method, steps, compared_with, is_agreed FROM step_methods WHERE method = 'graph'"
    ) == [("graph", 6, 6, True)]


def test_all_work_in_two_of_many_steps_is_visible() -> None:
    """AMD-AGI/TraceLens#972: the steps without GPU work are kept, called empty, and enter no mean."""
    scene = Scene()
    for step in range(32):
        scene.step(1_000 * step, 40)
        if step in {3, 4}:
            scene.launch(1_000 * step + 1, (GEMM, 1_000 * step + 100, 500))
    with build_scenes(scene, wanted=WANTED) as con:
        assert rows(
            con, "SELECT phase, incomplete_reason, count(*) FROM steps GROUP BY ALL ORDER BY ALL"
        ) == [
            ("decode", None, 2),
            ("empty", "no_gpu_work", 30),
        ]
        assert rows(con, "SELECT steps, ms_p50 FROM run_breakdown") == [(2, 0.0005)]
        assert rows(con, "SELECT steps, steps_with_work FROM step_methods") == [(32, 2)]
        assert rows(con, "SELECT decode_steps FROM run_facts") == [(2,)]


def test_one_activity_that_is_most_of_a_step_is_booked_as_it_is() -> None:
    """AMD-AGI/TraceLens#972: its time is neither clipped nor spread, and its share of the step's work says
    what it is."""
    scene = (
        Scene()
        .step(0, 40)
        .launch(1, (GEMM, 100, 1_000), (ALL_REDUCE, 1_200, 99_000))
        .step(500, 40)
        .launch(501, (GEMM, 101_000, 1_000))
    )
    with build_scenes(scene, wanted=WANTED) as con:
        found = rows(
            con, "SELECT category, busy_ns, busy_share FROM step_breakdown WHERE step = 0 ORDER BY category"
        )
    assert found == [("allreduce", 99_000, 0.99), ("gemm", 1_000, 0.01)]


@pytest.mark.parametrize(
    "label",
    ["step[SOME_NEW_MODE bs=3 x=1]", "step[DECODE]", "step[] bs=", "step[DECODE bs=]", "## step 7 ##"],
)
def test_unknown_markers_crash_nothing(tmp_path: Path, label: str) -> None:
    """AMD-AGI/TraceLens PR#725: an unknown marker is a step without phase, or none and the graph replays are
    used; never a crash."""
    con = built_from(tmp_path, forward([label] * 3))
    found = rows(con, "SELECT method, phase, min(confidence), count(*) FROM steps GROUP BY ALL")
    assert found in ([("annotation", "unknown", 1.0, 3)], [("graph", "unknown", 0.5, 3)])


def test_a_trace_whose_records_are_all_out_of_range_is_refused(home: Home, tmp_path: Path) -> None:
    """pytorch/kineto#996: calls were recorded and no kernel was; the file is not read as a run of no work."""
    events = [e for e in forward([DECODE] * 3) if e["cat"] != "kernel"]
    outcome = ingest_into(home, write_trace(tmp_path / "n.json", events))
    assert (len(outcome.codes), outcome.built) == (1, [])
    assert query(home, "SELECT * FROM runs") == []


def test_a_graph_loop_of_which_one_iteration_was_recorded() -> None:
    """pytorch/kineto#1062: a step whose replay shows fewer kernels than its peers' is incomplete, and its
    idle is not invented."""
    scene = Scene()
    for step in range(5):
        begin = 10_000 * step
        iterations = 1 if step == 2 else 8
        kernels = [
            (name, begin + 100 + 1_000 * n + at, 100)
            for n in range(iterations)
            for at, name in ((0, GEMM), (200, ALL_REDUCE))
        ]
        scene.step(begin, 40).launch(begin + 1, *kernels, call="cudaGraphLaunch")
    with build_scenes(scene, wanted=WANTED) as con:
        found = rows(
            con,
            (
                "SELECT step, incomplete_reason, wall_ns IS NULL, idle_inside_ns IS NULL FROM steps ORDER BY "
                "step"
            ),
        )
        assert rows(
            con, "SELECT unknown_ns > 0, exposed_ns + idle_ns + unknown_ns = end_ns - start_ns FROM timeline"
        ) == [(True, True)]
    assert found == [
        (0, None, False, False),
        (1, None, True, False),
        (2, "records_lost", True, True),
        (3, None, False, False),
        (4, None, True, False),
    ]


def test_kernels_dropped_when_the_session_started() -> None:
    """pytorch#192021: the first step lacks kernels that its peers have; it is flagged and left out of the
    table."""
    scene = Scene()
    for step in range(4):
        begin = 10_000 * step
        scene.step(begin, 40)
        for n in range(2 if step == 0 else 6):
            scene.launch(begin + 1 + n, (GEMM, begin + 100 + 200 * n, 100))
    with build_scenes(scene, wanted=WANTED) as con:
        assert rows(con, "SELECT step, incomplete_reason FROM steps WHERE NOT is_complete") == [
            (0, "begins_before_capture")
        ]
        assert rows(con, "SELECT steps, calls_min, calls_max FROM run_breakdown") == [(3, 6, 6)]


def test_the_last_step_is_kept() -> None:
    """HTA#76: it has no wall, since nothing follows it, yet it is complete and enters the means of busy
    time."""
    scene = Scene()
    for step in range(3):
        scene.step(1_000 * step, 40).launch(1_000 * step + 1, (GEMM, 1_000 * step + 100, 300))
    with build_scenes(scene, wanted=WANTED) as con:
        assert rows(con, "SELECT step, is_complete, wall_ns FROM steps ORDER BY step") == [
            (0, True, 1000),
            (1, True, 1000),
            (2, True, None),
        ]
        assert rows(con, "SELECT steps, ms_p50 FROM run_breakdown") == [(3, 0.0003)]


def test_kernels_delivered_as_one_burst_are_booked_by_their_launch() -> None:
    """sglang#31545: kernels of several replays whose times lie in one burst stay with the step that launched
    them, each once."""
    scene = Scene()
    for step in range(3):
        scene.step(10_000 * step, 40).launch(
            10_000 * step + 1,
            *[(GEMM if n % 2 else ALL_REDUCE, 90_000 + n, 0) for n in range(10)],
            call="cudaGraphLaunch",
        )
    with build_scenes(scene, wanted=WANTED) as con:
        assert rows(
            con, "SELECT step, activities, busy_ns, exposed_ns, wall_ns FROM steps ORDER BY step"
        ) == [
            (0, 10, 0, 0, 0),
            (1, 10, 0, 0, 0),
            (2, 10, 0, 0, None),
        ]
        assert rows(
            con,
            "SELECT activities, busy_ns, exposed_ns + idle_ns + unknown_ns = end_ns - start_ns FROM timeline",
        ) == [(30, 0, True)]


def test_a_burst_of_equal_stamps_refuses_per_step_numbers() -> None:
    """sglang#31545: twenty kernels with one start on one stream: their times are those of delivery, so no
    step of that rank counts."""
    burst = Scene("t0", 0)
    good = Scene("t1", 1)
    for step in range(3):
        for scene, spread in ((burst, 0), (good, 10)):
            scene.step(10_000 * step, 40)
            scene.launch(
                10_000 * step + 1,
                *[(GEMM, 10_000 * step + 500 + spread * n, 5) for n in range(20)],
                call="cudaGraphLaunch",
            )
    with build_scenes(burst, good, wanted=WANTED) as con:
        found = rows(
            con,
            (
                "SELECT trace_id, is_complete, incomplete_reason, count(wall_ns), count(idle_inside_ns) FROM "
                "steps GROUP BY ALL ORDER BY ALL"
            ),
        )
        assert found == [("t0", False, "unusable_timestamps", 0, 0), ("t1", True, None, 2, 3)]
        assert rows(con, "SELECT DISTINCT ranks FROM run_breakdown") == [(1,)]


def test_a_step_whose_range_is_still_open_is_not_complete() -> None:
    """A capture that ends inside a forward pass: its last step may be short, and says why it is left out."""
    scene = Scene(source="nsys")
    for step in range(3):
        scene.step(10_000 * step, 40).launch(10_000 * step + 1, (GEMM, 10_000 * step + 500, 50))
    scene.notes[-1] = {**scene.notes[-1], "is_open": True, "dur_ns": None}
    with build_scenes(scene, wanted=WANTED) as con:
        assert rows(con, "SELECT step, incomplete_reason FROM steps ORDER BY step") == [
            (0, None),
            (1, None),
            (2, "ends_after_capture"),
        ]


def test_an_iteration_of_speculative_decoding_is_one_step(tmp_path: Path) -> None:
    """SGLang marks each pass: two drafts and the verifying pass are one verify step, and the drafts' kernels
    say what they are."""
    made = StepBuilder()
    block = [(name, 2_000) for name in LAYER]
    for _ in range(3):
        for _ in range(2):
            made.step(block, "step[DECODE bs=4]")
        made.step(
            [*block, *block, *block, (NORM, 2_000), (GEMM, 2_000), (ARGMAX, 2_000)],
            "step[TARGET_VERIFY bs=4]",
        )
    con = built_from(tmp_path, made.events, wanted=("steps", "activity", "run_facts"))
    assert rows(
        con, "SELECT step, phase, generation_requests, confidence, kernels FROM steps ORDER BY step"
    ) == [(step, "verify", 4, 0.9, 5 * len(LAYER) + 3) for step in range(3)]
    found = rows(
        con,
        "SELECT count(*) FILTER (WHERE role = 'draft'), count(DISTINCT layer) FROM activity WHERE step = 1",
    )
    assert found == [(2 * len(LAYER), 3)]


def test_tokens_gathered_for_experts_stand_in_their_own_row(tmp_path: Path) -> None:
    """Data-parallel attention: all-gather and reduce-scatter around the experts are dispatch and combine, not
    other collectives."""
    gather, scatter = (
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(X)",
    )
    block = [NORM, GEMM, MLA, GEMM, NORM, gather, GEMM, TOPK, MARLIN_MOE, ACTIVATION, MARLIN_MOE, scatter]
    made = StepBuilder()
    for _ in range(3):
        made.step([(name, 2_000) for name in (*block, *block, NORM, GEMM, gather, ARGMAX)])
    con = built_from(tmp_path, made.events, wanted=("run_breakdown", "step_breakdown"))
    found = rows(
        con,
        (
            "SELECT rollup, calls_mode FROM run_breakdown WHERE rollup LIKE 'MoE d%' OR rollup LIKE 'Other "
            "c%' "
            "ORDER BY ALL"
        ),
    )
    assert found == [("MoE dispatch and combine", 4), ("Other collectives", 1)]


def test_an_empty_capture_beside_a_good_one_is_not_compared(home: Home, tmp_path: Path) -> None:
    """nsys-ai: a capture without GPU work becomes no run, so nothing can look faster than the run beside
    it."""
    ingest_into(home, write_trace(tmp_path / "good.json", forward([DECODE] * 3)), run="good")
    empty = write_trace(tmp_path / "empty.json", [annotation(DECODE, 1_000, 500), launch(1_100, 1)])
    assert ingest_into(home, empty, run="empty").built == []
    assert query(home, "SELECT run_id FROM runs") == [("good",)]


def test_missing_ranks_are_reported() -> None:
    """HTA#16, #17: two of four ranks present: both counts are in the run's row, and the table is of the
    ranks present."""
    ranks = [
        Scene(f"t{rank}", rank, facts={"world_size": 4}).step(0, 40).launch(1, (GEMM, 100, 10))
        for rank in (0, 2)
    ]
    with build_scenes(*ranks, wanted=WANTED) as con:
        assert rows(con, "SELECT traces, ranks, ranks_expected FROM run_facts") == [(2, 2, 4)]
        assert rows(con, "SELECT DISTINCT ranks, steps FROM run_breakdown") == [(2, 1)]


def test_waiting_in_a_collective_is_seen_by_rank(tmp_path: Path) -> None:
    """NVIDIA/nccl#470: a rank that waits for another has the longer all-reduce; the table shows lowest,
    highest and which."""
    ranks = []
    for waits in (5_000, 50_000):
        made = StepBuilder()
        for _ in range(3):
            made.step([(GEMM, 60_000 - waits), (ALL_REDUCE, waits)])
        ranks.append(made.events)
    con = built_from(tmp_path, *ranks, wanted=("run_breakdown",))
    found = rows(
        con, "SELECT ms_rank_min, ms_rank_max, worst_rank FROM run_breakdown WHERE rollup = 'AllReduce'"
    )
    assert found == [(0.005, 0.05, 1)]


def test_ranks_that_do_other_work_at_once_match_by_time(tmp_path: Path) -> None:
    """Data-parallel ranks side by side: prefill on one, decode on the other, the same forward pass."""
    decode, prefill = StepBuilder(), StepBuilder()
    for _ in range(3):
        decode.step([(GEMM, 100_000), (ALL_REDUCE, 10_000)], DECODE)
        prefill.step(
            [(GEMM, 50_000), (ALL_REDUCE, 9_000), (ALL_REDUCE, 50_000)],
            "execute_context_1(64)_generation_0(0)",
        )
    con = built_from(tmp_path, decode.events, prefill.events)
    assert rows(
        con, "SELECT rank, phase, list(match_id ORDER BY step) FROM steps GROUP BY ALL ORDER BY rank"
    ) == [
        (0, "decode", [0, 1, 2]),
        (1, "prefill", [0, 1, 2]),
    ]


def test_launches_from_another_thread_go_by_time(tmp_path: Path) -> None:
    """A copy launched by a thread without annotations belongs to the step begun last, and says how it was
    placed."""
    events = [annotation(DECODE, 1_000, 500), launch(1_100, 1), kernel(GEMM, 10_000, 100, 1)]
    events += [
        launch(1_200, 2, "cudaMemcpyAsync", tid=77),
        memcpy("Memcpy DtoH (Device -> Pinned)", 11_000, 20, 2),
    ]
    con = built_from(tmp_path, events, wanted=("activity",))
    assert rows(con, "SELECT category, step, placed_by FROM activity ORDER BY category") == [
        ("gemm", 0, "launch_same_thread"),
        ("memcpy", 0, "launch_time"),
    ]


def test_layers_and_their_roles_come_out_of_a_whole_trace(tmp_path: Path) -> None:
    """Two layers of attention and experts: each kernel's layer, and what its place proves of the GEMMs."""
    con = built_from(tmp_path, forward([DECODE] * 3), wanted=("activity", "layer_breakdown"))
    assert rows(con, "SELECT DISTINCT layer FROM layer_breakdown ORDER BY ALL") == [(0,), (1,)]
    assert rows(
        con,
        "SELECT role, count(*) FROM activity WHERE step = 0 AND role IS NOT NULL GROUP BY ALL ORDER BY ALL",
    ) == [
        ("embed", 1),
        ("experts", 4),
        ("o_proj", 2),
        ("router", 2),
    ]


def test_idle_is_explained(tmp_path: Path) -> None:
    """Every gap has a place; their sum is the idle time of the line that closes the books."""
    con = built_from(tmp_path, forward([DECODE] * 3), wanted=("gap_summary", "gaps", "timeline"))
    assert {place for (place,) in rows(con, "SELECT DISTINCT place FROM gaps")} == {
        "inside_replay",
        "between_steps",
    }
    assert scalar(con, "SELECT sum(dur_ns) FROM gap_summary") == scalar(
        con, "SELECT sum(idle_ns + unknown_ns) FROM timeline"
    )
