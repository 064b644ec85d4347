"""Options and endings that several commands share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipeline.errors import ExitCode, exit_code_for
from pipeline.lake.home import Home
from pipeline.sources.job import MAX_BYTES
from pipeline.text import printable

if TYPE_CHECKING:
    from pipeline.ingest.ingest import ExecutionConfig

RunOption = Annotated[str | None, typer.Option("--run", help="The run: its name or id.")]
MaxBytesOption = Annotated[
    int, typer.Option("--max-bytes", min=1, help="Refuse a trace that decodes to more bytes.")
]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", min=1, help="Processes that work at once (default: the cores).")
]
MemoryOption = Annotated[
    str | None,
    typer.Option("--memory-limit", help="DuckDB's memory in each of them, e.g. 2GB (default 1GB)."),
]
SchedulerOption = Annotated[
    str | None, typer.Option("--scheduler", help="A Dask cluster to work on, e.g. tcp://host:8786.")
]
FormatOption = Annotated[Literal["table", "csv", "json"], typer.Option("--format", help="How to print.")]
_RAW_HELP = "CSV: keep texts that a spreadsheet runs as a formula; otherwise they begin with an apostrophe."
RawOption = Annotated[bool, typer.Option("--raw", help=_RAW_HELP)]


def say(*lines: str, err: bool = False) -> None:
    """Print lines. Names of files and runs stay on their line, and what a terminal would obey is escaped."""
    typer.echo("\n".join(map(printable, lines)), err=err)


@contextmanager
def execution_config(
    home: Home,
    workers: int | None,
    memory_limit: str | None,
    scheduler: str | None,
    max_bytes: int = MAX_BYTES,
) -> Iterator[ExecutionConfig]:
    """Who does the work of a command, as its options and the home's settings say."""
    from pipeline.ingest.executors import executor
    from pipeline.ingest.ingest import ExecutionConfig
    from pipeline.lake.settings import load_settings

    settings = load_settings(home, workers=workers, memory_limit=memory_limit)
    with executor(settings.workers, scheduler) as made:
        execution = ExecutionConfig(made, replace(settings, workers=made.workers), max_bytes)
        yield execution if workers is None else replace(execution, worth_bytes=0)


def leave(codes: list[ExitCode]) -> None:
    """End the command with the one exit code of all that went wrong, if anything did."""
    code = exit_code_for(codes)
    if code is not ExitCode.OK:
        raise typer.Exit(int(code))
