"""Wait for files in the inbox and process them, until a stop is requested."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import duckdb

from pipeline import lock
from pipeline.errors import ExitCode, HomeError, StepledgerError, UsageError
from pipeline.events import Event, Say
from pipeline.ingest import inbox
from pipeline.ingest.execution import ExecutionConfig, Outcome
from pipeline.ingest.inbox import InboxItem
from pipeline.ingest.ingest import build, land_inbox, stale
from pipeline.ingest.tasks import describe_error, home_error
from pipeline.lake.builds import unchecked_runs
from pipeline.lake.home import Home
from pipeline.progress import Progress

TICK_SECONDS = 1.0
"""How often the inbox is looked at. A listing costs less than 0.1 ms while nothing waits, needs no inotify
instance, sees files that arrive over NFS, and follows no link; files must be still for some seconds
anyway."""
QUIET_SECONDS = 3.0
"""A run is built when nothing has landed in it for this long, and no file of it waits in the inbox."""
PATIENCE_SECONDS = 600.0
"""A run is built after this long even if files of it are still being written."""
RETRY_SECONDS = 30.0
"""Pause after the home could not be written (its disk was full)."""
LONGEST_RETRY_SECONDS = 3600.0
"""What could not be moved or built is retried after RETRY_SECONDS, then after twice as long each time, up to
this long."""


class Stop:
    """A stop request: after the first SIGTERM or SIGINT the current file is finished, after the second
    not."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self) -> bool:
        """Was a stop requested?"""
        return self.signal is not None

    @contextmanager
    def listening(self, say: Say) -> Iterator[Stop]:
        """Handle the signals until the end of the context."""

        def on_signal(number: int, _frame: FrameType | None) -> None:
            if self.signal is not None:
                raise KeyboardInterrupt
            self.signal = number
            say("stopping after the current file; a second signal stops at once", Event.STOPPING)

        before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
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
class _Retry:
    """Something that failed: when it is retried, and how long the last wait was."""

    at_s: float
    waited_s: float


