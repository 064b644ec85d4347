"""The inbox: which files are waiting, which run they belong to, and whether they are finished."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import GoneFile, HeldFile, SideFile, StepledgerError, TraceError
from pipeline.lake.beneath import MAX_DEPTH, MAX_PLACE_BYTES, Entry, entries
from pipeline.lake.dropped import NAME_FILES
from pipeline.sources import names
from pipeline.sources.detect import fresh_export, is_report_folder

SETTLE_SECONDS = 5
"""A file that changed less than this long ago is not read."""
STALL_SECONDS = 60
"""A truncated file that changed less than this long ago is a copy in progress; later its complete events are
read."""
UNNAMED = "unnamed"
_UNFINISHED = (".tmp", ".part", ".partial", ".crdownload")
_HELD = {
    "closed": ("opening it", "a folder that can be listed", "Check its permissions."),
    "deep": (
        "the path",
        f"at most {MAX_DEPTH} folders and {MAX_PLACE_BYTES} bytes of path",
        "Put the files themselves into the inbox, or name them to `stepledger ingest`.",
    ),
    "many": ("the folder", "fewer at once", "The rest is read when these are done."),
}
"""Entries that can be neither read nor moved, by kind: where, what is wanted, what to do."""


@dataclass(frozen=True)
class InboxItem:
    """One file to read and the run it belongs to; `place` is its path below the archive or quarantine.

    `inbox` is the folder it was dropped into, None for a file that a user named. `problem`: why it is not
    opened at all.
    """

    path: Path
    run_name: str
    place: Path
    inbox: Path | None = None
    size_bytes: int = 0
    changed_s: float = 0.0
    inode: int = 0
    problem: StepledgerError | None = None

    def state(self, *, is_stalled: bool) -> tuple[int, int, float, bool]:
        """What changes when it is written to, exchanged, or has not changed for long."""
        return self.inode, self.size_bytes, self.changed_s, is_stalled


def waiting(inbox: Path) -> list[InboxItem]:
    """Files in the inbox, by run: a sub-folder names the run, loose files are one run by name minus rank and
    time."""
    return _stale_exports_first([_dropped(inbox, entry) for entry in entries(inbox)])


def _dropped(inbox: Path, entry: Entry) -> InboxItem:
    is_loose = len(entry.place.parts) == 1 and entry.kind not in {"closed", "deep", "many"}
    run = run_name_of(entry.place.name) if is_loose else (entry.place.parts or (UNNAMED,))[0]
    place = Path(run) / entry.place if is_loose else entry.place
    problem = _problem(inbox, entry)
    return InboxItem(
        inbox / entry.place, run, place, inbox, entry.size_bytes, entry.changed_s, entry.inode, problem
    )


def named(paths: list[Path], run: str | None) -> list[InboxItem]:
    """Files outside the inbox: a folder is a run, loose files are grouped by name, `run` overrides both."""
    found = []
    for path in paths:
        if os.path.isdir(path) and not is_report_folder(path):  # noqa: PTH112 - no error where a folder is closed
            name = run or path.resolve().name
            found += [_named(path, entry, name) for entry in entries(path)]
        else:
            found.append(InboxItem(path, run or run_name_of(path.name), path, size_bytes=_size(path)))
    return _stale_exports_first(found)


def _named(folder: Path, entry: Entry, run: str) -> InboxItem:
    """A file that a user named may be a link, and is opened through it."""
    path = folder / entry.place
    problem = _problem(folder, entry) if entry.kind != "link" else None
    return InboxItem(
        path,
        run,
        path,
        size_bytes=entry.size_bytes,
        changed_s=entry.changed_s,
        inode=entry.inode,
        problem=problem,
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # reading it reports why
        return 0


def _problem(root: Path, entry: Entry) -> StepledgerError | None:
    """Why an entry of the inbox cannot be read, by its kind."""
    name = entry.place.name
    if entry.kind == "link":
        return _link(root, entry)
    if entry.kind == "other":
        found = f"{entry.note}, which is not a regular file"
        return TraceError(name, where="the path", found=found, wanted="a trace file", advice=NAME_FILES)
    if entry.kind == "export" and entry.note:
        where, wanted = f"{entry.note} in it", "the files of an nsys export and nothing else"
        return TraceError(
            name, where=where, found="something that is not a regular file", wanted=wanted, advice=NAME_FILES
        )
    where, wanted, advice = _HELD.get(entry.kind, ("", "", ""))
    return (
        HeldFile(_short(name or root.name), where=where, found=entry.note, wanted=wanted, advice=advice)
        if where
        else None
    )


def _short(name: str) -> str:
    return name if len(name) <= 80 else f"{name[:60]}..."


def _link(root: Path, entry: Entry) -> StepledgerError:
    """A link is never followed: one to another file of the inbox is not needed, and any other leaves the
    inbox."""
    place, top = root / entry.place, os.path.realpath(root)
    try:
        target = os.path.realpath(place)
    except OSError:  # it was exchanged just now, and is examined again in the next pass
        return GoneFile(
            place.name, where="the path", found="that it was exchanged", wanted="a file that stays"
        )
    if target.startswith(top + os.sep) and os.path.exists(target):  # noqa: PTH110 - no error where a folder is closed
        return SideFile(place.name, f"a link to {os.path.relpath(target, top)}, which is read itself")
    return TraceError(
        place.name,
        where="the path",
        found=f"a symbolic link to {entry.note}",
        wanted="the file itself",
        advice=(
            "Links out of the inbox are not followed: put the file there, or name it to `stepledger ingest`."
        ),
    )


def _stale_exports_first(items: Iterable[InboxItem]) -> list[InboxItem]:
    """An nsys report is read after an export that is older, so that the report is still there to show
    that."""
    return sorted(items, key=lambda item: item.path.suffix == ".nsys-rep" and fresh_export(item.path) is None)


def run_name_of(file_name: str) -> str:
    """The run that a loose file belongs to: its name without rank and time fields."""
    return names.from_file_name(re.sub(r"_(pqtdir|arwdir)$", "", file_name)).run or UNNAMED


def not_settled(item: InboxItem, still_s: Callable[[InboxItem], float] | None = None) -> str | None:
    """Why a file in the inbox is left alone for now: it may still be being written.

    `still_s`: for how long a caller has seen it unchanged; used where the file's own time is in the future.
    """
    if item.path.suffix in _UNFINISHED:
        return f"{item.path.suffix} marks an unfinished copy"
    age = time.time() - item.changed_s
    if age >= SETTLE_SECONDS:
        return None
    if age >= 0:
        return f"changed {age:.0f} s ago; run again when it has not changed for {SETTLE_SECONDS} s"
    if still_s is not None and still_s(item) >= SETTLE_SECONDS:
        return None
    return f"its time is {-age:.0f} s in the future, so it may still be being written; wait, or `touch` it"


def not_stalled(item: InboxItem) -> str | None:
    """Why a truncated file is left alone for now; None if it has not changed for so long that no process is
    writing it."""
    age = time.time() - item.changed_s
    if abs(age) < STALL_SECONDS:  # a clock may be a little ahead, not by much
        return f"unchanged for {max(age, 0):.0f} s; its complete events are read after {STALL_SECONDS} s"
    return None
