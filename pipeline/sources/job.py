"""The task of a reader: one file, the folder for its tables, and its resources."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MAX_BYTES = 64 * 10**9
"""Default limit of a file's decompressed bytes: a decompression bomb must not fill the disk."""


@dataclass(frozen=True)
class ReadJob:
    """One file to read. The reader writes `<table>.parquet` for every raw contract into `out`.

    `work` is a scratch folder. `path` is the file alone in a folder, under its own name; `folder` is the
    folder that it was dropped in, if another: a reader may look at the names there but not open them.
    `salvage`: keep the complete events of a truncated file, which is otherwise an UnfinishedFile.
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
        """The file in the folder that it was dropped in."""
        return self.path if self.folder is None else self.folder / self.path.name
