"""The breakdown on a screen: verdict and steps, wall per rank, the table, and what could not be named."""

from __future__ import annotations

import textwrap
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
from pipeline.text import printable

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
    methods: list[dict[str, Any]]
    measured_tpot_ms: float | None
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
        con,
        f"SELECT phase, count(DISTINCT (trace_id, step)) AS steps, count(DISTINCT trace_id) AS ranks, "
        f"count(*) FILTER (WHERE label IS NULL) AS unmarked FROM steps WHERE {where} GROUP BY phase",
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
        methods=duck.dicts(
            con,
            f"SELECT method, is_used, is_agreed, sum(steps)::BIGINT AS steps, sum(compared_with)::BIGINT AS compared_with, "
            f"(SELECT min(confidence) FROM steps WHERE {within}) AS confidence FROM step_methods WHERE {where} GROUP BY ALL ORDER BY method",
        ),
        measured_tpot_ms=duck.scalar(con, f"SELECT max(measured_tpot_ms) FROM run_config WHERE run_id = {literal(facts['run_id'])}"),
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
WITH step AS (SELECT * FROM steps WHERE {within} AND is_complete AND wall_ns IS NOT NULL AND next_phase = phase),
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
WITH step AS (SELECT trace_id, device, step, coalesce(match_id::VARCHAR, trace_id || ' ' || step) AS match_id FROM steps
    WHERE {within} AND is_complete),
booked AS (
    SELECT step.*, what.name, sum(work.busy_ns) AS busy_ns, sum(work.exposed_ns) AS exposed_ns, sum(work.calls) AS calls
    FROM step JOIN step_breakdown AS work ON step.trace_id = work.trace_id AND step.device = work.device AND step.step = work.step
    JOIN (VALUES ('Communication', true), ('All GPU time', false)) AS what (name, is_part)
        ON NOT what.is_part OR work.rollup IN ({communication})
    WHERE work.run_id IN (SELECT run_id FROM steps WHERE {within})
    GROUP BY ALL
),
by_match AS (SELECT name, match_id, avg(busy_ns) AS busy_ns, avg(exposed_ns) AS exposed_ns FROM booked GROUP BY ALL),
by_rank AS (SELECT name, trace_id, device, median(busy_ns) AS busy_ns FROM booked GROUP BY ALL),
spread AS (SELECT name, min(busy_ns) AS lowest_ns, max(busy_ns) AS highest_ns FROM by_rank GROUP BY name)
SELECT name, median(by_match.busy_ns) / 1e6 AS ms_p50, avg(by_match.busy_ns) / 1e6 AS ms_mean, median(exposed_ns) / 1e6 AS exposed_ms_p50,
    any_value(lowest_ns) / 1e6 AS ms_rank_min, any_value(highest_ns) / 1e6 AS ms_rank_max
FROM by_match JOIN spread USING (name) GROUP BY name ORDER BY name DESC
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
        out.print()
        _note(out, "Names that no rule claims (add rules to kernel_rules.toml in the home):", indent="", style="bold")
        table = Table(box=None, pad_edge=False, show_header=False)
        for _ in range(2):
            table.add_column(justify="right", no_wrap=True)
        table.add_column(overflow="fold")
        for row in screen.unclassified:
            _row(table, f"  {row['ms']:.3f} ms", f"{row['calls']} calls", row["short_name"])
        _print_table(out, table)


