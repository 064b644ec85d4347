"""Passes over a home: ingest files, build the runs they belong to, rebuild, describe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import duckdb

from pipeline.errors import ExitCode, HomeError, StepledgerError
from pipeline.events import Event, on_wait
from pipeline.ingest import inbox
from pipeline.ingest.execution import ExecutionConfig, Outcome
from pipeline.ingest.files import Landings
from pipeline.ingest.inbox import InboxItem
from pipeline.ingest.quarantine import remove_orphans
from pipeline.ingest.tasks import Building, Built, build_and_check, describe_error, home_error
from pipeline.lake.atomic import size_of
from pipeline.lake.builds import unchecked_runs
from pipeline.lake.database import write_database
from pipeline.lake.home import Home
from pipeline.lake.manifest import Manifest
from pipeline.lake.run_config import describe
from pipeline.lake.tidy import tidy
from pipeline.models.build import stale_runs
from pipeline.models.rules import load_rules
from pipeline.progress import Progress


def drain(home: Home, progress: Progress, execution: ExecutionConfig | None = None) -> Outcome:
    """Read every finished file of the inbox, archive or quarantine it, and build what changed."""
    with _writing(home, progress) as outcome:
        ready = []
        for item in inbox.waiting(home.inbox):
            if reason := inbox.not_settled(item):
                text = f"left in the inbox: {item.place}: {reason}"
                progress.say(
                    text, Event.LEFT_IN_PLACE, run=home.run_id_for(item.run_name), file=str(item.place)
                )
            else:
                ready.append(item)
        Landings(home, progress, execution or ExecutionConfig(), outcome, from_inbox=True).land(ready)
        _build_stale(home, outcome, progress, execution or ExecutionConfig())
    return outcome


def land_inbox(
    home: Home,
    items: list[InboxItem],
    progress: Progress,
    execution: ExecutionConfig,
    stop: Callable[[], bool],
) -> Outcome:
    """Read these files of the inbox, archive or quarantine them, and build nothing. No file is begun once
    `stop` is true.
    """
    with _writing(home, progress) as outcome:
        Landings(home, progress, execution, outcome, from_inbox=True, stop=stop).land(items)
    return outcome


def ingest(
    home: Home,
    items: Iterable[InboxItem],
    progress: Progress,
    execution: ExecutionConfig | None = None,
    *,
    is_built: bool = True,
) -> Outcome:
    """Read files where they are, leave them there, and build what changed unless `is_built` is false."""
    with _writing(home, progress) as outcome:
        Landings(home, progress, execution or ExecutionConfig(), outcome, from_inbox=False).land(list(items))
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
    """Rebuild the marts of these runs from what has landed. No run is begun once `stop` is true."""
    with _writing(home, progress) as outcome:
        _build(home, runs, outcome, progress, execution or ExecutionConfig(), stop)
    return outcome


def stale(home: Home) -> list[str]:
    """Runs whose marts differ from what their files, rules and models would give now."""
    return stale_runs(home, load_rules(home.user_rules, home.user_markers))


def describe_runs(home: Home, run_ids: list[str], facts: dict[str, Any], progress: Progress) -> Outcome:
    """Add facts to runs and rebuild them, since their marts use the facts."""
    with _writing(home, progress) as outcome:
        for run_id in run_ids:
            describe(home, run_id, facts)
        _build(home, run_ids, outcome, progress, ExecutionConfig())
    return outcome


@contextmanager
def _writing(home: Home, progress: Progress) -> Iterator[Outcome]:
    """Hold the home, clear what earlier processes left, and rewrite the database of views at the end.

    Raises HomeError where the home cannot be written.
    """
    with home.writing(on_wait(progress.say)):
        try:
            tidy(home)
            remove_orphans(home)
            yield Outcome()
            write_database(home)
            tidy(home)
        except (OSError, duckdb.Error) as error:
            text = f"{home.root}: the home cannot be used: {describe_error(error)}"
            raise home_error(home.root, error) or HomeError(
                f"{text}. No data is lost: re-run once this is fixed."
            ) from error


def _build_stale(home: Home, outcome: Outcome, progress: Progress, execution: ExecutionConfig) -> None:
    """Build what is stale, and check what was built by a process that stopped before checking it."""
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
    if not runs or outcome.has_home_error:
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
                outcome.has_home_error |= isinstance(done.error, HomeError)
                code = done.error.exit_code
                progress.say(f"run {run_id}: {done.error}", Event.BUILD_FAILED, run=run_id, code=code)
            elif done.error is not None:
                outcome.codes.append(ExitCode.BUG)
                progress.say_error(done.error, run=run_id, code=ExitCode.BUG)
                text = f"run {run_id}: a bug in stepledger: {describe_error(done.error)}. Please report it."
                progress.say(text, Event.BUILD_FAILED, run=run_id, code=ExitCode.BUG)
            elif done.value is not None:
                outcome.built.append(run_id)
                _report_checks(run_id, done.value, outcome, progress)
            if outcome.has_home_error or stop():
                return


def _report_checks(run_id: str, built: Built, outcome: Outcome, progress: Progress) -> None:
    if built.problem is not None:
        code = built.problem.exit_code
        outcome.codes.append(code)
        progress.say(f"run {run_id}: {built.problem}", Event.NOT_CHECKED, run=run_id, code=code)
    if built.verdict is not None:
        outcome.verdicts[run_id] = built.verdict
    for check, meaning in built.failed:
        text = f"run {run_id}: check {check} failed: {meaning}"
        progress.say(text, Event.CHECK_FAILED, run=run_id, code=ExitCode.QUALITY)
