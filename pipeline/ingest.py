"""Ingest files and build the runs they belong to; one file's trouble is its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pipeline import inbox
from pipeline.describe import RUN_TOML, describe, read_run_toml
from pipeline.errors import ContractError, ExitCode, SideFile, StepledgerError, TraceError, UnfinishedFile, UsageError
from pipeline.home import Home
from pipeline.inbox import Waiting
from pipeline.land import land, size_of
from pipeline.progress import Progress
from pipeline.quality import check_run, verdict
from pipeline.rules import load_rules
from pipeline.sources.job import MAX_BYTES
from pipeline.sources.names import printable
from pipeline.warehouse import build_run, stale_runs, tidy, write_database

READ_MEMORY = "256MB"
BUILD_MEMORY = "1GB"


@dataclass
class Outcome:
    """What an ingest did: runs touched, runs built and the verdicts on them, and an exit code for everything that went wrong."""

    runs: list[str] = field(default_factory=list)
    built: list[str] = field(default_factory=list)
    verdicts: dict[str, str] = field(default_factory=dict)
    codes: list[ExitCode] = field(default_factory=list)


def drain(home: Home, progress: Progress, max_bytes: int = MAX_BYTES) -> Outcome:
    """Read every finished file of the inbox, archive or quarantine it, and build what changed."""
    with _writing(home, progress) as outcome:
        ready = []
        for item in inbox.waiting(home.inbox):
            if reason := inbox.not_settled(item.path):
                progress.say(printable(f"left in the inbox: {item.place}: {reason}"))
            else:
                ready.append(item)
        ready.sort(key=lambda item: not item.path.is_symlink())  # while what they point to is still there
        _land_all(home, ready, outcome, progress, max_bytes, from_inbox=True)
        _build(home, stale_runs(home), outcome, progress)
    return outcome


def ingest(home: Home, items: Iterable[Waiting], progress: Progress, max_bytes: int = MAX_BYTES) -> Outcome:
    """Read files where they are, leave them there, and build what changed."""
    with _writing(home, progress) as outcome:
        _land_all(home, list(items), outcome, progress, max_bytes, from_inbox=False)
        _build(home, stale_runs(home), outcome, progress)
    return outcome


def build(home: Home, runs: list[str], progress: Progress) -> Outcome:
    """Rebuild the marts of these runs from what has landed."""
    with _writing(home, progress) as outcome:
        _build(home, runs, outcome, progress)
    return outcome


def say_of_run(home: Home, run_id: str, facts: dict[str, Any], progress: Progress) -> Outcome:
    """Add facts to a run and rebuild it, since its marts use them."""
    with _writing(home, progress) as outcome:
        describe(home, run_id, facts)
        _build(home, [run_id], outcome, progress)
    return outcome


@contextmanager
def _writing(home: Home, progress: Progress) -> Iterator[Outcome]:
    """Hold the home, clear what earlier processes left, and renew the database of views at the end."""
    with home.writing(progress.say):
        tidy(home)
        yield Outcome()
        write_database(home)


def _land_all(home: Home, items: list[Waiting], outcome: Outcome, progress: Progress, max_bytes: int, *, from_inbox: bool) -> None:
    total = sum(size_of(item.path) for item in items if os.path.exists(item.path))  # noqa: PTH110 - no error where a folder is closed
    with progress.bytes("reading", total) as on_read:
        for item in items:
            try:
                _land_one(home, item, outcome, progress, on_read, max_bytes, from_inbox=from_inbox)
            except TraceError as error:
                _refuse(home, item, error, outcome, progress, from_inbox=from_inbox)
            except (ContractError, UsageError) as error:
                outcome.codes.append(error.exit_code)
                progress.say(printable(f"left where it is: {item.path.name}: {error}"))


def _refuse(home: Home, item: Waiting, error: TraceError, outcome: Outcome, progress: Progress, *, from_inbox: bool) -> None:
    """Say why a file was not read; one of the inbox is quarantined, unless its end may still come."""
    if from_inbox and isinstance(error, UnfinishedFile) and (reason := inbox.not_stalled(item.path)):
        progress.say(printable(f"left in the inbox: {error} It has been {reason}."))
        return
    outcome.codes.append(error.exit_code)
    if not from_inbox:
        progress.say(printable(f"not read: {error}"))
        return
    try:
        moved = inbox.quarantine(home, item, error)
    except UsageError as trouble:
        outcome.codes.append(trouble.exit_code)
        progress.say(printable(f"not read: {error} And {trouble}"))
    else:
        progress.say(printable(f"quarantined: {error} (now {moved.relative_to(home.root)})"))


def _land_one(
    home: Home, item: Waiting, outcome: Outcome, progress: Progress, on_read: Callable[[int], None], max_bytes: int, *, from_inbox: bool
) -> None:
    try:
        if from_inbox:
            inbox.refuse_link(home.inbox, item.path)
        salvage = not from_inbox or inbox.not_stalled(item.path) is None
        landed = land(
            home,
            item.path,
            item.run_name,
            on_read,
            threads=os.cpu_count() or 1,
            memory_limit=READ_MEMORY,
            salvage=salvage,
            max_bytes=max_bytes,
        )
    except SideFile as side:
        if item.path.name == RUN_TOML:
            run_id = home.run_id_for(item.run_name)
            describe(home, run_id, read_run_toml(item.path))
            progress.say(f"run {run_id}: facts taken from {RUN_TOML}")
        progress.say(printable(f"{'archived' if from_inbox else 'skipped'}: {side}"))
        if from_inbox:
            inbox.archive(home, item)
        return
    if landed.run_id not in outcome.runs:
        outcome.runs.append(landed.run_id)
    known = " (the same bytes are there already: nothing to do)" if landed.was_known else ""
    progress.say(printable(f"read: {item.path.name} into run {landed.run_id}{known}"))
    if from_inbox:
        inbox.archive(home, item)


def _build(home: Home, runs: list[str], outcome: Outcome, progress: Progress) -> None:
    rules = load_rules(home.user_rules)
    for run_id in runs:
        try:
            with progress.task(f"building {run_id}"):
                build_run(home, run_id, rules, threads=os.cpu_count() or 1, memory_limit=BUILD_MEMORY)
        except StepledgerError as error:
            outcome.codes.append(error.exit_code)
            progress.say(f"run {run_id}: {error}")
        else:
            outcome.built.append(run_id)
            try:
                results = check_run(home, run_id, with_docs=False)
            except StepledgerError as error:
                outcome.codes.append(error.exit_code)
                progress.say(f"run {run_id}: {error}")
                continue
            outcome.verdicts[run_id] = verdict(results)
            for result in results:
                if not result.is_passed and result.severity == "fail":
                    progress.say(f"run {run_id}: check {result.check} failed: {result.means}")
