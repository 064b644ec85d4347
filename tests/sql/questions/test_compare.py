"""The questions of `compare` and `curve`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.analyses import sql
from tests.support.questions import DECODE, RUN, ask, marts
from tests.support.tables import Result, Row


def step(number: int, **fields: Any) -> Row:
    """A complete decode step of 1 ms that another follows."""
    return {
        "step": number,
        "phase": "decode",
        "next_phase": "decode",
        "start_ns": number * 1_000_000,
        "wall_ns": 1_000_000,
    } | fields


def over_sample(question: str, tables: Mapping[str, Iterable[Row]], **parameters: Any) -> Result:
    """The rows of a question that reads the sampled steps."""
    with marts(tables) as con:
        sql.temp_table(con, "sample_step", "compare/steps", **DECODE)
        return sql.rows(con, question, **parameters)


def used(steps: Iterable[Row]) -> list[tuple[str, bool]]:
    """Unit of each step, and whether it is used."""
    with marts({"steps": steps}) as con:
        return sorted((row["unit"], row["is_used"]) for row in sql.dicts(con, "compare/steps", **DECODE))


PAIR = [step(n, trace_id=trace, match_id=n) for n in range(2) for trace in ("t", "u")]


def test_phases_have_complete_steps() -> None:
    """Empty steps are none."""
    steps = [
        step(0),
        step(1, is_complete=False),
        step(2, phase="empty"),
        step(3, source="nsys", phase="draft"),
    ]
    assert sorted(ask("compare/phases", {"steps": steps}, run_id="run")) == [
        ("kineto", "decode", 1),
        ("nsys", "draft", 1),
    ]


def test_verdicts_and_failed_checks_are_of_the_current_build() -> None:
    """Results of an older build, warnings and passes do not refuse a run."""
    tables: dict[str, list[Row]] = {
        "runs": [{"verdict": "fail"}],
        "run_facts": [{"build_id": "new"}],
        "quality": [
            {"build_id": build, "check": check, "severity": severity, "is_passed": is_passed}
            for build, check, severity, is_passed in (
                ("new", "b", "fail", False),
                ("new", "a", "warn", False),
                ("new", "c", "fail", True),
                ("old", "d", "fail", False),
            )
        ],
    }
    assert ask("compare/verdicts", tables, run_id="run") == [("fail",)]
    assert ask("compare/failed_checks", tables, run_id="run") == [("b",)]


def test_steps_that_a_rank_lacks_are_not_used() -> None:
    """One of three units has one rank only."""
    assert used([*PAIR, step(2, match_id=2)]) == [
        ("0", True),
        ("0", True),
        ("1", True),
        ("1", True),
        ("2", False),
    ]


def test_where_most_steps_lack_a_rank_all_are_used() -> None:
    """Ranks that decode while others prefill."""
    steps = [*PAIR[:2], *(step(n, match_id=n) for n in range(1, 4))]
    assert all(is_used for _, is_used in used(steps))


def test_an_unmatched_step_is_a_unit_of_its_device() -> None:
    """Equal numbers on two devices of a trace are two steps."""
    assert used([step(0), step(0, device=1)]) == [("t 0 0", True), ("t 1 0", True)]


def test_left_out_units_are_counted() -> None:
    """A unit, not its ranks' steps."""
    assert over_sample("compare/left_out", {"steps": [*PAIR, step(2, match_id=2)]}) == [(1,)]
    assert over_sample("compare/left_out", {"steps": PAIR}) == [(0,)]


def test_units_are_in_the_order_of_time() -> None:
    """The wall is the mean over ranks, where every rank has one and a decode step follows."""
    steps = [
        step(0, match_id=5, start_ns=9, wall_ns=3_000_000),
        step(0, match_id=5, trace_id="u", start_ns=8),
        step(1, match_id=4, start_ns=20, next_phase="prefill"),
        step(1, match_id=4, trace_id="u", start_ns=20),
    ]
    assert over_sample("compare/units", {"steps": steps}) == [("5", 2.0, 5, 2), ("4", None, 4, 2)]


