"""The inbox: which files wait, which run they belong to, whether they are finished; archive or quarantine afterwards."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import orjson

from pipeline import __version__
from pipeline.atomic import free_name, move_file, write_file
from pipeline.errors import SideFile, StepledgerError, TraceError, UsageError
from pipeline.home import Home
from pipeline.sources import names
from pipeline.sources.detect import fresh_export, is_report_folder
from pipeline.sources.names import as_text

SETTLE_SECONDS = 5
"""A file that changed since then is not read."""
STALL_SECONDS = 60
"""A file without its end is a copy under way while it changed since then; afterwards it is a cut file."""
_NAME_BYTES = 200
"""Longest name of a reason's file, before its suffix: it is written aside under an even longer one, and 255 is the limit."""
_REASON = ".reason.json"
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
        if _holds_files(entry):
            found += [Waiting(p, entry.name, p.relative_to(inbox)) for p in _files(entry)]
        else:
            run = run_name_of(entry.name)
            found.append(Waiting(entry, run, Path(run) / entry.name))
    return _stale_exports_first(found)


def named(paths: list[Path], run: str | None) -> list[Waiting]:
    """Files outside the inbox: a folder is a run, loose files are grouped by name, `run` overrides both."""
    found = []
    for path in paths:
        if os.path.isdir(path) and not is_report_folder(path):  # noqa: PTH112
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
    """Files below a folder; a folder that is one nsys export counts as one, and so does one that cannot be opened."""
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        entries = []
        yield folder  # its reader says why
    for path in entries:
        if _is_hidden(path):
            continue
        if _holds_files(path):
            yield from _files(path)
        else:
            yield path


def _holds_files(path: Path) -> bool:
    """Is it a folder of files, neither a link nor one nsys export?"""
    return _is_folder(path) and not is_report_folder(path)


def _is_hidden(path: Path) -> bool:
    return path.name.startswith(".")


def not_settled(path: Path) -> str | None:
    """Why a file in the inbox is left alone for now: it looks as if somebody were still writing it."""
    if path.suffix in _UNFINISHED:
        return f"{path.suffix} marks an unfinished copy"
    try:
        age = _still_for(path)
    except FileNotFoundError:
        return "it was taken away"
    if 0 <= age < SETTLE_SECONDS:
        return f"changed {age:.0f} s ago; run again when it has been still for {SETTLE_SECONDS} s"
    return None


def not_stalled(path: Path) -> str | None:
    """Why a file without its end is left alone for now; None if it has been still for so long that nobody writes to it."""
    try:
        age = _still_for(path)
    except FileNotFoundError:
        return "it was taken away"
    if abs(age) < STALL_SECONDS:  # a clock may be a little ahead, not by much
        return f"still for {max(age, 0):.0f} s; read as a cut file after {STALL_SECONDS} s"
    return None


def _still_for(path: Path) -> float:
    """Seconds since a file, or anything in a folder, changed; below 0 where its clock is ahead. A link is not followed."""
    inside = path.rglob("*") if _is_folder(path) else ()
    return time.time() - max([_changed(path), *(_changed(p) for p in inside)])


