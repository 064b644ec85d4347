"""Rows of a comparison: uncertainty and verdict."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from pipeline.analyses.compare.changes import WALL, WHOLE, RowChange, table
from pipeline.analyses.compare.sample import Sample


def side(
    means: Mapping[str, float], *, steps: int = 12, seed: int = 0, spread: float = 0.001, exposed: float = 1.0
) -> Sample:
    """A side whose rollups vary a little around their means; wall is their sum, and one step has none."""
    draw = random.Random(seed)  # noqa: S311 (a fixed sequence is wanted)
    busy = {name: [ms * (1 + draw.gauss(0, spread)) for _ in range(steps)] for name, ms in means.items()}
    shown = {name: [exposed * ms for ms in series] for name, series in busy.items()}
    wall = [sum(parts) for parts in zip(*busy.values(), strict=True)][:-1]
    return Sample(f"run-{seed}", "kineto", "decode", steps, 0, 2, wall, busy, shown, {}, {})


BASE = {"GEMM": 4.0, "AllReduce": 1.0, "Routing": 0.5}


def by_name(rows: list[RowChange]) -> dict[str, RowChange]:
    """Rows by name."""
    return {row.name: row for row in rows}


def test_wall_and_the_whole_come_first_then_the_largest() -> None:
    """The order of the table."""
    assert [row.name for row in table(side(BASE), side(BASE, seed=1))] == [
        WALL,
        WHOLE,
        "GEMM",
        "AllReduce",
        "Routing",
    ]


def test_a_rollup_that_came_and_one_that_went_are_changes() -> None:
    """From and to nothing."""
    found = by_name(table(side(BASE | {"Attention": 0.2}), side(BASE | {"Opaque": 0.3}, seed=1)))
    assert (found["Attention"].change, found["Attention"].after) == ("lower", 0.0)
    assert (found["Opaque"].change, found["Opaque"].before) == ("higher", 0.0)


def test_a_difference_under_two_per_cent_is_noise_however_sure() -> None:
    """1.9 % with steps that vary by 0.1 %: the interval is far from 0, and clocks differ by as much."""
    found = by_name(table(side(BASE), side(BASE | {"GEMM": 4.076}, seed=1)))["GEMM"]
    assert found.interval is not None
    assert found.interval.low > 0.05
    assert (found.change, found.q is not None and found.q < 0.01) == ("within noise", True)


def test_a_difference_within_its_interval_is_noise_however_large() -> None:
    """10 % of a row whose steps vary by half."""
    found = by_name(table(side(BASE, spread=0.5), side(BASE | {"GEMM": 4.4}, seed=1, spread=0.5)))["GEMM"]
    assert found.change == "within noise"
    assert found.interval is not None
    assert found.noise == found.interval.half_width


def test_repeats_raise_the_floor_above_what_they_differ_by() -> None:
    """Captures of one configuration that differ by 12 % make 10 % noise."""
    repeats = [side(BASE | {"GEMM": 4.48}, seed=7)]
    assert by_name(table(side(BASE), side(BASE | {"GEMM": 4.4}, seed=1)))["GEMM"].change == "higher"
    found = by_name(table(side(BASE), side(BASE | {"GEMM": 4.4}, seed=1), repeats))["GEMM"]
    assert found.change == "within noise"
    assert found.noise == pytest.approx(0.48, abs=0.01)


def test_false_discoveries_are_controlled_over_rollups() -> None:
    """q of a row is not below its own p; wall and the whole are no part of the family."""
    rows = table(side(BASE), side(BASE | {"GEMM": 4.4}, seed=1))
    found = [row for row in rows if row.is_rollup]
    assert all(row.interval is not None and row.q is not None and row.q >= row.interval.p for row in found)
    assert [row.q for row in rows if not row.is_rollup] == [None, None]


def test_exposed_time_has_a_verdict_of_its_own() -> None:
    """The same busy time, hidden before and seen after."""
    found = by_name(table(side(BASE, exposed=0.5), side(BASE, seed=1)))["AllReduce"]
    assert (found.change, found.exposed) == ("within noise", "higher")


def test_four_steps_are_not_judged() -> None:
    """Five on each side are the least."""
    assert {row.change for row in table(side(BASE), side(BASE, seed=1, steps=4))} == {"not judged"}
    assert by_name(table(side(BASE), side(BASE, seed=1, steps=5)))["GEMM"].change == "within noise"


def test_without_a_wall_there_is_no_row_of_it() -> None:
    """One step has no next one."""
    assert WALL not in by_name(table(side(BASE, steps=1), side(BASE, seed=1)))
