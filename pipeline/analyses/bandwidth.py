"""Achieved bandwidth of messages and of memory in a run, beside the peak of the link and of the memory."""

from __future__ import annotations

from typing import Any

import duckdb

from pipeline.analyses import sql
from pipeline.analyses.memory import Part, parts
from pipeline.analyses.report import Report
from pipeline.analyses.step_facts import StepFacts, config_of, step_facts
from pipeline.errors import UsageError
from pipeline.models.interconnects import interconnects, memory_of
from pipeline.text import counted
from pipeline.thresholds import threshold

_MESSAGES = (
    "source", "phase", "op", "kind", "algorithm", "ranks", "size_bytes", "size_source", "calls", "us_p50",
    "floor_us", "wait_share", "algbw", "busbw", "link_share",
)  # fmt: skip
_MEMORY = ("part", "resident_gb", "read_gb", "kernels_us", "gbps", "share_of_ceiling", "remark")
LATENCY = "latency-bound"


def bandwidth_reports(con: duckdb.DuckDBPyConnection, run_id: str, phase: str | None = None) -> list[Report]:
    """Messages by operation and size, then the memory's part in a decode step. Raises UsageError for a run
    without collectives or steps."""
    reports = []
    rows = sql.dicts(con, "bandwidth/messages", run_id=run_id, phase=phase)
    if rows:
        reports.append(_messages(run_id, rows, config_of(con, run_id)))
    try:
        facts = step_facts(con, run_id, phase or "decode")
    except UsageError:
        if not rows:
            raise
        return reports
    return [*reports, memory_report(con, facts)]


def _messages(run_id: str, rows: list[dict[str, Any]], config: dict[str, Any]) -> Report:
    notes = [
        (
            "size: the larger buffer of a rank; algbw = size / floor, GB/s; busbw = algbw x bytes each "
            "GPU sends per byte of the size"
        ),
        (
            "convention: NCCL's kernel names do not identify the algorithm (RING_LL covers all of "
            "them); LL sends twice the payload"
        ),
    ]
    if any(row["is_latency_bound"] for row in rows):
        notes.append(
            f"{LATENCY}: below {threshold('latency_bound_factor'):g} times the latency of the shortest "
            "messages; size does not matter there, so no bandwidth is given"
        )
    if any(row["is_latency_bound"] is None and row["size_bytes"] is not None for row in rows):
        notes.append(
            "latency floor unknown (no message up to 32 KiB, link not given): the bandwidth of short "
            "messages is not meaningful"
        )
    if any(row["size_bytes"] is None for row in rows):
        notes.append(
            "sizes are missing where calls carry no arguments and hidden_size, dtype or tokens are unknown"
        )
    if any(row["is_fused"] for row in rows):
        notes.append("fused kernels do other work too, so their bandwidth is underestimated")
    if any(row["floor_source"] != "last rank" for row in rows):
        notes.append("where ranks cannot be compared, the floor is the 10th percentile of durations")
    link = interconnects().get(str(config.get("link")))
    if link:
        notes.append(f"link {link.name}: {link.gbps:g} GB/s for one GPU in one direction ({link.source})")
    elif config.get("link"):
        notes.append(
            f"link {config['link']!r} is not in schemas/interconnects.toml; known: "
            f"{', '.join(interconnects())}"
        )
    else:
        notes.append("link not given (`stepledger describe RUN link=pcie4_x16`): no reference bandwidth")
    return Report(f"Messages in run {run_id}", _MESSAGES, [_message(row) for row in rows], notes)


def _message(row: dict[str, Any]) -> list[Any]:
    speeds = [row["algbw_gbps"], row["busbw_gbps"], row["link_share"]]
    shown = (
        [LATENCY, LATENCY, None]
        if row["is_latency_bound"]
        else [None if v is None else round(v, 3) for v in speeds]
    )
    return [*(row[column] for column in _MESSAGES[:-3]), *shown]


