"""Which reader a file needs, and which files are no traces."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.errors import SideFile, TraceError
from pipeline.sources.detect import reader_for, side_file_note
from pipeline.sources.kineto import read_kineto
from pipeline.sources.latency.reader import read_microbench
from pipeline.sources.nsys import read_nsys
from tests.support.builders import kernel, write_trace


@pytest.mark.parametrize("name", ["t.json", "t.json.gz", "no_suffix", "t.txt"])
def test_text_and_gzip_go_to_the_kineto_reader(tmp_path: Path, name: str) -> None:
    """Whatever its name, a file that is no other known format is tried as a Kineto trace."""
    assert reader_for(write_trace(tmp_path / name, [kernel("k", 1, 1)])) is read_kineto


@pytest.mark.parametrize(
    "name",
    [
        "profiler_out_0.txt",
        "capture.json",
        "run.toml",
        "t.sqlite-journal",
        "node7_99.async_llm.1759255878904894123.pt.trace.json.gz",
        "graph_capture_rank_3.1759255878904894123.pt.trace.json.gz",
    ],
)
def test_side_files_of_a_capture_are_named(tmp_path: Path, name: str) -> None:
    """A known side file is recognized by its name, with a note that describes it."""
    (tmp_path / name).write_text("whatever", encoding="utf-8")
    with pytest.raises(SideFile) as caught:
        reader_for(tmp_path / name)
    assert caught.value.note == side_file_note(name)
    assert caught.value.file == name


@pytest.mark.parametrize("name", ["rank0.json", "my_profiler_out_0.txt.json", "capture.json.gz", "llm.json"])
def test_other_names_are_no_side_files(name: str) -> None:
    """A name that only resembles a side file's is a trace."""
    assert side_file_note(name) is None


@pytest.mark.parametrize(
    ("name", "text"), [("t.csv", "op,bytes,us\n"), ("job.out", "mpirun\n#  size  count  type  time\n")]
)
def test_latency_tables_go_to_their_reader(tmp_path: Path, name: str, text: str) -> None:
    """A CSV by its name, nccl-tests' output by the line that names its columns."""
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert reader_for(tmp_path / name) is read_microbench


@pytest.mark.parametrize("name", ["t.sqlite", "t.json"])
def test_sqlite_goes_to_the_nsys_reader(tmp_path: Path, name: str) -> None:
    """An SQLite file is recognized by its bytes, whatever its name."""
    (tmp_path / name).write_bytes(b"SQLite format 3\0" + b"\0" * 84)
    assert reader_for(tmp_path / name) is read_nsys


@pytest.mark.parametrize("name", ["t.sqlite", "t.nsys-rep"])
def test_nsys_suffix_goes_to_the_nsys_reader(tmp_path: Path, name: str) -> None:
    """A report or an unfinished export is recognized by its suffix, so that nsys's reader says what is wrong
    with it."""
    (tmp_path / name).write_bytes(b"\x01\x02")
    assert reader_for(tmp_path / name) is read_nsys


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_export_folder_goes_to_the_nsys_reader(tmp_path: Path, form: str) -> None:
    """A folder that nsys exported is one report."""
    (tmp_path / f"StringIds.{form}").write_bytes(b"")
    assert reader_for(tmp_path) is read_nsys


def test_report_beside_its_export_is_a_side_file(tmp_path: Path) -> None:
    """If a report and a fresh export of it are together, the export is read and the report is not."""
    (tmp_path / "t.nsys-rep").write_bytes(b"\x01")
    (tmp_path / "t.sqlite").write_bytes(b"SQLite format 3\0")
    os.utime(tmp_path / "t.nsys-rep", (1, 1))
    with pytest.raises(SideFile, match=r"t\.sqlite beside it"):
        reader_for(tmp_path / "t.nsys-rep")


def test_report_newer_than_its_export_is_read(tmp_path: Path) -> None:
    """An export that is older than its report belongs to another recording."""
    (tmp_path / "t.nsys-rep").write_bytes(b"\x01")
    (tmp_path / "t.sqlite").write_bytes(b"SQLite format 3\0")
    os.utime(tmp_path / "t.sqlite", (1, 1))
    assert reader_for(tmp_path / "t.nsys-rep") is read_nsys


@pytest.mark.parametrize("text", [b"not a trace", b"\0" * 100_000, b"  server.log: No space left on device"])
def test_text_that_cannot_be_a_trace_is_refused_by_its_first_bytes(tmp_path: Path, text: bytes) -> None:
    """A file of any size is not even hashed."""
    (tmp_path / "t.json").write_bytes(text)
    with pytest.raises(TraceError, match="start of the file"):
        reader_for(tmp_path / "t.json")
