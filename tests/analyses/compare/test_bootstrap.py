"""Block bootstrap of medians."""

from __future__ import annotations

import random

import pytest

from pipeline.analyses.compare.bootstrap import (
    RESAMPLES,
    block_length,
    difference,
    resampled_medians,
    widening,
)


def _noisy(count: int, mean: float, seed: int) -> list[float]:
    draw = random.Random(seed)  # noqa: S311 (a fixed sequence is wanted)
    return [mean + draw.gauss(0, 0.01) for _ in range(count)]


@pytest.mark.parametrize(("steps", "length"), [(1, 1), (8, 2), (9, 3), (27, 3), (155, 6), (1000, 10)])
def test_a_block_is_the_cube_root_of_the_steps(steps: int, length: int) -> None:
    """Rounded up."""
    assert block_length(steps) == length


def test_the_same_steps_and_seed_give_the_same_medians() -> None:
    """Twice, to the last bit; another seed gives others."""
    series = {"x": _noisy(20, 1.0, 1)}
    first, again, other = (resampled_medians(series, seed)["x"].tolist() for seed in (7, 7, 8))
    assert first == again
    assert first != other
    assert len(first) == RESAMPLES


@pytest.mark.parametrize(
    ("steps", "factor"), [(8, 2 / 3**0.5 * 3.182 / 1.96), (27, 1.061 * 2.306 / 1.96), (1000, 1.017)]
)
def test_few_blocks_are_widened_as_students_t_asks(steps: int, factor: float) -> None:
    """4 blocks: t(0.975, 3) = 3.182; 9 blocks: t(0.975, 8) = 2.306 (published tables), and the part that
    resampling takes away."""
    assert widening(steps) == pytest.approx(factor, rel=0.01)


def test_one_block_is_not_widened() -> None:
    """It is the whole run; too few steps are refused before."""
    assert widening(1) == 1.0


def test_runs_of_drifting_noise_are_rarely_taken_for_different() -> None:
    """60 pairs of 16 steps whose neighbors are alike (correlation 0.5): at most a tenth has p under 5 %."""
    draw = random.Random(11)  # noqa: S311 (a fixed sequence is wanted)

    def drifting() -> list[float]:
        made, now = [], draw.gauss(0, 1)
        for _ in range(16):
            now = 0.5 * now + draw.gauss(0, 0.75**0.5)
            made.append(now)
        return made

    pairs = [
        (resampled_medians({"x": drifting()}, 1)["x"], resampled_medians({"x": drifting()}, 2)["x"])
        for _ in range(60)
    ]
    assert sum(difference(was, now).p < 0.05 for was, now in pairs) <= 6


def test_series_are_drawn_from_the_same_steps() -> None:
    """A row that is always twice another one is so in every resample."""
    series = _noisy(20, 1.0, 1)
    found = resampled_medians({"one": series, "two": [2 * v for v in series]}, 7)
    assert (found["two"] == 2 * found["one"]).all()


def test_blocks_keep_neighbors_together() -> None:
    """Medians of a run that drifts move more than those of the same steps in another order."""
    drifting = [float(number) for number in range(27)]
    mixed = drifting[:]
    random.Random(3).shuffle(mixed)  # noqa: S311 (a fixed sequence is wanted)
    spread = {
        name: float(resampled_medians({"x": series}, 7)["x"].std())
        for name, series in (("drift", drifting), ("mixed", mixed))
    }
    assert spread["drift"] > 1.3 * spread["mixed"]


def test_long_runs_are_drawn_in_parts_without_a_difference() -> None:
    """More steps than are held at once: every resample is there, around the median."""
    medians = resampled_medians({"x": _noisy(3000, 1.0, 1)}, 7)["x"]
    assert len(medians) == RESAMPLES
    assert abs(float(medians.mean()) - 1.0) < 0.001


def test_equal_runs_differ_by_chance_alone() -> None:
    """The interval holds 0, and p is far from 0."""
    was, now = (resampled_medians({"x": _noisy(20, 1.0, seed)}, seed)["x"] for seed in (1, 2))
    found = difference(was, now)
    assert found.low < 0 < found.high
    assert found.p > 0.05


def test_a_shift_is_outside_its_interval() -> None:
    """0.1 more with a spread of 0.01: the interval is around 0.1, and p the least that the resamples can
    tell."""
    was, now = (
        resampled_medians({"x": _noisy(20, mean, seed)}, seed)["x"] for mean, seed in ((1.0, 1), (1.1, 2))
    )
    found = difference(was, now)
    assert 0.08 < found.low < 0.1 < found.high < 0.12
    assert found.p == pytest.approx(2 / (RESAMPLES + 1))
    assert found.half_width == (found.high - found.low) / 2


def test_no_difference_at_all_is_certain_chance() -> None:
    """Runs whose steps are all alike."""
    medians = resampled_medians({"x": [1.0] * 8}, 1)["x"]
    found = difference(medians, medians)
    assert (found.low, found.high, found.p) == (0.0, 0.0, 1.0)
