"""The resources that a home's work may take: settings.toml in the home, overridden by the command line."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from pipeline.errors import UsageError
from pipeline.lake.home import Home

SETTINGS_TOML = "settings.toml"
READ_MEMORY = "256MB"
"""DuckDB's memory for reading one file: more would not make it faster."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(MB|GB|TB|MiB|GiB|TiB)")
_UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@dataclass(frozen=True)
class Settings:
    """`memory_limit` bounds DuckDB in one worker, so all workers together take `workers` times as much;
    beyond it DuckDB spills to files under `spill` (None: in the lake's staging folder)."""

    workers: int
    memory_limit: str = "1GB"
    spill: Path | None = None

    @property
    def threads(self) -> int:
        """Threads of one worker: the machine's cores, shared."""
        return max(1, (os.cpu_count() or 1) // self.workers)

    @property
    def read_memory(self) -> str:
        """DuckDB's memory while it reads one file."""
        return min(self.memory_limit, READ_MEMORY, key=size_bytes)


def size_bytes(text: str) -> float:
    """Bytes of a size like 512MB or 4GiB. Raises UsageError."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is not a size; write it as 512MB, 4GB or 4GiB")
    return float(found[1]) * _UNITS[found[2]]


def load_settings(home: Home, *, workers: int | None = None, memory_limit: str | None = None) -> Settings:
    """The settings in force. Raises UsageError for an invalid settings.toml or value."""
    given = _read(home.root / SETTINGS_TOML)
    if workers is not None:
        given["workers"] = workers
    if memory_limit is not None:
        given["memory_limit"] = memory_limit
    found = Settings(workers=os.cpu_count() or 1)
    for key, value in given.items():
        if key == "workers" and isinstance(value, int) and not isinstance(value, bool) and value > 0:
            found = replace(found, workers=value)
        elif key == "memory_limit" and isinstance(value, str):
            size_bytes(value)
            found = replace(found, memory_limit=value)
        elif key == "spill" and isinstance(value, str):
            found = replace(
                found, spill=_usable((home.root / value).absolute())
            )  # workers have other current folders
        else:
            raise UsageError(
                f"{SETTINGS_TOML}: {key} = {value!r} is not valid; valid are e.g. workers = 4, "
                'memory_limit = "2GB", spill = "folder"'
            )
    return found


def _usable(spill: Path) -> Path:
    """The folder, made if it is missing. Raises UsageError where it cannot be made or written."""
    try:
        spill.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=spill):
            return spill
    except OSError as error:
        raise UsageError(
            f"{SETTINGS_TOML}: spill: {spill} cannot be written: {error.strerror}. Name a folder that can."
        ) from error


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{SETTINGS_TOML}: not valid TOML: {error}") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}. Check its permissions.") from error
