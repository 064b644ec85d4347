"""How the model of a run is spread over its ranks: what run_config says, else what the trace shows, each
assumption in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import duckdb

from pipeline import duck
from pipeline.analyses.audit.expected import Layout, Shape

_SHAPES = """
WITH step AS (
    SELECT trace_id, device, step, phase, CASE WHEN graph_launches > 0 THEN coalesce(graph_tokens, 0) END AS graph_tokens
    FROM steps WHERE run_id = $run AND source = $source AND is_complete
),
held AS (
    SELECT step.trace_id, step.phase, step.graph_tokens, step.step, max(layer) + 1 AS layers,
        list(DISTINCT layer) FILTER (WHERE layer IS NOT NULL AND category = 'moe_gemm') AS moe,
        count(*) FILTER (
            WHERE role = 'draft' AND category = 'attention' AND coalesce(subcategory, '') NOT IN ('combine', 'indexer')) AS draft_attentions,
        count(*) FILTER (
            WHERE layer IS NOT NULL AND category = 'attention' AND coalesce(subcategory, '') NOT IN ('combine', 'indexer')) AS attentions
    FROM step JOIN activity USING (trace_id, device, step) WHERE activity.run_id = $run GROUP BY ALL
)
SELECT trace_id, phase, graph_tokens, max(layers), list_sort(list_distinct(flatten(list(moe) FILTER (WHERE moe IS NOT NULL)))),
    mode(draft_attentions), mode(attentions)
