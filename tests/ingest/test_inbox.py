"""The inbox: what waits, for which run, is it finished, and where it goes."""

from __future__ import annotations

import gzip
import os
import time
from pathlib import Path

import pytest

from pipeline.errors import TraceError
from pipeline.ingest import inbox
from pipeline.ingest.inbox import InboxItem, named, not_settled, not_stalled, waiting
from pipeline.ingest.ingest import drain
from pipeline.lake.home import Home
from pipeline.progress import Progress
from tests.support.homes import rank_trace, settled

ERROR = TraceError("f.json", where="byte 7", found="a comma", wanted="an event", advice="Record it again.")


def put(home: Home, place: str, text: str = "x") -> Path:
    """A settled file of the inbox."""
    path = home.inbox / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return settled(path)


def only(home: Home) -> InboxItem:
    """The one thing in the inbox."""
    (item,) = waiting(home.inbox)
    return item


def listed(home: Home) -> dict[str, str]:
    """InboxItem files and their runs."""
    return {item.place.as_posix(): item.run_name for item in waiting(home.inbox)}


def test_a_sub_folder_names_the_run(home: Home) -> None:
    """Whatever is below it, however deep, belongs to it."""
    put(home, "my run/x-rank-0.json")
    put(home, "my run/deep/y.json")
    assert listed(home) == {"my run/x-rank-0.json": "my run", "my run/deep/y.json": "my run"}


def test_loose_files_are_one_run_by_name_minus_rank_and_time(home: Home) -> None:
    """Ranks of one capture find each other; another capture is another run."""
    for name in (
        "serve-rank-0.1790857026.pt.trace.json.gz",
        "serve-rank-1.1790857027.pt.trace.json.gz",
        "other-rank-0.json",
    ):
        put(home, name)
    assert listed(home) == {
        "serve/serve-rank-0.1790857026.pt.trace.json.gz": "serve",
        "serve/serve-rank-1.1790857027.pt.trace.json.gz": "serve",
        "other/other-rank-0.json": "other",
    }


def test_a_loose_file_that_names_no_run_is_unnamed(home: Home) -> None:
    """It is read anyway."""
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
    put(home, f"x.json{suffix}")
    reason = not_settled(only(home))
    assert reason is not None
    assert suffix in reason


def test_a_file_changed_in_the_last_seconds_is_left_alone(home: Home) -> None:
    """Another process may still be writing it."""
    path = put(home, "x.json")
    os.utime(path, (time.time() - 1, time.time() - 1))
    reason = not_settled(only(home))
    assert reason is not None
    assert "5 s" in reason


def test_a_file_that_has_been_still_is_ready(home: Home) -> None:
    """Nothing speaks against reading it."""
    put(home, "x.json")
    assert not_settled(only(home)) is None


@pytest.mark.parametrize(
    ("age", "is_stalled"), [(59.0, False), (61.0, True), (-30.0, False), (-3600.0, True)]
)
def test_a_copy_has_stalled_when_it_was_still_for_long(home: Home, age: float, is_stalled: bool) -> None:
    """A clock that is a little ahead counts as now; one that is far ahead is wrong, and no one waits for
    it."""
    path = put(home, "x.json")
    os.utime(path, (time.time() - age, time.time() - age))
    reason = not_stalled(only(home))
    assert (reason is None) == is_stalled
    assert reason is None or "60 s" in reason


def test_a_time_in_the_future_is_not_still(home: Home) -> None:
    """Its writer has another clock and may still be writing: it waits until it has been watched for long
    enough."""
    path = put(home, "x.json")
    os.utime(path, (time.time() + 3600,) * 2)
    reason = not_settled(only(home))
    assert reason is not None
    assert "in the future" in reason
    assert not_settled(only(home), lambda _item: 1.0) is not None
    assert not_settled(only(home), lambda _item: 6.0) is None


@pytest.mark.parametrize("target", ["a.parquet", "/etc/hostname"])
def test_a_link_in_an_export_is_refused(home: Home, target: str) -> None:
    """nsys writes none, wherever it leads."""
    folder = home.inbox / "t_pqtdir"
    folder.mkdir()
    for name in ("a.parquet", "StringIds.parquet"):
        (folder / name).touch()
    (folder / "b.parquet").symlink_to(target)
    assert "b.parquet in it: found something that is not a regular file" in str(only(home).problem)


def test_a_link_is_as_old_as_itself(home: Home, tmp_path: Path) -> None:
    """What it points to is not looked at."""
    path = home.inbox / "link"
    path.symlink_to(settled(tmp_path))
    assert not_settled(only(home)) is not None


def test_an_unfinished_gz_stays_in_the_inbox(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A truncated gz may still be arriving when it has not changed for some seconds; that is no
    failure."""
    whole = rank_trace(tmp_path / "x-rank-0.json.gz").read_bytes()
    assert gzip.decompress(whole)
    path = home.inbox / "x-rank-0.json.gz"
    path.write_bytes(whole[:-100])
    os.utime(path, (time.time() - 20, time.time() - 20))
    outcome = drain(home, Progress())
    assert (outcome.codes, outcome.runs) == ([], [])
    assert path.is_file()
    assert "left in the inbox" in capsys.readouterr().err


def test_files_outside_the_inbox_are_grouped_in_the_same_way(tmp_path: Path) -> None:
    """A folder is a run, a loose file's name gives its run, and --run overrides both."""
    folder = tmp_path / "capture"
    folder.mkdir()
    one, two = folder / "a-rank-0.json", tmp_path / "b-rank-1.json"
    one.touch()
    two.touch()
    assert [(w.path, w.run_name) for w in named([folder, two], None)] == [(one, "capture"), (two, "b")]
    assert {w.run_name for w in named([folder, two], "mine")} == {"mine"}


def test_a_waiting_file_has_path_run_and_place(home: Home) -> None:
    """What later stages get to know about it."""
    path = put(home, "run/x.json")
    status = path.stat()
    assert waiting(home.inbox) == [
        InboxItem(path, "run", Path("run/x.json"), home.inbox, 1, status.st_mtime, status.st_ino)
    ]
