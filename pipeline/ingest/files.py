"""Take files into the lake: read each, report the result, and move those of the inbox where they belong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import duckdb

from pipeline.errors import (
    ContractError,
    ExitCode,
    GoneFile,
    HeldFile,
    HomeError,
    SideFile,
    StepledgerError,
    TraceError,
    UnfinishedFile,
    UsageError,
    WorkerDied,
)
from pipeline.events import Event
from pipeline.ingest import inbox
from pipeline.ingest.execution import ExecutionConfig, Outcome
from pipeline.ingest.executors import Serial
from pipeline.ingest.inbox import InboxItem
from pipeline.ingest.land import Landed
from pipeline.ingest.quarantine import archive, quarantine
from pipeline.ingest.tasks import Landing, describe_error, home_error, land_file
from pipeline.lake.atomic import scratch
from pipeline.lake.dropped import opened
from pipeline.lake.home import Home
from pipeline.lake.run_config import RUN_TOML, describe, read_run_toml
from pipeline.progress import Progress
from pipeline.sources.detect import fresh_export
from pipeline.text import counted


@dataclass
class Landings:
    """Files on their way into the lake."""

    home: Home
    progress: Progress
    execution: ExecutionConfig
    outcome: Outcome
    from_inbox: bool
    stop: Callable[[], bool] = lambda: False

    def land(self, items: list[InboxItem]) -> None:
        """Read them all. An nsys report beside a fresh export is read first, while the export is still there;
        one beside an old export last, so that it still shows that the export is old.
        """
        with self.progress.bytes(
            f"reading {counted(len(items), 'file')}", sum(item.size_bytes for item in items)
        ) as on_read:
            landings = self._landings(items)
            reports = {path for path in landings if path.suffix == ".nsys-rep"}
            early = {path for path in reports if fresh_export(path) is not None}
            for some in (early, landings.keys() - reports, reports - early):
                self._run({path: landings[path] for path in landings if path in some}, on_read)

    def _landings(self, items: list[InboxItem]) -> dict[Any, tuple[Landing, InboxItem]]:
        """The work of each file that may be read."""
        found: dict[Any, tuple[Landing, InboxItem]] = {}
        root, token = self.home.root.absolute(), self.home.lock_token()  # workers have other current folders
        run_ids: dict[str, str] = {}
        for item in items:
            if item.problem is not None:
                self._take(item, item.problem)
                continue
            if item.run_name not in run_ids:
                run_ids[item.run_name] = self.home.run_id_for(item.run_name, also_taken=run_ids.values())
            landing = Landing(
                root,
                item.path.absolute(),
                item.run_name,
                run_ids[item.run_name],
                self.execution.settings,
                token,
                salvage=not self.from_inbox or inbox.not_stalled(item) is None,
                max_bytes=self.execution.max_bytes,
                inbox=root / "inbox" if self.from_inbox else None,
            )
            found[landing.path] = landing, item
        return found

    def _run(self, landings: dict[Any, tuple[Landing, InboxItem]], on_read: Callable[[int], None]) -> None:
        if not landings or self.outcome.has_home_error or self.stop():
            return
        executor, settings = self.execution.for_tasks(
            len(landings), sum(item.size_bytes for _, item in landings.values())
        )
        is_here = isinstance(executor, Serial)
        work = partial(land_file, on_read=on_read) if is_here else land_file
        for done in executor.run(
            work, [replace(landing, settings=settings) for landing, _ in landings.values()]
        ):
            item = landings[done.item.path][1]
            if not is_here:
                on_read(item.size_bytes)
            self._take(item, done.error or done.value)
            if self.outcome.has_home_error or self.stop():
                return

    def _take(self, item: InboxItem, found: Landed | Exception | None) -> None:
        """Report what became of a file, and move one of the inbox to where it belongs."""
        try:
            if isinstance(found, Landed):
                self._landed(item, found)
            elif isinstance(found, SideFile):
                self._side_file(item, found)
            elif found is not None:
                self._failed(item, found)
        except (StepledgerError, OSError, duckdb.Error) as error:
            self._left(item, home_error(self.home.root, error) or error)

    def _landed(self, item: InboxItem, landed: Landed) -> None:
        if landed.run_id not in self.outcome.runs:
            self.outcome.runs.append(landed.run_id)
        known = " (the same bytes are already in that run)" if landed.was_known else ""
        event = Event.ALREADY_READ if landed.was_known else Event.READ
        self._report(
            item, f"read: {item.path.name} into run {landed.run_id}{known}", event, run=landed.run_id
        )
        if self.from_inbox:
            archive(self.home, item, landed.inode)

    def _side_file(self, item: InboxItem, side: SideFile) -> None:
        if item.path.name == RUN_TOML:
            run_id = self.home.run_id_for(item.run_name)
            try:
                describe(self.home, run_id, facts_in(self.home, item))
            except TraceError as error:
                self._failed(item, error)
                return
            self._report(item, f"run {run_id}: facts taken from {RUN_TOML}", Event.FACTS_READ, run=run_id)
        word, event = ("archived", Event.ARCHIVED) if self.from_inbox else ("skipped", Event.SKIPPED)
        self._report(item, f"{word}: {side}", event)
        if self.from_inbox:
            archive(self.home, item, item.inode)

    def _failed(self, item: InboxItem, error: Exception) -> None:
        """A file was not read: a problem of the home, of the lake, of the file, or a bug of ours."""
        if isinstance(error, (ContractError, UsageError, HomeError)):
            self._left(item, error)
        elif isinstance(error, GoneFile) and self.from_inbox:
            self._report(item, f"gone: {error}", Event.GONE)
        elif isinstance(error, TraceError):
            self._refuse(item, error)
        elif isinstance(error, WorkerDied):
            wanted = "a file that can be read in the available memory"
            self._refuse(
                item, TraceError(item.path.name, where="reading it", found=f"that {error}", wanted=wanted)
            )
        else:
            self.outcome.codes.append(ExitCode.BUG)
            self.progress.say_error(error, file=str(item.place), code=ExitCode.BUG)
            found = f"a bug in stepledger: {describe_error(error)} ({type(error).__name__})"
            self._refuse(
                item,
                TraceError(
                    item.path.name,
                    where="reading it",
                    found=found,
                    wanted="a table",
                    advice="Please report it with the file.",
                ),
            )

    def _refuse(self, item: InboxItem, error: TraceError) -> None:
        """Report why a file was not read; one of the inbox is quarantined, unless it may still be written or
        cannot be moved.
        """
        if self.from_inbox and isinstance(error, UnfinishedFile) and (reason := inbox.not_stalled(item)):
            self._report(item, f"left in the inbox: {error} It has been {reason}.", Event.LEFT_IN_PLACE)
            return
        self.outcome.codes.append(error.exit_code)
        if not self.from_inbox:
            self._report(item, f"not read: {error}", Event.NOT_READ, code=error.exit_code)
            return
        if isinstance(error, HeldFile):
            self._report(
                item, f"left in the inbox: {item.place}: {error}", Event.LEFT_IN_PLACE, code=error.exit_code
            )
            return
        try:
            moved = quarantine(self.home, item, error)
        except UsageError as problem:
            self.outcome.codes.append(problem.exit_code)
            self.outcome.left.append(item.path)
            text = f"not read: {error} It stays in the inbox: {problem}"
            self._report(item, text, Event.NOT_READ, code=error.exit_code)
        else:
            text = f"quarantined: {error} (now {moved.relative_to(self.home.root)})"
            self._report(item, text, Event.QUARANTINED, code=error.exit_code)

    def _left(self, item: InboxItem, error: Exception) -> None:
        """A file stays where it is through no fault of its own."""
        code = error.exit_code if isinstance(error, StepledgerError) else ExitCode.USAGE
        self.outcome.codes.append(code)
        self.outcome.has_home_error |= isinstance(error, HomeError)
        self.outcome.left.append(item.path)
        why = str(error) if isinstance(error, StepledgerError) else describe_error(error)
        self._report(item, f"left in place: {item.path.name}: {why}", Event.LEFT_IN_PLACE, code=code)

    def _report(
        self,
        item: InboxItem,
        text: str,
        event: Event,
        *,
        run: str | None = None,
        code: ExitCode | None = None,
    ) -> None:
        run = run or self.home.run_id_for(item.run_name)
        self.progress.say(text, event, run=run, file=str(item.place), code=code)


def facts_in(home: Home, item: InboxItem) -> dict[str, Any]:
    """The facts of a dropped run.toml. Raises TraceError for one that is not what it should be."""
    with scratch(home.staging) as private, opened(item.path, private, item.inbox) as dropped:
        return read_run_toml(dropped.path)
