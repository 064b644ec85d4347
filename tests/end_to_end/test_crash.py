"""A kill at any time neither loses nor duplicates data and leaves no debris (`make soak`: at a hundred
points)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline import duck
from pipeline.lake.home import Home
from pipeline.lake.reading import opened
from tests.tools.crash import contents, debris, difference, filled, finish, killed_at, points, process_inbox

SPREAD = 12
"""Points that are tried here, spread over the whole work."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any]]:
    """How many points the work has, and what it makes."""
    folder = tmp_path_factory.mktemp("undisturbed")
    home = filled(folder / "home")
    total = points(home.root, folder / "count")
    finish(home)
    assert debris(home) == []
    return total, contents(home)


@pytest.mark.parametrize("part", range(SPREAD))
def test_after_a_kill_the_next_start_makes_what_an_undisturbed_one_makes(
    undisturbed: tuple[int, dict[str, Any]], tmp_path: Path, part: int
) -> None:
    """Raw tables, marts, results of checks, facts, archive, quarantine and exports are equal; nothing
    unfinished is left."""
    total, expected = undisturbed
    assert difference(tmp_path / "home", 1 + part * (total - 1) // (SPREAD - 1), expected) is None


def test_a_run_that_was_built_and_not_checked_is_checked_by_the_next_start(tmp_path: Path) -> None:
    """Killed between the two: it is not built again, and has its verdict afterwards."""
    home = filled(tmp_path / "home")
    finish(home)
    before = contents(home)
    shutil.rmtree(home.quality_lake_run("serve"))
    build_id = mart_build(home)
    process_inbox(home)
    assert contents(home) == before
    assert mart_build(home) == build_id


def mart_build(home: Home) -> object:
    """The build that people see."""
    with opened(home) as con:
        return duck.scalar(con, "SELECT build_id FROM run_facts WHERE run_id = 'serve'")


def test_work_is_really_killed(tmp_path: Path) -> None:
    """The harness kills: half the work is not done when it returns."""
    home = filled(tmp_path / "home")
    assert killed_at(home.root, 60)
    assert list(home.inbox.rglob("*.json"))


def test_the_comparison_sees_a_difference(undisturbed: tuple[int, dict[str, Any]], tmp_path: Path) -> None:
    """A home from which one archived file was taken is not equal."""
    home = filled(tmp_path / "home")
    finish(home)
    next(home.archive.rglob("*.json")).unlink()
    assert contents(home) != undisturbed[1]
