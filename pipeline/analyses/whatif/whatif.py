"""What if the experts were distributed: from a traced step and a latency table to a step with expert
parallelism, with every assumption."""

from __future__ import annotations

from typing import Any, Literal

import duckdb

from pipeline.analyses import formulas, sql
from pipeline.analyses.bandwidth import attention_load
from pipeline.analyses.formulas import Interval
from pipeline.analyses.latency import Curve, LatencyTable, table_of
from pipeline.analyses.report import Report
from pipeline.analyses.step_facts import StepFacts, main_allreduce, step_facts
from pipeline.analyses.whatif.ep import (
    MODES,
    TOKENS,
    Case,
    Compute,
    Estimate,
    Mode,
    communication,
    messages,
    with_compute,
)
from pipeline.analyses.whatif.overlap import overlap_reports
from pipeline.analyses.whatif.speculate import speculate_reports
from pipeline.errors import UsageError
from pipeline.models.rules import communication_rollups
from pipeline.text import counted

Exchange = Literal["ag_rs", "a2a"]
_COLUMNS = (
    "tokens_per_rank", "global_tokens", "now_ms", "removed_ms", "added_ms_low", "added_ms_high",
    "after_ms_low", "after_ms_high", "now_us_per_token", "after_us_per_token_low",
    "after_us_per_token_high", "verdict", "remark",
)  # fmt: skip

__all__ = ["ep_reports", "overlap_reports", "speculate_reports"]


def ep_reports(
    con: duckdb.DuckDBPyConnection,
    run_id: str,
    mode: Mode,
    table: str | None = None,
    *,
    exchange: Exchange | None = None,
    load: float | None = None,
    extrapolate: bool = False,
) -> list[Report]:
    """Expert parallelism in a run's decode steps: communication alone, and with compute where the run's
    experts are known.

    `table`: a file or another run with latencies (else this run's own); `load`: fullest rank over mean, as
    measured. Raises UsageError for facts that are not given and operations that the table lacks.
    """
    facts = step_facts(con, run_id)
    call = main_allreduce(con, facts)
    case = _case(con, facts, call, mode, load)
    latencies = table_of(con, run_id, table)
    ops = _ops(mode, latencies, case.ranks, exchange)
    curves = {op: latencies.need(op, case.ranks) for op in ("all_reduce", *ops)}
    rows = [communication(case, tokens, curves, ops, extrapolate=extrapolate) for tokens in TOKENS]
    if all(row.outside for row in rows):
        raise UsageError(f"{latencies.name}: {rows[0].outside}; measure it, or use --extrapolate")
    notes = _assumptions(case, facts, call, latencies, curves, ops, rows, extrapolate=extrapolate)
    title = f"{mode} on {case.ranks} ranks, {MODES[mode]}. COMMUNICATION ALONE"
    remarks = {row.tokens: _remark(case, row.tokens, curves, ops) for row in rows}
    cells = [[*_cells(row), remarks[row.tokens]] for row in rows]
    reports = [Report(title, _COLUMNS, cells, [*notes, *_marks(rows, curves, ops)])]
    if case.compute is not None and case.experts and case.top_k:
        points = {op: curve for op in ("gemm", "moe_gemm") if (curve := latencies.curve(op))}
        both = [with_compute(case, row, points) for row in rows]
        cells = [[*_cells(row), remarks[row.tokens]] for row in both]
        reports.append(
            Report(f"{mode}: the same with compute, by rule", _COLUMNS, cells, _rules(case, points, both))
        )
    else:
        reports[0] = Report(
            title,
            _COLUMNS,
            reports[0].rows,
            [*reports[0].notes, "compute is left out: experts and experts_per_token are not given"],
        )
    return reports


