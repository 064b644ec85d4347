"""int_pattern_pass: forward passes seen in the order of kernels alone."""

from __future__ import annotations

import random

from tests.support.sequence import DENSE, Sequence, joined, run_model

STEP = f"embed {DENSE} {DENSE} {DENSE} norm gemm sample"
KERNELS = len(STEP.split())


def _passes(made: Sequence, columns: str = "step, kernels, phase, confidence") -> list[tuple[object, ...]]:
    return run_model("int_pattern_pass", {"int_activity": made.kernels}, columns, "device, step")


def _steps(count: int, words: str = STEP) -> Sequence:
    made = Sequence()
    for _ in range(count):
        made.run(words, None)
    return made


def test_a_repeating_sequence_gives_steps() -> None:
    """Every repeat of the sequence is a decode step, at 0.5."""
    assert _passes(_steps(4)) == [(step, KERNELS, "decode", 0.5) for step in range(4)]


def test_steps_begin_with_the_embedding() -> None:
    """Of all names that come back once a step the embedding marks the start."""
    made = _steps(4)
    starts = [k["start_ns"] for k in made.kernels if k["name"] == "embed"]
    assert _passes(made, "start_ns") == [(start,) for start in starts]


def test_without_an_embedding_the_first_name_begins_them() -> None:
    """A fused embedding leaves the first kernel that comes back once a step."""
    words = f"fill {DENSE} {DENSE} norm gemm sample"
    made = _steps(4, words)
    assert _passes(made, "start_ns") == [(k["start_ns"],) for k in made.kernels if k["name"] == "fill"]


def test_the_period_comes_from_names_not_from_gaps() -> None:
    """Wherever the device waited, long in the middle of steps and never between them, the steps are the
    same."""
    rng, made = random.Random(1), Sequence()  # noqa: S311 (a fixed sequence is wanted)
    for _ in range(5):
        for word in STEP.split():
            made.run(word, None, gap_ns=0 if word == "sample" else rng.choice([0, 1, 900_000]))
    assert _passes(made, "step, kernels, phase") == [(step, KERNELS, "decode") for step in range(5)]


def test_layers_are_not_taken_for_steps() -> None:
    """A step of twelve equal layers repeats twelve times within itself; the longer period is the step's."""
    words = " ".join(["embed", *[DENSE] * 12, "norm gemm sample"])
    assert _passes(_steps(3, words), "kernels") == [(len(words.split()),)] * 3


def test_layers_alone_are_no_steps() -> None:
    """A capture within one step shows layers only, and those hold one attention each: nothing is called a
    step."""
    assert _passes(Sequence().run(" ".join([DENSE] * 12), None)) == []


def test_training_is_no_generation() -> None:
    """Forward, backward and optimizer repeat as well, without embedding or sampling kernels: no steps."""
    words = (
        "norm gemm attention gemm activation gemm norm gemm attention gemm activation gemm backward "
        "backward gemm gemm fill"
    )
    assert _passes(_steps(6, words)) == []


def test_diffusion_is_no_generation() -> None:
    """Denoising steps repeat attention and GEMMs, but neither embed tokens nor sample: no steps."""
    assert (
        _passes(_steps(8, "cast norm gemm attention gemm norm gemm attention gemm activation gemm fill"))
        == []
    )


def test_a_last_step_cut_off_has_no_phase() -> None:
    """The capture ends within a step: it is kept, and is not called decode."""
    made = _steps(3).run(" ".join(STEP.split()[:9]), None)
    assert _passes(made, "step, kernels, phase") == [
        *[(step, KERNELS, "decode") for step in range(3)],
        (3, 9, "unknown"),
    ]


def test_what_came_before_the_first_whole_step_is_no_step() -> None:
    """The capture began within a step: its rest begins no step."""
    made = Sequence().run(" ".join(STEP.split()[-9:]), None)
    for _ in range(3):
        made.run(STEP, None)
    found = _passes(made, "step, start_ns")
    assert [start for _, start in found] == [k["start_ns"] for k in made.kernels if k["name"] == "embed"]


def test_a_step_that_lost_kernels_has_no_phase_and_the_others_keep_theirs() -> None:
    """Missing kernels in the middle make one step shorter; the period is what most steps have."""
    made = _steps(3).run(STEP.replace("activation", ""), None)
    for _ in range(3):
        made.run(STEP, None)
    assert [phase for (phase,) in _passes(made, "phase")] == ["decode"] * 3 + ["unknown"] + ["decode"] * 3


def test_two_repeats_prove_nothing() -> None:
    """A sequence must come back at least twice: of two steps one distance is seen, and that is chance."""
    assert _passes(_steps(2)) == []


def test_names_without_order_give_no_steps() -> None:
    """Kernels in random order have no period."""
    rng = random.Random(2)  # noqa: S311 (a fixed sequence is wanted)
    assert _passes(Sequence().run(" ".join(rng.choices(STEP.split(), k=300)), None)) == []


def test_copies_do_not_count() -> None:
    """Copies and memsets come at irregular places, so only kernels are counted."""
    made = Sequence()
    for step in range(4):
        made.run(" ".join(["fill"] * (step % 3)), None, kind="memset").run(STEP, None)
    assert _passes(made, "kernels") == [(KERNELS,)] * 4


def test_devices_are_judged_apart() -> None:
    """Each device has steps of its own, at its own times."""
    first, second = _steps(3), Sequence(now_ns=77_000, trace_id="u", device=1)
    for _ in range(4):
        second.run(STEP, None)
    rows = joined(first, second)["int_activity"]
    assert (
        run_model("int_pattern_pass", {"int_activity": rows}, "trace_id, device")
        == [("t", 0)] * 3 + [("u", 1)] * 4
    )
