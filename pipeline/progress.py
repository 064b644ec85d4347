"""What a command says while it works, on stderr: bars on a terminal for work over a second, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, SpinnerColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bars


class Progress:
    """Messages and bars on stderr; stdout is left to data."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._quiet = quiet
        self._bars: Bars | None = None

    def say(self, text: str) -> None:
        """One line to stderr."""
        if self._quiet:
            return
        if self._bars is not None:
            self._bars.console.print(text, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)

    @contextmanager
    def bytes(self, text: str, total: int) -> Iterator[Callable[[int], None]]:
        """A bar over `total` bytes; yields what to call with the bytes just read."""
        if self._quiet or not self._console.is_terminal or total == 0:
            yield lambda _count: None
            return
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        with Bars(*columns, console=self._console, transient=True) as bars:
            self._bars = bars
            task = bars.add_task(text, total=total)
            try:
                yield lambda count: bars.advance(task, count)
            finally:
                self._bars = None

    @contextmanager
    def task(self, text: str) -> Iterator[None]:
        """A spinner for work of unknown length."""
        if self._quiet or not self._console.is_terminal:
            yield
            return
        with Bars(SpinnerColumn(), TextColumn("{task.description}"), console=self._console, transient=True) as bars:
            bars.add_task(text)
            yield
