"""The reader of a file, by its content; and side files: not traces, but part of a capture."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from pipeline.errors import SideFile
from pipeline.sources.job import ReadJob
from pipeline.sources.latency.reader import SNIFF_BYTES, is_table, read_microbench
from pipeline.sources.nsys.report import exports_of

_SQLITE = b"SQLite format 3\0"
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
"""First bytes of gzip and zstd."""
_SIDE_FILES = (
    (
        re.compile(r"^profiler_out_\d+\.txt$"),
        "torch's key_averages table of a capture; the trace has the same data and more",
    ),
    (re.compile(r"^capture\.json$"), "notes on a capture"),
    (re.compile(r"^run\.toml$"), "facts about a run"),
    (re.compile(r"\.async_llm\."), "the trace of vLLM's front-end process: CPU only, no GPU work"),
    (
        re.compile(r"\.sqlite-(?:wal|shm)$"),
        "a write-ahead log of the .sqlite beside it, which is refused while the log holds rows",
    ),
    (
        re.compile(r"\.sqlite-journal$"),
        "left by an interrupted export; the .sqlite beside it is refused",
    ),
    (re.compile(r"^graph_capture_rank_\d+\."), "a trace of CUDA graph capture, not of serving"),
)


def side_file_note(name: str) -> str | None:
    """Description of a known side file, by its name; None for a file that should be a trace."""
    return next((note for pattern, note in _SIDE_FILES if pattern.search(name)), None)


def is_report_folder(path: Path) -> bool:
    """Is this folder one nsys export (parquetdir, arrowdir), and not a run of several files?"""
    return any(os.path.isfile(path / f"StringIds.{form}") for form in ("parquet", "arrow"))  # noqa: PTH113 - no error for a folder without permission


def fresh_export(report: Path) -> Path | None:
    """An export beside an nsys report that is not older than the report; None for any other file."""
    if report.suffix != ".nsys-rep":
        return None
    try:
        made_ns = report.stat().st_mtime_ns
        return next((p for p in exports_of(report) if p.stat().st_mtime_ns >= made_ns), None)
    except OSError:  # removed, or in a folder without permission
        return None


# Readers are imported when a file needs them: other commands do not load their libraries.


def _kineto() -> Callable[[ReadJob], None]:
    from pipeline.sources.kineto import read_kineto

    return read_kineto


def _nsys() -> Callable[[ReadJob], None]:
    from pipeline.sources.nsys import read_nsys

    return read_nsys


def reader_for(path: Path, folder: Path | None = None) -> Callable[[ReadJob], None]:
    """The reader of a regular file, or of a folder that is one export.

    `folder` is the folder that it was dropped in, if `path` is elsewhere. Raises SideFile for a known side
    file, TraceError for a file that no reader can read.
    """
    if is_report_folder(path):
        return _nsys()
    if note := side_file_note(path.name):
        raise SideFile(path.name, note)
    if export := fresh_export((folder or path.parent) / path.name):
        raise SideFile(
            path.name, f"the report that {export.name} beside it was exported from; the export is read"
        )
    with path.open("rb") as file:
        start = file.read(SNIFF_BYTES)
    if start.startswith(_SQLITE) or path.suffix in {".sqlite", ".nsys-rep"}:
        return _nsys()
    if is_table(path.name, start):
        return read_microbench
    if (
        not start.startswith(_COMPRESSED)
        and (text := start.removeprefix(b"\xef\xbb\xbf").lstrip())
        and text[:1] not in (b"{", b"[")
    ):
        from pipeline.sources.kineto.header import no_events

        raise no_events(path.name, start)  # before a file of any size is hashed
    return _kineto()
