"""The questions of the audit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pipeline.analyses import sql
from tests.support.questions import RUN, ask, marts
from tests.support.tables import Result, Row

PLACED = {"exchanges": False, "unplaced": []}
STAGES = [{"trace_id": "t", "stage": 0}, {"trace_id": "u", "stage": 1}]


def step(number: int, **fields: Any) -> Row:
    """A complete decode step that replays a graph of 8 tokens."""
    return {"step": number, "phase": "decode", "rank": 0, "graph_launches": 1, "graph_tokens": 8} | fields


def call(number: int, at: int = 0, **fields: Any) -> Row:
    """An all-reduce after attention of layer 0."""
    return {
        "activity_id": number,
        "step": at,
        "phase": "decode",
        "part": "after_attention",
        "layer": 0,
        "category": "allreduce",
        "subcategory": "nccl",
        "is_half": False,
        "dur_ns": 10_000,
    } | fields


def over_steps(
    question: str,
    steps: Iterable[Row],
    calls: Iterable[Row] = (),
    shape: dict[str, Any] | None = None,
    **parameters: Any,
) -> Result:
    """The rows of a question that reads the audit's steps and calls."""
    with marts({"steps": steps, "collectives": calls}) as con:
        sql.temp_table(con, "audit_step", "audit/steps", **RUN, stages=STAGES)
        sql.temp_table(con, "audit_call", "audit/calls", run_id="run", **(PLACED | (shape or {})))
        return sql.rows(con, question, **parameters)


def named(calls: Iterable[Row], **shape: Any) -> list[tuple[Any, ...]]:
    """Part, layer and operation of each call."""
    with marts({"steps": [step(0)], "collectives": calls}) as con:
        sql.temp_table(con, "audit_step", "audit/steps", **RUN, stages=STAGES)
        found = sql.dicts(con, "audit/calls", run_id="run", **(PLACED | shape))
        return [(row["part"], row["layer"], row["operation"]) for row in found]


def test_sources_have_complete_steps() -> None:
    """Others cannot be audited."""
    steps = [step(0), step(1, source="nsys", is_complete=False)]
    assert ask("audit/sources", {"steps": steps}, run_id="run") == [("kineto",)]


def test_sizes_come_from_the_names_of_all_files() -> None:
    """A file without them makes the names no proof."""
    traces = [{"trace_id": f"t{n}", "rank": n, "tp_rank": n, "pp_rank": 0, "dp_rank": 0} for n in range(2)]
    assert ask("audit/parallel_sizes", {"raw.trace": traces}, **RUN) == [(2, 1, 1, True, 2, None)]
    traces.append({"trace_id": "odd", "rank": 2, "world_size": 8})
    ((*_, are_named, ranks, world),) = ask("audit/parallel_sizes", {"raw.trace": traces}, **RUN)
    assert (are_named, ranks, world) == (False, 3, 8)


def test_traces_have_ranks() -> None:
    """By trace."""
    traces = [{"trace_id": "u", "rank": 1}, {"trace_id": "t", "rank": 0, "pp_rank": 2}]
    assert ask("audit/traces", {"raw.trace": traces}, **RUN) == [("t", 2, 0), ("u", None, 1)]


def test_steps_have_stage_and_shape() -> None:
    """No graph is NULL, a graph of unknown size 0."""
    steps = [step(0), step(1, graph_launches=0), step(2, graph_tokens=None), step(3, is_complete=False)]
    found = ask("audit/steps", {"steps": [*steps, step(0, trace_id="u", rank=1)]}, **RUN, stages=STAGES)
    assert sorted(found, key=str) == [
        ("t", 0, 0, 0, 0, "decode", 8),
        ("t", 0, 1, 0, 0, "decode", None),
        ("t", 0, 2, 0, 0, "decode", 0),
        ("u", 0, 0, 1, 1, "decode", 8),
    ]


def test_evidence_of_the_layout() -> None:
    """Each fact by what shows it."""
    rows: list[Row] = [
        {"phase": "decode", "layer": 1, "category": "allreduce", "part": "after_moe", "calls_mode": 2},
        {"phase": "decode", "layer": 1, "category": "collective", "subcategory": "reduce_scatter",
         "part": "after_attention", "calls_mode": 1},
        {"phase": "decode", "category": "all_to_all", "role": "dispatch"},
    ]  # fmt: skip
    tables: dict[str, list[Row]] = {"allreduce_audit": rows, "activity": [{"role": "shared"}]}
    assert ask("audit/evidence", tables, **RUN) == [(True, True, True, True, True)]
    assert ask("audit/evidence", {}, **RUN) == [(False, False, False, False, False)]


def test_shapes_hold_the_layers_that_kernels_prove() -> None:
    """Layers, those with experts, and attention kernels: of a device's step, without combine and indexer."""
    kernels: list[Row] = [
        {"device": device, "activity_id": 10 * device + n, "step": 0, "layer": layer, "category": category,
         "subcategory": subcategory, "role": role}
        for device in range(2)
        for n, (layer, category, subcategory, role) in enumerate(
            (
                (0, "attention", None, None),
                (1, "attention", "flash", None),
                (1, "attention", "combine", None),
                (1, "moe_gemm", "marlin", None),
                (None, "attention", "flash", "draft"),
            )
        )
    ]  # fmt: skip
    tables: dict[str, list[Row]] = {"steps": [step(0), step(0, device=1)], "activity": kernels}
    assert ask("audit/shapes", tables, **RUN) == [("t", "decode", 8, 2, [1], 1, 2)]


