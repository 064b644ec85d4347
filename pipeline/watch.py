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
from pipeline.errors import ExitCode, UsageError
from pipeline.home import Home
from pipeline.ingest import Means, Outcome, build, land_inbox, stale
from pipeline.progress import Progress

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
    said: set[str] = field(default_factory=set)
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
        self.unbuilt = {run: _Unbuilt(now, now) for run in stale(self.home)}

    def cycle(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Land what is finished, build what has settled."""
        items = inbox.waiting(self.home.inbox)
        ready = []
        for item in items:
            if reason := inbox.not_settled(item.path):
                self._say_once(f"waiting: {item.place}: {reason.split(';')[0]}", str(item.place))
            elif time.monotonic() >= self.not_before_s and self._is_new(item.path):
                ready.append(item)
        if ready:
            outcome = land_inbox(self.home, ready, self.progress, self.means, stop)
            now = time.monotonic()
            if outcome.has_home_trouble:
                self.seen.clear()
                self.not_before_s = now + RETRY_SECONDS
            for run in outcome.runs:
                self.unbuilt.setdefault(run, _Unbuilt(now, now)).last_s = now
        still = {self.home.run_id_for(item.run_name) for item in inbox.waiting(self.home.inbox)}
        settled = [run for run, since in self.unbuilt.items() if self._is_due(since, is_waited_for=run in still)]
        if settled and not stop():
            self.on_built(build(self.home, settled, self.progress, self.means, stop))
            for run in settled:
                del self.unbuilt[run]

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

    def _say_once(self, text: str, key: str) -> None:
        if key not in self.said:
            self.said.add(key)
            self.progress.say(text)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only watcher of this home; the lock dies with its process."""
        self.home.ensure()
        handle = os.open(self.home.lock("watch"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UsageError(f"another stepledger watches {self.home.root} already") from error
            yield
        finally:
            os.close(handle)
