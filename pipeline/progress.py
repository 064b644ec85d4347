"""Progress of a command on stderr: bars on a terminal, plain lines elsewhere, or JSON for a log."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Unpack

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bars

from pipeline.events import About, Event, json_line, now
from pipeline.text import printable


class Progress:
    """Messages and bars on stderr; stdout is left to data.

    `json_log`: each message is an event as a line of JSON (see pipeline/events.py). `has_times`: each line of
    text begins with the time, for the log of a service.
    """

    def __init__(self, *, quiet: bool = False, json_log: bool = False, has_times: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._quiet = quiet
        self._json_log = json_log
        self._has_times = has_times
        self._bars: Bars | None = None

    def say(self, message: str, event: Event = Event.NOTE, **about: Unpack[About]) -> None:
        """One event: a line to stderr."""
        if self._quiet:
            return
        if self._json_log:
            sys.stderr.write(json_line(message, event, **about) + "\n")
            sys.stderr.flush()
            return
        text = printable(message)
        if self._bars is not None:
            self._bars.console.print(text, markup=False)
        else:
            time = f"{now()} " if self._has_times else ""
            print(f"{time}{text}", file=sys.stderr, flush=True)

    def say_error(self, error: BaseException, **about: Unpack[About]) -> None:
        """A traceback, line by line: for a bug report."""
        for line in "".join(traceback.format_exception(error)).splitlines():
            self.say(line, Event.TRACEBACK, **about)

    @property
    def _has_bars(self) -> bool:
        return self._console.is_terminal and not self._quiet and not self._json_log

    @contextmanager
    def bytes(self, text: str, total: int) -> Iterator[Callable[[int], None]]:
        """A bar over `total` bytes, with rate and time left; yields what to call with the bytes just read."""
        if not self._has_bars or total == 0:
            yield lambda _count: None
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        with Bars(*columns, console=self._console, transient=True) as bars:
            self._bars = bars
            task = bars.add_task(escape(printable(text)), total=total)
            try:
                yield lambda count: bars.advance(task, count)
            finally:
                self._bars = None

    @contextmanager
    def task(self, text: str) -> Iterator[None]:
        """A spinner for work of unknown length."""
        if not self._has_bars:
            yield
            return
        with Bars(
            SpinnerColumn(), TextColumn("{task.description}"), console=self._console, transient=True
        ) as bars:
            bars.add_task(escape(printable(text)))
            yield