def _print_head(out: Console, screen: Screen) -> None:
    f = screen.facts
    of = f" of {f['ranks_expected']}" if f["ranks_expected"] else ""
    _note(out, f"run {f['run_id']} ({f['source']})   verdict: {f['verdict']}", indent="", style="bold")
    _note(out, f"engine {f['engine'] or 'unknown'}, {f['gpu_name'] or 'GPU unknown'}, {f['traces']} traces, {f['ranks']}{of} ranks")
    counts = ", ".join(f"{row['steps']} {row['phase']}" for row in sorted(screen.steps, key=lambda r: r["phase"]))
    _note(out, f"steps over all ranks: {counts or 'none found'}")
    if unmarked := sum(row["unmarked"] for row in screen.steps if row["phase"] == "dummy"):
        _note(out, f"{unmarked} of these are forward passes that no annotation covers (dummy): totals divided by annotations would mislead")
    for row in screen.methods:
        if row["is_used"] and row["confidence"] is not None:
            _note(out, f"steps by {_METHODS[row['method']]}, confidence {row['confidence']:.1f}")
        elif row["is_agreed"] is False:
            _note(out, f"{_METHODS[row['method']]} would give {row['steps']} steps where {row['compared_with']} are in use: one of them is wrong")
    for row in screen.left_out:
        _note(out, f"left out of means: {row['steps']} {row['phase']} ({row['reason']})")
    for row in screen.no_step:
        reason = _REASONS.get(row["reason"], row["reason"])
        _note(out, f"in no step: {row['activities']} activities, {row['busy_ns'] / 1e6:.3f} ms ({reason})")


def _print_table(out: Console, table: Table) -> None:
    """A table without the blanks that would fill its last column."""
    with out.capture() as drawn:
        out.print(table)
    out.out("\n".join(line.rstrip() for line in drawn.get().splitlines()), highlight=False)


_METHODS = {"annotation": "annotations", "nvtx": "NVTX ranges", "graph": "graph replays", "pattern": "the order of kernels"}

_REASONS = {
    "before_first_step": "launched before the first annotated step",
    "no_launch_record": "launched before recording began: no launch record",
    "no_marker": "nothing marks steps: no annotation, graph replay or repeating order of kernels",
}


def _print_ranks(out: Console, screen: Screen) -> None:
    if not screen.ranks:
        out.print("\nWall time: unknown (it needs a complete step that another step follows)")
        return
    _heading(out, f"Wall time of a {screen.phase} step, ms")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("rank", "p50", "p90", "mean", "= compute", "+ comm", "+ other", "+ idle", "+ gap"):
        table.add_column(name, justify="right", no_wrap=True)
    notes, bound, waiting = [], set(), []
    for r in screen.ranks:
        label = f"{'?' if r['rank'] is None else r['rank']}" + (f" gpu{r['device']}" if _several_devices(screen) else "")
        parts = [r["wall_p50"], r["wall_p90"], r["wall_mean"], r["compute"], r["communication"], r["other"], r["idle_inside"], r["gap"]]
        _row(table, label, *(_ms((p or 0) / 1e6) for p in parts))
        idle = (r["idle_inside"] + r["gap"]) / r["wall_mean"] if r["wall_mean"] else 0
        if r["lag"] is not None and r["lag"] < _LAUNCH_BOUND_LAG_NS and idle > _LAUNCH_BOUND_IDLE:
            bound.add(label)
            notes.append(f"rank {label} is launch-bound: {r['lag'] / 1e3:.0f} us from launch call to kernel, GPU idle {idle:.0%} of the time")
        elif r["wall_mean"] and r["communication"] > r["wall_mean"] / 2:
            waiting.append(label)
        elif r["host_late"]:
            notes.append(f"rank {label}: {r['host_late']} of {r['steps']} gaps came from a late host")
    _print_table(out, table)
    if notes and 0 < len(bound) < len(screen.ranks):
        notes += [f"rank {label} only waits for it" for label in waiting if label not in bound]
    for note in notes:
        _note(out, note)
    walls = [r["wall_p50"] for r in screen.ranks]
    if screen.measured_tpot_ms is not None and screen.phase == "decode":
        trace_ms = max(walls) / 1e6
        factor = trace_ms / screen.measured_tpot_ms
        _note(out, f"measured without a profiler: {screen.measured_tpot_ms:g} ms a token; this trace: {trace_ms:.3f} ms, {factor:.2f} times that")


def _several_devices(screen: Screen) -> bool:
    return len({r["trace_id"] for r in screen.ranks}) < len(screen.ranks)


