"""An nsys export as DuckDB views of one shape, whatever its form: sqlite, a folder of Parquet, or a folder of Arrow streams."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import adbc_driver_sqlite.dbapi
import duckdb
import pyarrow as pa
import pyarrow.compute
import pyarrow.ipc
import pyarrow.parquet
from adbc_driver_manager import Error as AdbcError

from pipeline.duck import files, rows
from pipeline.errors import TraceError
from pipeline.sources.nsys.columns import COUNTED, STRINGS_OF, TABLES, Kind
from pipeline.sources.nsys.database import reading_uri, refuse_cut_off, refuse_damaged_pages
from pipeline.sources.nsys.report import export_report

BATCH_ROWS = 65_536
TEXT_ROWS = 64
"""Rows of StringIds in memory at a time: most of its strings are referred to by nothing that is read, and some are megabytes long."""
_ADVICE = "Export the report again: nsys export --type=sqlite --force-overwrite=true REPORT.nsys-rep"
_OUR_FAULT = (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException, duckdb.InterruptException)
"""Errors of DuckDB that say nothing about the export; all others are damaged pages, or values that do not fit."""
_NUMBER = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT|U?INTEGER|BOOLEAN|FLOAT|DOUBLE|DECIMAL\(\d+,\d+\)|VARCHAR")
"""Types of DuckDB that may hold a number; a folder's tables could have any."""
_TYPES = {"int": "BIGINT", "text": "VARCHAR"}

_MACROS = """
CREATE TEMP MACRO signed(x) AS
    CASE WHEN x::HUGEINT > 9223372036854775807 THEN (x::HUGEINT - 18446744073709551616)::BIGINT ELSE x::BIGINT END;
CREATE TEMP MACRO text_of(bytes) AS nullif(coalesce(try(decode(bytes)), bytes::VARCHAR), '');
CREATE TEMP MACRO process_key(g) AS g & -16777216;
CREATE TEMP MACRO pid_of(g) AS (g >> 24) & 16777215;
CREATE TEMP MACRO tid_of(g) AS g & 16777215;
"""
"""globalTid: 16 bits of host and VM, 24 of pid, 24 of tid; globalPid has no tid. Two containers may share a pid, so a
process is known by all bits but the tid's. Masks make the sign of a 64-bit id harmless. Text travels as bytes, since
what stands in a report need not be UTF-8; bytes that are not are shown as escapes."""