def _case(
    con: duckdb.DuckDBPyConnection, facts: StepFacts, call: dict[str, Any], mode: Mode, load: float | None
) -> Case:
    if facts.tokens is None:
        raise UsageError(f"run {facts.run_id}: the number of tokens per decode step is unknown")
    if call["ranks"] is None:
        raise UsageError(
            f"run {facts.run_id}: the number of ranks in an all-reduce is unknown; give tp or groups"
        )
    if load is not None and load < 1:
        raise UsageError(f"a load factor is the fullest rank over the mean: {load} is below 1")
    config = facts.config
    seen = sql.one(con, "whatif/layers", run_id=facts.run_id, source=facts.source, phase=facts.phase)
    layers = config.get("layers") or seen["layers"]
    dense = config.get("dense_layers")
    moe_layers = layers - dense if layers and dense is not None else seen["after_moe"]
    if not layers or not moe_layers:
        raise UsageError(f"run {facts.run_id}: its MoE layers are unknown; give layers and dense_layers")
    experts, top_k = config.get("experts"), config.get("experts_per_token")
    if experts and experts % call["ranks"]:
        raise UsageError(f"{experts} experts cannot be distributed evenly over {call['ranks']} ranks")
    other = [
        name
        for name in facts.rollups
        if name not in {*communication_rollups(), "MoE GEMM", "GEMM", "Attention"}
    ]
    return Case(
        mode=mode,
        ranks=call["ranks"],
        layers=layers,
        moe_layers=moe_layers,
        token_bytes=call["in_bytes"] / facts.tokens,
        experts=experts,
        top_k=top_k,
        calls=facts.rollups["AllReduce"]["calls_mode"],
        moe_calls=seen["after_moe"] or moe_layers,
        traced_tokens=facts.tokens,
        allreduce_ms=facts.ms("AllReduce"),
        call_us=Interval(min(call["floor_us"], call["us_p50"]), call["us_p50"]),
        compute=Compute(
            facts.ms("MoE GEMM"),
            facts.ms("GEMM"),
            facts.ms("Attention"),
            facts.ms(*other),
            attention_load(con, facts),
        ),
        load=load,
    )


def _ops(mode: Mode, latencies: LatencyTable, ranks: int, exchange: Exchange | None) -> tuple[str, ...]:
    if mode == "tp_ep":
        return ()
    gathers = ("all_gather", "reduce_scatter")
    if (
        mode == "dp_ep"
        and exchange != "a2a"
        and (exchange or all(latencies.curve(op, ranks) for op in gathers))
    ):
        return gathers
    return ("all_to_all", "all_to_all")


def _cells(row: Estimate) -> list[Any]:
    if row.outside:
        return [row.tokens, row.global_tokens, *[None] * 9, f"refused: {row.outside}"]
    verdict = "same" if row.is_same else {True: "EP wins", False: "EP loses", None: "open"}[row.verdict]
    each = row.global_tokens / 1e3
    times = (row.now_ms, row.removed_ms, row.added.low, row.added.high, row.after.low, row.after.high)
    per_token = (row.now_ms / each, row.after.low / each, row.after.high / each)
    return [row.tokens, row.global_tokens, *(round(value, 3) for value in (*times, *per_token)), verdict]


def _remark(case: Case, tokens: int, curves: dict[str, Curve], ops: tuple[str, ...]) -> str:
    """Which exchange is past the foot of its cliff at these tokens."""
    past = []
    for op, size in dict(messages(case, tokens, ops)).items():
        steep = formulas.cliff(list(curves[op].points))
        if steep and size.high > steep[0]:
            past.append(op)
    return f"on the cliff of {', '.join(past)}" if past else ""


def _marks(rows: list[Estimate], curves: dict[str, Curve], ops: tuple[str, ...]) -> list[str]:
    """The cliff of each operation, and where the verdict changes."""
    notes = []
    for op in dict.fromkeys(ops):
        steep = formulas.cliff(list(curves[op].points))
        if steep:
            low, high, times = steep
            us = [curves[op].at(size) or 0.0 for size in (low, high)]
            notes.append(
                f"CLIFF: {op} takes {us[0]:.4g} us at {low:.0f} bytes and {us[1]:.4g} us at {high:.0f}: "
                f"{times:.1f} times faster growth than bytes"
            )
        else:
            notes.append(
                f"cliff of {op}: none in the measured range (latency never grows {formulas.CLIFF:.0f} "
                "times faster than bytes)"
            )
    return [*notes, crossover_note(rows)]


def crossover_note(rows: list[Estimate]) -> str:
    """Where distributing the experts begins or ceases to pay, in words."""
    verdicts = {row.tokens: row.verdict for row in rows}
    changes = formulas.crossover(list(verdicts), verdicts.__getitem__)
    if not changes:
        sides = {verdict for verdict in verdicts.values() if verdict is not None}
        side = f"EP {'wins' if True in sides else 'loses'} throughout" if sides else "nothing is decided"
        return f"crossover: none in the measured range ({side})"
    return "crossover: " + ", ".join(
        f"from {tokens} tokens per rank {'EP wins' if now else 'EP loses'}" for tokens, now in changes
    )


