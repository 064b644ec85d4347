"""The work of a run's steps: requests, tokens, model and hardware, from traces and run_config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import duckdb

from pipeline.analyses import sql
from pipeline.analyses.compare.sample import Sample
from pipeline.analyses.step_facts import config_of

Spread = tuple[float, float, float, float]
"""Fewest, median, most and mean over steps."""


@dataclass(frozen=True)
class Workload:
    """The work of a side's steps, and the hardware. None: unknown."""

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
    source = {"run_id": side.run_id, "source": side.source}
    steps = source | {"phase": side.phase}
    hardware = sql.one(con, "compare/hardware", **source)
    world = hardware["ranks_expected"]
    sizes = [config[name] for name in ("tp", "dp", "pp") if config.get(name)]
    if world is None and sizes:
        world = 1
        for size in sizes:
            world *= size
    layers = sql.one(con, "compare/layers", **steps)
    load = _load(con, side, steps)
    context = [row[3] for row in load if row[3] is not None]
    wall = median(side.wall) if side.wall else None
    tpot = config.get("measured_tpot_ms") if side.phase == "decode" else None
    return Workload(
        config=config,
        gpu=hardware["gpu_name"],
        world=world,
        ranks=hardware["ranks"],
        requests=_spread([row[0] for row in load]),
        prompt_tokens=_spread([row[1] for row in load]),
        graph_tokens=_spread([row[2] for row in load]),
        context=float(median(context))
        if context and len(context) == len(load)
        else config.get("context_tokens"),
        layers=layers["layers"],
        expert_layers=layers["expert_layers"] or None,  # none: a dense model, or kernels that no rule knows
        kernels=sql.scalar(con, "compare/kernel_count", **steps),
        inflation=None if tpot is None or wall is None else wall / tpot,
    )


def _load(con: duckdb.DuckDBPyConnection, side: Sample, steps: dict[str, str]) -> list[tuple[Any, ...]]:
    """(requests, prompt tokens, graph tokens, tokens of context of a request) of each step, all data-parallel
    groups; without matches, of a rank."""
    if side.matches:
        return sql.rows(con, "compare/matched_load", **steps, matches=list(side.matches))
    return sql.rows(con, "compare/rank_load", **steps)


def _spread(values: Sequence[float | None]) -> Spread | None:
    known = [v for v in values if v is not None]
    if not known or len(known) < len(values):
        return None
    return min(known), median(known), max(known), sum(known) / len(known)