@dataclass
class Watcher:
    """One watcher of one home. `on_built` is given the outcome of every build."""

    home: Home
    execution: ExecutionConfig
    progress: Progress
    on_built: Callable[[Outcome], None]
    unbuilt: dict[str, _Unbuilt] = field(default_factory=dict)
    seen: dict[Path, tuple[int, int, float, bool]] = field(default_factory=dict)
    still: dict[Path, tuple[tuple[int, int, float, bool], float]] = field(default_factory=dict)
    again: dict[Path | str, _Retry] = field(default_factory=dict)
    reported: set[Path] = field(default_factory=set)
    not_before_s: float = 0.0
    has_begun: bool = False

    def run(self, stop: Stop) -> ExitCode:
        """Until `stop`: 0 after SIGTERM, 130 after SIGINT. Raises UsageError if another watcher has this
        home."""
        with self.alone():
            self.progress.say(f"watching {self.home.inbox}", Event.WATCHING)
            while not stop():
                self.cycle(stop)
                if not stop():
                    time.sleep(TICK_SECONDS)
        return ExitCode.INTERRUPTED if stop.signal == signal.SIGINT else ExitCode.OK

    def begin(self) -> None:
        """Take over what has landed and is not built: by an earlier watcher, or before an error."""
        now = time.monotonic()
        for run in (*stale(self.home), *unchecked_runs(self.home)):
            self.unbuilt.setdefault(run, _Unbuilt(now, now))
        self.has_begun = True

    def cycle(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Land finished files and build settled runs; where the home cannot be written, wait and retry."""
        if time.monotonic() >= self.not_before_s:
            self._guarded(lambda: self._work(stop))

    def _guarded(self, work: Callable[[], None]) -> None:
        """No error ends the service: it is reported, and everything is retried after a pause."""
        try:
            work()
            return
        except StepledgerError as error:
            self.progress.say(str(error), Event.RETRYING, code=error.exit_code)
        except (OSError, duckdb.Error) as error:
            problem = home_error(self.home.root, error) or f"{self.home.root}: {describe_error(error)}"
            self.progress.say(str(problem), Event.RETRYING, code=ExitCode.USAGE)
        except Exception as error:  # a bug of ours: it is logged in full, and the other files go on
            self.progress.say_error(error, code=ExitCode.BUG)
        self.seen.clear()
        self.has_begun = False  # runs in which files landed before the error are to be found again
        self.not_before_s = time.monotonic() + RETRY_SECONDS

    def _work(self, stop: Callable[[], bool]) -> None:
        """One round. Raises HomeError if the home could not be written."""
        if not self.has_begun:
            self.begin()
        items = inbox.waiting(self.home.inbox)
        self._forget({item.path for item in items})
        ready = []
        for item in items:
            if reason := inbox.not_settled(item, self._still_s):
                if item.path not in self.reported:
                    self.reported.add(item.path)
                    text = f"waiting: {item.place}: {reason.split(';')[0]}"
                    run = self.home.run_id_for(item.run_name)
                    self.progress.say(text, Event.WAITING_FOR_FILE, run=run, file=str(item.place))
            elif self._is_new(item):
                ready.append(item)
        if ready:
            outcome = land_inbox(self.home, ready, self.progress, self.execution, stop)
            self._retry_later(outcome.left)
            self._forget({item.path for item in items if os.path.lexists(item.path)})
            now = time.monotonic()
            for run in outcome.runs:
                self.unbuilt.setdefault(run, _Unbuilt(now, now)).last_s = now
            if outcome.has_home_error:
                raise HomeError(f"retrying in {RETRY_SECONDS:.0f} s")
        self._build(stop)

    def _build(self, stop: Callable[[], bool]) -> None:
        if not self.unbuilt or stop():
            return
        waiting = {self.home.run_id_for(item.run_name) for item in inbox.waiting(self.home.inbox)}
        settled = [
            run
            for run, since in self.unbuilt.items()
            if self._is_due(run, since, has_waiting_files=run in waiting)
        ]
        if not settled:
            return
        outcome = build(self.home, settled, self.progress, self.execution, stop)
        self._retry_later([run for run in settled if run not in outcome.built and not stop()])
        try:
            self.on_built(outcome)
        except Exception:
            self._retry_later(outcome.built)
            raise
        for run in outcome.built:
            del self.unbuilt[run]
        if outcome.has_home_error:
            raise HomeError(f"retrying in {RETRY_SECONDS:.0f} s")

    def _is_due(self, run: str, since: _Unbuilt, *, has_waiting_files: bool) -> bool:
        now = time.monotonic()
        if (
            run in self.again
            and now < self.again[run].at_s
            and since.last_s < self.again[run].at_s - self.again[run].waited_s
        ):
            return False  # it failed, and nothing new has landed since
        return now - since.first_s >= PATIENCE_SECONDS or (
            not has_waiting_files and now - since.last_s >= QUIET_SECONDS
        )

    def _retry_later(self, what: Iterable[Path | str]) -> None:
        now = time.monotonic()
        for one in what:
            before = self.again.get(one)
            waited_s = RETRY_SECONDS if before is None else min(2 * before.waited_s, LONGEST_RETRY_SECONDS)
            self.again[one] = _Retry(now + waited_s, waited_s)

    def _is_new(self, item: InboxItem) -> bool:
        """Has this file changed since it was last read and left, or waited long enough to be read as
        truncated?
        """
        state = item.state(is_stalled=inbox.not_stalled(item) is None)
        is_same = self.seen.get(item.path) == state
        self.seen[item.path] = state
        if is_same and item.path in self.again and time.monotonic() >= self.again[item.path].at_s:
            return True
        return not is_same

    def _still_s(self, item: InboxItem) -> float:
        """For how long this watcher has seen a file unchanged."""
        state, now = item.state(is_stalled=False), time.monotonic()
        if item.path not in self.still or self.still[item.path][0] != state:
            self.still[item.path] = state, now
        return now - self.still[item.path][1]

    def _forget(self, there: set[Path]) -> None:
        """A file that left the inbox may come back unchanged: after `retry`, or when it is dropped again."""
        self.seen = {path: state for path, state in self.seen.items() if path in there}
        self.still = {path: state for path, state in self.still.items() if path in there}
        self.again = {one: when for one, when in self.again.items() if one in there or one in self.unbuilt}
        self.reported &= there

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only watcher of this home; the lock dies with its process."""
        self.home.ensure()
        handle = self.home.open_lock("watch")
        try:
            if not lock.try_take(handle):
                raise UsageError(f"another stepledger already watches {self.home.root}")
            yield
        finally:
            os.close(handle)
