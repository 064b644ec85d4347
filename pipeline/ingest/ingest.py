"""Ingest files and build the runs they belong to; one file's trouble is its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
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
)
from pipeline.ingest import inbox
from pipeline.ingest.executors import Executor, Processes, Serial, WorkerDied
from pipeline.ingest.inbox import InboxItem
from pipeline.ingest.land import Landed
from pipeline.ingest.quarantine import archive, quarantine, remove_orphans
from pipeline.ingest.tasks import Building, Landing, build_and_check, home_error, land_file, said_by
from pipeline.lake.atomic import scratch, size_of
from pipeline.lake.builds import unchecked_runs
from pipeline.lake.database import write_database
from pipeline.lake.dropped import opened
from pipeline.lake.home import Home
from pipeline.lake.manifest import Manifest
from pipeline.lake.run_config import RUN_TOML, describe, read_run_toml
from pipeline.lake.settings import Settings
from pipeline.lake.tidy import tidy
from pipeline.models.build import stale_runs
from pipeline.models.rules import load_rules
from pipeline.progress import Progress
from pipeline.sources.detect import fresh_export
from pipeline.sources.job import MAX_BYTES


@dataclass(frozen=True)
class ExecutionConfig:
    """Who does the work, how much of the machine each worker takes, and the largest trace that is read.

    `worth_bytes`: work on less than this is done by this process alone, since starting others would take
    longer.
    """

    executor: Executor = field(default_factory=Serial)
    settings: Settings = field(default_factory=lambda: Settings(workers=1))
    max_bytes: int = MAX_BYTES
    worth_bytes: int = 8_000_000

    def for_tasks(self, pieces: int, size_bytes: int) -> tuple[Executor, Settings]:
        """As many workers as there are pieces of work at most; fewer have more threads each."""
        workers = max(1, min(self.settings.workers, pieces)) if size_bytes >= self.worth_bytes else 1
        is_local = isinstance(self.executor, (Serial, Processes))
        return (Serial() if is_local and workers == 1 else self.executor), replace(
            self.settings, workers=workers
        )


@dataclass
class Outcome:
    """What an ingest did: runs touched, runs built and the verdicts on them, files of the inbox left for no
    fault of theirs, and an exit code for everything that went wrong."""

    runs: list[str] = field(default_factory=list)
    built: list[str] = field(default_factory=list)
    verdicts: dict[str, str] = field(default_factory=dict)
    codes: list[ExitCode] = field(default_factory=list)
    left: list[Path] = field(default_factory=list)
    has_home_trouble: bool = False


def drain(home: Home, progress: Progress, execution: ExecutionConfig | None = None) -> Outcome:
    """Read every finished file of the inbox, archive or quarantine it, and build what changed."""
    with _writing(home, progress) as outcome:
        ready = []
        for item in inbox.waiting(home.inbox):
            if reason := inbox.not_settled(item):
                progress.say(f"left in the inbox: {item.place}: {reason}")
            else:
                ready.append(item)
        _Landings(home, progress, execution or ExecutionConfig(), outcome, from_inbox=True).land(ready)
        _build_stale(home, outcome, progress, execution or ExecutionConfig())
    return outcome


def land_inbox(
    home: Home,
    items: list[InboxItem],
    progress: Progress,
    execution: ExecutionConfig,
    stop: Callable[[], bool],
) -> Outcome:
    """Read these files of the inbox, archive or quarantine them, and build nothing; none is begun after
    `stop` says so."""
    with _writing(home, progress) as outcome:
        _Landings(home, progress, execution, outcome, from_inbox=True, stop=stop).land(items)
    return outcome


def ingest(
    home: Home,
    items: Iterable[InboxItem],
    progress: Progress,
    execution: ExecutionConfig | None = None,
    *,
    is_built: bool = True,
) -> Outcome:
    """Read files where they are, leave them there, and build what changed (if told to)."""
    with _writing(home, progress) as outcome:
        _Landings(home, progress, execution or ExecutionConfig(), outcome, from_inbox=False).land(list(items))
        if is_built:
            _build_stale(home, outcome, progress, execution or ExecutionConfig())
    return outcome


def build(
    home: Home,
    runs: list[str],
    progress: Progress,
    execution: ExecutionConfig | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Rebuild the marts of these runs from what has landed; none is begun after `stop` says so."""
    with _writing(home, progress) as outcome:
        _build(home, runs, outcome, progress, execution or ExecutionConfig(), stop)
    return outcome


