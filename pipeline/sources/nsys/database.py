"""The .sqlite file of an export before its tables are read: does somebody write it, is it all there, are its pages whole?"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

_MAGIC = b"SQLite format 3\0"


def reading_uri(file: Path) -> str:
    """The file as sqlite and ADBC open it: read-only, without locks and without a file beside it."""
    return f"{_uri(file)}&immutable=1"


def is_locked(file: Path) -> bool:
    """Does another process write this database now?

    A file in WAL mode is not asked: that would write beside it, and its log says as much (see reader).
    """
    with file.open("rb") as start:
        head = start.read(20)
    if not head.startswith(_MAGIC) or head[18:20] != b"\x01\x01":
        return False
    with closing(sqlite3.connect(_uri(file), uri=True, timeout=0)) as probe:
        try:
            probe.execute("SELECT count(*) FROM sqlite_master").fetchall()
        except sqlite3.OperationalError as error:
            return error.sqlite_errorcode == sqlite3.SQLITE_BUSY
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            return False  # damage (a schema that is no text, too) is said when the tables are read
    return False


def refuse_cut_off(file: Path) -> None:
    """The header says how many pages the file has (if it was written by one writer): sqlite itself looks at what it reads only."""
    with file.open("rb") as start:
        head = start.read(100)
    page, pages = int.from_bytes(head[16:18], "big"), int.from_bytes(head[28:32], "big")
    size = file.stat().st_size
    if head.startswith(_MAGIC) and head[24:28] == head[92:96] and size < pages * (65_536 if page == 1 else page):
        raise sqlite3.DatabaseError(f"{size} bytes of a database of {pages} pages: the file was cut off")


def refuse_damaged_pages(con: sqlite3.Connection) -> None:
    """A damaged page may lose rows without an error, so all are looked at first (0.2 s of CPU per 100 MB).

    Bytes inside a value have no checksum in sqlite: they cannot be told from what was recorded.
    """
    found = str(con.execute("PRAGMA quick_check(1)").fetchone()[0])
    if found != "ok":
        raise sqlite3.DatabaseError(f"damaged pages: {found.splitlines()[-1]}")


def _uri(file: Path) -> str:
    escaped = str(file.resolve()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return f"file:{escaped}?mode=ro"
