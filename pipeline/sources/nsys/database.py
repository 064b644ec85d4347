"""Checks of an export's .sqlite file before its tables are read: is it finished, complete and undamaged, and
are its tables ordinary ones?

A database may hold programs: views, virtual tables and generated columns can make any number of rows and
bytes out of nothing. nsys writes none. Python's sqlite, used here, has limits: steps, text, the schema.
ADBC, which then reads, has fewer, so it reads only tables that passed these checks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import TraceError
from pipeline.sources.nsys.batches import BATCH_BYTES
from pipeline.sources.nsys.columns import COUNTED, TABLES, Kind
from pipeline.sources.nsys.pages import MAGIC, Pages

ADVICE = "Export the report again: nsys export --type=sqlite --force-overwrite=true REPORT.nsys-rep"
READING_GUARDS = (
    "PRAGMA trusted_schema = OFF",
    "PRAGMA cell_size_check = ON",
    f"PRAGMA hard_heap_limit = {1 << 28}",
)
"""First statements on the connection that reads."""
_GUARDS = (
    "PRAGMA trusted_schema = OFF",
    "PRAGMA cell_size_check = ON",
    "PRAGMA ignore_check_constraints = ON",
)
_SCHEMA_ROWS, _SCHEMA_TEXT = 5_000, 50_000
"""Limits of the number of tables and indexes, and of a definition's length. nsys writes 150, of up to 4,500
characters."""
_LONGEST_DEFAULT = 64
"""Limit of a default's length: a row that is shorter than its table gets it without a byte in the file."""
_STEPS, _STEPS_PER_BYTE, _TICK = 50_000_000, 20, 100_000
"""Limit of the steps of sqlite's virtual machine: a row of ten bytes takes about ten."""
_STATISTICS: dict[str, dict[str, Kind]] = {
    t: {"tbl": "text", "idx": "text", "stat": "text"} for t in ("sqlite_stat1", "sqlite_stat4")
}
"""Tables that sqlite itself reads with the schema."""
_VIRTUAL, _TABLE = b"CREATE VIRTUAL TABLE", b"CREATE TABLE "


@dataclass(frozen=True)
class Found:
    """An ordinary, undamaged table: its wanted columns and the longest text of a row.

    `rows` is set for tables that are only counted.
    """

    columns: frozenset[str]
    rows: int
    longest: int


def reading_uri(file: Path) -> str:
    """The file as sqlite and ADBC open it: read-only, without locks and without a file beside it."""
    return f"{_uri(file)}&immutable=1"


def is_locked(file: Path) -> bool:
    """Is another process writing this database?

    A file in WAL mode is not opened, which would write files beside it; its log answers the question (see
    reader).
    """
    with file.open("rb") as start:
        head = start.read(20)
    if not head.startswith(MAGIC) or head[18:20] != b"\x01\x01":
        return False
    with closing(sqlite3.connect(_uri(file), uri=True, timeout=0)) as probe:
        try:
            probe.execute("PRAGMA schema_version").fetchall()  # takes the lock, and reads no table
        except sqlite3.OperationalError as error:
            return error.sqlite_errorcode == sqlite3.SQLITE_BUSY
        except sqlite3.DatabaseError:
            return False  # damage is reported when the tables are read
    return False


def refuse_truncated(file: Path) -> None:
    """Raise DatabaseError for a file shorter than the number of pages in its header (if one writer wrote it).

    sqlite itself checks only the pages that it reads.
    """
    with file.open("rb") as start:
        head = start.read(100)
    page, pages = int.from_bytes(head[16:18], "big"), int.from_bytes(head[28:32], "big")
    size = file.stat().st_size
    if (
        head.startswith(MAGIC)
        and head[24:28] == head[92:96]
        and size < pages * (65_536 if page == 1 else page)
    ):
        raise sqlite3.DatabaseError(f"{size} bytes of a database of {pages} pages: the file is truncated")


def ordinary_tables(file: Path) -> dict[str, Found]:
    """The tables with nsys's names.

    Raises sqlite3.Error for damage, TraceError for a table that is a program or too large to check.
    """
    wanted = _STATISTICS | {table: {} for table in COUNTED} | TABLES
    with Pages(file) as pages, closing(sqlite3.connect(reading_uri(file), uri=True)) as con:
        if pages.rows_of_tree(1) > _SCHEMA_ROWS:
            raise _refused(
                file, "its schema", f"more than {_SCHEMA_ROWS} tables and indexes", "the tables of one report"
            )
        con.text_factory = bytes
        with _budget(con, file, _STEPS):
            definitions, roots = _schema(con)
        for root in roots:
            pages.rows_of_tree(root)
        with _budget(con, file, _STEPS + _STEPS_PER_BYTE * file.stat().st_size):
            _refuse_damaged(con, "sqlite_master")
            there = {
                table: definitions[name]
                for table in wanted
                if (name := table.lower().encode()) in definitions
            }
            found = {
                table: _checked(con, file, table, definition, wanted[table])
                for table, definition in there.items()
            }
        return {table: checked for table, checked in found.items() if table not in _STATISTICS}


