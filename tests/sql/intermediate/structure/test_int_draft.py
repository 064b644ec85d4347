"""int_draft: kernels of draft models, where that is proven."""

from __future__ import annotations

from tests.support.sequence import DENSE, Sequence
from tests.support.tables import Row, run_model

MARKERS: list[Row] = [
    {"step": 0, "start_ns": 0, "end_ns": 9, "part": "before", "phase": "decode"},
    {"step": 1, "start_ns": 10, "end_ns": 99, "part": "verify", "phase": "verify"},
]


def _drafts(made: Sequence, **tables: list[Row]) -> list[int]:
    return [row[0] for row in run_model("int_draft", made.tables() | tables, "activity_id", "activity_id")]


def test_the_annotation_of_a_draft_proves_it() -> None:
    """What is launched inside vLLM's draft range is the draft model's; what is launched after it is not."""
    made = Sequence().run("norm gemm sample norm gemm", pid=1, tid=1)  # launched at 1 to 5
    note: Row = {"name": "gpu_model_runner: draft", "start_ns": 3, "end_ns": 5}
    assert _drafts(made, stg_annotation=[note]) == [2, 3]


def test_a_decode_span_of_a_verified_step_is_a_draft() -> None:
    """A pass marked DECODE in an iteration that verifies is the draft model's; the verifying pass is not."""
    made = Sequence(launches=0).run("norm gemm", pid=1, tid=1).run("norm gemm", pid=1, tid=1)
    for row in made.kernels[2:]:
        row["launch_ns"] += 20
    passes: list[Row] = [{"step": 0, "start_ns": 0, "end_ns": 99, "phase": "verify"}]
    assert _drafts(made, int_step_marker=MARKERS, int_marked_pass=passes) == [0, 1]


def test_a_decode_span_of_a_decode_step_is_none() -> None:
    """Without a verify the same marker is the model's own step."""
    made = Sequence().run("norm gemm", pid=1, tid=1)
    passes: list[Row] = [{"step": 0, "start_ns": 0, "end_ns": 9, "phase": "decode"}]
    assert _drafts(made, int_step_marker=MARKERS[:1], int_marked_pass=passes) == []


def test_a_small_replay_behind_the_sampling_is_a_draft() -> None:
    """The target's replay, its sampling, then a replay of one layer: that one is the draft's."""
    made = Sequence().run(f"{DENSE} {DENSE} {DENSE}", graph=True).run("sample").run(DENSE, graph=True)
    assert _drafts(made) == list(range(3 * len(DENSE.split()) + 1, 4 * len(DENSE.split()) + 1))


def test_a_small_replay_before_any_sampling_proves_nothing() -> None:
    """It may be the last piece of a graph that was captured in pieces."""
    made = Sequence().run(f"{DENSE} {DENSE} {DENSE}", graph=True).run(DENSE, graph=True).run("sample")
    assert _drafts(made) == []


def test_a_replay_without_attention_or_of_half_the_layers_and_more_is_none() -> None:
    """Sampling graphs and full passes are not drafts."""
    assert (
        _drafts(Sequence().run(f"{DENSE} {DENSE}", graph=True).run("sample").run("norm gemm", graph=True))
        == []
    )
    assert (
        _drafts(
            Sequence()
            .run(f"{DENSE} {DENSE} {DENSE}", graph=True)
            .run("sample")
            .run(f"{DENSE} {DENSE}", graph=True)
        )
        == []
    )
