"""Step markers of every engine, in the strings that the engines really write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UsageError
from pipeline.lake.home import Home
from pipeline.lake.query import run_query
from pipeline.models.build import stale_runs
from pipeline.models.markers import Marker, load_markers, marker_problems, own_markers, own_text
from pipeline.models.rules import load_rules
from tests.support.builders import StepBuilder, header, ingest_into, write_trace
from tests.support.tables import Row, build_all, evaluate, run_model

COUNTS = (
    "context_requests, scheduled_context_tokens, generation_requests, generation_tokens, graph_tokens, "
    "kv_tokens"
)
NONE = (None,) * 6


def _parsed(*names: str, columns: str) -> list[tuple[Any, ...]]:
    notes: list[Row] = [
        {"name": name, "start_ns": 100 * n, "end_ns": 100 * n + 50} for n, name in enumerate(names)
    ]
    return run_model("int_step_marker", {"stg_annotation": notes}, columns, "step")


@pytest.mark.parametrize("marker", own_markers().markers, ids=lambda marker: marker.id)
def test_every_example_is_claimed_by_its_own_marker(marker: Marker) -> None:
    """The order of markers lets each example through to the marker that it belongs to."""
    found = evaluate("parse_step_marker(?)", marker.example)
    assert (found["marker_id"], found["engine"], found["level"], found["confidence"]) == (
        marker.id,
        marker.engine,
        marker.level,
        marker.confidence,
    )


def test_our_markers_pass_the_check_of_a_users_file() -> None:
    """Fields, phases, patterns, capture groups and confidence of ours are right, and ids do not repeat."""
    assert marker_problems(own_text()) == []


STRINGS: list[tuple[str, str, str, tuple[int | None, ...]]] = [
    # vLLM
    ("execute_context_0(0)_generation_8(8)", "vllm", "decode", (0, 0, 8, 8, None, None)),
    ("execute_context_1(888)_generation_0(0)", "vllm", "prefill", (1, 888, 0, 0, None, None)),
    ("execute_context_1(2040)_generation_8(8)", "vllm", "mixed", (1, 2040, 8, 8, None, None)),
    ("execute_context_0(0)_generation_8(32)", "vllm", "verify", (0, 0, 8, 32, None, None)),
    ("execute_context_1(888_788544)_generation_0(0)", "vllm", "prefill", (1, 888, 0, 0, None, None)),
    ("execute_model context_2(512) generation_0(0)", "vllm", "prefill", (2, 512, 0, 0, None, None)),
    ("execute_new_0_cached_4", "vllm", "decode", (0, None, 4, None, None, None)),
    ("execute_new_2_cached_0", "vllm", "prefill", (2, None, 0, None, None, None)),
    ("execute_new_1_cached_4", "vllm", "mixed", (1, None, 4, None, None, None)),
    ("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)", "vllm", "decode",
     (0, 0, 32, 32, 32, 55086)),
    (
        "execute_8192_context_9(sq8155sk9001sqsq7sqsk7)_generation_37(sq37sk60000sqsq37sqsk60000)", "vllm",
        "mixed",
        (9, 8155, 37, 37, 8192, 60000),
    ),
    # SGLang
    ("step[DECODE bs=32]", "sglang", "decode", (None, None, 32, None, None, None)),
    ("step[DECODE bs=64 g_sqsq=64 g_sqsk=70000 g_sk=70000]", "sglang", "decode", (None, None, 64, None, None,
     None)),
    ("step[EXTEND bs=15 toks=15360]", "sglang", "prefill", (15, 15360, None, None, None, None)),
    ("step[EXTEND bs=15 toks=15360 c_sqsq=1 c_sqsk=2]", "sglang", "prefill", (15, 15360, None, None, None,
     None)),
    ("step[SPLIT_PREFILL bs=2]", "sglang", "prefill", (2, None, None, None, None, None)),
    ("step[MIXED bs=8]", "sglang", "mixed", NONE),
    ("step[MIXED bs=8 c=2 g=6 c_sq=512]", "sglang", "mixed", NONE),
    ("step[IDLE bs=0]", "sglang", "dummy", NONE),
    ("step[TARGET_VERIFY bs=4]", "sglang", "verify", (None, None, 4, None, None, None)),
    ("step[DRAFT_EXTEND_V2 bs=4]", "sglang", "draft", NONE),
    ("step[DRAFT_EXTEND bs=4]", "sglang", "draft", NONE),
    ("step[DRAFT_LOOP raw_bs=3 bs=4 topk=1]", "sglang", "draft", NONE),
    ("step[PREBUILT bs=1]", "sglang", "unknown", NONE),
    ("step[DLLM_EXTEND bs=1]", "sglang", "unknown", NONE),
    # TensorRT-LLM
    ("[Executor] _forward_step 12: 0 ctx reqs, 8 gen reqs", "tensorrt_llm", "decode", (0, None, 8, None,
     None, None)),
    ("[Executor] _forward_step: 1 ctx reqs, 0 gen reqs", "tensorrt_llm", "prefill", (1, None, 0, None, None,
     None)),
    ("[Executor] _forward_step 7: 2 ctx reqs, 2048 ctx tokens, 6 gen reqs", "tensorrt_llm", "mixed", (2,
     2048, 6, None, None, None)),
    # ATOM
    ("decode[bs=117/128 tok=117 p=0 d=117]", "atom", "decode", (None, None, 117, 117, 128, None)),
    ("decode[bs=4/8 tok=16 p=0 d=16 spec=3 sqsq=64 sqsk=9000 sk=9000]", "atom", "verify", (None, None, 4, 16,
     8, None)),
    ("eager_decode[bs=3 tok=3]", "atom", "decode", (None, None, 3, 3, None, None)),
    ("prefill[bs=1 tok=1024 ctx=1024]", "atom", "prefill", (1, 1024, None, None, None, None)),
    ("dummy_decode[bs=8/8 tok=8]", "atom", "dummy", NONE),
    ("dummy_eager_decode[bs=8 tok=8]", "atom", "dummy", NONE),
    ("dummy_prefill[bs=1 tok=16]", "atom", "dummy", NONE),
    # torch
    ("ProfilerStep#6", "torch", "unknown", NONE),
]  # fmt: skip
"""Text, engine, phase, and COUNTS."""


@pytest.mark.parametrize(("name", "engine", "phase", "counts"), STRINGS, ids=[s[0] for s in STRINGS])
def test_every_dialect_is_read(name: str, engine: str, phase: str, counts: tuple[int | None, ...]) -> None:
    """Engine, phase and whatever counts the text has come out; what it does not say is NULL."""
    assert _parsed(name, columns=f"engine, phase, {COUNTS}") == [(engine, phase, *counts)]


OTHERS = [
    "nccl:all_reduce", "nccl:_all_gather_base", "gloo:barrier", "## Call CompiledFxGraph abcdef0123 ##",
    "Optimizer.step#AdamW.step",
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "gpu_model_runner: forward",
    "gpu_model_runner: sample", "Forward", "Draft",
    "scheduler.run_batch", "scheduler.recv_requests", "capture_graph_bs_8", "capture_16_FULL",
    "capture_32_DECODE", "execute_dummy_batch",
    "execute_diffusion_1_1024x1024",  "Iteration Start: PyTorch Profiler", "PyTorch Profiler (0)",
    "Record Window End",
    "ProfilerStep", "ProfilerStep#", "step[]", "step[decode bs=1]", "decode", "prefill", "execute_context_1",
    "my execute_new_0_cached_1",
    "[Executor] _forward_step", "",
]  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_annotations_are_no_steps(name: str) -> None:
    """Collectives, compiled graphs, optimizers, scopes inside a step, captures and texts that only look
    alike."""
    assert _parsed(name, columns="label") == []


def _nested(outer: str, inner: str) -> list[tuple[Any, ...]]:
    notes: list[Row] = [
        {"name": outer, "start_ns": 0, "end_ns": 100},
        {"name": inner, "start_ns": 10, "end_ns": 90},
    ]
    return run_model("int_step_marker", {"stg_annotation": notes}, "engine, label")


def test_two_families_of_one_trace_count_once() -> None:
    """Patched builds nest SGLang's marker in one of vLLM's form: one step, by the outer family alone, and the
    same in reverse."""
    outer, inner = (
        "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)",
        "step[DECODE bs=32]",
    )
    assert _nested(outer, inner) == _nested(inner, outer) == [("vllm", outer)]


def test_families_are_chosen_for_the_whole_trace() -> None:
    """Where one family marks some steps and another all, those of the trusted one are taken and no step is
    counted twice."""
    found = _parsed(
        "step[DECODE bs=1]", "execute_context_0(0)_generation_1(1)", "ProfilerStep#3", columns="engine"
    )
    assert found == [("vllm",)]


def test_a_number_too_large_is_unknown_not_an_error() -> None:
    """A count that fits no integer leaves its column NULL."""
    assert _parsed(f"step[DECODE bs={10**30}]", columns="phase, generation_requests") == [("decode", None)]


# --- the user's markers
# ----------------------------------------------------------------------------------------------

MINE = "[[marker]]\nid = 'mine'\npattern = '^pass (\\d+)$'\nphase = 'counts'\ngeneration_requests = 1\n"


def _with(text: str, tmp_path: Path, *names: str) -> list[tuple[Any, ...]]:
    """Step, label, engine and phase of annotations, with a user's file of markers."""
    file = tmp_path / "step_markers.toml"
    file.write_text(text)
    notes: list[Row] = [
        {"name": name, "start_ns": 100 * n, "dur_ns": 50} for n, name in enumerate(names, start=1)
    ]
    tables: dict[str, list[Row]] = {"raw.annotation": notes, "raw.trace": [{}]}
    with build_all(tables, load_rules(user_markers=file), ["int_marked_pass"]) as con:
        return con.execute("SELECT step, label, engine, phase FROM int_marked_pass ORDER BY ALL").fetchall()