def memory_report(con: duckdb.DuckDBPyConnection, facts: StepFacts) -> Report:
    """Bytes that must be read, over the time in which any kernel that reads them runs, against the memory's
    bandwidth."""
    times = union_us(con, facts)
    ceiling, source = ceiling_of(facts)
    tokens = (facts.global_tokens if (facts.config.get("ep") or 1) > 1 else facts.tokens) or 0
    made = parts(facts.config, tokens, facts.requests) if tokens else []
    rows = [memory_row(part, times.get(part.name), ceiling) for part in made]
    if made and all(
        row[-1] == "" for row in rows
    ):  # a refused part, or one that is only an upper bound, makes no total
        whole = Part("all of it", (), _total(made, "resident_bytes"), _total(made, "read_bytes"), "")
        rows.append(memory_row(whole, times.get(whole.name), ceiling))
    notes = [
        f"ceiling: {f'{ceiling:g} GB/s' if ceiling else 'none'} ({source})",
        f"{counted(facts.steps, facts.phase + ' step')}, {facts.source}: median over steps and ranks",
        (
            "kernels_us: time in which at least one kernel of the kind runs (overlap counts once); "
            "activations are not counted"
        ),
        *(f"{part.name}: {part.note}" for part in made if part.note),
    ]
    if not tokens:
        notes.append("refused: the number of tokens per step is unknown")
    return Report(f"Memory in a {facts.phase} step of run {facts.run_id}", _MEMORY, rows, notes)


def ceiling_of(facts: StepFacts) -> tuple[float | None, str]:
    """Peak bandwidth of one GPU's memory, GB/s, and its source; None where it is unknown."""
    given, memory = facts.config.get("hbm_gbps"), memory_of(facts.gpu_name)
    if given:
        return float(given), "given in run_config"
    return (memory.gbps, memory.source) if memory else (None, f"unknown for {facts.gpu_name}: give hbm_gbps")


def attention_load(con: duckdb.DuckDBPyConnection, facts: StepFacts) -> float | None:
    """Share of the memory's bandwidth that attention uses in a step; None where facts are missing."""
    ceiling, _ = ceiling_of(facts)
    kv = next(
        (part for part in parts(facts.config, facts.tokens or 1, facts.requests) if part.name == "KV cache"),
        None,
    )
    us = union_us(con, facts).get("KV cache")
    return (
        None
        if ceiling is None or kv is None or kv.read_bytes is None or not us
        else min(1.0, kv.read_bytes / us / 1e3 / ceiling)
    )


def _total(made: list[Part], name: str) -> float:
    return sum(float(getattr(part, name)) for part in made)


def memory_row(part: Part, us: float | None, ceiling: float | None) -> list[Any]:
    """One part; an impossible bandwidth is not printed: above the peak, fewer experts were read, or the facts
    are wrong."""
    if part.read_bytes is None or part.resident_bytes is None:
        return [part.name, *[None] * 5, f"refused: not given: {', '.join(part.missing)}"]
    sizes = [part.name, round(part.resident_bytes / 1e9, 3), round(part.read_bytes / 1e9, 3)]
    if not us:
        return [*sizes, *[None] * 3, "no such kernel in the step"]
    gbps = part.read_bytes / us / 1e3
    if ceiling is None or gbps <= ceiling:
        return [*sizes, round(us, 1), round(gbps, 1), round(gbps / ceiling, 4) if ceiling else None, ""]
    if part.expert_bytes:
        remark = f"routing is skewed: at most {ceiling * 1e3 * us / part.expert_bytes:.1f} experts per layer"
    else:
        remark = (
            "above the peak of the memory: the given facts are not those of this run, or the cache "
            "serves part of it"
        )
    return [*sizes, round(us, 1), None, None, remark]


def union_us(con: duckdb.DuckDBPyConnection, facts: StepFacts) -> dict[str, float]:
    """Median over steps and ranks of the time in which any kernel of a part runs, us."""
    found = sql.rows(
        con, "bandwidth/kernel_time", run_id=facts.run_id, source=facts.source, phase=facts.phase
    )
    return {str(part): float(us) for part, us in found}
