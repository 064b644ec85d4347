"""The inbox: what waits, for which run, is it finished, and where it goes."""

from __future__ import annotations

import gzip
import os
import time
from pathlib import Path

import orjson
import pytest

from pipeline import inbox
from pipeline.errors import TraceError, UsageError
from pipeline.home import Home
from pipeline.inbox import Waiting, archive, named, not_settled, not_stalled, quarantine, quarantined, refuse_link, retry, waiting
from pipeline.ingest import drain
from pipeline.progress import Progress
from tests.homes import drop, rank_trace, settled

ERROR = TraceError("f.json", where="byte 7", found="a comma", wanted="an event", advice="Record it again.")


def put(home: Home, place: str, text: str = "x") -> Path:
    """A settled file of the inbox."""
    path = home.inbox / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return settled(path)


def listed(home: Home) -> dict[str, str]:
    """Waiting files and their runs."""
    return {item.place.as_posix(): item.run_name for item in waiting(home.inbox)}


def test_a_sub_folder_names_the_run(home: Home) -> None:
    """Whatever is below it, however deep, belongs to it."""
    put(home, "my run/x-rank-0.json")
    put(home, "my run/deep/y.json")
    assert listed(home) == {"my run/x-rank-0.json": "my run", "my run/deep/y.json": "my run"}


def test_loose_files_are_one_run_by_name_minus_rank_and_time(home: Home) -> None:
    """Ranks of one capture find each other; another capture is another run."""
    for name in ("serve-rank-0.1790857026.pt.trace.json.gz", "serve-rank-1.1790857027.pt.trace.json.gz", "other-rank-0.json"):
        put(home, name)
    assert listed(home) == {
        "serve/serve-rank-0.1790857026.pt.trace.json.gz": "serve",
        "serve/serve-rank-1.1790857027.pt.trace.json.gz": "serve",
        "other/other-rank-0.json": "other",
    }


def test_a_loose_file_that_names_no_run_is_unnamed(home: Home) -> None:
    """It is read all the same."""
    put(home, "rank_0.json")
    assert listed(home) == {"unnamed/rank_0.json": inbox.UNNAMED}


def test_hidden_files_and_folders_are_ignored(home: Home) -> None:
    """Copies under way and the desktop's own files are often hidden."""
    for place in (".DS_Store", ".run/x.json", "run/.x.json", "run/.deep/x.json"):
        put(home, place)
    assert listed(home) == {}


def test_an_inbox_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    """Nothing waits there."""
    assert waiting(tmp_path / "none") == []


@pytest.mark.parametrize("suffix", [".tmp", ".part", ".partial", ".crdownload"])
def test_a_name_of_an_unfinished_copy_is_left_alone(home: Home, suffix: str) -> None:
    """Browsers and copy tools mark what they have not finished."""
    reason = not_settled(put(home, f"x.json{suffix}"))
    assert reason is not None
    assert suffix in reason


def test_a_file_changed_in_the_last_seconds_is_left_alone(home: Home) -> None:
    """Somebody may still be writing it."""
    path = put(home, "x.json")
    os.utime(path, (time.time() - 1, time.time() - 1))
    reason = not_settled(path)
    assert reason is not None
    assert "5 s" in reason


def test_a_file_that_has_been_still_is_ready(home: Home) -> None:
    """Nothing speaks against reading it."""
    assert not_settled(put(home, "x.json")) is None


def test_a_file_that_was_taken_away_is_left_alone(home: Home) -> None:
    """Its owner moved it between the listing and now."""
    assert not_settled(home.inbox / "gone.json") is not None


def test_the_archive_gets_the_file_itself(home: Home) -> None:
    """Moved, never copied and deleted."""
    path = put(home, "run/x.json")
    inode = path.stat().st_ino
    moved = archive(home, waiting(home.inbox)[0])
    assert moved == home.archive / "run" / "x.json"
    assert moved.stat().st_ino == inode
    assert not path.exists()


