"""int_step_lost: steps in which the profiler lost records; and what steps and the time line say of them."""

from __future__ import annotations

import pytest

from pipeline.duck import rows
from tests.support.builders import ALL_REDUCE, GEMM
from tests.support.sequence import DENSE, HEAD, Sequence, joined
from tests.support.tables import Row, Scene, build_scenes, run_model

STEP = f"embed {DENSE} {DENSE} {HEAD}"
LABEL = "execute_context_0(0)_generation_1(1)"


def _lost(*steps: str, labels: list[str] | None = None, **begin: object) -> list[tuple[object, ...]]:
    """(step, lost_kernels) of a trace whose steps hold these words."""
    made = Sequence()
    begun: list[Row] = []
    for number, words in enumerate(steps):
        made.run(words, number)
        begun.append(
            {"step": number, "phase": "decode", "label": labels[number] if labels else LABEL} | begin
        )
    return run_model(
        "int_step_lost", made.tables() | {"int_step_begin": begun, "stg_trace": [{}]}, "step, lost_kernels"
    )


def test_equal_steps_have_lost_nothing() -> None:
    """Steps with the same kernels are whole."""
    assert _lost(STEP, STEP, STEP, STEP) == []


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_missing_kernels_are_found_anywhere(place: int) -> None:
    """A step that lacks two of the kernels that its peers share has lost records, be it first, last or
    between."""
    steps = [STEP] * 4
    steps[place] = STEP.replace("activation gemm allreduce", "activation", 1)
    assert _lost(*steps) == [(place, 2)]


def test_a_step_cut_before_the_models_first_kernel_is_found() -> None:
    """Only its input copies and casts were recorded: nothing of the model, so everything of it is missing."""
    kernels = sum(word not in {"embed", "sample"} for word in STEP.split())
    assert _lost(STEP, STEP, STEP, "embed cast fill") == [(3, kernels)]


def test_another_device_without_the_model_is_not_compared() -> None:
    """A copy to a second device does not make a step of it."""
    made, begun = (
        Sequence(),
        [{"step": n, "device": None, "phase": "decode", "label": LABEL} for n in range(4)],
    )
    for number in range(4):
        made.run(STEP, number)
    made.run("cast", 3, device=1)
    assert (
        run_model(
            "int_step_lost",
            made.tables() | {"int_step_begin": begun, "stg_trace": [{}]},
            "step, lost_kernels",
        )
        == []
    )


def test_more_kernels_are_not_lost_ones() -> None:
    """A step that does more than its peers has lost nothing."""
    assert _lost(STEP, STEP, STEP, f"{STEP} gemm") == []


def test_other_kernels_are_not_lost_ones() -> None:
    """A step of fewer kernels, some of names that peers lack, is another computation (another batch size's
    kernels)."""
    other = STEP.replace("gemm rope", "gemm:other_tile").replace("cache", "", 1)
    assert _lost(STEP, STEP, STEP, other) == []


def test_fewer_than_three_peers_judge_nothing() -> None:
    """Of two steps it is unknown which is intact."""
    assert _lost(STEP, "gemm") == []


def test_without_a_majority_nothing_is_judged() -> None:
    """Where no kernel multiset is shared by more than half of the peers none is the usual one."""
    assert _lost(STEP, STEP, f"{STEP} gemm", f"{STEP} gemm") == []


def test_steps_are_held_against_the_same_marker() -> None:
    """Steps of another batch have other peers: a lone smaller one is not judged."""
    assert (
        _lost(STEP, STEP, STEP, DENSE, labels=[LABEL, LABEL, LABEL, "execute_context_0(0)_generation_8(8)"])
        == []
    )


def test_sampling_and_copies_are_not_compared() -> None:
    """Honest steps differ in sampling, casts and small elementwise kernels."""
    assert (
        _lost(
            STEP,
            STEP,
            STEP,
            STEP.replace("sample", ""),
            STEP.replace("embed", "embed cast fill sample strange"),
        )
        == []
    )


def test_peers_are_found_over_ranks() -> None:
    """One step per rank: three ranks tell that the fourth lost records."""
    tables: dict[str, list[Row]] = {
        "int_activity": [],
        "int_activity_step": [],
        "int_step_begin": [],
        "stg_trace": [],
    }
    for rank in range(4):
        trace = f"t{rank}"
        made = Sequence(trace_id=trace).run(STEP if rank else STEP.replace("attention", ""), 0)
        for table, made_rows in made.tables().items():
            tables[table] += made_rows
        tables["int_step_begin"].append({"trace_id": trace, "step": 0, "phase": "decode", "label": LABEL})
        tables["stg_trace"].append({"trace_id": trace, "rank": rank})
    assert run_model("int_step_lost", tables, "trace_id, step, lost_kernels") == [("t0", 0, 2)]