def test_work_is_the_mean_over_ranks() -> None:
    """A rank without the kind has 0 of it."""
    booked = [
        {"step": 0, "rollup": "GEMM", "category": "gemm", "busy_ns": 3_000_000, "exposed_ns": 1_000_000},
        {
            "step": 0,
            "rollup": "GEMM",
            "category": "gemm",
            "busy_ns": 1_000_000,
            "exposed_ns": 1_000_000,
            "trace_id": "u",
        },
        {"step": 1, "rollup": "Norm", "category": "norm", "busy_ns": 1_000_000, "exposed_ns": 0},
    ]
    assert over_sample("compare/work", {"steps": PAIR, "step_breakdown": booked}, run_id="run") == [
        ("0", "GEMM", "gemm", 2.0, 1.0),
        ("1", "Norm", "norm", 0.5, 0.0),
    ]


def test_waiting_is_of_communication_kernels() -> None:
    """Refused calls are counted with their reason."""
    kernels: list[Row] = [
        {"trace_id": trace, "activity_id": n, "step": 0, "category": "allreduce", "rollup": "AllReduce"}
        for trace in ("t", "u")
        for n in range(2)
    ]
    calls: list[Row] = [
        {"trace_id": "t", "activity_id": 0, "step": 0, "floor_ns": 2_000_000, "wait_ns": 1_000_000},
        {"trace_id": "u", "activity_id": 0, "step": 0, "floor_ns": 2_000_000, "wait_ns": 3_000_000},
        {"trace_id": "u", "activity_id": 1, "step": 0, "refusal": "no_match"},
    ]
    tables: dict[str, list[Row]] = {"steps": PAIR, "activity": kernels, "collectives": calls}
    assert over_sample("compare/waiting", tables, **RUN) == [("0", "AllReduce", 2.0, 2.0, 1, "no_match")]


def test_calls_are_the_marts() -> None:
    """Of the phase."""
    rows: list[Row] = [
        {"phase": phase, "rollup": "GEMM", "calls_min": n, "calls_mode": n, "calls_max": n}
        for n, phase in enumerate(("decode", "prefill"))
    ]
    assert ask("compare/calls", {"run_breakdown": rows}, **DECODE) == [("GEMM", 0, 0, 0)]


def kernels(
    *names: tuple[str, int | None], steps: int = 2, extra: Iterable[Row] = ()
) -> dict[str, list[Row]]:
    """Steps that each run these kernels of 1 ms, one after another: name and layer."""
    activities: list[Row] = [
        {"activity_id": 100 * n + at, "step": n, "name": name, "category": "gemm", "layer": layer,
         "start_ns": 100 * n + at, "dur_ns": 1_000_000}
        for n in range(steps)
        for at, (name, layer) in enumerate(names)
    ]  # fmt: skip
    activities += extra
    found = sorted({str(row["name"]) for row in activities})
    return {
        "steps": [step(n) for n in range(steps)],
        "activity": activities,
        "kernel_breakdown": [{"name": name, "short_name": name.upper()} for name in found],
    }


def test_kernels_have_a_position() -> None:
    """Before the layers, in each, after them; or the step as one."""
    tables = kernels(("a", None), ("b", 0), ("b", 0), ("b", 1), ("a", None))
    found = ask("compare/kernels", tables, **DECODE, is_whole=False)
    assert [(row[0], row[1], row[6], row[7]) for row in found] == [
        (-1, "A", 1, 1.0),
        (0, "B", 2, 1.0),
        (1, "B", 1, 1.0),
        (1_000_000, "A", 1, 1.0),
    ]
    whole = ask("compare/kernels", tables, **DECODE, is_whole=True)
    assert [(row[0], row[1], row[6]) for row in whole] == [(2_000_000, "A", 2), (2_000_000, "B", 3)]


