"""Options and endings that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pipeline.errors import ExitCode, exit_code_for
from pipeline.lake.home import Home
from pipeline.sources.job import MAX_BYTES
from pipeline.text import printable

if TYPE_CHECKING:
    from pipeline.ingest.execution import ExecutionConfig

MaxBytesOption = Annotated[
    int, typer.Option("--max-bytes", min=1, help="Refuse a trace that decodes to more bytes than this.")
]
FormatOption = Annotated[Literal["table", "csv", "json"], typer.Option("--format", help="Output format.")]
_RAW_HELP = (
    "CSV: keep text that a spreadsheet would run as a formula; by default it gets a leading apostrophe."
)
RawOption = Annotated[bool, typer.Option("--raw", help=_RAW_HELP)]


def say(*lines: str, err: bool = False) -> None:
    """Print lines. Names of files and runs stay on their line, and what a terminal would obey is escaped."""
    typer.echo("\n".join(map(printable, lines)), err=err)


@dataclass(frozen=True)
class Execution:
    """Where a command does its work, as its options say; `takes_execution` adds these to a command."""

    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Number of worker processes (default: the number of cores)."),
    ] = None
    memory_limit: Annotated[
        str | None,
        typer.Option("--memory-limit", help="DuckDB memory per worker, e.g. 2GB (default: 1GB)."),
    ] = None
    scheduler: Annotated[
        str | None,
        typer.Option("--scheduler", help="Run on this Dask cluster, e.g. tcp://host:8786."),
    ] = None

    @contextmanager
    def opened(self, home: Home, max_bytes: int = MAX_BYTES) -> Iterator[ExecutionConfig]:
        """Workers as these options and the home's settings say, until the end of the context."""
        from pipeline.ingest.execution import ExecutionConfig
        from pipeline.ingest.executors import executor
        from pipeline.lake.settings import load_settings

        settings = load_settings(home, workers=self.workers, memory_limit=self.memory_limit)
        with executor(settings.workers, self.scheduler) as made:
            config = ExecutionConfig(made, replace(settings, workers=made.workers), max_bytes)
            yield config if self.workers is None else replace(config, worth_bytes=0)


def takes_execution(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of Execution, and pass them to it as one argument `execution`."""
    own = inspect.signature(command, eval_str=True)
    shared = inspect.signature(Execution, eval_str=True).parameters
    added = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in shared.values()]

    @wraps(command)
    def wrapped(*arguments: Any, **options: Any) -> None:
        execution = Execution(**{name: options.pop(name) for name in shared})
        command(*arguments, **options, execution=execution)

    kept = [p for name, p in own.parameters.items() if name != "execution"]
    signature = own.replace(parameters=[*kept, *added])
    wrapped.__dict__["__signature__"] = signature
    wrapped.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
    return wrapped


def leave(codes: list[ExitCode]) -> None:
    """End the command with the one exit code of all that went wrong, if anything did."""
    code = exit_code_for(codes)
    if code is not ExitCode.OK:
        raise typer.Exit(int(code))
