"""The breakdown on a screen: verdict and steps, wall per rank, the table, and what could not be named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import duckdb
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline import duck
from pipeline.duck import literal
from pipeline.errors import UsageError
from pipeline.output import console

_PHASES = ("decode", "verify", "mixed", "prefill", "unknown")
_COMMUNICATION = ("AllReduce", "MoE dispatch and combine", "Other collectives")
_WIDE_COLUMNS = 120
_LAUNCH_BOUND_LAG_NS = 100_000
_LAUNCH_BOUND_IDLE = 0.10


@dataclass(frozen=True)
class Screen:
    """Everything that `show` prints of one source of one run, as read in one go."""

    facts: dict[str, Any]
    phase: str | None
    steps: list[dict[str, Any]]
    left_out: list[dict[str, Any]]
    no_step: list[dict[str, Any]]
    ranks: list[dict[str, Any]]
    rollups: list[dict[str, Any]]
    subtotals: list[dict[str, Any]]
    capture: list[dict[str, Any]]
    unclassified: list[dict[str, Any]]


def screens(con: duckdb.DuckDBPyConnection, run_id: str, phase: str | None) -> list[Screen]:
    """One screen per source. Raises UsageError for a phase that the run does not have."""
    facts = duck.dicts(con, "SELECT * FROM runs WHERE run_id = $1 ORDER BY source", [run_id])
    if not facts:
        raise UsageError(f"run {run_id} has no marts yet: say `stepledger build --run {run_id}`")
    return [_screen(con, fact, phase) for fact in facts]


def _screen(con: duckdb.DuckDBPyConnection, facts: dict[str, Any], phase: str | None) -> Screen:
    where = f"run_id = {literal(facts['run_id'])} AND source = {literal(facts['source'])}"
    steps = duck.dicts(
        con, f"SELECT phase, count(DISTINCT (trace_id, step)) AS steps, count(DISTINCT trace_id) AS ranks FROM steps WHERE {where} GROUP BY phase"
    )
    present = {row["phase"] for row in steps}
    if phase is not None and phase not in present and present:
        raise UsageError(f"run {facts['run_id']} has no {phase} step; it has {', '.join(sorted(present))}")
    chosen = phase or next((p for p in _PHASES if p in present), None)
    within = f"{where} AND phase = {literal(chosen)}"
    return Screen(
        facts=facts,
        phase=chosen,
        steps=steps,
        left_out=duck.dicts(
            con,
            f"SELECT phase, incomplete_reason AS reason, count(*) AS steps FROM steps WHERE {where} AND NOT is_complete GROUP BY ALL ORDER BY ALL",
        ),
        no_step=duck.dicts(
            con,
            f"SELECT no_step_reason AS reason, count(*) AS activities, sum(dur_ns)::BIGINT AS busy_ns FROM activity "
            f"WHERE {where} AND step IS NULL GROUP BY ALL ORDER BY ALL",
        ),
        ranks=duck.dicts(con, _RANKS.format(within=within)),
        rollups=duck.dicts(con, f"SELECT * FROM run_breakdown WHERE {within} ORDER BY ms_mean DESC, rollup"),
        subtotals=duck.dicts(con, _SUBTOTALS.format(within=within, communication=", ".join(map(literal, _COMMUNICATION)))),
        capture=duck.dicts(
            con,
            f"SELECT rollup, count(*) AS calls, sum(dur_ns)::BIGINT AS busy_ns, sum(exposed_ns)::BIGINT AS exposed_ns FROM activity "
            f"WHERE {where} GROUP BY rollup ORDER BY busy_ns DESC",
        ),
        unclassified=duck.dicts(
            con,
            f"SELECT short_name, sum(calls)::BIGINT AS calls, sum(ms_total) AS ms FROM kernel_breakdown "
            f"WHERE {where} AND category = 'unclassified' GROUP BY ALL ORDER BY ms DESC LIMIT 5",
        ),
    )


# Mean wall of a rank's steps, split so that the parts add up to it: own exposed time by owner, the rest (copies, and work
# of other steps inside the wall less own work outside it), idle and gap.
_RANKS = """
WITH step AS (SELECT * FROM steps WHERE {within} AND is_complete AND wall_ns IS NOT NULL),
owned AS (
    SELECT trace_id, device, step,
        sum(exposed_ns) FILTER (WHERE rollup IN ('AllReduce', 'MoE dispatch and combine', 'Other collectives')) AS communication_ns,
        sum(exposed_ns) FILTER (WHERE category IN ('memcpy', 'memset')) AS copy_ns, sum(exposed_ns) AS exposed_ns
    FROM step_breakdown WHERE {within} GROUP BY ALL
)
SELECT step.trace_id, any_value(step.rank) AS rank, step.device, count(*) AS steps,
    quantile_cont(wall_ns, 0.5) AS wall_p50, quantile_cont(wall_ns, 0.9) AS wall_p90, avg(wall_ns) AS wall_mean,
    avg(owned.exposed_ns - coalesce(communication_ns, 0) - coalesce(copy_ns, 0)) AS compute,
    avg(coalesce(communication_ns, 0)) AS communication,
    avg(coalesce(copy_ns, 0) + borrowed_ns - exposed_outside_ns) AS other,
    avg(idle_inside_ns) AS idle_inside, avg(gap_after_ns) AS gap, median(launch_lag_p50_ns) AS lag,
    count(*) FILTER (WHERE gap_cause = 'host_late') AS host_late
