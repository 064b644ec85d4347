"""One side of a comparison: its steps as numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.analyses.compare.sample import Sample, chosen, phases_of, sample_of
from pipeline.errors import UsageError
from pipeline.lake.home import Home
from pipeline.lake.reading import reading
from tests.support.compared import STEP, put, write
from tests.support.homes import pair

DECODE, PREFILL = ("kineto", "decode"), ("kineto", "prefill")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Run `x` of six steps, run `ranks` whose ranks take other times, run `uneven` whose second rank lacks
    steps, `micro` without steps."""
    folder = tmp_path_factory.mktemp("sides")
    home = Home(folder / "home")
    home.ensure()
    put(home, write(folder / "x", [STEP] * 6), "x")
    put(home, pair(folder / "ranks"), "ranks")
    long, short = write(folder / "long", [STEP] * 6), write(folder / "short", [STEP] * 5)
    put(home, [long[0], short[1]], "uneven")
    return home


def side(home: Home, run: str, phase: str = "decode") -> Sample:
    """A side."""
    with reading(home) as con:
        return sample_of(con, run, "kineto", phase)


def test_a_step_is_the_mean_over_ranks(home: Home) -> None:
    """Rank 0 takes 30 us, rank 1 34 us, and 1 us more in each step; and the same again with half a
    microsecond more."""
    found = side(home, "ranks")
    assert (found.steps, found.ranks) == (3, 2)
    assert list(found.of("AllReduce")) == pytest.approx([0.0645, 0.0665, 0.0685])
    assert list(found.exposed_of("AllReduce")) == pytest.approx([0.0645, 0.0665, 0.0685])


def test_wall_is_known_of_steps_that_another_follows(home: Home) -> None:
    """All but the last."""
    assert len(side(home, "x").wall) == 5


def test_calls_are_integers_and_shares_of_all_gpu_time(home: Home) -> None:
    """Four all-reduces, 9.308 of 18.086 ms."""
    found = side(home, "x")
    assert found.calls["AllReduce"] == (4, 4, 4)
    assert found.share("AllReduce") == pytest.approx(9.308 / 18.086, abs=0.001)
    assert sum(found.share(name) for name in found.busy) == pytest.approx(1)


def test_a_rollup_that_the_run_lacks_is_zero(home: Home) -> None:
    """In every step."""
    found = side(home, "x")
    assert list(found.of("Opaque")) == list(found.exposed_of("Opaque")) == [0.0] * 6
    assert found.share("Opaque") == 0


def test_categories_add_up_to_their_rollup(home: Home) -> None:
    """Step by step."""
    found = side(home, "x")
    parts = [series for (rollup, _), series in found.by_category.items() if rollup == "Everything else"]
    assert len(parts) > 1
    assert [sum(values) for values in zip(*parts, strict=True)] == pytest.approx(
        list(found.of("Everything else"))
    )


def test_a_step_that_a_rank_lacks_is_left_out_and_counted(home: Home) -> None:
    """The mean over fewer ranks is another number."""
    found = side(home, "uneven")
    assert (found.steps, found.left_out) == (5, 1)


def test_runs_beside_it_have_no_part_in_it(home: Home, tmp_path: Path) -> None:
    """Another run in the lake changes no number."""
    before = side(home, "x")
    put(home, write(tmp_path, [STEP] * 7, seed=9), "beside")
    assert side(home, "x") == before


def test_the_common_phase_is_chosen_decode_first(home: Home) -> None:
    """Runs with prefill and decode; then one that has prefill alone."""
    with reading(home) as con:
        both = phases_of(con, "ranks")
    assert both == {DECODE: 6, PREFILL: 2}
    assert chosen([both, both], ["a", "b"], None) == [DECODE, DECODE]
    assert chosen([both, {PREFILL: 4}], ["a", "b"], None) == [PREFILL, PREFILL]
    assert chosen([both, both], ["a", "b"], "prefill") == [PREFILL, PREFILL]


def test_a_common_source_comes_before_the_one_with_most_steps() -> None:
    """Sources are not mixed where that can be helped."""
    known = [{("nsys", "decode"): 50, DECODE: 5}, {DECODE: 9}]
    assert chosen(known, ["a", "b"], None) == [DECODE, DECODE]
    assert chosen([{("nsys", "decode"): 5}, {DECODE: 9}], ["a", "b"], None) == [("nsys", "decode"), DECODE]


def test_without_a_common_phase_each_has_its_own() -> None:
    """The verdict is then that they differ."""
    assert chosen([{DECODE: 5}, {PREFILL: 9}], ["a", "b"], None) == [DECODE, PREFILL]


def test_a_phase_that_one_lacks_is_refused() -> None:
    """With the run's name and what it has."""
    with pytest.raises(UsageError, match="run b has no complete decode step; it has prefill"):
        chosen([{DECODE: 5}, {PREFILL: 9}], ["a", "b"], "decode")


def test_a_run_without_steps_is_refused(home: Home) -> None:
    """Nothing can be compared per step."""
    with reading(home) as con, pytest.raises(UsageError, match="run nothing has no complete step"):
        phases_of(con, "nothing")
