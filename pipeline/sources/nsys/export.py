"""An nsys export as DuckDB views of one shape, whatever its form: sqlite, a folder of Parquet, or a folder of
Arrow streams."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import adbc_driver_sqlite.dbapi
import duckdb
import numpy as np
import pyarrow as pa
from adbc_driver_manager import Error as AdbcError

from pipeline.duck import files, literal, rows, scalar
from pipeline.errors import TraceError, home_trouble
from pipeline.sources.job import ReadJob
from pipeline.sources.nsys import arrow, parquet
from pipeline.sources.nsys.batches import BATCH_BYTES, BATCH_ROWS, Ids, pieces, wanted_schema
from pipeline.sources.nsys.columns import COUNTED, STRINGS_OF, TABLES, Kind
from pipeline.sources.nsys.database import (
    ADVICE,
    READING_GUARDS,
    ordinary_tables,
    reading_uri,
    refuse_truncated,
    text_bytes,
)
from pipeline.sources.nsys.report import export_report

SHORT_BYTES, SHORT_ROWS = 2_048, 16_384
"""Rows with up to SHORT_BYTES of text are read SHORT_ROWS at a time; the few longer ones in batches of
BATCH_BYTES."""
MOST_NAMES = 10_000_000
"""Limit of the distinct names that rows refer to: their ids are in memory while StringIds is read."""
_OUR_FAULT = (
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.ParserException,
    duckdb.InterruptException,
)
"""DuckDB errors that are not about the export; all others are damaged pages, or values that do not fit."""
_DAMAGE = (sqlite3.Error, AdbcError, pa.ArrowException, OSError, UnicodeDecodeError, MemoryError)
"""Errors of the other libraries."""
_NUMBER = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT|U?INTEGER|BOOLEAN|FLOAT|DOUBLE|DECIMAL\(\d+,\d+\)|VARCHAR")
"""Types of DuckDB that may hold a number; a folder's tables could have any."""
_TYPES = {"int": "BIGINT", "text": "VARCHAR"}

_MACROS = """
CREATE TEMP MACRO signed(x) AS
    CASE WHEN x::HUGEINT > 9223372036854775807
         THEN (x::HUGEINT - 18446744073709551616)::BIGINT ELSE x::BIGINT END;
CREATE TEMP MACRO text_of(bytes) AS nullif(coalesce(try(decode(bytes)), bytes::VARCHAR), '');
CREATE TEMP MACRO process_key(g) AS g & -16777216;
CREATE TEMP MACRO pid_of(g) AS (g >> 24) & 16777215;
CREATE TEMP MACRO tid_of(g) AS g & 16777215;
"""
"""globalTid: 16 bits of host and VM, 24 of pid, 24 of tid; globalPid has no tid. Two containers may share a
pid, so the key of a process is all bits but the tid's. Masks work for negative 64-bit ids too. Text is
copied as bytes, since it may not be UTF-8; invalid bytes are shown as escapes."""