def test_the_archive_never_overwrites(home: Home) -> None:
    """Two files of one name are both kept."""
    for text in ("one", "two"):
        put(home, "run/x.json", text)
        archive(home, waiting(home.inbox)[0])
    assert {p.name: p.read_text() for p in (home.archive / "run").iterdir()} == {"x.json": "one", "x.json.2": "two"}


def test_empty_folders_are_removed_and_the_inbox_stays(home: Home) -> None:
    """A run's folder goes when its last file has gone."""
    put(home, "run/deep/x.json")
    put(home, "run/y.json")
    first, second = waiting(home.inbox)
    archive(home, first)
    assert (home.inbox / "run").is_dir()
    assert not (home.inbox / "run" / "deep").exists()
    archive(home, second)
    assert home.inbox.is_dir()
    assert list(home.inbox.iterdir()) == []


def test_a_folder_with_something_left_is_kept(home: Home) -> None:
    """A hidden file is somebody's."""
    put(home, "run/x.json")
    put(home, "run/.keep")
    archive(home, waiting(home.inbox)[0])
    assert [p.name for p in (home.inbox / "run").iterdir()] == [".keep"]


def test_the_quarantine_gets_the_file_and_the_reason(home: Home) -> None:
    """Beside it stands what was found, where, and what to do."""
    path = put(home, "run/x.json")
    inode = path.stat().st_ino
    moved = quarantine(home, waiting(home.inbox)[0], ERROR)
    assert moved == home.quarantine / "run" / "x.json"
    assert moved.stat().st_ino == inode
    reason = orjson.loads((home.quarantine / "run" / "x.json.reason.json").read_bytes())
    assert reason.pop("quarantined_at")
    assert reason.pop("stepledger_version")
    assert reason == {
        "file": "run/x.json",
        "name": "x.json",
        "run": "run",
        "error": str(ERROR),
        "where": "byte 7",
        "found": "a comma",
        "wanted": "an event",
        "advice": "Record it again.",
    }
    assert list(home.inbox.iterdir()) == []


def test_a_quarantined_file_goes_back_to_where_it_was(home: Home) -> None:
    """The file alone: its note is removed, and so is the empty folder."""
    put(home, "run/x.json")
    quarantine(home, waiting(home.inbox)[0], ERROR)
    assert retry(home, None) == [Path("run/x.json")]
    assert [item.place for item in waiting(home.inbox)] == [Path("run/x.json")]
    assert list(home.quarantine.iterdir()) == []


def test_one_of_several_can_be_tried_again(home: Home) -> None:
    """By its path in the quarantine, which tells two files of one name apart; nothing of the inbox is overwritten."""
    for text in ("one", "two"):
        put(home, "run/x.json", text)
        quarantine(home, waiting(home.inbox)[0], ERROR)
    put(home, "run/x.json", "three")
    assert retry(home, ["run/x.json.2"]) == [Path("run/x.json.2")]
    assert (home.inbox / "run" / "x.json.2").read_text() == "two"
    assert [*quarantined(home)] == ["run/x.json"]


def test_what_is_not_quarantined_cannot_be_tried_again(home: Home) -> None:
    """The names that are there are told; a file that somebody took away is said."""
    put(home, "run/x.json")
    moved = quarantine(home, waiting(home.inbox)[0], ERROR)
    with pytest.raises(UsageError, match=r"not in the quarantine: y\.json; there are: run/x\.json"):
        retry(home, ["y.json"])
    moved.unlink()
    with pytest.raises(UsageError, match="is not there any more"):
        retry(home, None)


def test_the_quarantine_never_overwrites(home: Home) -> None:
    """Each file keeps its own reason."""
    for text in ("one", "two"):
        put(home, "run/x.json", text)
        quarantine(home, waiting(home.inbox)[0], ERROR)
    assert sorted(p.name for p in (home.quarantine / "run").iterdir()) == ["x.json", "x.json.2", "x.json.2.reason.json", "x.json.reason.json"]


@pytest.mark.parametrize(("age", "is_stalled"), [(59.0, False), (61.0, True), (-30.0, False), (-3600.0, True)])
def test_a_copy_has_stalled_when_it_was_still_for_long(home: Home, age: float, is_stalled: bool) -> None:
    """A clock that is a little ahead counts as now; one that is far ahead is wrong, and nobody waits for it."""
    path = put(home, "x.json")
    os.utime(path, (time.time() - age, time.time() - age))
    reason = not_stalled(path)
    assert (reason is None) == is_stalled
    assert reason is None or "60 s" in reason