def test_a_users_marker_marks_steps(tmp_path: Path) -> None:
    """Text that ours do not know becomes a step, with the phase of its counts."""
    assert _with(MINE, tmp_path, "pass 4", "pas 4") == [(0, "pass 4", "custom", "decode")]


def test_a_users_marker_wins_over_ours_of_the_same_trace(tmp_path: Path) -> None:
    """Level 0 unless it says otherwise: an engine's markers of that trace mark no steps beside it."""
    assert _with(MINE, tmp_path, "execute_context_0(0)_generation_1(1)", "pass 1") == [
        (0, "pass 1", "custom", "decode")
    ]


def test_a_users_marker_is_tried_before_ours(tmp_path: Path) -> None:
    """Of two patterns that match, the user's claims the annotation."""
    text = "[[marker]]\nid = 'mine'\npattern = '^execute_'\nphase = 'prefill'\nengine = 'fork'\n"
    assert _with(text, tmp_path, "execute_new_0_cached_4") == [
        (0, "execute_new_0_cached_4", "fork", "prefill")
    ]


def test_a_users_marker_replaces_ours_of_the_same_id(tmp_path: Path) -> None:
    """The id stays unique: what ours claimed is no step any more."""
    text = "[[marker]]\nid = 'profiler_step'\npattern = '^turn$'\nphase = 'unknown'\n"
    assert _with(text, tmp_path, "ProfilerStep#6", "turn") == [(0, "turn", "custom", "unknown")]