def _print_rollups(out: Console, screen: Screen) -> None:
    steps, ranks = screen.rollups[0]["steps"], screen.rollups[0]["ranks"]
    _heading(out, f"GPU time of a {screen.phase} step, ms ({steps} steps, mean over {ranks} ranks)")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    is_wide = out.width >= _WIDE_COLUMNS
    names = ["p50", "ranks", "calls", "exposed", "share"]
    names += ["us/call", "mean", "p90", "p99", "worst rank", "of wall"] if is_wide else []
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for r in screen.rollups:
        _row(table, r["rollup"], *_cells(r, is_wide=is_wide))
    total = next((s["ms_mean"] for s in screen.subtotals if s["name"] == "All GPU time"), 0)
    for s in screen.subtotals:
        share = s["ms_mean"] / total if total else None
        _row(table, s["name"], *_cells(s | {"share": share}, is_wide=is_wide), style="italic")
    _print_table(out, table)
    _note(out, "p50 is summed kernel time: kernels overlap, so it may exceed wall.")
    _note(out, "exposed books each instant once.")
    if any(map(_apart, [*screen.rollups, *screen.subtotals])):
        _note(out, "see ranks: the ranks differ by 2x or more, so one number would hide it.")


def _apart(row: dict[str, Any]) -> bool:
    """Do the ranks differ so much that one number for them would mislead?"""
    return bool(row["ms_rank_max"] > 0 and row["ms_rank_max"] >= 2 * row["ms_rank_min"])


def _cells(row: dict[str, Any], *, is_wide: bool) -> list[str]:
    """One row of the table; a column that a subtotal does not have is empty."""

    def one(key: str) -> str:
        return "" if row.get(key) is None or _apart(row) else _ms(row[key])

    calls = ""
    if "calls_mode" in row:
        calls = str(row["calls_mode"]) if row["calls_min"] == row["calls_max"] else f"{row['calls_mode']} ({row['calls_min']}-{row['calls_max']})"
    share, wall_share = (f"{row[key]:.1%}" if row.get(key) is not None else "" for key in ("share", "wall_share"))
    spread = f"{_ms(row['ms_rank_min'])}-{_ms(row['ms_rank_max'])}"
    cells = ["see ranks" if _apart(row) else one("ms_p50"), spread, calls, one("exposed_ms_p50"), share]
    if is_wide:
        worst = "" if "worst_rank" not in row else "?" if row["worst_rank"] is None else str(row["worst_rank"])
        cells += [one("us_per_call"), one("ms_mean"), one("ms_p90"), one("ms_p99"), worst, wall_share]
    return cells


def _row(table: Table, *cells: str, style: str = "") -> None:
    """A row of texts, none of them markup; the style is the first cell's."""
    first, *rest = map(printable, cells)
    table.add_row(Text(first, style=style), *map(Text, rest))


def _ms(value: float) -> str:
    """A time with as many decimals as a narrow column has room for."""
    return f"{value:.{3 if value < 100 else 2 if value < 1000 else 1}f}"


def _heading(out: Console, text: str) -> None:
    out.print(f"\n{printable(text)}", style="bold", markup=False)


def _note(out: Console, text: str, *, indent: str = "  ", style: str = "") -> None:
    """Words on the screen, wrapped with their indent."""
    filled = textwrap.fill(printable(text), out.width, initial_indent=indent, subsequent_indent=indent)
    out.print(filled, style=style, markup=False, soft_wrap=True)


def _print_refusal(out: Console, screen: Screen) -> None:
    what = "No complete step with GPU work" if screen.steps else "No step"
    out.print()
    _note(out, f"{what} was found, so per-step numbers are refused, not invented. The whole capture:", indent="")
    total = sum(r["busy_ns"] for r in screen.capture) or 1
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "busy ms", "exposed ms", "calls", "share"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for r in screen.capture:
        times = (f"{r[key] / 1e6:.3f}" for key in ("busy_ns", "exposed_ns"))
        _row(table, r["rollup"], *times, str(r["calls"]), f"{r['busy_ns'] / total:.1%}")
    _print_table(out, table)
