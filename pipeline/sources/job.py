"""What a reader is asked to do: one file, where its tables go, and what it may use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MAX_BYTES = 64 * 10**9
"""Limit of a file's decompressed bytes, unless a command says another: a bomb must not fill the disk."""


@dataclass(frozen=True)
class ReadJob:
    """One file to read. The reader writes `<table>.parquet` for every raw contract into `out`; `work` is
    scratch.

    `path` shows the file alone, under its own name; `folder` is where it lies, if not there: the names beside
    it may be looked at, never opened. `salvage`: of a truncated file, keep what is complete; otherwise it is
    an UnfinishedFile.
    """

    path: Path
    file_name: str
    file_id: str
    file_bytes: int
    sha256: str
    run_name: str
    out: Path
    work: Path
    threads: int = 2
    memory_limit: str = "256MB"
    on_read: Callable[[int], None] = lambda _bytes: None
    salvage: bool = False
    max_bytes: int = MAX_BYTES
    folder: Path | None = None

    @property
    def place(self) -> Path:
        """Where the file lies."""
        return self.path if self.folder is None else self.folder / self.path.name
