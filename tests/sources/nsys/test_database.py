"""The file before its tables: a damaged page never loses rows without a word, and a lock is seen without
taking one."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from pipeline.errors import TraceError
from pipeline.sources.nsys import database
from pipeline.sources.nsys.database import is_locked, ordinary_tables, reading_uri
from tests.support.nsys_bombs import ENDLESS, changed, exchanged
from tests.support.nsys_builders import read_report, tables_of, two_ranks, write_sqlite

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
    [
        (0, b"\x05"),
        (0, b"\x00"),
        (1, b"\x01\x00"),
        (3, b"\x00\x00"),
        (3, b"\x00\x05"),
        (5, b"\x00\x10"),
        (8, b"\x0f\xff"),
    ],
    ids=["kind", "no_kind", "free_block", "no_row", "fewer_rows", "start_of_rows", "place_of_a_row"],
)
def test_a_damaged_head_of_a_page_is_refused(tmp_path: Path, at: int, new: bytes) -> None:
    """sqlite itself reads fewer or other rows from most of these, and reports success."""
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


def test_ordinary_tables_are_found_with_their_columns_rows_and_longest_text(tmp_path: Path) -> None:
    """Names in whatever case sqlite holds equal; rows of what is only counted; text in bytes, and none where
    there is none."""
    path = tmp_path / "report.sqlite"
    changed(
        "ALTER TABLE NVTX_EVENTS RENAME COLUMN start TO START",
        "UPDATE NVTX_EVENTS SET text = '\u20ac' || CAST(x'00' AS TEXT) || 'abc' WHERE rowid = 1",
        "CREATE TABLE osrt_api (a, b TEXT, c TEXT, d TEXT)",
        "INSERT INTO osrt_api (a) VALUES (1), (2)",
        "CREATE TABLE other (a)",
        "CREATE INDEX both ON osrt_api (a)",
        "CREATE INDEX none ON other (a)",
        "ANALYZE",
        exchanged("both", "none"),
    )(path)
    found = ordinary_tables(path)
    assert {"start", "end", "text"} < found["NVTX_EVENTS"].columns
    assert (found["OSRT_API"].rows, found["StringIds"].rows) == (2, 0)
    assert found["NVTX_EVENTS"].longest == max(7, *(len(r.text) for r in two_ranks().ranges[1:]))
    assert found[KERNELS].longest == 0
    assert not {"other", "sqlite_stat1", "ThreadNames"} & found.keys()


def test_a_look_has_a_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else is in a file, what is done for it ends, and the refusal names no fault of the program."""
    path = write_sqlite(tmp_path / "report.sqlite", tables_of(two_ranks(50)))
    monkeypatch.setattr(database, "_TICK", 100)
    ordinary_tables(path)
    monkeypatch.setattr(database, "_STEPS_PER_BYTE", 0)
    monkeypatch.setattr(database, "_STEPS", 2_000)
    with pytest.raises(TraceError, match="found more rows or pages than the size of the file explains"):
        ordinary_tables(path)


def test_statistics_that_go_on_for_ever_are_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sqlite reads them by itself, and reports nothing of an error in them."""
    path = tmp_path / "report.sqlite"
    changed(
        "CREATE TABLE other (tbl, idx, stat)",
        f"INSERT INTO other {ENDLESS} SELECT NULL, NULL, NULL FROM endless LIMIT 5000",
        (
            "UPDATE sqlite_master SET name = 'sqlite_stat1', tbl_name = 'sqlite_stat1', sql = replace(sql, "
            "'other', 'sqlite_stat1') WHERE name = 'other'"
        ),
    )(path)
    monkeypatch.setattr(database, "_TICK", 5_000)
    monkeypatch.setattr(database, "_STEPS", 10_000)
    with pytest.raises(TraceError, match="found more rows or pages than the size of the file explains"):
        ordinary_tables(path)


@pytest.mark.parametrize(
    "content", [b"", b"SQLite", b"SQLite format 3\0" + b"\x10\x00\x01\x01" + b"\xff" * 200, b"{}" * 100]
)
def test_what_is_no_database_is_not_locked(tmp_path: Path, content: bytes) -> None:
    """The reader reports what is wrong with it."""
    path = tmp_path / "report.sqlite"
    path.write_bytes(content)
    assert not is_locked(path)
