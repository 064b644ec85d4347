"""What the steps of a run were asked to do, by which model on which hardware, as far as traces and run_config
tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import duckdb

from pipeline import duck
from pipeline.analyses.compare.sample import Sample
from pipeline.analyses.step_facts import config_of

Spread = tuple[float, float, float, float]
"""Fewest, median, most and mean over steps."""


@dataclass(frozen=True)
class Workload:
    """What a side's steps were asked to do and on what. None: nothing tells."""

    config: dict[str, Any]
    gpu: str | None
    world: int | None
    ranks: int
    requests: Spread | None
    prompt_tokens: Spread | None
    graph_tokens: Spread | None
    context: float | None
    layers: int | None
    expert_layers: int | None
    kernels: int | None
    inflation: float | None
    """Median wall of a decode step / measured time per token."""


def workload_of(con: duckdb.DuckDBPyConnection, side: Sample) -> Workload:
    """Read what a side did in the steps that are compared."""
    config = config_of(con, side.run_id)
    key = {"run": side.run_id, "source": side.source, "phase": side.phase}
    gpu, world, ranks = duck.rows(
        con,
        "SELECT gpu_name, ranks_expected, ranks FROM run_facts WHERE run_id = $run AND source = $source",
        {k: key[k] for k in ("run", "source")},
    )[0]
    sizes = [config[name] for name in ("tp", "dp", "pp") if config.get(name)]
    if world is None and sizes:
        world = 1
        for size in sizes:
            world *= size
    layers, expert_layers = duck.rows(
        con,
        "SELECT max(layer) + 1, count(DISTINCT layer) FILTER (WHERE category = 'moe_gemm') FROM "
        "layer_breakdown "
        "WHERE run_id = $run AND source = $source AND phase = $phase",
        key,
    )[0]
    kernels = duck.rows(
        con,
        (
            "SELECT quantile_disc(kernels, 0.5) FROM steps WHERE run_id = $run AND source = $source AND "
            "phase = "
            "$phase AND is_complete"
        ),
        key,
    )
    steps = _asked(con, side, key)
    context = [row[3] for row in steps if row[3] is not None]
    wall = median(side.wall) if side.wall else None
    tpot = config.get("measured_tpot_ms") if side.phase == "decode" else None
    return Workload(
        config=config,
        gpu=gpu,
        world=world,
        ranks=ranks,
        requests=_spread([row[0] for row in steps]),
        prompt_tokens=_spread([row[1] for row in steps]),
        graph_tokens=_spread([row[2] for row in steps]),
        context=float(median(context))
        if context and len(context) == len(steps)
        else config.get("context_tokens"),
        layers=layers,
        expert_layers=expert_layers or None,  # none: a dense model, or kernels that no rule knows
        kernels=kernels[0][0],
        inflation=None if tpot is None or wall is None else wall / tpot,
    )


def _asked(con: duckdb.DuckDBPyConnection, side: Sample, key: dict[str, str]) -> list[tuple[Any, ...]]:
    """(requests, prompt tokens, graph tokens, tokens of context of a request) of each step, all data-parallel
    groups; without matches, of a rank."""
    context = (
        "SELECT match_id, avg(kv_tokens / nullif(generation_requests, 0)) AS context FROM steps WHERE "
        "run_id = $run AND source = $source "
    )
    context += "AND phase = $phase AND is_complete GROUP BY match_id"
    names = (
        "coalesce(r.context_requests + r.generation_requests, r.generation_requests, "
        "r.context_requests), r.scheduled_context_tokens, r.graph_tokens"
    )
    if side.matches:
        return duck.rows(
            con,
            f"WITH length AS ({context}) SELECT {names}, length.context FROM run_steps AS r JOIN length ON "
            "r.match_id = length.match_id "
            "WHERE r.run_id = $run AND r.source = $source AND list_contains($matches, r.match_id) ORDER BY "
            "r.match_id",
            {**key, "matches": list(side.matches)},
        )
    return duck.rows(
        con,
        f"SELECT {names}, r.kv_tokens / nullif(r.generation_requests, 0) FROM steps AS r "
        "WHERE r.run_id = $run AND r.source = $source AND r.phase = $phase AND r.is_complete ORDER BY "
        "r.trace_id, r.device, r.step",
        key,
    )


def _spread(values: Sequence[float | None]) -> Spread | None:
    told = [v for v in values if v is not None]
    return (
        (min(told), median(told), max(told), sum(told) / len(told))
        if told and len(told) == len(values)
        else None
    )