def _changed(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except PermissionError:  # in a folder that may be listed but not searched: its reader says so
        return 0


def _is_folder(path: Path) -> bool:
    # os.path takes what may not be looked at for no folder, where Path raises.
    return os.path.isdir(path) and not os.path.islink(path)  # noqa: PTH112, PTH114


def refuse_link(inbox: Path, path: Path) -> None:
    """Raise TraceError for a symbolic link, or a folder that holds one, that leads out of the inbox or nowhere.

    Raise SideFile for a link to another file of the inbox, which is read itself.
    """
    root = os.path.realpath(inbox)
    for link in (p for p in (path, *(path.rglob("*") if _is_folder(path) else ())) if p.is_symlink()):
        target = os.path.realpath(link)
        if not target.startswith(root + os.sep) or not os.path.exists(target):  # noqa: PTH110
            raise TraceError(
                path.name,
                where="the path" if link == path else f"{link.relative_to(path)} in it",
                found=f"a symbolic link to {link.readlink()}",
                wanted="the file itself",
                advice="Links out of the inbox are not followed: put the file there, or name it to `stepledger ingest`.",
            )
        if link == path:
            raise SideFile(path.name, f"a link to {os.path.relpath(target, root)}, which is read itself")


def archive(home: Home, item: Waiting) -> Path:
    """Move a file that was read (or a side file) to the archive."""
    moved = _move(item, home.archive / item.place)
    _drop_empty_folders(home.inbox, item.path.parent)
    return moved


def quarantine(home: Home, item: Waiting, error: StepledgerError) -> Path:
    """Move a file that could not be read to the quarantine, with the reason beside it: written first, so that no file is there without."""
    target = free_name(home.quarantine / item.place)
    reason = {
        "file": item.place.as_posix(),
        "name": target.name,
        "run": item.run_name,
        "error": str(error),
        "stepledger_version": __version__,
        "quarantined_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if isinstance(error, TraceError):
        reason |= {"where": error.where, "found": error.found, "wanted": error.wanted, "advice": error.advice}
    text = orjson.dumps({key: as_text(value) for key, value in reason.items()}, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    write_file(_reason_of(target), text)
    try:
        moved = _move(item, target)
    except UsageError:
        _reason_of(target).unlink()
        raise
    _drop_empty_folders(home.inbox, item.path.parent)
    return moved


@dataclass(frozen=True)
class Quarantined:
    """A file that could not be read: where it is, the note beside it, where it was in the inbox, its run and why."""

    path: Path
    note: Path
    place: str
    run: str
    error: str


def quarantined(home: Home) -> dict[str, Quarantined]:
    """What is in the quarantine, by its path there."""
    found = {}
    for note in sorted(home.quarantine.rglob(f"*{_REASON}")):
        said = orjson.loads(note.read_bytes())
        path = note.with_name(said.get("name", note.name.removesuffix(_REASON)))
        found[path.relative_to(home.quarantine).as_posix()] = Quarantined(path, note, str(said["file"]), str(said["run"]), str(said["error"]))
    return found


def retry(home: Home, files: list[str] | None) -> list[Path]:
    """Move quarantined files (named by their path there, or all) back to where they were in the inbox. Returns their places.

    Raises UsageError for a name that is not in the quarantine, or whose file somebody has taken away.
    """
    there = quarantined(home)
    wanted = list(there) if files is None else files
    if unknown := [name for name in wanted if name not in there]:
        raise UsageError(f"not in the quarantine: {', '.join(unknown)}; there are: {', '.join(there) or 'none'}")
    moved = []
    for name in wanted:
        found = there[name]
        if not os.path.lexists(found.path):
            raise UsageError(f"{found.path} is not there any more; remove {found.note.name} beside it")
        moved.append(move_file(found.path, home.inbox / found.place).relative_to(home.inbox))
        found.note.unlink()
        _drop_empty_folders(home.quarantine, found.note.parent)
    return moved


def _move(item: Waiting, target: Path) -> Path:
    """Move a file to the archive or quarantine. Raises UsageError where it cannot be moved; it is left in the inbox then."""
    try:
        return move_file(item.path, target)
    except OSError as error:
        raise UsageError(f"{item.place}: cannot be moved to {target}: {error.strerror}. Check who may write there.") from error


def _reason_of(moved: Path) -> Path:
    """The file beside a quarantined one that says why; the name is cut where it would be too long."""
    name = moved.name
    if len(os.fsencode(name)) > _NAME_BYTES:
        name = f"{os.fsencode(name)[: _NAME_BYTES - 20].decode('utf-8', 'ignore')}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}"
    return moved.with_name(f"{name}{_REASON}")


def _drop_empty_folders(inbox: Path, folder: Path) -> None:
    """Up from `folder` to the inbox, until one still holds something (or has been given something meanwhile)."""
    with suppress(OSError):
        while inbox in folder.parents:
            folder.rmdir()
            folder = folder.parent
