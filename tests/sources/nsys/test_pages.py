"""Trees of pages before sqlite follows them: every page in one place, and no tree deeper than sqlite
reads."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.sources.nsys.pages import DEEPEST, Pages
from tests.support.nsys_bombs import KERNELS, Make, chain, fan, with_tree


def _database(path: Path, *, page_bytes: int = 512, rows: int = 5_000) -> dict[str, int]:
    """Tables and indexes of several levels; returns their first pages."""
    with sqlite3.connect(path) as con:
        con.execute(f"PRAGMA page_size = {page_bytes}")
        con.execute("CREATE TABLE numbered (id INTEGER PRIMARY KEY, value TEXT)")
        con.execute("CREATE TABLE keyed (id INTEGER PRIMARY KEY, value TEXT) WITHOUT ROWID")
        con.execute("CREATE INDEX by_value ON numbered (value)")
        for table in ("numbered", "keyed"):
            con.executemany(f"INSERT INTO {table} VALUES (?, ?)", [(n, "x" * (n % 700)) for n in range(rows)])
        roots = dict(con.execute("SELECT name, rootpage FROM sqlite_master"))
    con.close()
    return roots


@pytest.mark.parametrize("page_bytes", [512, 4_096, 65_536])
def test_a_sound_file_is_walked_tree_by_tree(tmp_path: Path, page_bytes: int) -> None:
    """Tables and indexes, with long rows and short ones, on pages of every size; a table's rows are all in
    its leaves."""
    path = tmp_path / "a.sqlite"
    roots = _database(path, page_bytes=page_bytes)
    with Pages(path) as pages:
        assert pages.rows_of_tree(1) == len(roots)
        assert pages.rows_of_tree(roots["numbered"]) == 5_000
        for name in ("keyed", "by_value"):
            assert 0 < pages.rows_of_tree(roots[name]) <= 5_000


def test_a_page_of_two_trees_is_refused(tmp_path: Path) -> None:
    """A table that begins where another one does."""
    path = tmp_path / "a.sqlite"
    root = _database(path)["numbered"]
    with Pages(path) as pages:
        pages.rows_of_tree(root)
        with pytest.raises(sqlite3.DatabaseError, match=f"page {root} is not in the file, or is used twice"):
            pages.rows_of_tree(root)


@pytest.mark.parametrize("root", [0, -1, 1 << 31])
def test_a_page_that_is_not_there_is_refused(tmp_path: Path, root: int) -> None:
    """A number before the first page or after the last one."""
    path = tmp_path / "a.sqlite"
    _database(path)
    with (
        Pages(path) as pages,
        pytest.raises(sqlite3.DatabaseError, match="is not in the file, or is used twice"),
    ):
        pages.rows_of_tree(root)


def test_a_page_of_text_is_no_page_of_a_tree(tmp_path: Path) -> None:
    """The rest of a long value has no head of its own."""
    path = tmp_path / "a.sqlite"
    root = _database(path)["numbered"]
    data = bytearray(path.read_bytes())
    data[(root - 1) * 512] = ord("x")
    path.write_bytes(data)
    with Pages(path) as pages, pytest.raises(sqlite3.DatabaseError, match="not a page of a table or index"):
        pages.rows_of_tree(root)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (with_tree(KERNELS, chain(DEEPEST)), "more than 20 levels"),
        (with_tree(KERNELS, fan(3)), "is not in the file, or is used twice"),
        (with_tree(KERNELS, lambda first, _leaf: [[first], [first]]), "is not in the file, or is used twice"),
    ],
    ids=["deep", "shared", "ring"],
)
def test_a_tree_that_sqlite_would_not_leave_is_refused(tmp_path: Path, make: Make, message: str) -> None:
    """One level too many; children that are the same page; a page that is its own child."""
    with pytest.raises(sqlite3.DatabaseError, match=message):
        _walked(tmp_path / "a.sqlite", make)


def test_the_deepest_tree_is_walked(tmp_path: Path) -> None:
    """As many levels as sqlite's cursors reach."""
    assert _walked(tmp_path / "a.sqlite", with_tree(KERNELS, chain(DEEPEST - 1))) > 0


def _walked(path: Path, make: Callable[[Path], object]) -> int:
    make(path)
    with sqlite3.connect(path) as con:
        ((root,),) = con.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", [KERNELS])
    con.close()
    with Pages(path) as pages:
        return pages.rows_of_tree(root)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"hello",
        b"SQLite format 3\0" + b"\x00\x03" + bytes(82),
        b"SQLite format 3\0" + b"\x01\x00" + bytes(82),
    ],
)
def test_what_is_no_database_is_refused(tmp_path: Path, head: bytes) -> None:
    """Other bytes, and pages of a size that sqlite does not have."""
    path = tmp_path / "a.sqlite"
    path.write_bytes(head)
    with pytest.raises(sqlite3.DatabaseError, match="file is not a database"):
        Pages(path)