def _assumptions(
    case: Case,
    facts: StepFacts,
    call: dict[str, Any],
    latencies: LatencyTable,
    curves: dict[str, Curve],
    ops: tuple[str, ...],
    rows: list[Estimate],
    *,
    extrapolate: bool,
) -> list[str]:
    reference = curves["all_reduce"].at(case.traced_bytes(), extrapolate=extrapolate) or 0.0
    what = "; ".join(dict.fromkeys(curve.what for curve in curves.values()))
    low, high = case.call_us.low, case.call_us.high
    before = (
        f"{case.traced_tokens} tokens before is {case.allreduce_ms:.2f} ms of all-reduces "
        f"({counted(facts.steps, facts.phase + ' step')}, {facts.source})"
    )
    scaled = (
        f"the trace's kernel at that size, {low:.2f} us without waiting ({call['floor_source']}) to "
        f"{high:.2f} us as it was"
    )
    notes = [
        (
            f"after = before - removed + added; at {before}, and {case.removed_calls()} of {case.calls} "
            f"calls of {high:.2f} us are removed"
        ),
        f"latencies: {latencies.name} ({what}), {reference:.2f} us at the traced size; scaled by {scaled}",
        *counted_note(case, rows),
    ]
    if ops:
        notes.append(
            f"added per MoE layer ({case.moe_layers} of them): {' + '.join(ops)}; a token is "
            f"{case.token_bytes:.0f} bytes"
        )
    if case.mode == "tp_attn_a2a":
        notes.append(
            "every rank holds every token here, so a dispatch needs no bytes: the first all-to-all is "
            "an upper bound"
        )
    if case.mode == "tp_ep":
        notes.append("no call is added or removed; experts' shapes and balance change (see the second table)")
    if not all(curve.are_ranks_known for curve in curves.values()):
        notes.append(f"the table does not give the number of ranks: assuming {case.ranks}")
    if extrapolate:
        notes.append("EXTRAPOLATED: below the table its shortest latency, above it in proportion to bytes")
    return notes


def _attention(case: Case) -> str:
    load = case.compute.attention_load if case.compute else None
    if load is None:
        return (
            "not here: how close it is to the memory's bandwidth is unknown (give context_tokens, "
            "kv_lora_rank, hbm_gbps)"
        )
    return (
        f"from {case.traced_tokens / load:.0f} tokens on, where it fills the memory's bandwidth ({load:.1%} "
        f"of it at {case.traced_tokens})"
    )


def counted_note(case: Case, rows: list[Estimate]) -> list[str]:
    """What counting calls alone gives: calls x the time of one leave out longer calls and other
    all-reduces, which stay."""
    counted = case.calls * case.call_us.high / 1e3
    left_out = case.allreduce_ms - counted
    row = next((row for row in rows if row.global_tokens == case.traced_tokens and not row.outside), None)
    if row is None or case.mode != "tp_attn_a2a" or left_out <= 0:
        return []
    own = formulas.replaced(counted, row.removed_ms, row.added)
    instead = (
        f"starting from {case.calls} x {case.call_us.high:.2f} us = {counted:.2f} ms instead would give "
        f"{own.low:.2f} to {own.high:.2f} ms"
    )
    whole = f"from all {case.allreduce_ms:.2f} ms it is {row.after.low:.2f} to {row.after.high:.2f} ms"
    return [f"{instead}: that leaves out the {left_out:.2f} ms of all-reduces that are not in it; {whole}"]


def _rules(case: Case, points: dict[str, Curve], rows: list[Estimate]) -> list[str]:
    load = (
        f"{case.load:g} (given)"
        if case.load
        else f"{formulas.load_factor((case.top_k or 1) * rows[0].global_tokens, case.ranks):.2f} at first"
    )
    return [
        "sum of GPU time by kind: idle and overlap are left out",
        (
            "experts: time follows the distinct experts read, E (1 - (1 - k/E)^T), uniform routing; "
            f"the fullest rank takes 1 to {load} times the mean"
        ),
        f"GEMMs do not grow with tokens, attention does {_attention(case)}",
        (
            f"dp_ep: GEMMs x 1 to {case.ranks} (weights whole instead of 1/{case.ranks}), attention x "
            f"1/{case.ranks} to 1 (fewer requests, all heads)"
        ),
        f"measured points used: {', '.join(points) or 'none'}",
        crossover_note(rows),
    ]
