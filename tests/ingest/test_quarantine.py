"""Where dropped files go: the archive, the quarantine with a reason, and back."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from pipeline.errors import TraceError, UsageError
from pipeline.ingest.inbox import waiting
from pipeline.ingest.ingest import drain
from pipeline.ingest.quarantine import archive, quarantine, quarantined, remove_orphans, retry
from pipeline.lake.home import Home
from pipeline.progress import Progress
from tests.support.homes import drop, rank_trace, settled

ERROR = TraceError("f.json", where="byte 7", found="a comma", wanted="an event", advice="Record it again.")


def put(home: Home, place: str, text: str = "x") -> Path:
    """A settled file of the inbox."""
    path = home.inbox / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return settled(path)


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
    assert {p.name: p.read_text() for p in (home.archive / "run").iterdir()} == {
        "x.json": "one",
        "x.json.2": "two",
    }


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
    """A hidden file belongs to someone."""
    put(home, "run/x.json")
    put(home, "run/.keep")
    archive(home, waiting(home.inbox)[0])
    assert [p.name for p in (home.inbox / "run").iterdir()] == [".keep"]


def test_the_quarantine_gets_the_file_and_the_reason(home: Home) -> None:
    """Elsewhere stands what was found, where, and what to do."""
    path = put(home, "run/x.json")
    inode = path.stat().st_ino
    moved = quarantine(home, waiting(home.inbox)[0], ERROR)
    assert moved == home.quarantine / "run" / "x.json"
    assert moved.stat().st_ino == inode
    (note,) = home.reasons.iterdir()
    reason = orjson.loads(note.read_bytes())
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
        "path_bytes": b"run/x.json".hex(),
    }
    assert list(home.inbox.iterdir()) == []


def test_a_quarantined_file_goes_back_to_where_it_was(home: Home) -> None:
    """The file alone: its note is removed, and so is the empty folder."""
    put(home, "run/x.json")
    quarantine(home, waiting(home.inbox)[0], ERROR)
    assert retry(home, None) == [Path("run/x.json")]
    assert [item.place for item in waiting(home.inbox)] == [Path("run/x.json")]
    assert list(home.quarantine.iterdir()) == list(home.reasons.iterdir()) == []


def test_one_of_several_can_be_tried_again(home: Home) -> None:
    """By its path in the quarantine, which tells two files of one name apart; nothing of the inbox is
    overwritten."""
    for text in ("one", "two"):
        put(home, "run/x.json", text)
        quarantine(home, waiting(home.inbox)[0], ERROR)
    put(home, "run/x.json", "three")
    assert retry(home, ["run/x.json.2"]) == [Path("run/x.json.2")]
    assert (home.inbox / "run" / "x.json.2").read_text() == "two"
    assert [*quarantined(home)] == ["run/x.json"]


def test_what_is_not_quarantined_cannot_be_tried_again(home: Home) -> None:
    """The names that are there are listed; the reason of a file that a user removed goes too."""
    put(home, "run/x.json")
    moved = quarantine(home, waiting(home.inbox)[0], ERROR)
    with pytest.raises(UsageError, match=r"not in the quarantine: y\.json; there are: run/x\.json"):
        retry(home, ["y.json"])
    moved.unlink()
    assert retry(home, None) == []
    remove_orphans(home)
    assert list(home.reasons.iterdir()) == []


def test_the_quarantine_never_overwrites(home: Home) -> None:
    """Each file keeps its own reason."""
    for text in ("one", "two"):
        put(home, "run/x.json", text)
        quarantine(home, waiting(home.inbox)[0], ERROR)
    assert sorted(p.name for p in (home.quarantine / "run").iterdir()) == ["x.json", "x.json.2"]
    assert len({*home.reasons.iterdir()}) == 2


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
    """A loose file goes to the folder of the run that its name gives."""
    drop(home, rank_trace(tmp_path / "serve-rank-0.json", ranks=1), "serve-rank-0.json")
    assert drain(home, Progress(quiet=True)).built == ["serve"]
    assert [p.relative_to(home.archive).as_posix() for p in home.archive.rglob("*.json")] == [
        "serve/serve-rank-0.json"
    ]