def test_steps_found_by_kernel_order_are_peers_whatever_their_phase() -> None:
    """A shortened step has no phase where kernel order found it, and is compared with the intact ones."""
    made = Sequence()
    begun: list[Row] = []
    for number in range(4):
        made.run(STEP if number != 2 else STEP.replace("attention", ""), number)
        begun.append(
            {
                "step": number,
                "device": 0,
                "method": "pattern",
                "phase": "unknown" if number == 2 else "decode",
            }
        )
    found = run_model(
        "int_step_lost", made.tables() | {"int_step_begin": begun, "stg_trace": [{}]}, "step, lost_kernels"
    )
    assert found == [(2, 2)]


def _scene(*kernels: int) -> Scene:
    """Steps of so many kernels each: 100 ns of work every 150 ns, 1,000 ns from step to step, a copy behind
    the annotation."""
    scene = Scene()
    for step, count in enumerate(kernels):
        begin = 1_000 * step
        scene.step(begin, 40)
        names = [GEMM, ALL_REDUCE, GEMM, ALL_REDUCE, GEMM]
        for number in range(count):
            scene.launch(begin + 1 + number, (names[number], begin + 100 + 150 * number, 100))
    return scene


STEPS = (
    "SELECT step, is_complete, incomplete_reason, wall_ns, idle_inside_ns, gap_after_ns FROM steps ORDER "
    "BY step"
)


def test_a_step_with_lost_records_has_neither_wall_nor_idle() -> None:
    """Nor has the step before it a wall, since the lost step's first kernel may be what is missing."""
    with build_scenes(_scene(5, 5, 3, 5, 5), wanted=["steps"]) as con:
        assert rows(con, STEPS) == [
            (0, True, None, 1000, 200, 300),
            (1, True, None, None, 200, None),
            (2, False, "records_lost", None, None, None),
            (3, True, None, 1000, 200, 300),
            (4, True, None, None, 200, None),
        ]


def test_a_first_step_with_fewer_kernels_began_before_the_capture() -> None:
    """The reason says so, instead of calling the records lost."""
    with build_scenes(_scene(3, 5, 5, 5), wanted=["steps"]) as con:
        assert rows(con, STEPS)[0] == (0, False, "begins_before_capture", None, None, None)


def test_a_last_step_with_fewer_kernels_ends_after_the_capture() -> None:
    """It stays in the table, out of means, and the step before it has no wall."""
    with build_scenes(_scene(5, 5, 5, 2), wanted=["steps"]) as con:
        found = rows(con, STEPS)
    assert found[3] == (3, False, "ends_after_capture", None, None, None)
    assert found[2] == (2, True, None, None, 200, None)


def test_incomplete_steps_are_left_out_of_the_table() -> None:
    """Counts and means of the breakdown come from the whole steps alone."""
    with build_scenes(_scene(5, 5, 3, 5, 5), wanted=["run_breakdown"]) as con:
        assert rows(con, "SELECT rollup, steps, calls_min, calls_max FROM run_breakdown ORDER BY ALL") == [
            ("AllReduce", 4, 2, 2),
            ("GEMM", 4, 3, 3),
        ]


def test_pipeline_stages_are_held_against_themselves() -> None:
    """Two middle stages of three layers and a last one of two: the last is whole; a step of it with a hole is
    not."""
    stage, last = f"{DENSE} {DENSE} {DENSE} send", f"{DENSE} {DENSE} send"
    begun: list[Row] = []
    ranks = []
    for trace, words in (("r0", stage), ("r1", stage), ("r2", last)):
        made = Sequence(trace_id=trace)
        for number in range(4):
            cut = trace == "r2" and number == 2
            made.run(words.replace("gemm activation", "activation", 1) if cut else words, number)
            begun.append({"trace_id": trace, "step": number, "phase": "decode", "label": LABEL})
        ranks.append(made)
    tables = joined(*ranks) | {
        "int_step_begin": begun,
        "stg_trace": [{"trace_id": t} for t in ("r0", "r1", "r2")],
    }
    assert run_model("int_step_lost", tables, "trace_id, step, lost_kernels") == [("r2", 2, 1)]


def test_ranks_of_different_work_judge_themselves() -> None:
    """Where no multiset is usual over all ranks, a rank with three equal steps of its own still finds its
    fourth short."""
    begun: list[Row] = []
    ranks = []
    for trace, words in (("r0", STEP), ("r1", f"{DENSE} {DENSE} {DENSE}")):
        made = Sequence(trace_id=trace)
        for number in range(4):
            made.run(
                words.replace("gemm activation", "activation", 1) if (trace, number) == ("r1", 3) else words,
                number,
            )
            begun.append({"trace_id": trace, "step": number, "phase": "decode", "label": LABEL})
        ranks.append(made)
    tables = joined(*ranks) | {"int_step_begin": begun, "stg_trace": [{"trace_id": t} for t in ("r0", "r1")]}
    assert run_model("int_step_lost", tables, "trace_id, step, lost_kernels") == [("r1", 3, 1)]
