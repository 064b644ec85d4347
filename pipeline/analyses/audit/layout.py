"""How the model of a run is spread over its ranks: what run_config gives, else what the trace shows, each
assumption in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import duckdb

from pipeline.analyses import sql
from pipeline.analyses.audit.expected import Layout, Shape
from pipeline.analyses.step_facts import config_of
from pipeline.text import counted

ShapeKey = tuple[int, str, int | None]
"""Pipeline stage, phase, tokens of the graph (None: no graph)."""


@dataclass(frozen=True)
class KnownFacts:
    """What run_config gives, the number of ranks, and the parallel sizes that the names of files prove."""

    config: dict[str, Any]
    ranks: int
    from_names: dict[str, int]


def known_facts(con: duckdb.DuckDBPyConnection, run_id: str, source: str) -> KnownFacts:
    """Facts of one source of a run."""
    sizes = sql.one(con, "audit/parallel_sizes", run_id=run_id, source=source)
    named = {name: sizes[name] for name in ("tp", "pp", "dp") if sizes[name] is not None}
    return KnownFacts(
        {key: value for key, value in config_of(con, run_id).items() if value is not None},
        max(sizes["ranks"], sizes["world_size"] or 0, 1),
        named if sizes["are_named"] else {},
    )


def layout_of(
    known: KnownFacts,
    *,
    has_reduce: bool,
    has_exchange: bool,
    has_scatter: bool,
    has_two_after_moe: bool,
    has_shared: bool,
) -> tuple[Layout, list[str]]:
    """The layout, and a sentence for each fact that was not known. The flags are what the trace shows."""
    config = known.config
    notes: list[str] = []
    pp = config.get("pp") or _named(known, "pp", notes)
    dp = config.get("dp") or _named(known, "dp", notes)
    tp = config.get("tp")
    if tp is None and "tp" in known.from_names:
        tp = _named(known, "tp", notes)
    if tp is None:
        tp = max(known.ranks // (dp * pp), 1)
        if known.ranks == 1 and has_reduce:
            tp = 2
            notes.append("tp not given, assuming more than 1: the trace has all-reduces")
        else:
            notes.append(_assumed_tp(tp, known.ranks, dp, pp))
    ep = config.get("ep")
    if ep is None:
        ep = tp * dp if has_exchange else 1
        notes.append(
            f"ep not given, assuming {ep}: the trace shows "
            f"{'dispatch or combine' if has_exchange else 'no dispatch, no combine'}"
        )
    parallel = config.get("sequence_parallel")
    if parallel is None:
        parallel = has_scatter
        shown = "reduce-scatters" if has_scatter else "no reduce-scatter"
        notes.append(
            f"sequence_parallel not given, assuming {'on' if parallel else 'off'}: the trace shows "
            f"{shown} after attention"
        )
    shared = bool(has_two_after_moe and config.get("shared_experts", int(has_shared)))
    if has_two_after_moe:
        why = (
            "run_config gives shared experts"
            if "shared_experts" in config
            else "the trace shows GEMMs of a shared expert"
        )
        notes.append(
            f"every MoE layer has two all-reduces, assuming one for the shared expert: {why}"
            if shared
            else (
                "every MoE layer has two all-reduces, but no shared expert is known: the second is "
                "counted as extra"
            )
        )
    return Layout(tp, dp, ep, pp, parallel, shared, config.get("draft_layers", 1)), notes


def _assumed_tp(tp: int, ranks: int, dp: int, pp: int) -> str:
    """What is assumed where the tensor-parallel size is unknown."""
    rest = f" / (dp {dp} x pp {pp})" if dp * pp > 1 else ""
    return f"tp not given, assuming {tp}: all {counted(ranks, 'rank')} of the job{rest}"


def _named(known: KnownFacts, name: str, notes: list[str]) -> int:
    if name in known.from_names:
        notes.append(f"{name} {known.from_names[name]}: from the file names")
        return known.from_names[name]
    notes.append(f"{name} not given, assuming 1")
    return 1


def stages_of(con: duckdb.DuckDBPyConnection, run_id: str, source: str, layout: Layout) -> dict[str, int]:
    """The pipeline stage of each trace: from its file's name, else from its rank (tensor-parallel ranks
    first)."""
    found = sql.rows(con, "audit/traces", run_id=run_id, source=source)
    return {
        trace: stage if stage is not None else (rank or 0) // layout.tp % layout.pp
        for trace, stage, rank in found
    }


def shapes_of(
    con: duckdb.DuckDBPyConnection,
    run_id: str,
    source: str,
    stages: dict[str, int],
    known: KnownFacts,
    layout: Layout,
) -> tuple[dict[ShapeKey, Shape], set[ShapeKey], list[str]]:
    """Each shape of step that the run holds; which of them are based on run_config's layers alone; and
    sentences about that.

    Raises nothing: a shape of which neither the trace nor run_config gives the layers is left out.
    """
    found: dict[ShapeKey, Shape] = {}
    unproven: set[ShapeKey] = set()
    notes: list[str] = []
    rows = sql.rows(con, "audit/shapes", run_id=run_id, source=source)
    for trace, phase, tokens, seen_layers, seen_moe, drafts, attentions in rows:
        key = (stages[trace], phase, tokens)
        passes = (drafts or 0) // layout.draft_layers
        if phase == "draft":
            found[key] = Shape(0, frozenset(), passes, key[0], is_draft=True)
            continue
        is_merged = (
            seen_layers is not None
            and layout.pp == 1
            and attentions == known.config.get("layers") != seen_layers
        )
        made = _from_config(known, layout) if seen_layers is None or is_merged else (seen_layers, seen_moe)
        if made is None:
            continue
        layers, moe = made
        if seen_layers is None or is_merged:
            unproven.add(key)
        before = found.get(key, Shape(0, frozenset(), 0, key[0]))
        found[key] = Shape(
            max(before.layers, layers),
            before.moe | frozenset(moe or ()),
            max(before.draft_passes, passes),
            key[0],
        )
    if unproven:
        notes.append(
            f"the order of kernels does not prove all of the {known.config['layers']} layers of "
            "run_config: no positions for these steps"
        )
    in_trace = {shape.layers for key, shape in found.items() if key not in unproven and not shape.is_draft}
    if in_trace and layout.pp == 1 and (wanted := known.config.get("layers")) and in_trace != {wanted}:
        notes.append(
            f"run_config gives {wanted} layers, the trace shows "
            f"{', '.join(map(str, sorted(in_trace)))}: using the trace"
        )
    elif in_trace and "layers" not in known.config:
        notes.append(f"layers not given: {', '.join(map(str, sorted(in_trace)))} counted in the trace")
    return found, unproven, notes + _dense_notes(known, found, unproven, layout)


def _dense_notes(
    known: KnownFacts, found: dict[ShapeKey, Shape], unproven: set[ShapeKey], layout: Layout
) -> list[str]:
    dense = {
        shape.layers - len(shape.moe)
        for key, shape in found.items()
        if key not in unproven and not shape.is_draft
    }
    wanted = known.config.get("dense_layers")
    if not dense or layout.pp > 1 or dense == {wanted}:
        return []
    text = ", ".join(map(str, sorted(dense)))
    if wanted is None:
        return [f"dense_layers not given: {text} counted in the trace (layers without expert GEMMs)"]
    return [f"run_config gives {wanted} dense layers, the trace shows {text}: using the trace"]


def _from_config(known: KnownFacts, layout: Layout) -> tuple[int, list[int]] | None:
    layers = known.config.get("layers")
    if layers is None or layout.pp > 1:
        return None
    dense = known.config.get("dense_layers", 0 if known.config.get("experts") else layers)
    return layers, list(range(dense, layers))
