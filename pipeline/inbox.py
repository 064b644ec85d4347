"""The inbox: which files wait, which run they belong to, whether they are finished; archive or quarantine afterwards."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from pipeline import __version__
from pipeline.atomic import move_file, write_file
from pipeline.errors import StepledgerError, TraceError
from pipeline.home import Home
from pipeline.sources import names
from pipeline.sources.detect import fresh_export, is_report_folder

SETTLE_SECONDS = 5
UNNAMED = "unnamed"
_UNFINISHED = (".tmp", ".part", ".partial", ".crdownload")


@dataclass(frozen=True)
class Waiting:
    """One file to read and the run it belongs to; `place` is its path below the archive or quarantine."""

    path: Path
    run_name: str
    place: Path


def waiting(inbox: Path) -> list[Waiting]:
    """Files in the inbox, by run: a sub-folder names the run, loose files are one run by name minus rank and time."""
    found = []
    for entry in sorted(inbox.iterdir()) if inbox.is_dir() else []:
        if _is_hidden(entry):
            continue
        if entry.is_dir() and not entry.is_symlink() and not is_report_folder(entry):
            found += [Waiting(p, entry.name, p.relative_to(inbox)) for p in _files(entry)]
        else:
            run = run_name_of(entry.name)
            found.append(Waiting(entry, run, Path(run) / entry.name))
    return _stale_exports_first(found)


def named(paths: list[Path], run: str | None) -> list[Waiting]:
    """Files outside the inbox: a folder is a run, loose files are grouped by name, `run` overrides both."""
    found = []
    for path in paths:
        if path.is_dir() and not is_report_folder(path):
            found += [Waiting(p, run or path.resolve().name, p) for p in _files(path)]
        else:
            found.append(Waiting(path, run or run_name_of(path.name), path))
    return _stale_exports_first(found)


def _stale_exports_first(items: list[Waiting]) -> list[Waiting]:
    """An nsys report is read after an export of it that is older, so that the report is still there to say so."""
    return sorted(items, key=lambda item: item.path.suffix == ".nsys-rep" and fresh_export(item.path) is None)


def run_name_of(file_name: str) -> str:
    """The run that a loose file belongs to: its name without rank and time fields."""
    return names.from_file_name(re.sub(r"_(pqtdir|arwdir)$", "", file_name)).run or UNNAMED


def _files(folder: Path) -> Iterator[Path]:
    """Files below a folder; a folder that is one nsys export counts as one."""
    for path in sorted(folder.iterdir()):
        if _is_hidden(path):
            continue
        if path.is_dir() and not path.is_symlink() and not is_report_folder(path):
            yield from _files(path)
        else:
            yield path


def _is_hidden(path: Path) -> bool:
    return path.name.startswith(".")


def not_settled(path: Path) -> str | None:
    """Why a file in the inbox is left alone for now: it looks as if somebody were still writing it."""
    if path.suffix in _UNFINISHED:
        return f"{path.suffix} marks an unfinished copy"
    try:
        inside = path.rglob("*") if path.is_dir() else ()
        age = time.time() - max(p.lstat().st_mtime for p in (path, *inside))
    except FileNotFoundError:
        return "it was taken away"
    if 0 <= age < SETTLE_SECONDS:
        return f"changed {age:.0f} s ago; run again when it has been still for {SETTLE_SECONDS} s"
    return None


def archive(home: Home, item: Waiting) -> Path:
    """Move a file that was read (or a side file) to the archive."""
    moved = move_file(item.path, home.archive / item.place)
    _drop_empty_folders(home.inbox, item.path.parent)
    return moved


def quarantine(home: Home, item: Waiting, error: StepledgerError) -> Path:
    """Move a file that could not be read to the quarantine, with the reason beside it."""
    moved = move_file(item.path, home.quarantine / item.place)
    reason: dict[str, Any] = {
        "file": item.place.as_posix(),
        "run": item.run_name,
        "error": str(error),
        "stepledger_version": __version__,
        "quarantined_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if isinstance(error, TraceError):
        reason |= {"where": error.where, "found": error.found, "wanted": error.wanted, "advice": error.advice}
    text = orjson.dumps(reason, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    write_file(moved.with_name(f"{moved.name}.reason.json"), text)
    _drop_empty_folders(home.inbox, item.path.parent)
    return moved


def _drop_empty_folders(inbox: Path, folder: Path) -> None:
    """Up from `folder` to the inbox, until one still holds something (or has been given something meanwhile)."""
    with suppress(OSError):
        while inbox in folder.parents:
            folder.rmdir()
            folder = folder.parent