@contextmanager
def _budget(con: sqlite3.Connection, file: Path, steps: int) -> Iterator[None]:
    """Limit the steps of sqlite's virtual machine. Raises TraceError if they are not enough."""
    left = steps // _TICK

    def is_spent() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    refusal = _refused(
        file, "its tables", "more rows or pages than the size of the file explains", "tables of rows"
    )
    con.set_progress_handler(is_spent, _TICK)
    try:
        yield
    except sqlite3.Error as error:
        if left < 0:
            raise refusal from error
        raise
    if left < 0:  # without its statistics sqlite continues, and reports nothing
        raise refusal


def _schema(con: sqlite3.Connection) -> tuple[dict[bytes, bytes], list[int]]:
    """Definitions of tables and views by name, in lower case as sqlite compares; first pages of trees."""
    for limit in (sqlite3.SQLITE_LIMIT_LENGTH, sqlite3.SQLITE_LIMIT_SQL_LENGTH):
        con.setlimit(limit, _SCHEMA_TEXT)
    con.setlimit(
        sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 0
    )  # matching a pattern is one step, however long it takes
    for guard in _GUARDS:
        con.execute(guard)
    text = ", ".join(
        f"coalesce(CAST({column} AS TEXT), '')"
        for column in ("lower(type)", "lower(name)", "substr(sql, 1, 20)")
    )
    found = con.execute(f"SELECT {text}, CAST(rootpage AS INTEGER) FROM sqlite_master").fetchall()
    con.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, BATCH_BYTES)
    return {name: sql for kind, name, sql, _ in found if kind in {b"table", b"view"}}, [
        root for *_, root in found if root
    ]


def _checked(
    con: sqlite3.Connection, file: Path, table: str, definition: bytes, wanted: Mapping[str, Kind]
) -> Found:
    """Check one table. Raises TraceError, before any query, if it is not an ordinary table."""
    if not definition.startswith(_TABLE):
        raise _refused(
            file,
            table,
            "a virtual table" if definition.startswith(_VIRTUAL) else "a view",
            "an ordinary table, as nsys writes it",
        )
    columns = {c.lower().encode(): c for c in wanted}
    found = set()
    for _, name, _, _, default, _, hidden in con.execute(f'PRAGMA table_xinfo("{table}")').fetchall():
        column = columns.get(name.lower())
        if hidden:
            raise _refused(
                file,
                table,
                f"a generated column{f' ({column})' if column else ''}",
                "values stored in the file",
            )
        if column and len(default or b"") > _LONGEST_DEFAULT:
            raise _refused(
                file,
                table,
                f"{column} with a default of {len(default)} characters",
                "values stored in the file",
            )
        if column:
            found.add(column)
    _refuse_damaged(con, table)
    rows = con.execute(f'SELECT count(*) FROM "{table}" NOT INDEXED').fetchone()[0] if table in COUNTED else 0
    return Found(
        frozenset(found),
        rows,
        _longest(con, file, table, [c for c in wanted if c in found and wanted[c] == "text"]),
    )


def _refuse_damaged(con: sqlite3.Connection, table: str) -> None:
    """Check every page first: a damaged one may lose rows without an error (0.4 s of CPU per 100 MB).

    sqlite has no checksums: damage inside a value cannot be detected.
    """
    try:
        found = con.execute(f'PRAGMA quick_check("{table}")').fetchone()[0].decode("utf-8", "replace")
    except sqlite3.DatabaseError as error:  # Python fetches the second row before it returns the first
        raise sqlite3.DatabaseError(f"damaged pages: {error}") from error
    if found != "ok":
        raise sqlite3.DatabaseError(f"damaged pages: {found.splitlines()[-1]}")


def text_bytes(columns: list[str]) -> str:
    """SQL: the bytes of a row's text."""
    return " + ".join(f'coalesce(length(CAST("{c}" AS BLOB)), 0)' for c in columns)


def _longest(con: sqlite3.Connection, file: Path, table: str, columns: list[str]) -> int:
    if not columns:
        return 0
    try:
        return con.execute(f'SELECT max({text_bytes(columns)}) FROM "{table}" NOT INDEXED').fetchone()[0] or 0
    except sqlite3.DataError as error:  # the limit of the connection
        raise _refused(
            file, table, f"a text of more than {BATCH_BYTES >> 20} MB", "names of ordinary length"
        ) from error


def _refused(file: Path, where: str, found: str, wanted: str) -> TraceError:
    return TraceError(file.name, where=where, found=found, wanted=wanted, advice=ADVICE)


def _uri(file: Path) -> str:
    escaped = str(file.resolve()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return f"file:{escaped}?mode=ro"