FROM step JOIN owned ON step.trace_id = owned.trace_id AND step.device = owned.device AND step.step = owned.step
GROUP BY step.trace_id, step.device ORDER BY rank, step.trace_id, step.device
"""

_SUBTOTALS = """
WITH step AS (SELECT trace_id, device, step, coalesce(match_id, step) AS match_id FROM steps WHERE {within} AND is_complete),
booked AS (
    SELECT step.*, what.name, sum(work.busy_ns) AS busy_ns, sum(work.exposed_ns) AS exposed_ns, sum(work.calls) AS calls
    FROM step JOIN step_breakdown AS work ON step.trace_id = work.trace_id AND step.device = work.device AND step.step = work.step
    JOIN (VALUES ('Communication', true), ('All GPU time', false)) AS what (name, is_part)
        ON NOT what.is_part OR work.rollup IN ({communication})
    WHERE work.run_id IN (SELECT run_id FROM steps WHERE {within})
    GROUP BY ALL
),
by_match AS (SELECT name, match_id, avg(busy_ns) AS busy_ns, avg(exposed_ns) AS exposed_ns FROM booked GROUP BY ALL)
SELECT name, median(busy_ns) AS busy_ns, avg(busy_ns) AS mean_ns, median(exposed_ns) AS exposed_ns FROM by_match GROUP BY name
"""


def print_screen(screen: Screen) -> None:
    """Print one screen, for 80 columns or more."""
    out = console()
    _print_head(out, screen)
    if screen.rollups:
        _print_ranks(out, screen)
        _print_rollups(out, screen)
    else:
        _print_refusal(out, screen)
    if screen.unclassified:
        out.print("\nMost expensive names that no rule claims (add rules to kernel_rules.toml in the home):", style="bold")
        for row in screen.unclassified:
            out.print(f"  {row['ms']:9.3f} ms  {row['calls']:>7} calls  {row['short_name'][:60]}", markup=False)


def _print_head(out: Console, screen: Screen) -> None:
    f = screen.facts
    of = f" of {f['ranks_expected']}" if f["ranks_expected"] else ""
    out.print(f"run {f['run_id']} ({f['source']})   verdict: {f['verdict']}", style="bold", markup=False)
    facts = [f"engine {f['engine'] or 'unknown'}", f["gpu_name"] or "GPU unknown", f"{f['traces']} traces, {f['ranks']}{of} ranks"]
    out.print("  " + ", ".join(facts), markup=False)
    counts = ", ".join(f"{row['steps']} {row['phase']}" for row in sorted(screen.steps, key=lambda r: r["phase"]))
    out.print(f"  steps over all ranks: {counts or 'none found'}", markup=False)
    for row in screen.left_out:
        out.print(f"  left out of means: {row['steps']} {row['phase']} ({row['reason']})", markup=False)
    for row in screen.no_step:
        out.print(
            f"  in no step: {row['activities']} activities, {row['busy_ns'] / 1e6:.3f} ms ({_REASONS.get(row['reason'], row['reason'])})",
            markup=False,
        )


_REASONS = {
    "before_first_step": "launched before the first annotated step",
    "no_launch_record": "launched before recording began: no launch record",
    "unannotated_pass": "whole forward passes that no annotation covers, behind an annotated step",
    "no_marker": "no annotation marks steps",
}


def _print_ranks(out: Console, screen: Screen) -> None:
    table = Table(
        box=None, pad_edge=False, header_style="bold", title=f"\nWall time of a {screen.phase} step, ms", title_justify="left", title_style="bold"
    )
    for name in ("rank", "p50", "p90", "mean", "= compute", "+ comm", "+ other", "+ idle", "+ gap"):
        table.add_column(name, justify="right", no_wrap=True)
    if not screen.ranks:
        out.print("\nWall time: unknown (one step only; a wall needs the next step's start)")
        return
    notes = []
    for r in screen.ranks:
        label = f"{'?' if r['rank'] is None else r['rank']}" + (f" gpu{r['device']}" if _several_devices(screen) else "")
        parts = [r["wall_p50"], r["wall_p90"], r["wall_mean"], r["compute"], r["communication"], r["other"], r["idle_inside"], r["gap"]]
        table.add_row(label, *(f"{(p or 0) / 1e6:.3f}" for p in parts))
        idle = (r["idle_inside"] + r["gap"]) / r["wall_mean"] if r["wall_mean"] else 0
        if r["lag"] is not None and r["lag"] < _LAUNCH_BOUND_LAG_NS and idle > _LAUNCH_BOUND_IDLE:
            notes.append(
                f"rank {label} is launch-bound: kernels start {r['lag'] / 1e3:.0f} us after their launch call, the GPU is idle {idle:.0%} of the time"
            )
        elif r["host_late"]:
            notes.append(f"rank {label}: {r['host_late']} of {r['steps']} gaps came from a late host")
    out.print(table)
    for note in notes:
        out.print(f"  {note}", markup=False)


def _several_devices(screen: Screen) -> bool:
    return len({r["trace_id"] for r in screen.ranks}) < len(screen.ranks)


def _print_rollups(out: Console, screen: Screen) -> None:
    is_wide = out.width >= _WIDE_COLUMNS
    steps, ranks = screen.rollups[0]["steps"], screen.rollups[0]["ranks"]
    title = f"\nGPU time of a {screen.phase} step, ms (median over {steps} steps of the mean over {ranks} ranks)"
    table = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    names = ["p50", "ranks", "calls", "exposed", "share"]
    names += ["us/call", "mean", "p90", "p99", "worst rank", "of wall"] if is_wide else []
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    differ = False
    for r in screen.rollups:
        spread = f"{r['ms_rank_min']:.2f}-{r['ms_rank_max']:.2f}"
        apart = r["ms_rank_min"] > 0 and r["ms_rank_max"] > 2 * r["ms_rank_min"] and r["ms_rank_max"] > 0.1
        differ |= apart
        calls = str(r["calls_mode"]) if r["calls_min"] == r["calls_max"] else f"{r['calls_mode']} ({r['calls_min']}-{r['calls_max']})"
        cells = ["see ranks" if apart else f"{r['ms_p50']:.3f}", spread, calls, f"{r['exposed_ms_p50']:.3f}", f"{r['share']:.1%}"]
        if is_wide:
            cells += [
                f"{r['us_per_call'] or 0:.2f}",
                f"{r['ms_mean']:.3f}",
                f"{r['ms_p90']:.3f}",
                f"{r['ms_p99']:.3f}",
                "?" if r["worst_rank"] is None else str(r["worst_rank"]),
                "" if r["wall_share"] is None else f"{r['wall_share']:.1%}",
            ]
        table.add_row(r["rollup"], *cells)
    total = next((s["mean_ns"] for s in screen.subtotals if s["name"] == "All GPU time"), 0)
    for s in sorted(screen.subtotals, key=lambda s: s["name"], reverse=True):
        share = f"{s['mean_ns'] / total:.1%}" if total else ""
        table.add_row(Text(s["name"], style="italic"), f"{s['busy_ns'] / 1e6:.3f}", "", "", f"{s['exposed_ns'] / 1e6:.3f}", share)
    out.print(table)
    out.print("  p50 is summed kernel time: kernels overlap, so it may exceed wall. exposed books each instant once.", markup=False)
    if differ:
        out.print("  see ranks: the ranks differ by more than 2x, so one number would hide it.", markup=False)


def _print_refusal(out: Console, screen: Screen) -> None:
    out.print("\nNo step was found, so per-step numbers are refused, not invented. The whole capture:", markup=False)
    total = sum(r["busy_ns"] for r in screen.capture) or 1
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "busy ms", "exposed ms", "calls", "share"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for r in screen.capture:
        table.add_row(r["rollup"], f"{r['busy_ns'] / 1e6:.3f}", f"{r['exposed_ns'] / 1e6:.3f}", str(r["calls"]), f"{r['busy_ns'] / total:.1%}")
    out.print(table)
