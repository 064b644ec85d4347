"""How a pass over files and runs is executed, and its result."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from pipeline.errors import ExitCode
from pipeline.ingest.executors import Executor, Processes, Serial
from pipeline.lake.settings import Settings
from pipeline.sources.job import MAX_BYTES


@dataclass(frozen=True)
class ExecutionConfig:
    """The executor, the resources of each worker, and the largest trace that is read.

    `worth_bytes`: this process alone works on less than this, since starting others would take longer.
    """

    executor: Executor = field(default_factory=Serial)
    settings: Settings = field(default_factory=lambda: Settings(workers=1))
    max_bytes: int = MAX_BYTES
    worth_bytes: int = 8_000_000

    def for_tasks(self, pieces: int, size_bytes: int) -> tuple[Executor, Settings]:
        """At most one worker per piece of work; fewer workers have more threads each."""
        workers = max(1, min(self.settings.workers, pieces)) if size_bytes >= self.worth_bytes else 1
        is_local = isinstance(self.executor, (Serial, Processes))
        return (Serial() if is_local and workers == 1 else self.executor), replace(
            self.settings, workers=workers
        )


@dataclass
class Outcome:
    """The result of a pass: runs touched, runs built and their verdicts, files of the inbox that stay there
    through no fault of their own, and an exit code for each failure.
    """

    runs: list[str] = field(default_factory=list)
    built: list[str] = field(default_factory=list)
    verdicts: dict[str, str] = field(default_factory=dict)
    codes: list[ExitCode] = field(default_factory=list)
    left: list[Path] = field(default_factory=list)
    has_home_error: bool = False
