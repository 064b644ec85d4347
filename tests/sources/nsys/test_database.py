"""The file before its tables: a damaged page never loses rows without a word, and a lock is seen without taking one."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from pipeline.errors import TraceError
from pipeline.sources.nsys.database import is_locked, reading_uri
from tests.nsys_builders import read_report, tables_of, two_ranks, write_sqlite

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
PAGE_BYTES = 4096


def leaves(path: Path, table: str) -> list[int]:
    """Where the leaf pages of a table of two levels begin."""
    with sqlite3.connect(path) as con:
        ((root,),) = con.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", [table]).fetchall()
    con.close()
    data = path.read_bytes()
    at = (root - 1) * PAGE_BYTES
    assert data[at] == 5, "a table of one page"
    cells = int.from_bytes(data[at + 3 : at + 5], "big")
    where = [int.from_bytes(data[at + 12 + 2 * n : at + 14 + 2 * n], "big") for n in range(cells)]
    return [(int.from_bytes(data[at + w : at + w + 4], "big") - 1) * PAGE_BYTES for w in where]


@pytest.mark.parametrize(
    ("at", "new"),
    [(0, b"\x05"), (0, b"\x00"), (1, b"\x01\x00"), (3, b"\x00\x00"), (3, b"\x00\x05"), (5, b"\x00\x10"), (8, b"\x0f\xff")],
    ids=["kind", "no_kind", "free_block", "no_row", "fewer_rows", "start_of_rows", "place_of_a_row"],
)
def test_a_damaged_head_of_a_page_is_refused(tmp_path: Path, at: int, new: bytes) -> None:
    """Sqlite itself reads fewer rows, or others, from most of these and reports success."""
    path = write_sqlite(tmp_path / "report.sqlite", tables_of(two_ranks(100)))
    data = bytearray(path.read_bytes())
    leaf = leaves(path, KERNELS)[1]
    assert data[leaf + at : leaf + at + len(new)] != new
    data[leaf + at : leaf + at + len(new)] = new
    path.write_bytes(data)
    with pytest.raises(TraceError) as refused:
        read_report(path, tmp_path)
    assert "damaged pages" in refused.value.found or "malformed" in refused.value.found
    assert refused.value.wanted == "a whole nsys export"


def test_looking_at_a_file_writes_nothing_beside_it(tmp_path: Path) -> None:
    """Neither a journal nor a log, in WAL mode either."""
    path = write_sqlite(tmp_path / "report.sqlite", tables_of(two_ranks()))
    with sqlite3.connect(path) as con:
        con.execute("PRAGMA journal_mode = wal")
    con.close()
    assert path.read_bytes()[18:20] == b"\x02\x02"
    assert not is_locked(path)
    with sqlite3.connect(reading_uri(path), uri=True) as reader:
        assert reader.execute(f"SELECT count(*) FROM {KERNELS}").fetchone() == (16,)
    reader.close()
    assert [p.name for p in tmp_path.iterdir()] == ["report.sqlite"]


def test_a_lock_is_seen_while_it_is_held(tmp_path: Path) -> None:
    """A lock for writing only: readers do not disturb each other."""
    path = write_sqlite(tmp_path / "report.sqlite", tables_of(two_ranks()))
    other = sqlite3.connect(path, isolation_level=None)
    for begin, wanted in (("BEGIN EXCLUSIVE", True), ("BEGIN DEFERRED", False)):
        other.execute(begin)
        other.execute("SELECT count(*) FROM sqlite_master").fetchall()
        assert is_locked(path) is wanted
        other.execute("ROLLBACK")
    other.close()


@pytest.mark.parametrize("content", [b"", b"SQLite", b"SQLite format 3\0" + b"\x10\x00\x01\x01" + b"\xff" * 200, b"{}" * 100])
def test_what_is_no_database_is_not_locked(tmp_path: Path, content: bytes) -> None:
    """What is wrong with it is said by whoever reads it."""
    path = tmp_path / "report.sqlite"
    path.write_bytes(content)
    assert not is_locked(path)
