"""Compaction: old runs in few files, with every reader served throughout."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline import duck
from pipeline.ingest.ingest import build, describe_runs, drain, stale
from pipeline.lake import tidy as tidying
from pipeline.lake.compact import compact_runs, compactable
from pipeline.lake.database import write_database
from pipeline.lake.home import Home
from pipeline.lake.manifest import Manifest, settle
from pipeline.lake.reading import opened
from pipeline.lake.tidy import forget, tidy
from pipeline.models.build import build_run
from pipeline.progress import Progress
from pipeline.quality.verdicts import check_runs
from tests.support.builders import ingest_into
from tests.support.homes import copied, drop, mart_rows, rank_trace

QUIET = Progress(quiet=True)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Three small runs."""
    folder = tmp_path_factory.mktemp("three")
    home = Home(folder / "home")
    for number, run in enumerate("abc"):
        ingest_into(home, rank_trace(folder / f"{run}-rank-0.json", ranks=1, seed=number), run=run)
    return home


@pytest.fixture
def mine(three: Home, tmp_path: Path) -> Home:
    """A copy of my own."""
    return copied(three, tmp_path / "home")


def compacted(home: Home, runs: list[str]) -> str:
    """Do what `stepledger compact` does."""
    gen = compact_runs(home, runs)
    write_database(home)
    return gen


def served(home: Home) -> list[tuple[str, str]]:
    """Runs and verdicts as people see them."""
    with opened(home) as con:
        return duck.rows(con, "SELECT run_id, verdict FROM runs ORDER BY ALL")


def no_grace(monkeypatch: pytest.MonkeyPatch, home: Home) -> None:
    """Take away what would be taken away after the grace time."""
    monkeypatch.setattr(tidying, "GRACE_SECONDS", 0)
    tidy(home)


def test_every_table_is_the_same_before_during_and_after(mine: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the folders are still there no row stands twice; when they have gone none is missing."""
    before, verdicts = mart_rows(mine), served(mine)
    compacted(mine, ["a", "b"])
    assert (mart_rows(mine), served(mine)) == (before, verdicts)
    no_grace(monkeypatch, mine)
    assert not mine.mart_run("a").exists()
    assert mine.mart_run("c").exists()
    write_database(mine)
    assert (mart_rows(mine), served(mine)) == (before, verdicts)


def test_folders_stay_for_the_grace_time(mine: Home) -> None:
    """A reader that opened the database before has them open."""
    compacted(mine, ["a"])
    tidy(mine)
    assert mine.mart_run("a").exists()


def test_a_session_opened_before_goes_on(mine: Home) -> None:
    """It reads the folders as before; one opened afterwards reads the generation."""
    with opened(mine) as con:
        compacted(mine, ["a"])
        assert duck.rows(con, "SELECT DISTINCT run_id FROM steps ORDER BY ALL") == [("a",), ("b",), ("c",)]


def test_one_run_of_a_generation_is_pruned_to_its_rows(mine: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """EXPLAIN ANALYZE: of the folders' side no file of another run is read."""
    compacted(mine, ["a", "b"])
    no_grace(monkeypatch, mine)
    write_database(mine)
    with opened(mine) as con:
        plan = str(duck.rows(con, "EXPLAIN ANALYZE SELECT count(*) FROM steps WHERE run_id = 'a'"))
    assert re.search(r"Scanning Files: *(0|1)/", plan), plan


def test_what_was_compacted_is_not_stale(mine: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its facts are read from the generation."""
    compacted(mine, ["a"])
    no_grace(monkeypatch, mine)
    assert stale(mine) == []


def test_a_compacted_run_that_is_built_again_has_a_folder_again(
    mine: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder wins over the generation, which serves that run no longer; the other run stays."""
    before = mart_rows(mine)
    compacted(mine, ["a", "b"])
    no_grace(monkeypatch, mine)
    assert build(mine, ["a"], QUIET).built == ["a"]
    assert mine.mart_run("a").is_dir()
    assert settle(mine).serves.keys() == {"b"}
    assert mart_rows(mine) == before


def test_a_reader_never_sees_a_run_twice_while_it_is_built_again(
    mine: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the new folder's commit and the new database, the run is served from its generation."""
    compacted(mine, ["a"])
    no_grace(monkeypatch, mine)
    counts = []

    def build_and_look(home: Home, *rest: object, **options: object) -> str:
        build_id = build_run(home, *rest, **options)  # type: ignore[arg-type]
        with opened(home) as con:
            counts.append(
                duck.rows(con, "SELECT run_id, count(*) FROM run_facts GROUP BY run_id ORDER BY run_id")
            )
        return build_id

    monkeypatch.setattr("pipeline.ingest.tasks.build_run", build_and_look)
    describe_runs(mine, ["a"], {"layers": 2}, QUIET)
    assert counts == [[("a", 1), ("b", 1), ("c", 1)]]


def test_a_new_file_of_a_compacted_run_is_read_into_it(
    mine: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is stale, is built with both ranks, and has a folder again."""
    compacted(mine, ["a"])
    no_grace(monkeypatch, mine)
    drop(mine, rank_trace(tmp_path / "a-rank-1.json", 1, ranks=1), "a/a-rank-1.json")
    assert drain(mine, QUIET).built == ["a"]
    with opened(mine) as con:
        assert duck.rows(con, "SELECT run_id, traces FROM runs ORDER BY ALL") == [
            ("a", 2),
            ("b", 1),
            ("c", 1),
        ]


def test_a_forgotten_run_is_gone_from_its_generation_too(mine: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are in the file, and no view shows them."""
    compacted(mine, ["a", "b"])
    no_grace(monkeypatch, mine)
    forget(mine, "a")
    write_database(mine)
    assert [run for run, _ in served(mine)] == ["b", "c"]


def test_a_generation_that_serves_no_run_is_removed(mine: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its last run was built again."""
    gen = compacted(mine, ["a"])
    build(mine, ["a"], QUIET)
    no_grace(monkeypatch, mine)
    assert not (mine.compact / f"gen={gen}").exists()
    assert Manifest.load(mine).holds == {}


@pytest.mark.usefixtures("without_gx")
def test_a_compacted_run_can_be_checked(mine: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checking builds it again first: checks ask its own folder."""
    compacted(mine, ["a"])
    no_grace(monkeypatch, mine)
    found, codes = check_runs(mine, ["a"], QUIET.say)
    assert ([*found], codes) == (["a"], [])


def test_only_old_runs_are_compacted_and_none_twice(mine: Home) -> None:
    """Age counts from the last build."""
    assert compactable(mine, 3600) == []
    assert compactable(mine, 0) == ["a", "b", "c"]
    compacted(mine, ["a"])
    assert compactable(mine, 0) == ["b", "c"]