FROM held GROUP BY ALL ORDER BY ALL
"""


@dataclass(frozen=True)
class Said:
    """What was said of a run, and what the names of its files tell."""

    config: dict[str, Any]
    ranks: int
    named: dict[str, int]


def said_of(con: duckdb.DuckDBPyConnection, run_id: str, source: str) -> Said:
    """Facts of one source of a run."""
    config = duck.dicts(con, f"SELECT * FROM run_config WHERE run_id = {duck.literal(run_id)}")
    tp, pp, dp, traces, ranks, world = duck.rows(
        con,
        "SELECT max(tp_rank) + 1, max(pp_rank) + 1, max(dp_rank) + 1, count(tp_rank) = count(*), "
        "count(DISTINCT rank), max(world_size) "
        "FROM raw.trace WHERE run_id = ? AND source = ?",
        [run_id, source],
    )[0]
    named = (
        {name: value for name, value in (("tp", tp), ("pp", pp), ("dp", dp)) if value is not None}
        if traces
        else {}
    )
    return Said(
        {key: value for key, value in (config[0] if config else {}).items() if value is not None},
        max(ranks, world or 0, 1),
        named,
    )


def layout_of(
    said: Said,
    *,
    has_reduce: bool,
    has_exchange: bool,
    has_scatter: bool,
    has_two_after_moe: bool,
    has_shared: bool,
) -> tuple[Layout, list[str]]:
    """The layout, and a sentence for each fact that was not said. The flags are what the trace shows."""
    config = said.config
    notes: list[str] = []
    pp = config.get("pp") or _named(said, "pp", notes)
    dp = config.get("dp") or _named(said, "dp", notes)
    tp = config.get("tp")
    if tp is None and "tp" in said.named:
        tp = _named(said, "tp", notes)
    if tp is None:
        tp = max(said.ranks // (dp * pp), 1)
        if said.ranks == 1 and has_reduce:
            tp = 2
            notes.append("tp was not said: more than 1 assumed, since there are all-reduces")
        else:
            notes.append(_assumed_tp(tp, said.ranks, dp, pp))
    ep = config.get("ep")
    if ep is None:
        ep = tp * dp if has_exchange else 1
        notes.append(
            f"ep was not said: {ep} assumed, since the trace shows "
            f"{'dispatch or combine' if has_exchange else 'no dispatch, no combine'}"
        )
    parallel = config.get("sequence_parallel")
    if parallel is None:
        parallel = has_scatter
        shown = "reduce-scatters" if has_scatter else "no reduce-scatter"
        notes.append(
            f"sequence_parallel was not said: {'on' if parallel else 'off'} assumed, since the trace shows "
            f"{shown} behind attention"
        )
    shared = bool(has_two_after_moe and config.get("shared_experts", int(has_shared)))
    if has_two_after_moe:
        why = (
            "run_config says shared experts"
            if "shared_experts" in config
            else "the trace shows GEMMs of a shared expert"
        )
        notes.append(
            f"every MoE layer has two all-reduces: the shared expert's apart, assumed since {why}"
            if shared
            else (
                "every MoE layer has two all-reduces, but no shared expert is known: the second is counted "
                "as extra"
            )
        )
    return Layout(tp, dp, ep, pp, parallel, shared, config.get("draft_layers", 1)), notes


def _assumed_tp(tp: int, ranks: int, dp: int, pp: int) -> str:
    """What is assumed where nothing says the tensor-parallel size."""
    rest = f" / (dp {dp} x pp {pp})" if dp * pp > 1 else ""
    return f"tp was not said: {tp} assumed, all {ranks} rank{'s' * (ranks != 1)} of the job{rest}"


def _named(said: Said, name: str, notes: list[str]) -> int:
    if name in said.named:
        notes.append(f"{name} {said.named[name]}: from the files' names")
        return said.named[name]
    notes.append(f"{name} was not said: 1 assumed")
    return 1


def stages_of(con: duckdb.DuckDBPyConnection, run_id: str, source: str, layout: Layout) -> dict[str, int]:
    """The pipeline stage of each trace: from its file's name, else from its rank (tensor-parallel ranks
    first)."""
    found = duck.rows(
        con,
        "SELECT trace_id, pp_rank, rank FROM raw.trace WHERE run_id = ? AND source = ? ORDER BY ALL",
        [run_id, source],
    )
    return {
        trace: stage if stage is not None else (rank or 0) // layout.tp % layout.pp
        for trace, stage, rank in found
    }


Key = tuple[int, str, int | None]
"""Pipeline stage, phase, tokens of the graph (None: no graph)."""


def shapes_of(
    con: duckdb.DuckDBPyConnection,
    run_id: str,
    source: str,
    stages: dict[str, int],
    said: Said,
    layout: Layout,
) -> tuple[dict[Key, Shape], set[Key], list[str]]:
    """Each shape of step that the run holds; which of them rest on run_config's layers alone; and sentences
    about that.

    Raises nothing: a shape of which neither the trace nor run_config tells the layers is left out.
    """
    found: dict[Key, Shape] = {}
    unproven: set[Key] = set()
    notes: list[str] = []
    rows = con.execute(_SHAPES, {"run": run_id, "source": source}).fetchall()
    for trace, phase, tokens, seen_layers, seen_moe, drafts, attentions in rows:
        key = (stages[trace], phase, tokens)
        passes = (drafts or 0) // layout.draft_layers
        if phase == "draft":
            found[key] = Shape(0, frozenset(), passes, key[0], is_draft=True)
            continue
        is_merged = (
            seen_layers is not None
            and layout.pp == 1
            and attentions == said.config.get("layers") != seen_layers
        )
        made = _from_config(said, layout) if seen_layers is None or is_merged else (seen_layers, seen_moe)
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
            f"the order of kernels does not prove all of the {said.config['layers']} layers of run_config: "
            "no positions for these steps"
        )
    counted = {shape.layers for key, shape in found.items() if key not in unproven and not shape.is_draft}
    if counted and layout.pp == 1 and (wanted := said.config.get("layers")) and counted != {wanted}:
        notes.append(
            f"run_config says {wanted} layers, the trace shows {', '.join(map(str, sorted(counted)))}: the "
            "trace's were taken"
        )
    elif counted and "layers" not in said.config:
        notes.append(f"layers were not said: {', '.join(map(str, sorted(counted)))} counted in the trace")
    return found, unproven, notes + _dense_notes(said, found, unproven, layout)


def _dense_notes(said: Said, found: dict[Key, Shape], unproven: set[Key], layout: Layout) -> list[str]:
    dense = {
        shape.layers - len(shape.moe)
        for key, shape in found.items()
        if key not in unproven and not shape.is_draft
    }
    wanted = said.config.get("dense_layers")
    if not dense or layout.pp > 1 or dense == {wanted}:
        return []
    text = ", ".join(map(str, sorted(dense)))
    if wanted is None:
        return [f"dense_layers were not said: {text} counted in the trace (layers without expert GEMMs)"]
    return [f"run_config says {wanted} dense layers, the trace shows {text}: the trace's were taken"]


def _from_config(said: Said, layout: Layout) -> tuple[int, list[int]] | None:
    layers = said.config.get("layers")
    if layers is None or layout.pp > 1:
        return None
    dense = said.config.get("dense_layers", 0 if said.config.get("experts") else layers)
    return layers, list(range(dense, layers))
