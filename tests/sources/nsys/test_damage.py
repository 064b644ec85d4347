"""Unreliable exports are refused with a sentence that says what to do, never with a traceback."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet
import pytest

from pipeline.errors import SideFile, TraceError
from pipeline.sources.detect import reader_for
from pipeline.sources.nsys.export import damaged
from tests.support.builders import raw_rows
from tests.support.nsys_builders import (
    Process,
    Report,
    read_report,
    tables_of,
    two_ranks,
    write,
    write_parquetdir,
    write_sqlite,
)


def _export(folder: Path, form: str = "sqlite", name: str = "report") -> Path:
    return write(folder, tables_of(two_ranks()), form, name)


def _aged(path: Path, seconds: int) -> Path:
    os.utime(path, (1_700_000_000 - seconds,) * 2)
    return path


def _refusal(path: Path, folder: Path) -> TraceError:
    with pytest.raises(TraceError) as refused:
        read_report(path, folder)
    return refused.value


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    """A --tables filter that matches nothing writes a file of no bytes and reports success."""
    path = tmp_path / "report.sqlite"
    path.touch()
    error = _refusal(path, tmp_path)
    assert error.found == "an empty file"
    assert "--tables" in error.advice


def test_a_journal_beside_the_file_is_refused(tmp_path: Path) -> None:
    """An interrupted export leaves its journal: the tables may be half written."""
    path = _export(tmp_path)
    (tmp_path / "report.sqlite-journal").write_bytes(b"x")
    error = _refusal(path, tmp_path)
    assert "report.sqlite-journal" in error.found
    assert "export the report again" in error.advice


def test_a_log_beside_the_file_is_refused_where_it_holds_rows(tmp_path: Path) -> None:
    """Reading takes no lock and sees no log: its rows would be missing. An empty log holds nothing."""
    path = _export(tmp_path)
    log = tmp_path / "report.sqlite-wal"
    log.touch()
    read_report(path, tmp_path / "empty")
    log.write_bytes(b"x")
    error = _refusal(path, tmp_path)
    assert error.found == "report.sqlite-wal, which holds rows that are not in the file"
    assert "sqlite3 report.sqlite 'PRAGMA wal_checkpoint(TRUNCATE)'" in error.advice


@pytest.mark.parametrize(
    ("form", "name"),
    [("sqlite", "report.sqlite"), ("parquetdir", "report_pqtdir"), ("arrowdir", "report_arwdir")],
)
def test_an_export_older_than_its_report_is_refused(tmp_path: Path, form: str, name: str) -> None:
    """The report was recorded again after this export: the refusal gives the command that exports it."""
    path = _aged(_export(tmp_path, form), 60)
    assert path.name == name
    (tmp_path / "report.nsys-rep").touch()
    error = _refusal(path, tmp_path)
    assert error.found == "report.nsys-rep, which is newer than this export of it"
    assert "nsys export --type=sqlite --force-overwrite=true report.nsys-rep" in error.advice


@pytest.mark.parametrize("form", ["sqlite", "parquetdir", "arrowdir"])
def test_a_report_beside_a_fresh_export_is_skipped_with_a_note(tmp_path: Path, form: str) -> None:
    """Both hold the same: the export is read, the report is no second trace."""
    report = tmp_path / "report.nsys-rep"
    report.write_bytes(b"x")
    _aged(report, 60)
    path = _aged(_export(tmp_path, form), 0)
    with pytest.raises(SideFile, match=f"{path.name} beside it"):
        reader_for(report)
    read_report(path, tmp_path)
    assert raw_rows(tmp_path, "trace", "count(*)") == [(2,)]


def test_a_file_that_is_no_sqlite_is_refused(tmp_path: Path) -> None:
    """A .sqlite of other bytes is reported as damaged, with the command to export it again."""
    path = tmp_path / "report.sqlite"
    path.write_bytes(b"{}" * 5_000)
    error = _refusal(path, tmp_path)
    assert error.found == "file is not a database"
    assert "nsys export" in error.advice


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    """A sqlite file without nsys's tables lacks the minimum, which the message names."""
    tables = tables_of(two_ranks())
    error = _refusal(write_sqlite(tmp_path / "other.sqlite", {"PROCESSES": tables["PROCESSES"]}), tmp_path)
    assert error.found == "no StringIds"