def test_a_file_that_was_taken_away_has_not_stalled(home: Home) -> None:
    """Nothing is known of it."""
    assert not_stalled(home.inbox / "gone.json") is not None


def test_a_link_is_as_old_as_itself(home: Home, tmp_path: Path) -> None:
    """What it points to is not looked at."""
    path = home.inbox / "link"
    path.symlink_to(settled(tmp_path))
    assert not_settled(path) is not None


def test_a_link_in_an_export_is_refused_when_it_leads_out(home: Home, tmp_path: Path) -> None:
    """A folder that is one nsys export is moved as a whole: what it links to would not be in it."""
    folder = home.inbox / "t_pqtdir"
    folder.mkdir()
    (tmp_path / "secret").touch()
    (folder / "StringIds.parquet").symlink_to(tmp_path / "secret")
    with pytest.raises(TraceError, match=r"StringIds\.parquet in it: found a symbolic link to .*secret"):
        refuse_link(home.inbox, folder)


def test_a_link_in_an_export_to_itself_is_fine(home: Home) -> None:
    """It stays whole wherever it is moved."""
    folder = home.inbox / "t_pqtdir"
    folder.mkdir()
    (folder / "a.parquet").touch()
    (folder / "StringIds.parquet").symlink_to("a.parquet")
    refuse_link(home.inbox, folder)


def test_an_unfinished_gz_stays_in_the_inbox(home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A gz without its end may still be arriving when it has been still for some seconds; that is no failure."""
    whole = rank_trace(tmp_path / "x-rank-0.json.gz").read_bytes()
    assert gzip.decompress(whole)
    path = home.inbox / "x-rank-0.json.gz"
    path.write_bytes(whole[:-100])
    os.utime(path, (time.time() - 20, time.time() - 20))
    outcome = drain(home, Progress())
    assert (outcome.codes, outcome.runs) == ([], [])
    assert path.is_file()
    assert "left in the inbox" in capsys.readouterr().err


def test_side_files_are_archived_with_a_note(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """They belong to a capture; they are no failure and not quarantined."""
    for name in ("profiler_out_0.txt", "capture.json"):
        put(home, f"run/{name}")
    outcome = drain(home, Progress())
    assert (outcome.codes, outcome.runs) == ([], [])
    assert sorted(p.name for p in (home.archive / "run").iterdir()) == ["capture.json", "profiler_out_0.txt"]
    assert list(home.quarantine.iterdir()) == []
    assert "archived: capture.json: notes on a capture" in capsys.readouterr().err


def test_a_dropped_trace_is_archived_below_its_run(home: Home, tmp_path: Path) -> None:
    """A loose file goes to the folder of the run that its name tells."""
    drop(home, rank_trace(tmp_path / "serve-rank-0.json", ranks=1), "serve-rank-0.json")
    assert drain(home, Progress(quiet=True)).built == ["serve"]
    assert [p.relative_to(home.archive).as_posix() for p in home.archive.rglob("*.json")] == ["serve/serve-rank-0.json"]


def test_files_outside_the_inbox_are_grouped_in_the_same_way(tmp_path: Path) -> None:
    """A folder is a run, a loose file's name tells its run, and --run overrides both."""
    folder = tmp_path / "capture"
    folder.mkdir()
    one, two = folder / "a-rank-0.json", tmp_path / "b-rank-1.json"
    one.touch()
    two.touch()
    assert [(w.path, w.run_name) for w in named([folder, two], None)] == [(one, "capture"), (two, "b")]
    assert {w.run_name for w in named([folder, two], "mine")} == {"mine"}


def test_a_waiting_file_is_told_by_path_run_and_place(home: Home) -> None:
    """What later stages get to know about it."""
    path = put(home, "run/x.json")
    assert waiting(home.inbox) == [Waiting(path, "run", Path("run/x.json"))]
