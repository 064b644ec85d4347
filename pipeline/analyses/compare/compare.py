"""What changed from one run to another, beyond noise: each row of the table before and after, its
uncertainty, and whether it is one to trust."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import duckdb

from pipeline.analyses import sql
from pipeline.analyses.compare.bootstrap import LEAST_STEPS, RESAMPLES
from pipeline.analyses.compare.changes import LEAST_NOISE, WALL, WHOLE, RowChange, table
from pipeline.analyses.compare.comparable import facts, in_words, is_other_work, verdict_report
from pipeline.analyses.compare.fdr import LIMIT
from pipeline.analyses.compare.kernel_diff import renamed_report
from pipeline.analyses.compare.masked import percent
from pipeline.analyses.compare.sample import Sample, WaitingTime, chosen, phases_of, sample_of
from pipeline.analyses.compare.words import in_short
from pipeline.analyses.compare.workload import workload_of
from pipeline.analyses.report import Report
from pipeline.errors import UsageError
from pipeline.lake.home import Home
from pipeline.lake.reading import find_run, reading, stable
from pipeline.text import counted

COLUMNS = (
    "row", "before_ms", "after_ms", "delta_ms", "low_ms", "high_ms", "delta_pct", "noise_ms", "q",
    "change", "calls_before", "calls_after", "exposed_before_ms", "exposed_after_ms", "exposed_change",
    "floor_before_ms", "floor_after_ms", "wait_before_ms", "wait_after_ms", "share_before", "share_after",
)  # fmt: skip

_FIRST = (
    "row",
    "before_ms",
    "after_ms",
    "delta_ms",
    "low_ms",
    "high_ms",
    "delta_pct",
    "noise_ms",
    "q",
    "change",
    "calls_before",
    "calls_after",
)
"""Columns of the table that people read; the others are in a second table."""


def compare(
    home: Home,
    a: str,
    b: str,
    *,
    phase: str | None = None,
    anyway: bool = False,
    noise: Sequence[str] = (),
    fail_over: float | None = None,
    wide: bool = False,
) -> tuple[list[Report], bool]:
    """Run `b` against run `a`: the table, the verdict on comparability, and changed kernels; and whether
    something is slower by more than `fail_over` (a fraction), beyond noise: wall, or a rollup.

    `noise`: repeated captures of `a`. `wide`: one table of all columns, for programs; else two that fit on a
    screen. Raises UsageError for runs that failed their checks, different work without `anyway`, and what
    cannot be judged.
    """

    def read() -> tuple[list[Report], bool]:
        with reading(home) as con:
            return _compared(con, a, b, phase, list(noise), fail_over, anyway=anyway)

    (whole, *others), over = stable(home, read)
    return [*([whole] if wide else _halves(whole)), *others], over


def _halves(report: Report) -> list[Report]:
    """The table in two: what changed; and exposed time, floor, waiting and share of its rollups."""
    first = [COLUMNS.index(name) for name in _FIRST]
    second = [0, *(at for at in range(len(COLUMNS)) if at not in first)]
    rows = [row for row in report.rows if row[0] not in {WALL, WHOLE}]
    return [
        Report(report.title, _FIRST, [[row[at] for at in first] for row in report.rows], report.notes),
        Report(
            "Exposed, floor, waiting, share",
            [COLUMNS[at] for at in second],
            [[row[at] for at in second] for row in rows],
        ),
    ]


def fail_limit(text: str) -> float:
    """A limit as given on the command line, `5%` or `0.05`, as a fraction. Raises UsageError for anything
    else."""
    number = text.strip()
    try:
        value = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 10:
        raise UsageError(f"--fail-over {text}: wanted a percentage, as in 5%")
    return value


def passed_checks(con: duckdb.DuckDBPyConnection, run_ids: Sequence[str]) -> list[str]:
    """Raises UsageError where a run failed its checks; returns a note on those that are not checked."""
    unchecked = []
    for run_id in dict.fromkeys(run_ids):
        verdicts = {row[0] for row in sql.rows(con, "compare/verdicts", run_id=run_id)}
        if "fail" in verdicts:
            names = ", ".join(row[0] for row in sql.rows(con, "compare/failed_checks", run_id=run_id))
            raise UsageError(
                f"run {run_id} failed its checks ({names}): its numbers are not compared; see "
                f"`stepledger check {run_id}`"
            )
        if "unchecked" in verdicts:
            unchecked.append(run_id)
    return [f"not checked: {', '.join(unchecked)} (run `stepledger check`)"] if unchecked else []


def _compared(
    con: duckdb.DuckDBPyConnection,
    a: str,
    b: str,
    phase: str | None,
    noise: list[str],
    fail_over: float | None,
    *,
    anyway: bool,
) -> tuple[list[Report], bool]:
    run_ids = [find_run(con, name) for name in (a, b)]
    repeats = [find_run(con, name) for name in noise]
    if len({*run_ids, *repeats}) < 2 + len(repeats):
        raise UsageError("a run is named twice: cannot compare a run with itself")
    notes = passed_checks(con, [*run_ids, *repeats])
    keys = chosen([phases_of(con, run_id) for run_id in run_ids], run_ids, phase)
    before, after = (sample_of(con, run_id, *key) for run_id, key in zip(run_ids, keys, strict=True))
    known = facts(before, after, workload_of(con, before), workload_of(con, after))
    if is_other_work(known) and not anyway:
        raise UsageError(
            f"{run_ids[0]} and {run_ids[1]} are not compared: {in_words(known)}; use --anyway to compare them"
        )
    others = [_repeat(con, before, run_id) for run_id in repeats]
    rows = table(before, after, others)
    over, limit_notes = _over(rows, fail_over)
    renamed, kinds = renamed_report(con, before, after)
    notes = [
        *in_short(rows, before, after, known),
        *kinds,
        *limit_notes,
        *_assumptions(before, after, repeats),
        *notes,
    ]
    title = f"{before.phase} step, {before.run_id} -> {after.run_id}: {in_words(known)}"
    return [
        Report(title, COLUMNS, [_cells(row, before, after) for row in rows], notes),
        verdict_report(known),
        renamed,
    ], over


def _repeat(con: duckdb.DuckDBPyConnection, before: Sample, run_id: str) -> Sample:
    """A repeated capture of the first side. Raises UsageError where it did different work."""
    known = phases_of(con, run_id)
    if (before.source, before.phase) not in known:
        raise UsageError(
            f"run {run_id} is not a repeat of {before.run_id}: it has no {before.phase} step from "
            f"{before.source}"
        )
    side = sample_of(con, run_id, before.source, before.phase)
    found = facts(before, side, workload_of(con, before), workload_of(con, side))
    if is_other_work(found):
        raise UsageError(f"run {run_id} is not a repeat of {before.run_id}: {in_words(found)}")
    return side


def _over(rows: Sequence[RowChange], limit: float | None) -> tuple[bool, list[str]]:
    """Is wall, or a rollup, slower by more than the limit and beyond noise? Raises UsageError where nothing
    can be judged: no verdict is not a pass."""
    if limit is None:
        return False, []
    judged = [row for row in rows if row.name != WHOLE and row.change != "not judged"]
    if not judged:
        raise UsageError(
            f"--fail-over: too few steps to tell a change from noise (at least {LEAST_STEPS} on each side)"
        )
    slower = [row for row in judged if row.change == "higher" and row.delta > limit * row.before]
    notes = [
        f"over the limit of {percent(limit)}: {row.name} +{row.delta:.3f} ms{_relative(row)}"
        for row in slower
    ]
    notes = notes or [f"nothing is over the limit of {percent(limit)}"]
    if not any(row.name == WALL for row in judged):
        notes.append("--fail-over looks at rollups only: too few steps have a wall time")
    return bool(slower), notes


def _relative(row: RowChange) -> str:
    return f" ({row.delta / row.before:+.1%})" if row.before else " (was 0)"


def _cells(row: RowChange, before: Sample, after: Sample) -> list[Any]:
    found: list[Any] = [row.name, *(round(v, 6) for v in (row.before, row.after, row.delta))]
    found += (
        [None, None] if row.interval is None else [round(row.interval.low, 6), round(row.interval.high, 6)]
    )
    found += [
        round(100 * row.delta / row.before, 2) if row.before else None,
        None if row.interval is None else round(row.noise, 6),
    ]
    found += [None if row.q is None else round(row.q, 4), row.change]
    if not row.is_rollup:
        return found + [None] * (len(COLUMNS) - len(found))
    found += [calls_text(side.calls.get(row.name, (0, 0, 0))) for side in (before, after)]
    found += [round(median(side.exposed_of(row.name)), 6) for side in (before, after)] + [row.exposed]
    for part in ("floor", "wait"):
        found += [_part(side.waiting.get(row.name), part) for side in (before, after)]
    return [*found, *(round(side.share(row.name), 6) for side in (before, after))]


def calls_text(calls: tuple[int, int, int]) -> str:
    """Calls of a step as integers: the usual number, and the range where there is one."""
    low, mode, high = calls
    return str(mode) if low == high else f"{mode} ({low}-{high})"


def _part(waiting: WaitingTime | None, part: str) -> float | None:
    if waiting is None or waiting.refusal is not None:
        return None
    return round(median(waiting.floor if part == "floor" else waiting.wait), 6)


def _assumptions(before: Sample, after: Sample, repeats: Sequence[str]) -> list[str]:
    notes = [
        f"{side.run_id}: {counted(side.steps, side.phase + ' step')} of {counted(side.ranks, 'rank')} "
        f"from {side.source}" + _left_out(side)
        for side in (before, after)
    ]
    notes += [
        (
            "ms: median over steps of the mean over ranks; exposed: each instant counted once; shares "
            "are of all GPU time"
        ),
        (
            f"low and high: 95 % interval of the difference, block bootstrap over steps ({RESAMPLES} "
            "resamples, widened where steps are few)"
        ),
        _noise_words(before, repeats),
        (
            f"a change is beyond noise and has a false-discovery rate under {LIMIT:.0%} over all "
            "rollups (q, Benjamini-Hochberg)"
        ),
        "floor and wait of collectives: the time on the rank that arrives last, and the rest",
    ]
    if any(side.steps < LEAST_STEPS for side in (before, after)):
        notes.append(f"not judged: fewer than {LEAST_STEPS} steps on a side are too few to estimate noise")
    return notes


def _noise_words(before: Sample, repeats: Sequence[str]) -> str:
    if not repeats:
        return (
            f"noise: half of that interval or {LEAST_NOISE:.0%}, whichever is larger; give repeated "
            "captures to measure it (--noise)"
        )
    text = (
        "noise: half of that interval or the largest difference between repeats "
        f"({', '.join([before.run_id, *repeats])}), whichever is larger"
    )
    return (
        text
        if len(repeats) >= 3
        else f"{text}; of {len(repeats) + 1} captures, so a further one may differ by more"
    )


def _left_out(side: Sample) -> str:
    return f" ({side.left_out} left out: complete on some ranks only)" if side.left_out else ""