class Export:
    """Views `nsys.<TABLE>` with the columns of columns.TABLES (absent ones NULL), and row counts of what is only counted."""

    def __init__(self, con: duckdb.DuckDBPyConnection, path: Path, work: Path, on_read: Callable[[int], None]) -> None:
        self._con, self._path, self._work, self._on_read = con, path, work, on_read
        self.columns: dict[str, set[str]] = {}
        self.counted: dict[str, int] = {}
        con.execute("CREATE SCHEMA nsys")
        con.execute(_MACROS)

    def open(self) -> None:
        """Create the views. Raises TraceError where the export is damaged or empty."""
        source = export_report(self._path, self._work) if self._path.suffix == ".nsys-rep" else self._path
        try:
            if source.is_dir():
                self._open_folder(source)
            else:
                self._open_sqlite(source)
        except (sqlite3.Error, AdbcError, pa.ArrowException, OSError, UnicodeDecodeError, duckdb.Error) as error:
            raise damaged(self._path.name, error) from error
        for table, wanted in TABLES.items():
            if table not in self.columns:
                none = ", ".join(f'NULL::{_TYPES[kind]} AS "{c}"' for c, kind in wanted.items())
                self._con.execute(f'CREATE VIEW nsys."{table}" AS SELECT {none} LIMIT 0')

    def has(self, table: str, *columns: str) -> bool:
        """Does the export have this table with these columns?"""
        return table in self.columns and set(columns) <= self.columns[table]

    def _view(self, table: str, scan: str) -> None:
        """One view with all wanted columns, typed alike whatever the export's types were."""
        found = {r[0]: r[1] for r in rows(self._con, f"DESCRIBE FROM {scan}")}
        if odd := next((c for c, kind in TABLES[table].items() if kind == "int" and c in found and not _NUMBER.fullmatch(found[c])), None):
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

    def _stage(self, table: str, batches: pa.RecordBatchReader) -> None:
        """Copy a stream of batches to Parquet and make its view; of StringIds only what rows of other tables refer to."""
        select = "FROM stream"
        if table == "StringIds" and {"id", "value"} <= set(batches.schema.names):
            if not pa.types.is_integer(kind := batches.schema.field("id").type):
                raise pa.ArrowInvalid(f"{table} with id as {kind}")
            uses = [f'SELECT "{c}" FROM nsys."{t}"' for t, cs in STRINGS_OF.items() if t in self.columns for c in cs]
            used = rows(self._con, f"SELECT DISTINCT * FROM ({' UNION ALL '.join(uses)}) AS use (id) WHERE id IS NOT NULL") if uses else []
            batches = _with_ids(batches, [r[0] for r in used])
            select = "SELECT id, min(value) AS value FROM stream GROUP BY id"
        stream = batches  # noqa: F841 (DuckDB finds it by name)
        self._con.execute(f"COPY ({select}) TO {_q(self._work / f'{table}.parquet')} (FORMAT parquet, COMPRESSION lz4_raw)")
        self._view(table, _scan(self._work, table))

    def _open_folder(self, folder: Path) -> None:
        found = {p.stem: p for p in sorted(folder.iterdir()) if p.suffix in {".parquet", ".arrow"} and p.is_file()}
        for table, wanted in TABLES.items():
            if table not in found:
                continue
            if found[table].suffix == ".parquet" and "text" not in wanted.values():
                self._view(table, _scan(folder, table))
            else:
                batches = _as_bytes(found[table], list(wanted))
                if batches.schema.names:
                    self._stage(table, batches)
            self._on_read(found[table].stat().st_size)
        for table in COUNTED:
            if table in found:
                self.counted[table] = _count(found[table])

    def _open_sqlite(self, file: Path) -> None:
        """Copy the wanted columns through ADBC in batches: DuckDB's own sqlite extension cannot be had offline."""
        uri = reading_uri(file)
        refuse_cut_off(file)
        probe = sqlite3.connect(uri, uri=True)
        try:
            refuse_damaged_pages(probe)
            present = {r[0] for r in probe.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            found = {t: {r[1] for r in probe.execute(f'PRAGMA table_info("{t}")')} & TABLES[t].keys() for t in TABLES if t in present}
            self.counted = {t: probe.execute(f'SELECT count(*) FROM "{t}"').fetchone()[0] for t in COUNTED if t in present}
        finally:
            probe.close()
        with adbc_driver_sqlite.dbapi.connect(uri) as source:
            for table, columns in found.items():
                if not columns:
                    continue
                select = ", ".join(_as_kind(c, kind) for c, kind in TABLES[table].items() if c in columns)
                with source.cursor() as cursor:
                    batch_rows = TEXT_ROWS if table == "StringIds" else BATCH_ROWS
                    cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": batch_rows})
                    cursor.execute(f'SELECT {select} FROM "{table}"')
                    self._stage(table, cursor.fetch_record_batch())
        self._on_read(file.stat().st_size)


def damaged(file: str, error: Exception) -> TraceError:
    """The refusal of an export that cannot be read. What an error quotes is cut off: it may be any text of the report.

    A full disk or a mistake of ours is no fault of the export: that error is raised as it is.
    """
    if isinstance(error, _OUR_FAULT) or "No space left" in str(error):
        raise error
    if isinstance(error, duckdb.OutOfMemoryException):
        return TraceError(
            file,
            where="reading the export",
            found="more at once than fits into the memory of a read (names of megabytes?)",
            wanted="names of kernels, calls and ranges of ordinary length",
            advice="Export a part of the report: nsys export --type=sqlite --times=START/END REPORT.nsys-rep",
        )
    if isinstance(error, duckdb.DataError):
        error = ValueError("a value that does not fit its column")
    if isinstance(error, UnicodeDecodeError):
        error = ValueError("a name of a table or column that is no text")
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    for quote in "\"'":
        said = said.split(quote, 1)[0]
    return TraceError(file, where="reading the export", found=said.strip(" :") or type(error).__name__, wanted="a whole nsys export", advice=_ADVICE)


def _with_ids(batches: pa.RecordBatchReader, ids: list[int]) -> pa.RecordBatchReader:
    """The rows of StringIds with one of these ids. What is left out is never copied: it may be larger than all that is read."""
    wanted = pa.array(ids, pa.int64()).cast(batches.schema.field("id").type, safe=False)
    return pa.RecordBatchReader.from_batches(batches.schema, (b.filter(pyarrow.compute.is_in(b.column("id"), value_set=wanted)) for b in batches))


def _as_kind(column: str, kind: Kind) -> str:
    # ADBC types a column by its first rows: a cast, and '' for NULL text, make every row of a column alike.
    if kind == "int":
        return f'CAST("{column}" AS INTEGER) AS "{column}"'
    return f'coalesce(CAST("{column}" AS BLOB), x\'\') AS "{column}"'


def _as_bytes(file: Path, wanted: list[str]) -> pa.RecordBatchReader:
    """The wanted columns of a Parquet or Arrow file as a stream, text as bytes."""
    schema = pyarrow.parquet.read_schema(file) if file.suffix == ".parquet" else next(_schemas(file))
    columns = [c for c in wanted if c in schema.names]
    if twice := [c for c in columns if schema.names.count(c) > 1]:
        raise pa.ArrowInvalid(f"{file.name} has the column {twice[0]} more than once")
    fields = [(c, pa.binary() if _is_text(schema.field(c).type) else schema.field(c).type) for c in columns]

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in _batches(file, columns):
            arrays = [batch.column(c) for c in columns]
            yield pa.record_batch([a.cast(t) if a.type != t else a for a, (_, t) in zip(arrays, fields, strict=True)], schema=pa.schema(fields))

    return pa.RecordBatchReader.from_batches(pa.schema(fields), batches())


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _schemas(file: Path) -> Iterator[pa.Schema]:
    with pa.OSFile(str(file), "rb") as source, pyarrow.ipc.open_stream(source) as reader:
        yield reader.schema


def _batches(file: Path, columns: list[str]) -> Iterable[pa.RecordBatch]:
    if file.suffix == ".parquet":
        with pyarrow.parquet.ParquetFile(file) as source:
            yield from source.iter_batches(batch_size=BATCH_ROWS, columns=columns)
    else:
        with pa.OSFile(str(file), "rb") as stream, pyarrow.ipc.open_stream(stream) as reader:
            for batch in reader:
                yield batch.select(columns)


def _count(file: Path) -> int:
    if file.suffix == ".parquet":
        return int(pyarrow.parquet.read_metadata(file).num_rows)
    return sum(batch.num_rows for batch in _batches(file, []))


def _scan(folder: Path, table: str) -> str:
    return f"read_parquet({files(folder, f'{table}.parquet')}, hive_partitioning = false)"


def _q(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
