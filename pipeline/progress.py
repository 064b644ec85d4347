"""What a command says while it works, on stderr: bars on a terminal, plain lines elsewhere, or JSON for a
log."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import orjson
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

from pipeline.text import printable


class Progress:
    """Messages and bars on stderr; stdout is left to data."""

    def __init__(self, *, quiet: bool = False, json_log: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._quiet = quiet
        self._json_log = json_log
        self._bars: Bars | None = None

    def say(self, text: str) -> None:
        """One line to stderr."""
        if self._quiet:
            return
        text = printable(text)
        if self._json_log:
            line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "message": text}
            sys.stderr.write(orjson.dumps(line).decode() + "\n")
            sys.stderr.flush()
        elif self._bars is not None:
            self._bars.console.print(text, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def say_error(self, error: BaseException) -> None:
        """A traceback, line by line: for whoever reports a bug."""
        for line in "".join(traceback.format_exception(error)).splitlines():
            self.say(line)

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
