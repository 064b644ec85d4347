"""Which reader a file needs, by its content; and which files are no traces but belong to a capture."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from pipeline.errors import SideFile, TraceError
from pipeline.sources.job import ReadJob
from pipeline.sources.microbench import SNIFF_BYTES, is_table, read_microbench
from pipeline.sources.nsys.report import exports_of

_SQLITE = b"SQLite format 3\0"
_NO_FILES = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
_SIDE_FILES = (
    (re.compile(r"^profiler_out_\d+\.txt$"), "torch's key_averages table of a capture; its trace says the same and more"),
    (re.compile(r"^capture\.json$"), "notes on a capture"),
    (re.compile(r"^run\.toml$"), "facts about a run"),
    (re.compile(r"\.async_llm\."), "the trace of vLLM's front-end process: CPU only, no GPU work"),
    (re.compile(r"\.sqlite-(?:wal|shm)$"), "a write-ahead log of the .sqlite beside it, which is refused while the log holds rows"),
    (re.compile(r"\.sqlite-journal$"), "left behind by an interrupted export; the .sqlite beside it is refused"),
    (re.compile(r"^graph_capture_rank_\d+\."), "a trace of CUDA graph capture, not of serving"),
)


def side_file_note(name: str) -> str | None:
    """What a known side file is, by its name; None for a file that should be a trace."""
    return next((note for pattern, note in _SIDE_FILES if pattern.search(name)), None)


def is_report_folder(path: Path) -> bool:
    """Is this folder one nsys export (parquetdir, arrowdir), not a run of several files?"""
    return any(os.path.isfile(path / f"StringIds.{form}") for form in ("parquet", "arrow"))  # noqa: PTH113 - no error where a folder is closed


def fresh_export(report: Path) -> Path | None:
    """An export beside an nsys report that is not older than the report; None for any other file."""
    if report.suffix != ".nsys-rep" or not report.is_file():
        return None
    return next((p for p in exports_of(report) if p.stat().st_mtime >= report.stat().st_mtime), None)


# Readers are imported when a file needs them: each brings libraries that commands which only look at names should not load.


def _kineto() -> Callable[[ReadJob], None]:
    from pipeline.sources.kineto import read_kineto

    return read_kineto


def _nsys() -> Callable[[ReadJob], None]:
    from pipeline.sources.nsys import read_nsys

    return read_nsys


def reader_for(path: Path) -> Callable[[ReadJob], None]:
    """The reader of `path`. Raises SideFile for a known side file, TraceError for what no reader can read."""
    try:
        mode = path.stat().st_mode
        if is_report_folder(path):
            return _nsys()
        if not stat.S_ISREG(mode):  # before anything opens it: a pipe would wait for a writer
            if stat.S_ISDIR(mode):
                next(path.iterdir(), None)
            raise TraceError(
                path.name,
                where="the path",
                found=f"{_NO_FILES.get(stat.S_IFMT(mode), 'something')}, which is no regular file",
                wanted="a trace file",
                advice="Name the trace files, or the folder that holds them.",
            )
        if note := side_file_note(path.name):
            raise SideFile(path.name, note)
        if export := fresh_export(path):
            raise SideFile(path.name, f"the report that {export.name} beside it was exported from; the export is read")
        with path.open("rb") as file:
            start = file.read(SNIFF_BYTES)
    except OSError as error:
        raise TraceError(
            path.name, where="opening it", found=error.strerror or str(error), wanted="a readable file", advice="Check its permissions."
        ) from error
    if start.startswith(_SQLITE) or path.suffix in {".sqlite", ".nsys-rep"}:
        return _nsys()
    if is_table(path.name, start):
        return read_microbench
    return _kineto()
