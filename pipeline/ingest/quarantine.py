"""Move dropped files: to the archive when they were read, to the quarantine with a reason when they could not
be read.

Reasons are kept in a folder of their own, which holds no dropped file: a dropped file that looks like a
reason is just a file.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import orjson

from pipeline import __version__
from pipeline.errors import StepledgerError, TraceError, UsageError, home_trouble
from pipeline.ingest.inbox import InboxItem
from pipeline.lake.atomic import write_file
from pipeline.lake.beneath import entries, folder
from pipeline.lake.home import Home
from pipeline.lake.moving import Replaced, free_place, move
from pipeline.sources.names import as_text

_OLD_REASON = ".reason.json"
"""Ends the name of the reason that versions before 0.2 put beside a file."""
_OLD_REASON_BYTES = 1 << 20


def archive(home: Home, item: InboxItem, inode: int | None = None) -> Path:
    """Move a file that was read (`inode`: what was read), or a side file, to the archive. Returns its path
    there."""
    return home.archive / _move(home, item, home.archive, inode or item.inode, item.place)


def quarantine(home: Home, item: InboxItem, error: StepledgerError) -> Path:
    """Move a file that could not be read to the quarantine and record why. Returns its path there.

    A file is never there without its reason, which is written first, under the name that the file will have.
    """
    try:
        place = free_place(home.quarantine, item.place)
    except OSError as problem:
        raise _cannot_move(item, home.quarantine, problem) from problem
    note = _note(home, place)
    write_file(note, _reason(item, place, error))
    try:
        return home.quarantine / _move(home, item, home.quarantine, item.inode, place)
    except (OSError, StepledgerError):
        note.unlink()
        raise


def _reason(item: InboxItem, place: Path, error: StepledgerError) -> bytes:
    reason = {
        "file": item.place.as_posix(),
        "name": place.name,
        "run": item.run_name,
        "error": str(error),
        "stepledger_version": __version__,
        "quarantined_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if isinstance(error, TraceError):
        reason |= {"where": error.where, "found": error.found, "wanted": error.wanted, "advice": error.advice}
    text = {key: as_text(value) for key, value in reason.items()} | {
        "path_bytes": os.fsencode(item.place).hex()
    }
    return orjson.dumps(text, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _note(home: Home, place: Path) -> Path:
    """The file with the reason: its name consists of safe letters and a hash of the place, so that every
    place has one."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", place.name).strip("._-")[:80]
    return home.reasons / f"{stem}-{hashlib.sha256(os.fsencode(place)).hexdigest()[:16]}.json"


@dataclass(frozen=True)
class Quarantined:
    """A file that could not be read: its place in the quarantine and in the inbox, its run, and why."""

    place: Path
    inode: int
    inbox_place: Path
    run: str
    error: str


def quarantined(home: Home) -> dict[str, Quarantined]:
    """What is in the quarantine, by its path there."""
    found = entries(home.quarantine)
    old = _old_notes(home, {entry.place for entry in found})
    return {
        as_text(entry.place.as_posix()): _with_reason(home, entry.place, entry.inode)
        for entry in found
        if entry.place not in old
    }


def _with_reason(home: Home, place: Path, inode: int) -> Quarantined:
    try:
        noted = orjson.loads(_note(home, place).read_bytes())
        origin = Path(os.fsdecode(bytes.fromhex(noted["path_bytes"])))
        return Quarantined(place, inode, origin, str(noted["run"]), str(noted["error"]))
    except (OSError, ValueError, KeyError, TypeError):
        error = _old_error(home, place) or "no reason is recorded"
        return Quarantined(place, inode, place, as_text(place.parts[0]), error)


def _old_notes(home: Home, places: set[Path]) -> set[Path]:
    """Reasons that an older version put beside their files. A dropped file of such a name has a reason of its
    own."""
    return {
        place
        for place in places
        if place.name.endswith(_OLD_REASON)
        and place.with_name(place.name.removesuffix(_OLD_REASON) or "-") in places
        and place.with_name(place.name + _OLD_REASON) not in places
        and not _note(home, place).exists()
    }


def _old_error(home: Home, place: Path) -> str | None:
    """The reason that an older version wrote beside a file; shown only, never trusted as a path."""
    name = place.name + _OLD_REASON
    with (
        suppress(OSError, ValueError, KeyError, TypeError),
        folder(home.quarantine, place.parent.parts) as here,
    ):
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=here)
        with os.fdopen(handle, "rb") as file:
            return str(orjson.loads(file.read(_OLD_REASON_BYTES))["error"])
    return None


def retry(home: Home, files: list[str] | None) -> list[Path]:
    """Move quarantined files (named by their path there, or all) back to where they were in the inbox.
    Returns their places.

    Raises UsageError for a name that is not in the quarantine, and for a file that cannot be moved.
    """
    there = quarantined(home)
    wanted = list(there) if files is None else files
    if unknown := [name for name in wanted if name not in there]:
        raise UsageError(
            f"not in the quarantine: {', '.join(unknown)}; there are: {', '.join(there) or 'none'}"
        )
    moved = []
    old_notes = _old_notes(home, {entry.place for entry in entries(home.quarantine)})
    for name in wanted:
        found = there[name]
        place = found.inbox_place
        if place.is_absolute() or not place.parts or ".." in place.parts:
            place = found.place
        try:
            moved.append(move(home.quarantine, found.place, home.inbox, place, found.inode))
        except OSError as error:
            raise UsageError(
                f"{name}: cannot be moved back into the inbox: {error.strerror}. Check its permissions."
            ) from error
        _note(home, found.place).unlink(missing_ok=True)
        if (old := found.place.with_name(found.place.name + _OLD_REASON)) in old_notes:
            (home.quarantine / old).unlink(missing_ok=True)
        drop_empty_folders(home.quarantine, found.place.parent)
    return moved


def remove_orphans(home: Home) -> None:
    """Remove reasons of files that do not exist: the process was killed before it moved them, or a user
    removed them."""
    notes = [*home.reasons.iterdir()]
    wanted = {_note(home, entry.place).name for entry in entries(home.quarantine)} if notes else set()
    for note in notes:
        if note.name not in wanted:
            note.unlink(missing_ok=True)


def _move(home: Home, item: InboxItem, root: Path, inode: int, place: Path) -> Path:
    """Move a file of the inbox. Raises UsageError where that cannot be done; it stays in the inbox then."""
    inbox = item.inbox or home.inbox
    source = item.path.relative_to(inbox)
    try:
        moved = move(inbox, source, root, place, inode, aside=home.staging)
    except OSError as error:
        if home_trouble(error):
            raise
        raise _cannot_move(item, root, error) from error
    drop_empty_folders(inbox, source.parent)
    return moved


def _cannot_move(item: InboxItem, root: Path, error: OSError) -> UsageError:
    if isinstance(error, Replaced):
        return UsageError(f"{item.place}: {error.strerror}, which is read in the next pass")
    if isinstance(error, FileNotFoundError):
        return UsageError(f"{item.place}: it was removed, so it is not kept in {root.name}/")
    return UsageError(
        f"{item.place}: cannot be moved to {root.name}/: {error.strerror}. Check its permissions."
    )


def drop_empty_folders(root: Path, place: Path) -> None:
    """Remove empty folders upward from a folder below `root`; one that is no longer empty stays."""
    with suppress(OSError):
        while place.parts:
            with folder(root, place.parent.parts) as parent:
                os.rmdir(place.name, dir_fd=parent)
            place = place.parent