def test_exchanges_are_named_by_position() -> None:
    """Gathers and scatters of a layer are dispatch and combine only where tokens are exchanged."""
    calls = [
        call(0, category="collective", subcategory="all_gather", part="after_mlp"),
        call(1, category="collective", subcategory="reduce_scatter", part="after_moe"),
        call(2, category="all_to_all", subcategory="deep_ep", part="after_moe"),
        call(3, category="all_to_all", subcategory="notify", part="after_moe"),
        call(4, category="collective", subcategory="all_gather", part="before_attention"),
    ]
    assert [row[2] for row in named(calls)] == ["all-gather", "reduce-scatter", "all-to-all", "all-gather"]
    assert named(calls, exchanges=True) == [
        ("moe", 0, "dispatch"),
        ("moe", 0, "combine"),
        ("moe", 0, "combine"),
        ("before_attention", 0, "all-gather"),
    ]


def test_an_unproven_shape_has_one_position() -> None:
    """Drafts keep their name, and transfers between stages stand for themselves in every shape."""
    calls = [call(0), call(1, part="draft", layer=None), call(2, category="p2p", subcategory="send_recv")]
    assert named(calls) == [
        ("after_attention", 0, "all-reduce"),
        ("draft", None, "all-reduce"),
        ("any", None, "send/receive"),
    ]
    shape = {"stage": 0, "phase": "decode", "graph_tokens": 8}
    assert named(calls, unplaced=[shape]) == [
        ("unknown", None, "all-reduce"),
        ("draft", None, "all-reduce"),
        ("any", None, "send/receive"),
    ]
    assert named(calls[:1], unplaced=[shape | {"graph_tokens": None}]) == [
        ("after_attention", 0, "all-reduce")
    ]


def test_steps_are_counted_by_shape() -> None:
    """Stages are apart."""
    steps = [step(0), step(1), step(0, trace_id="u")]
    assert sorted(over_steps("audit/step_counts", steps)) == [(0, "decode", 8, 2), (1, "decode", 8, 1)]


def test_the_spread_of_calls_over_steps() -> None:
    """Fewest, most frequent and most of the steps that have any; halves are time, not calls."""
    calls = [call(0, 0), call(1, 0), call(2, 1), call(3, 2), call(4, 2, is_half=True), call(5, 3, layer=1)]
    off: dict[str, Any] = {"by_part": False, "by_layer": False, "by_kind": False}
    (found,) = over_steps("audit/spread", [step(n) for n in range(5)], calls, **off)
    assert found == (0, "decode", 8, None, None, "all-reduce", None, 5, 1, 1, 2, 4, 3, 12.0, ["nccl"])
    by_layer = over_steps("audit/spread", [step(n) for n in range(5)], calls, **(off | {"by_layer": True}))
    assert sorted((row[4], row[11]) for row in by_layer) == [(0, 3), (1, 1)]


def test_the_spread_by_kind() -> None:
    """One row for each kind and part."""
    calls = [call(0), call(1, subcategory="custom"), call(2, subcategory="custom", part="after_moe")]
    found = over_steps("audit/spread", [step(0)], calls, by_part=True, by_layer=False, by_kind=True)
    assert sorted((row[3], row[6], row[10]) for row in found) == [
        ("after_attention", "custom", 1),
        ("after_attention", "nccl", 1),
        ("after_moe", "custom", 1),
    ]


def test_deviations_name_the_first_step() -> None:
    """One call too many in steps 1 and 2, none where one is expected, and an open upper limit."""
    calls = [call(0, 0), *(call(10 * n + k, n) for n in (1, 2) for k in range(2))]
    shape = {"stage": 0, "phase": "decode", "graph_tokens": 8, "operation": "all-reduce"}
    expected = [
        shape | {"part": "after_attention", "layer": 0, "low": 1, "high": 1},
        shape | {"part": "after_moe", "layer": 0, "low": 1, "high": None},
        shape | {"part": "after_attention", "layer": 0, "low": 0, "high": None},
    ]
    found = over_steps("audit/deviations", [step(n) for n in range(3)], calls, expected=expected)
    assert found == [
        (0, "decode", 8, "after_attention", 0, "all-reduce", 1, 1, 2, 1, 2, 1, 0, 10.0, ["nccl"]),
        (0, "decode", 8, "after_moe", 0, "all-reduce", 1, None, 0, -1, 3, 0, 0, None, None),
    ]


def test_totals_are_the_usual_count_times_the_steps_and_a_rest() -> None:
    """5 = 1 x 3 steps + 1 more in one of them + 1 in no step."""
    steps = [step(0, label="x"), step(1, label="x"), step(2, phase="prefill"), step(3, phase="empty")]
    activities: list[Row] = [
        {"activity_id": n, "step": at, "category": "allreduce", "rank": 0}
        for n, at in enumerate((0, 1, 2, 2, None))
    ]
    activities.append({"activity_id": 9, "step": 0, "category": "allreduce", "rank": 0})
    half: list[Row] = [{"activity_id": 9, "is_half": True}]
    tables: dict[str, list[Row]] = {"steps": steps, "activity": activities, "collectives": half}
    assert ask("audit/totals", tables, run_id="run") == [("kineto", 0, "t", 5, 1, 1, 2, 1, 2, 1, 1)]


def test_operators_that_run_all_reduces() -> None:
    """Their rows in a profiler's table repeat the kernels'."""
    activities = [
        {"activity_id": 0, "category": "allreduce", "op": "c10d::allreduce_", "dur_ns": 2_000_000},
        {"activity_id": 1, "category": "allreduce", "dur_ns": 2_000_000},
        {"activity_id": 2, "category": "gemm", "op": "aten::mm", "dur_ns": 2_000_000},
    ]
    assert ask("audit/operators", {"activity": activities}, run_id="run") == [("c10d::allreduce_", 1, 2.0)]
