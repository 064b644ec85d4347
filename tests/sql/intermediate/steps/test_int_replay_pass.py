"""int_replay_pass: forward passes seen in graph replays."""

from __future__ import annotations

from tests.support.sequence import DENSE, HEAD, Sequence, run_model

MODEL = f"embed {DENSE} {DENSE} {DENSE} {DENSE} norm gemm"
DRAFT = f"embed {DENSE} norm gemm"
HIDDEN = "norm gemm"
REST = "gemm allreduce norm gemm activation gemm allreduce norm gemm"


def _passes(made: Sequence, columns: str = "step, replays, phase, confidence") -> list[tuple[object, ...]]:
    return run_model("int_replay_pass", {"int_activity": made.kernels}, columns, "step")


def test_a_replay_is_a_step() -> None:
    """A whole-model graph is replayed once a step; the copies and sampling between replays change nothing."""
    made = Sequence()
    for _ in range(3):
        made.run("fill strange").run(MODEL, graph=True).run("sample")
    assert _passes(made) == [(step, 1, "decode", 0.8) for step in range(3)]


def test_a_pass_lasts_from_its_first_launch_to_its_last() -> None:
    """Start and end are times of calls, with the thread that made them."""
    made = (
        Sequence()
        .run(MODEL, graph=True, launch_ns=100, tid=7)
        .run("sample", launch_ns=110)
        .run(MODEL, graph=True, launch_ns=200, tid=7)
    )
    assert _passes(made, "step, start_ns, end_ns, tid") == [(0, 100, 101, 7), (1, 200, 201, 7)]


def _piecewise(made: Sequence, layers: int = 3) -> None:
    made.run("embed norm gemm", graph=True)
    for _ in range(layers):
        made.run("cache attention combine").run(REST, graph=True)
    made.run("norm gemm sample")


def test_pieces_with_attention_launched_between_are_one_step() -> None:
    """Piecewise graphs: all pieces of a pass are one step, whose phase is not known and whose confidence is
    0.6."""
    made = Sequence()
    for _ in range(3):
        _piecewise(made)
    assert _passes(made) == [(step, 4, "unknown", 0.6) for step in range(3)]


def test_an_eager_pass_between_two_replays_does_not_glue_them() -> None:
    """A prefill launched kernel by kernel has attention too, but also an MLP: the replays around it are two
    steps."""
    made = Sequence()
    for _ in range(3):
        made.run(MODEL, graph=True).run(f"embed {DENSE} {DENSE} {HEAD}")
    assert _passes(made) == [(step, 1, "decode", 0.8) for step in range(3)]


def test_an_eager_pass_between_piecewise_steps_does_not_glue_them() -> None:
    """The last pieces of a step and the first of the next stay apart whatever ran eagerly between."""
    made = Sequence()
    _piecewise(made)
    made.run(f"embed {DENSE} {DENSE} {HEAD}")
    _piecewise(made)
    assert _passes(made, "step, replays") == [(0, 4), (1, 4)]


def test_drafts_belong_to_the_step_of_the_target() -> None:
    """A target replay followed by three draft replays is one step of four replays, and that verifies."""
    made = Sequence()
    for _ in range(3):
        made.run(MODEL, graph=True).run("sample")
        for _ in range(3):
            made.run(DRAFT, graph=True).run("sample")
    assert _passes(made) == [(step, 4, "verify", 0.8) for step in range(3)]


def test_drafts_before_the_first_target_are_no_step() -> None:
    """A capture that begins between target and drafts does not call the drafts a step."""
    made = Sequence().run(DRAFT, graph=True)
    for _ in range(2):
        made.run(MODEL, graph=True).run("sample").run(DRAFT, graph=True)
    assert _passes(made, "step, replays, phase") == [(0, 2, "verify"), (1, 2, "verify")]


def test_a_smaller_batch_of_the_same_model_is_a_step() -> None:
    """Graphs of other batch sizes have other kernels, but as many layers."""
    small = MODEL.replace("allreduce", "strange")
    made = Sequence().run(MODEL, graph=True).run(small, graph=True).run(f"{MODEL} sample", graph=True)
    assert _passes(made, "step, replays") == [(0, 1), (1, 1), (2, 1)]


def test_without_attention_the_size_of_replays_decides() -> None:
    """Graphs that hold no known attention are distinguished by their number of activities."""
    made = Sequence()
    for _ in range(2):
        made.run("cache gemm gemm gemm gemm gemm gemm gemm", graph=True).run("cache gemm", graph=True)
    assert _passes(made, "step, replays") == [(0, 2), (1, 2)]


def test_a_graph_without_signs_of_generation_has_no_phase() -> None:
    """Training steps replay graphs as well: without a KV cache or sampling the phase is unknown, at 0.5."""
    made = Sequence()
    for _ in range(3):
        made.run("norm gemm attention gemm norm gemm activation gemm backward gemm gemm", graph=True)
    assert _passes(made) == [(step, 1, "unknown", 0.5) for step in range(3)]


def test_without_replays_there_is_nothing() -> None:
    """Eager kernels make no pass, and neither do activities whose call was not recorded."""
    assert _passes(Sequence().run(MODEL)) == []
    assert _passes(Sequence().run(MODEL, graph=True, launch_ns=None)) == []


def test_traces_are_judged_apart() -> None:
    """A small model's trace beside a large one's is not taken for its drafts."""
    large, small = Sequence().run(MODEL, graph=True), Sequence(trace_id="u").run(DRAFT, graph=True)
    found = run_model(
        "int_replay_pass", {"int_activity": large.kernels + small.kernels}, "trace_id, step, replays"
    )
    assert found == [("t", 0, 1), ("u", 0, 1)]