def test_a_kernel_that_most_steps_lack_is_not_usual() -> None:
    """One of three steps has it."""
    odd: Row = {
        "activity_id": 50,
        "step": 0,
        "name": "odd",
        "category": "gemm",
        "layer": 0,
        "start_ns": 50,
        "dur_ns": 1,
    }
    found = ask("compare/kernels", kernels(("a", 0), steps=3, extra=[odd]), **DECODE, is_whole=False)
    assert [row[1] for row in found] == ["A"]


def test_hardware_layers_and_kernels_of_a_run() -> None:
    """As the marts have them."""
    tables: dict[str, list[Row]] = {
        "run_facts": [{"gpu_name": "H200", "ranks_expected": 8, "ranks": 2}],
        "layer_breakdown": [
            {"phase": "decode", "layer": 0, "category": "gemm"},
            {"phase": "decode", "layer": 1, "category": "moe_gemm"},
        ],
        "steps": [step(0, kernels=5), step(1, kernels=7), step(2, kernels=7)],
    }
    assert ask("compare/hardware", tables, **RUN) == [("H200", 8, 2)]
    assert ask("compare/layers", tables, **DECODE) == [(2, 1)]
    assert ask("compare/kernel_count", tables, **DECODE) == [(7,)]


def test_the_load_of_matched_steps_is_of_all_groups() -> None:
    """Requests and tokens of run_steps, the context of a request from the ranks; only given matches."""
    tables: dict[str, list[Row]] = {
        "run_steps": [
            {"match_id": n, "generation_requests": 16, "graph_tokens": 16, "scheduled_context_tokens": 0}
            for n in (0, 1)
        ],
        "steps": [step(0, match_id=0, kv_tokens=800, generation_requests=8), step(1, match_id=1)],
    }
    assert ask("compare/matched_load", tables, **DECODE, matches=[0]) == [(16, 0, 16, 100.0)]


def test_the_load_of_unmatched_steps_is_of_a_rank() -> None:
    """In the order of trace and step."""
    steps = [
        step(1, context_requests=1, generation_requests=2, scheduled_context_tokens=9),
        step(0, generation_requests=8, kv_tokens=800, graph_tokens=8),
    ]
    assert ask("compare/rank_load", {"steps": steps}, **DECODE) == [(8, None, 8, 100.0), (3, 9, None, None)]


def test_points_of_a_curve_are_sizes_of_steps() -> None:
    """The global batch of matched steps; lists over the steps that have the kind; a row for all kernels."""
    tables: dict[str, list[Row]] = {
        "steps": [step(n, match_id=n, kv_tokens=200, generation_requests=2) for n in range(3)],
        "run_steps": [
            {"match_id": n, "generation_requests": 4 if n < 2 else 8, "graph_tokens": 8} for n in range(3)
        ],
        "step_breakdown": [
            {"step": 0, "category": "gemm", "busy_ns": 2_000_000, "exposed_ns": 1_000_000, "calls": 4},
            {"step": 0, "category": "norm", "busy_ns": 1_000_000, "exposed_ns": 0, "calls": 1},
            {"step": 2, "category": "gemm", "busy_ns": 5_000_000, "exposed_ns": 5_000_000, "calls": 4},
        ],
    }
    assert over_sample("curve/points", tables, **RUN) == [
        (4, 8, 100.0, 1.0, 2, "gemm", [2.0], [1.0], 4),
        (4, 8, 100.0, 1.0, 2, "norm", [1.0], [0.0], 1),
        (4, 8, 100.0, 1.0, 2, None, [3.0], [1.0], 5),
        (8, 8, 100.0, 1.0, 1, "gemm", [5.0], [5.0], 4),
        (8, 8, 100.0, 1.0, 1, None, [5.0], [5.0], 4),
    ]
