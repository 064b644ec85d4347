"""Events: what a command reports while it works, as data for a log and as a sentence for people."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol, TypedDict, Unpack

import orjson

from pipeline.errors import ExitCode
from pipeline.text import printable


class Event(StrEnum):
    """The kinds of events, as `event` in `--json-log`. People filter logs by them: none is renamed."""

    NOTE = "note"
    WATCHING = "watching"
    STOPPING = "stopping"
    WAITING_FOR_WRITER = "waiting_for_writer"
    WAITING_FOR_FILE = "waiting_for_file"
    READ = "read"
    ALREADY_READ = "already_read"
    FACTS_READ = "facts_read"
    ARCHIVED = "archived"
    SKIPPED = "skipped"
    LEFT_IN_PLACE = "left_in_place"
    GONE = "gone"
    NOT_READ = "not_read"
    QUARANTINED = "quarantined"
    BUILD_FAILED = "build_failed"
    CHECK_FAILED = "check_failed"
    NOT_CHECKED = "not_checked"
    EXPORTED = "exported"
    NOT_EXPORTED = "not_exported"
    RETRYING = "retrying"
    TRACEBACK = "traceback"


class About(TypedDict, total=False):
    """What an event is about: a run, a file, and the exit code of the failure that it reports."""

    run: str | None
    file: str | None
    code: ExitCode | None


class Say(Protocol):
    """Reports an event."""

    def __call__(self, message: str, event: Event = ..., **about: Unpack[About]) -> None:
        """One event and its sentence."""
        ...


def on_wait(say: Say) -> Callable[[str], None]:
    """What `Home.writing` calls while another process has the home."""
    return lambda message: say(message, Event.WAITING_FOR_WRITER)


def json_line(message: str, event: Event, **about: Unpack[About]) -> str:
    """An event as one line of JSON: time, event, run, file, code and message, null where there is none."""
    code, run, file = about.get("code"), about.get("run"), about.get("file")
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "event": event,
        "run": None if run is None else printable(run),
        "file": None if file is None else printable(file),
        "code": None if code is None else int(code),
        "message": printable(message),
    }
    return orjson.dumps(line).decode()


def now() -> str:
    """The time that begins a line of a text log."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
