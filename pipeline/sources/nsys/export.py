"""An nsys export as DuckDB views of one shape, whatever its form: sqlite, a folder of Parquet, or a folder of Arrow streams."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import adbc_driver_sqlite.dbapi
import duckdb
import pyarrow as pa
import pyarrow.ipc
from adbc_driver_manager import Error as AdbcError

from pipeline.duck import literal, rows
from pipeline.errors import TraceError
from pipeline.sources.nsys.columns import COUNTED, STRINGS_OF, TABLES, Kind

BATCH_ROWS = 65_536
_ADVICE = "Export the report again: nsys export --type=sqlite --force-overwrite=true REPORT.nsys-rep"

_MACROS = """
CREATE TEMP MACRO signed(x) AS
    CASE WHEN x::HUGEINT > 9223372036854775807 THEN (x::HUGEINT - 18446744073709551616)::BIGINT ELSE x::BIGINT END;
CREATE TEMP MACRO process_key(g) AS g & -16777216;
CREATE TEMP MACRO pid_of(g) AS (g >> 24) & 16777215;
CREATE TEMP MACRO tid_of(g) AS g & 16777215;
"""
"""globalTid: 16 bits of host and VM, 24 of pid, 24 of tid; globalPid has no tid. Two containers may share a pid, so a
process is known by all bits but the tid's. Masks make the sign of a 64-bit id harmless."""


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
        if self._path.is_dir():
            self._open_folder(self._path)
        elif self._path.suffix == ".nsys-rep":
            self._open_folder(export_report(self._path, self._work))
        else:
            self._open_sqlite()

    def has(self, table: str, *columns: str) -> bool:
        """Does the export have this table with these columns?"""
        return table in self.columns and set(columns) <= self.columns[table]

    def _view(self, table: str, source: str, found: dict[str, str]) -> None:
        """One view with all wanted columns, typed alike whatever the export's types were."""
        wanted = TABLES[table]
        parts = []
        for column, kind in wanted.items():
            if column not in found:
                parts.append(f'NULL::{"BIGINT" if kind == "int" else "VARCHAR"} AS "{column}"')
            elif kind == "text":
                parts.append(f'nullif("{column}"::VARCHAR, \'\') AS "{column}"')
            elif found[column] in {"UBIGINT", "HUGEINT"}:
                parts.append(f'signed("{column}") AS "{column}"')
            else:
                parts.append(f'"{column}"::BIGINT AS "{column}"')
        self._con.execute(f'CREATE VIEW nsys."{table}" AS SELECT {", ".join(parts)} FROM {source}')
        self.columns[table] = set(found)

    def _finish(self) -> None:
        for table, wanted in TABLES.items():
            if table not in self.columns:
                none = ", ".join(f'NULL::{"BIGINT" if kind == "int" else "VARCHAR"} AS "{c}"' for c, kind in wanted.items())
                self._con.execute(f'CREATE VIEW nsys."{table}" AS SELECT {none} LIMIT 0')

    def _open_folder(self, folder: Path) -> None:
        files = {p.stem: p for p in sorted(folder.iterdir()) if p.suffix in {".parquet", ".arrow"}}
        try:
            for table in TABLES:
                if table not in files:
                    continue
                path = files[table] if files[table].suffix == ".parquet" else self._arrow_to_parquet(table, files[table])
                scan = f"read_parquet({literal(path)}, hive_partitioning = false)"
                self._view(table, scan, {r[0]: r[1] for r in rows(self._con, f"DESCRIBE FROM {scan}")})
                self._on_read(files[table].stat().st_size)
            for table in COUNTED:
                if table in files and files[table].suffix == ".parquet":
                    self.counted[table] = rows(self._con, f"SELECT count(*) FROM read_parquet({literal(files[table])})")[0][0]
                elif table in files:
                    self.counted[table] = sum(batch.num_rows for batch in _arrow_batches(files[table]))
        except (duckdb.Error, pa.ArrowException) as error:
            raise self._damaged(str(error)) from error
        self._finish()

    def _arrow_to_parquet(self, table: str, file: Path) -> Path:
        target = self._work / f"{table}.parquet"
        with pa.OSFile(str(file), "rb") as source, pyarrow.ipc.open_stream(source) as reader:
            stream = pa.RecordBatchReader.from_batches(reader.schema, reader)  # noqa: F841 (DuckDB finds it by name)
            self._con.execute(f"COPY (FROM stream) TO {literal(target)} (FORMAT parquet, COMPRESSION lz4_raw)")
        return target

    def _open_sqlite(self) -> None:
        """Copy the wanted columns through ADBC in batches: DuckDB's own sqlite extension cannot be had offline."""
        uri = f"file:{_uri(self._path)}?mode=ro&immutable=1"
        try:
            probe = sqlite3.connect(uri, uri=True)
            try:
                present = [r[0] for r in probe.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
                found = {t: [r[1] for r in probe.execute(f'PRAGMA table_info("{t}")')] for t in present if t in TABLES}
                self.counted = {t: probe.execute(f'SELECT count(*) FROM "{t}"').fetchone()[0] for t in present if t in COUNTED}
            finally:
                probe.close()
            with adbc_driver_sqlite.dbapi.connect(uri) as source:
                for table, columns in found.items():
                    self._copy(source, table, [c for c in TABLES[table] if c in columns], found)
        except (sqlite3.Error, AdbcError) as error:
            raise self._damaged(str(error)) from error
        self._on_read(self._path.stat().st_size)
        self._finish()

    def _copy(self, source: adbc_driver_sqlite.dbapi.Connection, table: str, columns: list[str], found: dict[str, list[str]]) -> None:
        kinds = TABLES[table]
        select = ", ".join(_as_kind(c, kinds[c]) for c in columns)
        where = _only_referenced(found) if table == "StringIds" else ""
        target = self._work / f"{table}.parquet"
        with source.cursor() as cursor:
            cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": BATCH_ROWS})
            cursor.execute(f'SELECT {select} FROM "{table}" {where}')
            stream = cursor.fetch_record_batch()  # noqa: F841 (DuckDB finds it by name)
            self._con.execute(f"COPY (FROM stream) TO {literal(target)} (FORMAT parquet, COMPRESSION lz4_raw)")
        scan = f"read_parquet({literal(target)}, hive_partitioning = false)"
        self._view(table, scan, {r[0]: r[1] for r in rows(self._con, f"DESCRIBE FROM {scan}")})

    def _damaged(self, error: str) -> TraceError:
        return TraceError(self._path.name, where="reading the export", found=error.splitlines()[0], wanted="a whole nsys export", advice=_ADVICE)


def _as_kind(column: str, kind: Kind) -> str:
    # ADBC types a column by its first rows: a cast, and '' for NULL text, make every row of a column alike.
    if kind == "int":
        return f'CAST("{column}" AS INTEGER) AS "{column}"'
    return f'coalesce(CAST("{column}" AS TEXT), \'\') AS "{column}"'


def _only_referenced(found: dict[str, list[str]]) -> str:
    uses = [f'SELECT "{c}" FROM "{t}"' for t, cs in STRINGS_OF.items() for c in cs if c in found.get(t, [])]
    return f"WHERE id IN ({' UNION '.join(uses)})" if uses else "WHERE false"


def _uri(path: Path) -> str:
    return str(path.resolve()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _arrow_batches(file: Path) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(file), "rb") as source, pyarrow.ipc.open_stream(source) as reader:
        yield from reader


def export_report(report: Path, work: Path) -> Path:
    """Export a .nsys-rep with the nsys on PATH, as Parquet where that nsys can. Raises TraceError that gives the command."""
    nsys = shutil.which("nsys")
    command = f"nsys export --type=sqlite --force-overwrite=true {report.name}"
    if nsys is None:
        raise TraceError(
            report.name,
            where="the file",
            found="a report in nsys's own format, and no nsys on PATH",
            wanted="an export of it",
            advice=f"Run `{command}` where nsys is installed, and hand in the .sqlite (newer nsys reads older reports, not the reverse).",
        )
    said = ""
    for form, name in (("parquetdir", "report_pqtdir"), ("arrowdir", "report_arwdir")):
        target = work / name
        done = subprocess.run(  # noqa: S603 (the report's own tool, found on PATH)
            [nsys, "export", f"--type={form}", "--force-overwrite=true", f"--output={target}", str(report)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0 and any(target.glob("*")):
            return target
        said = ((done.stderr or done.stdout).strip() or f"exit code {done.returncode}").splitlines()[-1]
    raise TraceError(
        report.name,
        where="nsys export",
        found=f"a failure: {said}",
        wanted="an export of the report",
        advice=f"Try `{command}` by hand with the nsys version that recorded it, or a newer one.",
    )
