"""The file that a reader is given: what was opened is read, whatever happens to its path meanwhile."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import duckdb
import pytest

from pipeline.errors import GoneFile, TraceError
from pipeline.lake.dropped import opened, same_mode, unreadable


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    """A folder that others may write to."""
    (tmp_path / "inbox" / "run").mkdir(parents=True)
    return tmp_path / "inbox"


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A folder of the reader's own."""
    (tmp_path / "private").mkdir()
    return tmp_path / "private"


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "Check its permissions, then run `stepledger retry`."),
        (errno.EIO, "Check the file and the disk, then run `stepledger retry`."),
    ],
)
def test_what_cannot_be_opened_says_what_to_check(number: int, advice: str) -> None:
    """A permission is not a broken disk; both can be tried again."""
    found = unreadable(Path("a.json"), OSError(number, os.strerror(number)))
    assert (found.where, found.found, found.advice) == ("opening it", os.strerror(number), advice)


@pytest.mark.parametrize("name", ["t.json", "t.sqlite", "t.nsys-rep", "n" * 250 + ".json", "日本.json"])
def test_a_file_that_is_exchanged_or_deleted_is_read_as_it_was_opened(
    inbox: Path, private: Path, name: str
) -> None:
    """Readers that open the path again and again see the same bytes to the end."""
    path = inbox / "run" / name
    path.write_text("mine")
    with opened(path, private, inbox) as dropped:
        assert (dropped.path.name, dropped.folder, dropped.size_bytes) == (name, path.parent, 4)
        path.unlink()
        path.write_text("another")
        assert [dropped.path.read_text() for _ in range(2)] == ["mine", "mine"]


def test_sqlite_reads_what_was_opened(inbox: Path, private: Path) -> None:
    """It looks a path up by its text, so a name in another folder is made for it; also for one without the
    suffix."""
    path = inbox / "run" / "t.json"
    with sqlite3.connect(path) as con:
        con.execute("CREATE TABLE t AS SELECT 7 AS x")
    con.close()
    with opened(path, private, inbox) as dropped:
        path.unlink()
        con = sqlite3.connect(f"file:{dropped.path}?mode=ro", uri=True)
        assert con.execute("SELECT x FROM t").fetchall() == [(7,)]
        con.close()


def test_an_export_is_read_as_it_was_opened(inbox: Path, private: Path) -> None:
    """DuckDB reads the files of the folder although another folder has taken its name."""
    folder = inbox / "run" / "x_pqtdir"
    folder.mkdir()
    duckdb.execute(f"COPY (SELECT 7 AS x) TO '{folder}/StringIds.parquet'")
    with opened(folder, private, inbox) as dropped:
        folder.rename(inbox / "away")
        folder.mkdir()
        assert duckdb.execute(f"FROM read_parquet('{dropped.path}/StringIds.parquet')").fetchall() == [(7,)]
        before = dropped.state()
        with (inbox / "away" / "StringIds.parquet").open("ab") as file:
            file.write(b"x")
        assert dropped.state() != before


def test_a_file_that_was_taken_away_is_gone(inbox: Path, private: Path) -> None:
    """That is no fault of the file."""
    with pytest.raises(GoneFile), opened(inbox / "run" / "t.json", private, inbox):
        pass


@pytest.mark.parametrize("name", ["pipe.json", "run.toml", "capture.json", "t.sqlite", "t.nsys-rep"])
def test_a_pipe_is_refused_without_opening_it(inbox: Path, private: Path, name: str) -> None:
    """Whatever its name: opening it would wait for a writer."""
    os.mkfifo(inbox / "run" / name)
    with (
        pytest.raises(TraceError, match="found a pipe, which is not a regular file"),
        opened(inbox / "run" / name, private, inbox),
    ):
        pass


@pytest.mark.parametrize("where", ["file", "folder"])
def test_no_link_is_followed_below_the_inbox(inbox: Path, private: Path, tmp_path: Path, where: str) -> None:
    """Neither the last name nor a folder on the way: both may have been exchanged since they were judged."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "t.json").write_text("secret")
    if where == "file":
        (inbox / "run" / "t.json").symlink_to(tmp_path / "outside" / "t.json")
    else:
        (inbox / "run").rmdir()
        (inbox / "run").symlink_to(tmp_path / "outside")
    with (
        pytest.raises(TraceError, match=r"a symbolic link|Not a directory"),
        opened(inbox / "run" / "t.json", private, inbox),
    ):
        pass


def test_a_link_that_a_user_names_is_followed(private: Path, tmp_path: Path) -> None:
    """Outside the inbox the path is the user's own."""
    (tmp_path / "t.json").write_text("mine")
    (tmp_path / "link.json").symlink_to(tmp_path / "t.json")
    with opened(tmp_path / "link.json", private) as dropped:
        assert dropped.path.read_text() == "mine"


@pytest.mark.parametrize(
    ("mode", "gid", "expected"),
    [(0o600, None, 0o600), (0o640, None, 0o640), (0o666, None, 0o644), (0o640, -1, 0o600)],
)
def test_tables_are_read_by_no_more_users_than_the_file(
    tmp_path: Path, mode: int, gid: int | None, expected: int
) -> None:
    """No one may write them; a group counts only where the tables have the same one."""
    (tmp_path / "f.parquet").touch(mode=0o644)
    (tmp_path / "f.parquet").chmod(0o644)
    same_mode(tmp_path, mode, gid)
    assert (tmp_path / "f.parquet").stat().st_mode & 0o777 == expected
