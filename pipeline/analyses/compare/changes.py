"""Each row of a comparison: medians before and after, how uncertain their difference is, and whether it
exceeds noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from pipeline.analyses.compare.bootstrap import LEAST_STEPS, ConfidenceInterval, difference, resampled_medians
from pipeline.analyses.compare.fdr import LIMIT, adjusted
from pipeline.analyses.compare.masked import Change
from pipeline.analyses.compare.sample import Sample

WALL, WHOLE = "Wall per step", "All GPU time"
LEAST_NOISE = 0.02
"""Two captures of one configuration differ by up to this, whatever the steps within each show: clocks,
placement, temperature."""
_SEEDS = (20_260_101, 20_260_102)
"""One for each side, so that equal runs are not resampled alike."""


@dataclass(frozen=True)
class RowChange:
    """One row: medians in ms, the interval of their difference (None: too few steps), what chance and repeats
    differ by, and the verdict.

    `q`: of rollups only. `exposed`: did its exposed time change, judged alone: "unchanged" is the claim that
    needs care there.
    """

    name: str
    before: float
    after: float
    interval: ConfidenceInterval | None
    noise: float
    q: float | None
    change: Change
    exposed: Change | None = None

    @property
    def delta(self) -> float:
        """After - before, ms."""
        return self.after - self.before

    @property
    def is_rollup(self) -> bool:
        """A row of the table, not one that adds rows up."""
        return self.name not in {WALL, WHOLE}


_Pairs = dict[str, tuple[Sequence[float], Sequence[float]]]


def table(before: Sample, after: Sample, repeats: Sequence[Sample] = ()) -> list[RowChange]:
    """Wall, all GPU time, then each rollup, largest first; false discoveries are controlled over the
    rollups."""
    rollups = sorted(
        {*before.busy, *after.busy},
        key=lambda name: (-max(median(before.of(name)), median(after.of(name))), name),
    )
    work: _Pairs = {WHOLE: (before.total, after.total)} | {
        name: (before.of(name), after.of(name)) for name in rollups
    }
    intervals = _intervals(work)
    if before.wall and after.wall:
        work = {WALL: (before.wall, after.wall)} | work
        intervals |= _intervals({WALL: work[WALL]})
    chances = {name: found.p for name in rollups if (found := intervals[name]) is not None}
    q = dict(zip(chances, adjusted(list(chances.values())), strict=True))
    shown: _Pairs = {name: (before.exposed_of(name), after.exposed_of(name)) for name in rollups}
    shown_intervals = _intervals(shown)
    rows = []
    for name, pair in work.items():
        seen = [median(series) for side in (before, *repeats) if (series := _series(side, name))]
        noise, change = _judged(pair, intervals[name], q.get(name), seen)
        exposed = _judged(shown[name], shown_intervals[name], None, [])[1] if name in shown else None
        rows.append(
            RowChange(
                name, median(pair[0]), median(pair[1]), intervals[name], noise, q.get(name), change, exposed
            )
        )
    return rows


def _series(side: Sample, name: str) -> Sequence[float]:
    return side.wall if name == WALL else side.total if name == WHOLE else side.of(name)


def _intervals(
    work: Mapping[str, tuple[Sequence[float], Sequence[float]]],
) -> dict[str, ConfidenceInterval | None]:
    """The interval of each difference; the series of a side are of one length."""
    if any(min(len(one), len(other)) < LEAST_STEPS for one, other in work.values()):
        return dict.fromkeys(work)
    was, now = (
        resampled_medians({name: pair[at] for name, pair in work.items()}, _SEEDS[at]) for at in range(2)
    )
    return {name: difference(was[name], now[name]) for name in work}


def _judged(
    pair: tuple[Sequence[float], Sequence[float]],
    interval: ConfidenceInterval | None,
    q: float | None,
    repeats: Sequence[float],
) -> tuple[float, Change]:
    """The noise floor, ms, and the verdict: beyond that floor, and not by chance. `repeats`: medians of
    captures of one configuration."""
    if interval is None:
        return 0.0, "not judged"
    one, other = (median(series) for series in pair)
    noise = max(interval.half_width, max(repeats) - min(repeats) if len(repeats) > 1 else LEAST_NOISE * one)
    is_change = abs(other - one) > noise and (interval.p if q is None else q) < LIMIT
    return noise, ("higher" if other > one else "lower") if is_change else "within noise"
