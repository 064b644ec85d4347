"""Runs by name, id or pattern."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.lake.home import Home
from pipeline.lake.selection import any_run, landed_run, readable_run, select_runs
from tests.support.builders import ingest_into
from tests.support.homes import copied, damage, rank_trace


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with runs A_1, A_2, and `my run [1]`, whose id is another."""
    folder = tmp_path_factory.mktemp("named")
    home = Home(folder / "home")
    home.ensure()
    for seed, run in enumerate(("A_1", "A_2", "my run [1]")):
        ingest_into(home, rank_trace(folder / f"{seed}.json", ranks=1, seed=seed), run=run)
    return home


def spaced(home: Home) -> str:
    """The id of the run whose name has spaces."""
    return next(run_id for run_id in home.run_ids() if run_id.startswith("my"))


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["A_2", "A_1"], ["A_2", "A_1"]),
        (["A_*"], ["A_1", "A_2"]),
        (["A_2", "A_?"], ["A_2", "A_1"]),
        (["A_[13]"], ["A_1"]),
        ([], []),
    ],
)
def test_names_and_patterns_select_runs(named: Home, texts: list[str], expected: list[str]) -> None:
    """In the order given, each once; a pattern's matches by id."""
    assert select_runs(named, texts) == expected


@pytest.mark.parametrize("find", [any_run, readable_run, landed_run])
def test_a_name_that_looks_like_a_pattern_is_a_name_first(named: Home, find: object) -> None:
    """As it was given when the run was dropped."""
    assert select_runs(named, ["my run [1]"], find) == [spaced(named)]  # type: ignore[arg-type]


def test_a_pattern_matches_names_where_it_matches_no_id(named: Home) -> None:
    """The names that were given when the runs were dropped."""
    assert select_runs(named, ["my run*"]) == [spaced(named)]


def test_what_matches_nothing_is_refused_with_what_is_there(named: Home, home: Home) -> None:
    """A name, a pattern, and a pattern in a home without runs."""
    with pytest.raises(UsageError, match="no run 'B'; known runs: A_1, A_2, my-run"):
        select_runs(named, ["A_*", "B"])
    with pytest.raises(UsageError, match=r"no run matches 'B\*'; known runs: A_1, A_2, my-run"):
        select_runs(named, ["B*"])
    with pytest.raises(UsageError, match=r"no run matches '\*'; known runs: none yet"):
        select_runs(home, ["*"])


def test_runs_are_found_without_a_database(named: Home, tmp_path: Path) -> None:
    """By what has landed: the database may be what is to be built."""
    mine = copied(named, tmp_path / "home")
    mine.database.unlink()
    assert select_runs(mine, ["A_1", "my run [1]", "A_*"], landed_run) == ["A_1", spaced(named), "A_2"]
    with pytest.raises(UsageError, match="no run 'B'; known runs: A_1"):
        landed_run(mine, "B")


def test_a_damaged_run_is_any_run_but_not_readable(named: Home, tmp_path: Path) -> None:
    """Commands that repair a run still find it."""
    mine = copied(named, tmp_path / "home")
    damage(mine.mart_run("A_1") / "steps.parquet", "half")
    assert any_run(mine, "A_1") == "A_1"
    with pytest.raises(UsageError, match="run A_1: damaged"):
        readable_run(mine, "A_1")
