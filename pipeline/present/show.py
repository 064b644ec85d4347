"""The breakdown on a screen."""

from __future__ import annotations

import textwrap
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.analyses.breakdown import Screen
from pipeline.present.output import console
from pipeline.text import counted, printable
from pipeline.thresholds import threshold

_WIDE_COLUMNS = 120


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
        _note(
            out,
            "Kernels that no rule matches (add rules to kernel_rules.toml in the home):",
            indent="",
            style="bold",
        )
        table = Table(box=None, pad_edge=False, show_header=False)
        for _ in range(2):
            table.add_column(justify="right", no_wrap=True)
        table.add_column(overflow="fold")
        for row in screen.unclassified:
            _row(table, f"  {row['ms']:.3f} ms", f"{row['calls']} calls", row["short_name"])
        _print_table(out, table)


def _print_head(out: Console, screen: Screen) -> None:
    f = screen.facts
    expected = f["ranks_expected"]
    ranks = f"{f['ranks']} of {counted(expected, 'rank')}" if expected else counted(f["ranks"], "rank")
    _note(out, f"run {f['run_id']} ({f['source']})   verdict: {f['verdict']}", indent="", style="bold")
    _note(
        out,
        (
            f"engine {f['engine'] or 'unknown'}, {f['gpu_name'] or 'GPU unknown'}, "
            f"{counted(f['traces'], 'trace')}, {ranks}"
        ),
    )
    counts = ", ".join(
        f"{row['steps']} {row['phase']}" for row in sorted(screen.steps, key=lambda r: r["phase"])
    )
    _note(out, f"steps over all ranks: {counts or 'none found'}")
    if unmarked := sum(row["unmarked"] for row in screen.steps if row["phase"] == "dummy"):
        _note(
            out,
            (
                f"{unmarked} of these are forward passes that no annotation covers (dummy): totals "
                "divided by annotations would mislead"
            ),
        )
    for row in screen.methods:
        if row["is_used"] and row["confidence"] is not None:
            _note(out, f"steps by {_METHODS[row['method']]}, confidence {row['confidence']:.1f}")
        elif row["is_agreed"] is False:
            _note(
                out,
                (
                    f"{_METHODS[row['method']]} would give {counted(row['steps'], 'step')} where "
                    f"{row['compared_with']} are in use: one of them is wrong"
                ),
            )
    for row in screen.left_out:
        _note(out, f"left out of means: {row['steps']} {row['phase']} ({row['reason']})")
    for row in screen.no_step:
        reason = _REASONS.get(row["reason"], row["reason"])
        _note(
            out,
            (
                f"in no step: {counted(row['activities'], 'activity', 'activities')}, "
                f"{row['busy_ns'] / 1e6:.3f} ms ({reason})"
            ),
        )


def _print_table(out: Console, table: Table) -> None:
    """A table without the blanks that would fill its last column."""
    with out.capture() as drawn:
        out.print(table)
    out.out("\n".join(line.rstrip() for line in drawn.get().splitlines()), highlight=False)


_METHODS = {
    "annotation": "annotations",
    "nvtx": "NVTX ranges",
    "graph": "graph replays",
    "pattern": "the order of kernels",
}

_REASONS = {
    "before_first_step": "launched before the first annotated step",
    "no_launch_record": "launched before recording began: no launch record",
    "no_marker": "nothing marks steps: no annotation, graph replay or periodic order of kernels",
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
        label = f"{'?' if r['rank'] is None else r['rank']}" + (
            f" gpu{r['device']}" if _several_devices(screen) else ""
        )
        parts = [
            r["wall_p50"],
            r["wall_p90"],
            r["wall_mean"],
            r["compute"],
            r["communication"],
            r["other"],
            r["idle_inside"],
            r["gap"],
        ]
        _row(table, label, *(_ms((p or 0) / 1e6) for p in parts))
        idle = (r["idle_inside"] + r["gap"]) / r["wall_mean"] if r["wall_mean"] else 0
        if _is_launch_bound(r["lag"], idle):
            bound.add(label)
            notes.append(
                f"rank {label} is launch-bound: {r['lag'] / 1e3:.0f} us from launch call to kernel, GPU "
                f"idle {idle:.0%} of the time"
            )
        elif r["wall_mean"] and r["communication"] > r["wall_mean"] / 2:
            waiting.append(label)
        elif r["host_late"]:
            notes.append(
                f"rank {label}: {r['host_late']} of {counted(r['steps'], 'gap')} came from a late host"
            )
    _print_table(out, table)
    if notes and 0 < len(bound) < len(screen.ranks):
        notes += [f"rank {label} only waits for it" for label in waiting if label not in bound]
    for note in notes:
        _note(out, note)
    walls = [r["wall_p50"] for r in screen.ranks]
    if screen.measured_tpot_ms is not None and screen.phase == "decode":
        trace_ms = max(walls) / 1e6
        factor = trace_ms / screen.measured_tpot_ms
        _note(
            out,
            (
                f"measured without a profiler: {screen.measured_tpot_ms:g} ms per token; this trace: "
                f"{trace_ms:.3f} ms, {factor:.2f} times that"
            ),
        )


def _is_launch_bound(lag_ns: float | None, idle_share: float) -> bool:
    """Does the GPU wait for launch calls? They come just before their kernels, and it is often idle."""
    return (
        lag_ns is not None
        and lag_ns < threshold("launch_bound_lag_ns")
        and idle_share > threshold("launch_bound_idle_share")
    )


def _several_devices(screen: Screen) -> bool:
    return len({r["trace_id"] for r in screen.ranks}) < len(screen.ranks)


def _print_rollups(out: Console, screen: Screen) -> None:
    steps, ranks = screen.rollups[0]["steps"], screen.rollups[0]["ranks"]
    _heading(
        out,
        (
            f"GPU time of a {screen.phase} step, ms ({counted(steps, 'step')}, mean over "
            f"{counted(ranks, 'rank')})"
        ),
    )
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
    _note(out, "exposed counts each instant once.")
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
        calls = (
            str(row["calls_mode"])
            if row["calls_min"] == row["calls_max"]
            else f"{row['calls_mode']} ({row['calls_min']}-{row['calls_max']})"
        )
    share, wall_share = (
        f"{row[key]:.1%}" if row.get(key) is not None else "" for key in ("share", "wall_share")
    )
    spread = f"{_ms(row['ms_rank_min'])}-{_ms(row['ms_rank_max'])}"
    cells = ["see ranks" if _apart(row) else one("ms_p50"), spread, calls, one("exposed_ms_p50"), share]
    if is_wide:
        worst = (
            "" if "worst_rank" not in row else "?" if row["worst_rank"] is None else str(row["worst_rank"])
        )
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
    _note(out, f"{what} was found, so there are no per-step numbers. The whole capture:", indent="")
    total = sum(r["busy_ns"] for r in screen.capture) or 1
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "busy ms", "exposed ms", "calls", "share"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for r in screen.capture:
        times = (f"{r[key] / 1e6:.3f}" for key in ("busy_ns", "exposed_ns"))
        _row(table, r["rollup"], *times, str(r["calls"]), f"{r['busy_ns'] / total:.1%}")
    _print_table(out, table)