def stale(home: Home) -> list[str]:
    """Runs whose marts are not what their files, the rules and the models of now would make."""
    return stale_runs(home, load_rules(home.user_rules, home.user_markers))


def say_of_run(home: Home, run_id: str, facts: dict[str, Any], progress: Progress) -> Outcome:
    """Add facts to a run and rebuild it, since its marts use them."""
    with _writing(home, progress) as outcome:
        describe(home, run_id, facts)
        _build(home, [run_id], outcome, progress, ExecutionConfig())
    return outcome


@contextmanager
def _writing(home: Home, progress: Progress) -> Iterator[Outcome]:
    """Hold the home, clear what earlier processes left, and renew the database of views at the end.

    Raises HomeError where the home cannot take what is written.
    """
    with home.writing(progress.say):
        try:
            tidy(home)
            remove_orphans(home)
            yield Outcome()
            write_database(home)
            tidy(home)
        except (OSError, duckdb.Error) as error:
            raise home_error(home.root, error) or HomeError(
                f"{home.root}: the home cannot be used: {said_by(error)}. No data is lost: re-run once this "
                "is fixed."
            ) from error


@dataclass
class _Landings:
    """Files on their way into the lake."""

    home: Home
    progress: Progress
    execution: ExecutionConfig
    outcome: Outcome
    from_inbox: bool
    stop: Callable[[], bool] = lambda: False

    def land(self, items: list[InboxItem]) -> None:
        """Read them all. An nsys report beside a fresh export goes first, while that is still there; one
        beside an old export goes last, so that it is still there to say that the export is old."""
        with self.progress.bytes(
            f"reading {len(items)} files", sum(item.size_bytes for item in items)
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
        if not landings or self.outcome.has_home_trouble or self.stop():
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
            if self.outcome.has_home_trouble or self.stop():
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
        known = " (the same bytes are there already: nothing to do)" if landed.was_known else ""
        self._say(f"read: {item.path.name} into run {landed.run_id}{known}")
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
            self._say(f"run {run_id}: facts taken from {RUN_TOML}")
        self._say(f"{'archived' if self.from_inbox else 'skipped'}: {side}")
        if self.from_inbox:
            archive(self.home, item, item.inode)

    def _failed(self, item: InboxItem, error: Exception) -> None:
        """A file that was not read: the home's trouble, the lake's, the file's, or a bug of ours."""
        if isinstance(error, (ContractError, UsageError, HomeError)):
            self._left(item, error)
        elif isinstance(error, GoneFile) and self.from_inbox:
            self._say(f"gone: {error}")
        elif isinstance(error, TraceError):
            self._refuse(item, error)
        elif isinstance(error, WorkerDied):
            wanted = "a file that can be read within the memory there is"
            self._refuse(
                item, TraceError(item.path.name, where="reading it", found=f"that {error}", wanted=wanted)
            )
        else:
            self.outcome.codes.append(ExitCode.BUG)
            self.progress.say_error(error)
            found = f"a bug of stepledger: {said_by(error)} ({type(error).__name__})"
            self._refuse(
                item,
                TraceError(
                    item.path.name,
                    where="reading it",
                    found=found,
                    wanted="a table",
                    advice="Report it with the file.",
                ),
            )

    def _refuse(self, item: InboxItem, error: TraceError) -> None:
        """Say why a file was not read; one of the inbox is quarantined, unless it may still be written or
        cannot be moved."""
        if self.from_inbox and isinstance(error, UnfinishedFile) and (reason := inbox.not_stalled(item)):
            self._say(f"left in the inbox: {error} It has been {reason}.")
            return
        self.outcome.codes.append(error.exit_code)
        if not self.from_inbox:
            self._say(f"not read: {error}")
            return
        if isinstance(error, HeldFile):
            self._say(f"left in the inbox: {item.place}: {error}")
            return
        try:
            moved = quarantine(self.home, item, error)
        except UsageError as trouble:
            self.outcome.codes.append(trouble.exit_code)
            self.outcome.left.append(item.path)
            self._say(f"not read: {error} And {trouble}")
        else:
            self._say(f"quarantined: {error} (now {moved.relative_to(self.home.root)})")

    def _left(self, item: InboxItem, error: Exception) -> None:
        """A file stays where it is, for no fault of its own."""
        code = error.exit_code if isinstance(error, StepledgerError) else ExitCode.USAGE
        self.outcome.codes.append(code)
        self.outcome.has_home_trouble |= isinstance(error, HomeError)
        self.outcome.left.append(item.path)
        said = str(error) if isinstance(error, StepledgerError) else said_by(error)
        self._say(f"left where it is: {item.path.name}: {said}")

    def _say(self, text: str) -> None:
        self.progress.say(text)


def facts_in(home: Home, item: InboxItem) -> dict[str, Any]:
    """The facts of a dropped run.toml. Raises TraceError for one that is not what it should be."""
    with scratch(home.staging) as private, opened(item.path, private, item.inbox) as dropped:
        return read_run_toml(dropped.path)


def _build_stale(home: Home, outcome: Outcome, progress: Progress, execution: ExecutionConfig) -> None:
    """Build what is stale, and check what somebody built and was stopped before checking."""
    _build(home, stale(home), outcome, progress, execution)
    _build(home, unchecked_runs(home), outcome, progress, execution, is_built=True)


def _build(
    home: Home,
    runs: list[str],
    outcome: Outcome,
    progress: Progress,
    execution: ExecutionConfig,
    stop: Callable[[], bool] = lambda: False,
    *,
    is_built: bool = False,
) -> None:
    runs = [run_id for run_id in runs if run_id not in outcome.built]
    if not runs or outcome.has_home_trouble:
        return
    if served := [run_id for run_id in runs if run_id in Manifest.load(home).serves]:
        write_database(home, pinned=served)
    executor, settings = execution.for_tasks(len(runs), sum(size_of(home.raw_run(run_id)) for run_id in runs))
    root, token = home.root.absolute(), home.lock_token()
    with progress.task(f"building {runs[0] if len(runs) == 1 else f'{len(runs)} runs'}"):
        pieces = [Building(root, run_id, settings, token, is_built) for run_id in runs]
        for done in executor.run(build_and_check, pieces):
            run_id = done.item.run_id
            if isinstance(done.error, StepledgerError):
                outcome.codes.append(done.error.exit_code)
                outcome.has_home_trouble |= isinstance(done.error, HomeError)
                progress.say(f"run {run_id}: {done.error}")
            elif done.error is not None:
                outcome.codes.append(ExitCode.BUG)
                progress.say_error(done.error)
                progress.say(f"run {run_id}: a bug of stepledger: {said_by(done.error)}. Report it.")
            elif done.value is not None:
                outcome.built.append(run_id)
                if done.value.trouble is not None:
                    outcome.codes.append(done.value.trouble.exit_code)
                    progress.say(f"run {run_id}: {done.value.trouble}")
                if done.value.verdict is not None:
                    outcome.verdicts[run_id] = done.value.verdict
                for check, means_what in done.value.failed:
                    progress.say(f"run {run_id}: check {check} failed: {means_what}")
            if outcome.has_home_trouble or stop():
                return