class Export:
    """Views `nsys.<TABLE>` with the columns of columns.TABLES (NULL if absent), and counts of other rows."""

    def __init__(self, con: duckdb.DuckDBPyConnection, job: ReadJob) -> None:
        self._con, self._path, self._work, self._on_read = con, job.path, job.work, job.on_read
        self._max_bytes = self._bytes_left = job.max_bytes
        self._failure: Exception | None = None
        self.columns: dict[str, set[str]] = {}
        self.counted: dict[str, int] = {}
        con.execute("CREATE SCHEMA nsys")
        con.execute(_MACROS)

    def open(self) -> None:
        """Create the views. Raises TraceError if the export is damaged, empty, a program, or too large."""
        source = export_report(self._path, self._work) if self._path.suffix == ".nsys-rep" else self._path
        try:
            if (
                size := sum(p.stat().st_size for p in (source.iterdir() if source.is_dir() else (source,)))
            ) > self._max_bytes:
                raise _too_large(self._path.name, "the export", f"{size} bytes", self._max_bytes)
            if source.is_dir():
                self._open_folder(source)
            else:
                self._open_sqlite(source)
            self._refuse_beyond(self._bytes_of_names(), "names in all rows together")
        except (*_DAMAGE, duckdb.Error) as error:
            failure = self._failure or error  # DuckDB wraps an error of a stream in one of its own
            if not isinstance(failure, (*_DAMAGE, duckdb.Error)):
                raise failure from None
            raise damaged(self._path.name, failure) from failure
        for table, wanted in TABLES.items():
            if table not in self.columns:
                none = ", ".join(f'NULL::{_TYPES[kind]} AS "{c}"' for c, kind in wanted.items())
                self._con.execute(f'CREATE VIEW nsys."{table}" AS SELECT {none} LIMIT 0')

    def has(self, table: str, *columns: str) -> bool:
        """Does the export have this table with these columns?"""
        return table in self.columns and set(columns) <= self.columns[table]

    def _view(self, table: str, scan: str) -> None:
        """One view with all wanted columns, with the same types for every export."""
        found = {r[0]: r[1] for r in rows(self._con, f"DESCRIBE FROM {scan}")}
        if odd := next(
            (
                c
                for c, kind in TABLES[table].items()
                if kind == "int" and c in found and not _NUMBER.fullmatch(found[c])
            ),
            None,
        ):
            raise pa.ArrowInvalid(f"{table} with {odd} as {found[odd]}")
        parts = []
        for column, kind in TABLES[table].items():
            if column not in found:
                parts.append(f'NULL::{_TYPES[kind]} AS "{column}"')
            elif kind == "text" and found[column] == "BLOB":
                parts.append(f'text_of("{column}") AS "{column}"')
            elif kind == "text":
                parts.append(f'nullif("{column}"::VARCHAR, \'\') AS "{column}"')
            elif found[column] in {"UBIGINT", "HUGEINT"}:
                parts.append(f'signed("{column}") AS "{column}"')
            else:
                parts.append(f'"{column}"::BIGINT AS "{column}"')
        self._con.execute(f'CREATE VIEW nsys."{table}" AS SELECT {", ".join(parts)} FROM {scan}')
        self.columns[table] = set(found)

    def _stage(self, table: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        """Copy a stream of batches to Parquet and make its view; of StringIds only the rows in use."""
        select, ids = "FROM stream", None
        if table == "StringIds" and {"id", "value"} <= set(schema.names):
            if not pa.types.is_integer(kind := schema.field("id").type):
                raise pa.ArrowInvalid(f"{table} with id as {kind}")
            select, ids = "SELECT id, min(value) AS value FROM stream GROUP BY id", self._used_names()
        stream = pa.RecordBatchReader.from_batches(schema, self._measured(batches, schema, ids))  # noqa: F841 (DuckDB finds it by name)
        self._con.execute(
            f"COPY ({select}) TO {literal(self._work / f'{table}.parquet')} (FORMAT parquet, COMPRESSION "
            "lz4_raw)"
        )
        self._view(table, _scan(self._work, table))

    def _measured(
        self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, ids: Ids | None
    ) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                for piece in pieces(batch, schema, ids):
                    self._take(piece.nbytes)
                    yield piece
        except Exception as error:
            self._failure = error
            raise

    def _take(self, size: int) -> None:
        self._refuse_beyond(size, "rows")
        self._bytes_left -= size

    def _refuse_beyond(self, size: int, what: str) -> None:
        if size > self._bytes_left:
            raise _too_large(
                self._path.name, "its tables", f"more than {self._max_bytes} bytes of {what}", self._max_bytes
            )

    def _names_used(self) -> str:
        """SQL: the ids of StringIds that rows refer to, one row per reference."""
        uses = [
            f'SELECT "{c}" FROM nsys."{t}"' for t, cs in STRINGS_OF.items() if t in self.columns for c in cs
        ]
        return f"({' UNION ALL '.join(uses or ['SELECT NULL::BIGINT'])}) AS use (id)"

    def _used_names(self) -> Ids:
        query = (
            f"SELECT DISTINCT id FROM {self._names_used()} WHERE id IS NOT NULL ORDER BY id LIMIT "
            f"{MOST_NAMES + 1}"
        )
        ids = np.asarray(self._con.sql(query).fetchnumpy()["id"], dtype=np.int64)
        if len(ids) > MOST_NAMES:
            raise TraceError(
                self._path.name,
                where="its tables",
                found=f"more than {MOST_NAMES} names",
                wanted="names that rows share",
                advice=ADVICE,
            )
        return ids

    def _bytes_of_names(self) -> int:
        """Bytes of the names in sorted rows: a name is stored once and copied into each of its rows."""
        if not self.has("StringIds", "id", "value"):
            return 0
        names = '(SELECT id, strlen(value) AS bytes FROM nsys."StringIds")'
        return int(
            scalar(
                self._con, f"SELECT coalesce(sum(bytes), 0) FROM {self._names_used()} JOIN {names} USING (id)"
            )
        )

    def _open_folder(self, folder: Path) -> None:
        found = {
            p.stem: p for p in sorted(folder.iterdir()) if p.suffix in {".parquet", ".arrow"} and p.is_file()
        }
        for table, wanted in TABLES.items():
            if table not in found:
                continue
            file = found[table]
            form = parquet if file.suffix == ".parquet" else arrow
            schema = wanted_schema(table, form.schema_of(file), list(wanted))
            size = form.count_rows(file) * 8 * len(schema)
            self._refuse_beyond(size, "rows")
            if form is parquet and "text" not in wanted.values():
                self._take(size)
                self._view(table, _scan(folder, table))
            elif schema.names:
                self._stage(table, schema, form.batches(file, schema.names))
            self._on_read(file.stat().st_size)
        for table in COUNTED:
            if table in found:
                self.counted[table] = (parquet if found[table].suffix == ".parquet" else arrow).count_rows(
                    found[table]
                )
                self._refuse_beyond(self.counted[table], "rows")

    def _open_sqlite(self, file: Path) -> None:
        """Copy the wanted columns through ADBC in batches: offline there is no sqlite extension of DuckDB."""
        refuse_truncated(file)
        found = ordinary_tables(file)
        self.counted = {table: found[table].rows for table in COUNTED if table in found}
        with adbc_driver_sqlite.dbapi.connect(reading_uri(file)) as source:
            for guard in READING_GUARDS:
                with source.cursor() as cursor:
                    cursor.execute(guard)
                    cursor.fetchall()
            for table, kinds in TABLES.items():
                columns = {
                    c: kind for c, kind in kinds.items() if table in found and c in found[table].columns
                }
                if columns:
                    schema = pa.schema(
                        [(c, pa.int64() if kind == "int" else pa.binary()) for c, kind in columns.items()]
                    )
                    self._stage(table, schema, _rows(source, table, columns, found[table].longest))
        self._on_read(file.stat().st_size)


def _too_large(file: str, where: str, found: str, most: int) -> TraceError:
    advice = "If the report is that large, raise the limit: --max-bytes N."
    return TraceError(file, where=where, found=found, wanted=f"at most {most} bytes", advice=advice)


def damaged(file: str, error: Exception) -> TraceError:
    """The refusal of an export that cannot be read. Quotes in an error are removed: they may be text of the
    report.

    A full disk or a bug of ours is not the export's fault: that error is raised as it is.
    """
    if isinstance(error, _OUR_FAULT) or home_trouble(error):
        raise error
    if isinstance(error, (duckdb.OutOfMemoryException, MemoryError)):
        return TraceError(
            file,
            where="reading the export",
            found="more data at once than fits in the memory of a read (names of megabytes?)",
            wanted="names of ordinary length",
            advice="Export a part of the report: nsys export --type=sqlite --times=START/END REPORT.nsys-rep",
        )
    if isinstance(error, duckdb.DataError):
        error = ValueError("a value that does not fit its column")
    if isinstance(error, UnicodeDecodeError):
        error = ValueError("a name of a table or column that is not text")
    message = str(error).splitlines()[0] if str(error) else type(error).__name__
    for quote in "\"'(":
        message = message.split(quote, 1)[0]
    return TraceError(
        file,
        where="reading the export",
        found=message.strip(" :") or type(error).__name__,
        wanted="a whole nsys export",
        advice=ADVICE,
    )


def _rows(
    source: adbc_driver_sqlite.dbapi.AdbcSqliteConnection, table: str, columns: dict[str, Kind], longest: int
) -> Iterator[pa.RecordBatch]:
    """The columns of an ordinary table. NOT INDEXED: an index may hold other rows than its table, and
    expressions."""
    select = (
        f'SELECT {", ".join(_as_kind(c, kind) for c, kind in columns.items())} FROM "{table}" NOT INDEXED'
    )
    passes = [(select, BATCH_ROWS)]
    if text := text_bytes([c for c, kind in columns.items() if kind == "text"]):
        passes = [(f"{select} WHERE {text} <= {SHORT_BYTES}", SHORT_ROWS)]
        if longest > SHORT_BYTES:
            passes.append((f"{select} WHERE {text} > {SHORT_BYTES}", max(1, BATCH_BYTES // longest)))
    for query, batch_rows in passes:
        with source.cursor() as cursor:
            cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": batch_rows})
            cursor.execute(query)
            yield from cursor.fetch_record_batch()


def _as_kind(column: str, kind: Kind) -> str:
    # ADBC types a column by its first rows: a cast, and '' for NULL text, make every row of a column alike.
    if kind == "int":
        return f'CAST("{column}" AS INTEGER) AS "{column}"'
    return f'coalesce(CAST("{column}" AS BLOB), x\'\') AS "{column}"'


def _scan(folder: Path, table: str) -> str:
    return f"read_parquet({files(folder, f'{table}.parquet')}, hive_partitioning = false)"