@pytest.mark.parametrize("at", [0.1, 0.4, 0.7])
@pytest.mark.parametrize("form", ["sqlite", "parquet"])
def test_damaged_bytes_are_refused_or_harmless(tmp_path: Path, form: str, at: float) -> None:
    """Garbage in the middle of a file is refused as damage, or hits nothing that is read; there is no other
    outcome."""
    tables = tables_of(two_ranks(30))
    path = (
        write_sqlite(tmp_path / "report.sqlite", tables)
        if form == "sqlite"
        else write_parquetdir(tmp_path / "report_pqtdir", tables)
    )
    file = path if form == "sqlite" else path / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    data = bytearray(file.read_bytes())
    middle = int(len(data) * at)
    data[middle : middle + 400] = b"\xa5" * 400
    file.write_bytes(data)
    try:
        read_report(path, tmp_path)
    except TraceError as error:
        assert error.wanted  # noqa: PT017 (either outcome is right)


@pytest.mark.parametrize("form", ["parquetdir", "arrowdir"])
@pytest.mark.parametrize("table", ["CUPTI_ACTIVITY_KIND_KERNEL", "StringIds", "NVTX_EVENTS"])
def test_a_truncated_file_of_a_folder_is_refused(tmp_path: Path, form: str, table: str) -> None:
    """A copy that broke off in one file of the folder makes the report damaged."""
    folder = _export(tmp_path, form)
    (file,) = folder.glob(f"{table}.*")
    file.write_bytes(file.read_bytes()[:-200])
    assert _refusal(folder, tmp_path).wanted == "a whole nsys export"


def test_a_truncated_database_is_refused(tmp_path: Path) -> None:
    """A copy that broke off is damage."""
    path = write_sqlite(tmp_path / "report.sqlite", tables_of(two_ranks(50)))
    path.write_bytes(path.read_bytes()[:-300])
    assert "the file is truncated" in _refusal(path, tmp_path).found


@pytest.mark.parametrize("name", ["a [1]*?#%41 'x'"])
@pytest.mark.parametrize("form", ["sqlite", "parquetdir", "arrowdir"])
def test_a_name_with_special_characters_is_read(tmp_path: Path, form: str, name: str) -> None:
    """No character of a path is a pattern, a query or a quote."""
    folder = tmp_path / "it's [0-9] *"
    read_report(_export(folder, form, name), folder)
    landed = list(folder.rglob("gpu_activity.parquet"))
    assert [pyarrow.parquet.read_metadata(p).num_rows for p in landed] == [24]


def test_an_error_quotes_nothing_of_the_report(tmp_path: Path) -> None:
    """A library's error quotes a bad value, which may be a secret: the quoted part is removed."""
    tables = tables_of(Report([Process(1)]).step(1_000_000, 1))
    tables["CUPTI_ACTIVITY_KIND_RUNTIME"].columns[0] = type(tables["StringIds"].columns[0])(
        "start", "t", False
    )
    for row in tables["CUPTI_ACTIVITY_KIND_RUNTIME"].rows:
        row["start"] = "hunter2"
    error = _refusal(write_parquetdir(tmp_path / "report_pqtdir", tables), tmp_path)
    assert "hunter2" not in str(error)
    assert error.wanted == "a whole nsys export"


@pytest.mark.parametrize("form", ["parquetdir", "arrowdir"])
def test_unused_strings_of_megabytes_take_no_memory_of_a_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """A report holds command lines and environments: what nothing refers to is not copied."""
    monkeypatch.setattr("pipeline.sources.nsys.reader._MEMORY_LIMIT", "40MB")
    tables = tables_of(two_ranks())
    tables["StringIds"].rows += [{"id": 1_000_000 + n, "value": f"{n}" * 1_000_000} for n in range(10, 60)]
    read_report(write(tmp_path, tables, form), tmp_path)
    assert raw_rows(tmp_path, "gpu_activity", "count(*)") == [(24,)]


@pytest.mark.parametrize(
    "error", [pa.ArrowInvalid, ValueError, duckdb.InvalidInputException, duckdb.IOException]
)
def test_words_of_a_full_disk_in_a_report_are_damage(error: type[Exception]) -> None:
    """An error may quote the report, and a report may hold any words."""
    assert (
        damaged("report.sqlite", error(f"{os.strerror(errno.ENOSPC)} in a name")).wanted
        == "a whole nsys export"
    )


def test_a_full_disk_is_no_fault_of_the_report() -> None:
    """The errno shows it, of the error or of its cause."""
    cause = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    error = pa.ArrowInvalid("x")
    error.__cause__ = cause
    for raised in (cause, error):
        with pytest.raises(type(raised)):
            damaged("report.sqlite", raised)


@pytest.mark.parametrize("error", [MemoryError, pa.ArrowMemoryError, duckdb.OutOfMemoryException])
def test_too_much_for_the_memory_is_told_from_damage(error: type[Exception]) -> None:
    """The advice is to export a part."""
    assert "--times=START/END" in damaged("report.sqlite", error("x")).advice
