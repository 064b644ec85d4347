"""Block bootstrap of medians: how far the median over steps would move if other steps had been recorded.
Pure, and the same every time."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

RESAMPLES = 2000
LEAST_STEPS = 5
"""Fewer steps than this on a side are too few to tell how steps vary: five against five is the least that any
test by rank can tell at 1 %."""
LEVEL = 0.95
_Z = 1.959964
"""97.5 % of a normal distribution lie below it."""
_CHUNK = 2_000_000
"""Numbers held at once per series, so that memory does not grow with the steps."""


@dataclass(frozen=True)
class ConfidenceInterval:
    """A difference of medians (after - before), its 95 % interval, and the chance of one as far from 0 if
    there were none (two-sided)."""

    low: float
    high: float
    p: float

    @property
    def half_width(self) -> float:
        """Half of the interval's width: what the difference is uncertain by."""
        return (self.high - self.low) / 2


def block_length(steps: int) -> int:
    """Steps of a block: the cube root of their number, rounded up (Kuensch 1989: grows as n^(1/3)).
    Neighbors are alike, so they stay together."""
    root = round(math.cbrt(steps))
    return root if root**3 >= steps else root + 1


def widening(steps: int) -> float:
    """By how much a run of few blocks is to be thought more uncertain than its resamples show, as a factor of
    their distance from the median.

    sqrt(m / (m - 1)) t(0.975, m - 1) / z(0.975) with m = steps / block length: the resamples of m blocks vary
    too little by the first factor, and their own spread is known from m blocks only, by the second. Student's
    t from z by Abramowitz and Stegun 26.7.5. 1.07 at 155 steps, 2.0 at 8.
    """
    blocks = steps / block_length(steps)
    if blocks <= 1:
        return 1.0  # one block is the whole run: nothing varies
    z, free = _Z, blocks - 1
    t = (
        z
        + (z**3 + z) / (4 * free)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * free**3)
    )
    return math.sqrt(blocks / free) * t / z


def resampled_medians(series: Mapping[str, Sequence[float]], seed: int) -> dict[str, NDArray[float64]]:
    """RESAMPLES medians of each series, all drawn from the same steps: circular blocks of consecutive steps,
    with replacement.

    All series have one length, in the order of time; distances from the median of each are widened where
    blocks are few. The draws come from Python's own generator, whose numbers no release changes.
    """
    import numpy as np

    steps = len(next(iter(series.values())))
    length = block_length(steps)
    blocks = math.ceil(steps / length)
    draw = random.Random(seed)  # noqa: S311 (a fixed sequence is wanted)
    values = {name: np.asarray(numbers, dtype=np.float64) for name, numbers in series.items()}
    found: dict[str, list[NDArray[float64]]] = {name: [] for name in series}
    at_once = max(1, _CHUNK // steps)
    for begin in range(0, RESAMPLES, at_once):
        count = min(at_once, RESAMPLES - begin)
        starts = np.array([[int(draw.random() * steps) for _ in range(blocks)] for _ in range(count)])
        index = ((starts[:, :, None] + np.arange(length)) % steps).reshape(count, -1)[:, :steps]
        for name, numbers in values.items():
            found[name].append(np.median(numbers[index], axis=1))
    factor = widening(steps)
    middle = {name: float(np.median(numbers)) for name, numbers in values.items()}
    return {
        name: middle[name] + (np.concatenate(parts) - middle[name]) * factor for name, parts in found.items()
    }


def difference(before: NDArray[float64], after: NDArray[float64]) -> ConfidenceInterval:
    """The interval of after - before from resampled medians of two independent runs.

    p = 2 min(#(d <= 0), #(d >= 0)) / n, each count with the one that was observed added, so that it is never
    0 (Davison and Hinkley 1997, 4.2).
    """
    import numpy as np

    moved = after - before
    tail = (1 - LEVEL) / 2
    low, high = (float(v) for v in np.quantile(moved, [tail, 1 - tail]))
    draws = len(moved)
    below, above = int(np.count_nonzero(moved <= 0)), int(np.count_nonzero(moved >= 0))
    return ConfidenceInterval(low, high, min(1.0, 2 * (1 + min(below, above)) / (draws + 1)))
