"""The commands that answer questions from the marts: audit, ranks, bandwidth, bench, compare, curve."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipeline.cli.help import register
from pipeline.cli.options import RawOption
from pipeline.cli.runs import RunArgument, RunsArgument, complete_run
from pipeline.errors import ExitCode
from pipeline.lake.home import Home

if TYPE_CHECKING:
    import duckdb

    from pipeline.analyses.report import Report

    _Ask = Callable[[duckdb.DuckDBPyConnection, list[str]], list[Report]]

PhaseOption = Annotated[str | None, typer.Option(help="prefill, decode, mixed, verify or unknown.")]
TableOption = Annotated[
    str | None,
    typer.Option(
        "--table", help="Measured latencies: a CSV, the output of nccl-tests, or a run that holds them."
    ),
]
ReportOption = Annotated[
    Literal["table", "json", "csv", "md"], typer.Option("--format", help="Output format.")
]


def add_to(app: typer.Typer, panel: str) -> None:
    """Put the commands into the app."""
    register(app, audit, "stepledger audit my-run", panel)
    register(app, ranks, "stepledger ranks my-run --format md", panel)
    register(app, bandwidth, "stepledger bandwidth my-run --phase decode", panel)
    register(app, bench, "stepledger bench my-run --table all_reduce_perf.txt", panel)
    register(app, compare, "stepledger compare before after --fail-over 5%", panel)
    register(app, curve, "stepledger curve 'A_*'", panel)


def audit(
    context: typer.Context,
    run: RunArgument,
    form: ReportOption = "table",
    raw: RawOption = False,
) -> None:
    """Compare the all-reduces of a step, by kind and position, with what the model needs."""
    from pipeline.analyses.audit.audit import audit as ask

    print_answer(context.obj, [run], lambda con, found: ask(con, found[0]), form, raw=raw)


def ranks(
    context: typer.Context,
    run: RunArgument,
    form: ReportOption = "table",
    raw: RawOption = False,
) -> None:
    """Split collectives into waiting for the last rank and transfer, and name the late rank and the cause."""
    from pipeline.analyses.stragglers import ranks as ask

    print_answer(context.obj, [run], lambda con, found: ask(con, found[0]), form, raw=raw)


def bandwidth(
    context: typer.Context,
    run: RunArgument,
    phase: PhaseOption = None,
    form: ReportOption = "table",
    raw: RawOption = False,
) -> None:
    """Show bytes and bandwidth of collectives beside the link's peak, and of memory in a decode step."""
    from pipeline.analyses.bandwidth import bandwidth_reports

    print_answer(
        context.obj, [run], lambda con, found: bandwidth_reports(con, found[0], phase), form, raw=raw
    )


def bench(
    context: typer.Context,
    run: RunArgument,
    table: TableOption = None,
    form: ReportOption = "table",
    raw: RawOption = False,
) -> None:
    """Compare measured latencies with the same operation and size in the trace."""
    from pipeline.analyses.bench import bench_reports

    print_answer(context.obj, [run], lambda con, found: bench_reports(con, found[0], table), form, raw=raw)


def compare(
    context: typer.Context,
    before: Annotated[str, typer.Argument(metavar="A", help="The run before.", autocompletion=complete_run)],
    after: Annotated[str, typer.Argument(metavar="B", help="The run after.", autocompletion=complete_run)],
    phase: Annotated[
        str | None,
        typer.Option(help="The phase to compare (default: decode, else the first that both have)."),
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Compare runs of different workloads anyway.")
    ] = False,
    noise: Annotated[
        list[str] | None,
        typer.Option("--noise", help="A repeated capture of A; its difference from A is the noise floor."),
    ] = None,
    fail_over: Annotated[
        str | None,
        typer.Option(
            "--fail-over",
            help="Exit 5 if wall time or a row is slower by more than this, e.g. 5%, beyond noise.",
        ),
    ] = None,
    form: ReportOption = "table",
    raw: RawOption = False,
) -> None:
    """Show what changed between two runs, beyond noise, and whether they are comparable."""
    from pipeline.analyses.compare.compare import compare as ask
    from pipeline.analyses.compare.compare import fail_limit
    from pipeline.present.reports import write_reports

    limit = None if fail_over is None else fail_limit(fail_over)
    reports, is_over = ask(
        context.obj,
        before,
        after,
        phase=phase,
        anyway=anyway,
        noise=noise or [],
        fail_over=limit,
        wide=form in {"json", "csv"},
    )
    write_reports(reports, form, raw=raw)
    if is_over:
        raise typer.Exit(int(ExitCode.QUALITY))


def curve(
    context: typer.Context,
    runs: RunsArgument,
    phase: PhaseOption = None,
    form: ReportOption = "table",
    raw: RawOption = False,
) -> None:
    """Show the time of each category against batch, graph tokens and context, over runs of one model."""
    from pipeline.analyses.curve import curve as ask
    from pipeline.lake.selection import select_runs
    from pipeline.present.reports import write_reports

    write_reports(ask(context.obj, select_runs(context.obj, runs), phase), form, raw=raw)


def print_answer(home: Home, names: list[str], ask: _Ask, form: ReportOption, *, raw: bool) -> None:
    """Print what a question answers about these runs, read from one build."""
    from pipeline.lake.reading import find_run, opened, stable
    from pipeline.present.reports import write_reports

    def read() -> list[Report]:
        with opened(home) as con:  # a table of latencies may be a file anywhere
            return ask(con, [find_run(con, name) for name in names])

    write_reports(stable(home, read), form, raw=raw)