def test_a_users_scope_joins_its_markers(tmp_path: Path) -> None:
    """Markers inside one annotation of the scope are one step."""
    text = MINE + "[[scope]]\npattern = '^iteration$'\n"
    file = tmp_path / "step_markers.toml"
    file.write_text(text)
    notes: list[Row] = [
        {"name": "iteration", "start_ns": 0, "dur_ns": 100},
        {"name": "pass 1", "start_ns": 10, "dur_ns": 20},
        {"name": "pass 1", "start_ns": 50, "dur_ns": 20},
    ]
    tables: dict[str, list[Row]] = {"raw.annotation": notes, "raw.trace": [{}]}
    with build_all(tables, load_rules(user_markers=file), ["int_marked_pass"]) as con:
        assert con.execute("SELECT markers FROM int_marked_pass").fetchall() == [(2,)]


def test_without_a_users_file_our_markers_are_in_force(tmp_path: Path) -> None:
    """A missing file is no error."""
    assert load_markers(tmp_path / "step_markers.toml") == own_markers()


def test_users_markers_make_marts_stale(tmp_path: Path) -> None:
    """Built runs are built again when the file appears, and again when it changes."""
    home = Home(tmp_path / "home")
    home.ensure()
    made = StepBuilder()
    for number in range(3):
        made.step([("Kernel", 1_000)], f"pass {number}")
    ingest_into(home, write_trace(tmp_path / "t.json", made.events, header(0, 1)), run="serve")

    def stale() -> list[str]:
        return stale_runs(home, load_rules(home.user_rules, home.user_markers))

    assert stale() == []
    home.user_markers.write_text(MINE)
    assert stale() == ["serve"]
    ingest_into(home, write_trace(tmp_path / "u.json", made.events, header(0, 1)), run="other")
    assert run_query(home, "SELECT count(*) FROM steps WHERE run_id = 'other' AND method = 'annotation'")[
        1
    ] == [(3,)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[marker", "not valid TOML"),
        ("marker = 1", "markers are written as [[marker]] tables"),
        ("[[markers]]\nid = 'a'\n", "unknown keys ['markers']"),
        ("[[marker]]\nid = 'mine'\n", "line 1, marker 1 (mine): ['pattern', 'phase'] missing"),
        (MINE + "colour = 'red'\n", "marker 1 (mine): unknown fields ['colour']"),
        (MINE + "level = 'low'\n", "marker 1 (mine): ['level'] must be a whole number"),
        (MINE + "level = true\n", "marker 1 (mine): ['level'] must be a whole number"),
        (MINE + "confidence = 'high'\n", "marker 1 (mine): ['confidence'] must be a number"),
        (MINE + "confidence = 2\n", "marker 1 (mine): confidence 2 is not above 0 and at most 1"),
        (MINE + "part = 'first'\n", "marker 1 (mine): part 'first' is none of before, verify, after"),
        (MINE.replace("counts", "warmup"), "marker 1 (mine): phase 'warmup' is none of counts"),
        (MINE.replace("(", ""), "marker 1 (mine): pattern: not a regular expression (RE2)"),
        (MINE.replace("= 1", "= 2"), "generation_requests = 2: the pattern has no such capture group"),
        (MINE.replace("= 1", "= 0"), "generation_requests = 0: the pattern has no such capture group"),
        (
            MINE.replace("generation_requests = 1\n", ""),
            "phase 'counts' needs context_requests or generation_requests",
        ),
        (MINE + MINE, "marker ids repeat: ['mine']"),
        ("[[scope]]\nname = 'x'\n", "line 1, scope 1 (without id): ['pattern'] missing"),
        ("[[draft]]\npattern = '['\n", "draft 1 (without id): pattern: not a regular expression"),
    ],
)
def test_a_wrong_file_of_markers_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    """A UsageError names the file, the entry by line, number and id, and what is wrong."""
    file = tmp_path / "step_markers.toml"
    file.write_text(text)
    assert any(problem in found for found in marker_problems(text))
    with pytest.raises(UsageError, match=r"^step_markers\.toml: "):
        load_rules(user_markers=file)
