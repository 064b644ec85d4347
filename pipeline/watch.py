"""Wait for files in the inbox and work them off, until told to stop."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from watchfiles import watch as changes

from pipeline import inbox
from pipeline.errors import ExitCode, HomeError, UsageError
from pipeline.home import Home
from pipeline.ingest import Means, Outcome, build, land_inbox, stale
from pipeline.progress import Progress
from pipeline.sources.names import printable
from pipeline.warehouse import unchecked_runs

TICK_MS = 1000
"""How often the inbox is looked at without a change: files settle by doing nothing."""
QUIET_SECONDS = 3.0
"""A run is built when nothing has landed in it for so long, and nothing of it waits in the inbox."""
PATIENCE_SECONDS = 600.0
"""A run is built after so long although files of it are still being written."""
RETRY_SECONDS = 30.0
"""How long nothing is read after the home could not take a file (its disk was full)."""


class Stop:
    """A wish to stop: the first SIGTERM or SIGINT lets the file in hand be finished, the second does not."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self) -> bool:
        """Has somebody asked?"""
        return self.signal is not None

    def is_set(self) -> bool:
        """The same, as watchfiles asks for it."""
        return self()

    @contextmanager
    def listening(self, say: Callable[[str], None]) -> Iterator[Stop]:
        """Take the signals for as long as this lasts."""

        def heard(number: int, _frame: FrameType | None) -> None:
            if self.signal is not None:
                raise KeyboardInterrupt
            self.signal = number
            say("stopping after the file in hand; once more stops at once")

        before = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@dataclass
class _Unbuilt:
    """A run in which files have landed: when the first and the last of them did."""

    first_s: float
    last_s: float


@dataclass
class Watcher:
    """One watcher of one home. `on_built` is told of every run that was built."""

    home: Home
    means: Means
    progress: Progress
    on_built: Callable[[Outcome], None]
    unbuilt: dict[str, _Unbuilt] = field(default_factory=dict)
    seen: dict[Path, tuple[int, int, bool]] = field(default_factory=dict)
    said: set[Path] = field(default_factory=set)
    not_before_s: float = 0.0

    def run(self, stop: Stop) -> ExitCode:
        """Until `stop`: 0 after SIGTERM, 130 after SIGINT. Raises UsageError if another watcher has this home."""
        with self.alone():
            self.progress.say(f"watching {self.home.inbox}")
            self.begin()
            self.cycle(stop)
            for _ in changes(
                self.home.inbox, step=200, debounce=400, rust_timeout=TICK_MS, yield_on_timeout=True, stop_event=stop, raise_interrupt=False
            ):
                if stop():
                    break
                self.cycle(stop)
        return ExitCode.INTERRUPTED if stop.signal == signal.SIGINT else ExitCode.OK

    def begin(self) -> None:
        """Take over what an earlier watcher landed and did not build."""
        now = time.monotonic()
        self.unbuilt = {run: _Unbuilt(now, now) for run in (*stale(self.home), *unchecked_runs(self.home))}

    def cycle(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Land what is finished, build what has settled; where the home cannot take it, wait and try again."""
        if time.monotonic() < self.not_before_s:
            return
        try:
            has_trouble = self._work(stop)
        except HomeError as error:
            self.progress.say(str(error))
            has_trouble = True
        if has_trouble:
            self.seen.clear()
            self.not_before_s = time.monotonic() + RETRY_SECONDS
        # What left the inbox may come back, unchanged: after `retry`, or dropped once more.
        self.seen = {path: state for path, state in self.seen.items() if os.path.lexists(path)}
        self.said = {path for path in self.said if os.path.lexists(path)}

    def _work(self, stop: Callable[[], bool]) -> bool:
        """One round; True if the home could not take it."""
        items = inbox.waiting(self.home.inbox)
        ready = []
        for item in items:
            if reason := inbox.not_settled(item.path):
                if item.path not in self.said:
                    self.said.add(item.path)
                    self.progress.say(printable(f"waiting: {item.place}: {reason.split(';')[0]}"))
            elif self._is_new(item.path):
                ready.append(item)
        if ready:
            outcome = land_inbox(self.home, ready, self.progress, self.means, stop)
            now = time.monotonic()
            for run in outcome.runs:
                self.unbuilt.setdefault(run, _Unbuilt(now, now)).last_s = now
            if outcome.has_home_trouble:
                return True
        still = {self.home.run_id_for(item.run_name) for item in inbox.waiting(self.home.inbox)}
        settled = [run for run, since in self.unbuilt.items() if self._is_due(since, is_waited_for=run in still)]
        if not settled or stop():
            return False
        outcome = build(self.home, settled, self.progress, self.means, stop)
        self.on_built(outcome)
        if not outcome.has_home_trouble:
            for run in settled:
                del self.unbuilt[run]
        return outcome.has_home_trouble

    @staticmethod
    def _is_due(since: _Unbuilt, *, is_waited_for: bool) -> bool:
        now = time.monotonic()
        return now - since.first_s >= PATIENCE_SECONDS or (not is_waited_for and now - since.last_s >= QUIET_SECONDS)

    def _is_new(self, path: Path) -> bool:
        """Has this file changed since it was last read and left, or waited long enough to be read as a cut one?"""
        try:
            status = path.lstat()
        except FileNotFoundError:
            return False
        state = (status.st_size, status.st_mtime_ns, inbox.not_stalled(path) is None)
        is_same = self.seen.get(path) == state
        self.seen[path] = state
        return not is_same

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only watcher of this home; the lock dies with its process."""
        self.home.ensure()
        handle = self.home.open_lock("watch")
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UsageError(f"another stepledger watches {self.home.root} already") from error
            yield
        finally:
            os.close(handle)
