"""The commands that answer questions from the marts: audit, ranks, bandwidth, bench, whatif, compare,
curve."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipeline.cli.help import Commands, register
from pipeline.cli.options import RawOption
from pipeline.cli.runs import RunArgument, RunsArgument, complete_run
from pipeline.errors import ExitCode, UsageError
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
ExtrapolateOption = Annotated[
    bool, typer.Option("--extrapolate", help="Extrapolate beyond the measured sizes.")
]
ReportOption = Annotated[
    Literal["table", "json", "csv", "md"], typer.Option("--format", help="Output format.")
]

_whatif = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="Estimate what a change would do to a traced step, with every assumption.",
)


def add_to(app: typer.Typer, panel: str) -> None:
    """Put the commands into the app."""
    register(app, audit, "stepledger audit my-run", panel)
    register(app, ranks, "stepledger ranks my-run --format md", panel)
    register(app, bandwidth, "stepledger bandwidth my-run --phase decode", panel)
    register(app, bench, "stepledger bench my-run --table all_reduce_perf.txt", panel)
    register(app, compare, "stepledger compare before after --fail-over 5%", panel)
    register(app, curve, "stepledger curve 'A_*'", panel)
    register(_whatif, ep, "stepledger whatif ep my-run --mode dp_ep --table latencies.csv")
    register(_whatif, overlap, "stepledger whatif overlap my-run --half my-run-at-half-the-batch")
    register(_whatif, speculate, "stepledger whatif speculate b1 b2 b4 --draft-ms 0.8")
    app.add_typer(_whatif, name="whatif", rich_help_panel=panel)


def audit(
    context: typer.Context,
    run: RunArgument,
    form: ReportOption = "table",
    raw: RawOption = False,
) -> None:
    """Compare the all-reduces of a step, by kind and position, with what the model and its parallelism need."""
    from pipeline.analyses.audit.audit import audit as ask

    _print(context.obj, [run], lambda con, found: ask(con, found[0]), form, raw=raw)


def ranks(
    context: typer.Context,
    run: RunArgument,
    form: ReportOption = "table",
    raw: RawOption = False,
) -> None:
    """Split collectives into waiting for the last rank and transfer, and name the late rank and the cause."""
    from pipeline.analyses.stragglers import ranks as ask

    _print(context.obj, [run], lambda con, found: ask(con, found[0]), form, raw=raw)


def bandwidth(
    context: typer.Context,
    run: RunArgument,
    phase: PhaseOption = None,
    form: ReportOption = "table",
    raw: RawOption = False,
) -> None:
    """Show bytes and bandwidth of collectives beside the link's peak, and of memory in a decode step."""
    from pipeline.analyses.bandwidth import bandwidth_reports

    _print(context.obj, [run], lambda con, found: bandwidth_reports(con, found[0], phase), form, raw=raw)


def bench(
    context: typer.Context,
    run: RunArgument,
    table: TableOption = None,
    form: ReportOption = "table",
    raw: RawOption = False,
) -> None:
    """Compare measured latencies with the same operation and size in the trace."""
    from pipeline.analyses.bench import bench_reports

    _print(context.obj, [run], lambda con, found: bench_reports(con, found[0], table), form, raw=raw)


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


def ep(
    context: typer.Context,
    run: RunArgument,
    mode: Annotated[
        Literal["tp_ep", "dp_ep", "tp_attn_a2a"],
        typer.Option("--mode", help="The layout of expert parallelism."),
    ],
    table: TableOption = None,
    exchange: Annotated[
        Literal["ag_rs", "a2a"] | None, typer.Option(help="How tokens travel to experts and back.")
    ] = None,
    load: Annotated[
        float | None,
        typer.Option(
            min=1, help="Measured load imbalance: tokens of the busiest rank's experts over the mean."
        ),
    ] = None,
    extrapolate: ExtrapolateOption = False,
    form: ReportOption = "table",
    raw: RawOption = False,
) -> None:
    """Estimate expert parallelism, from 1 to 1024 tokens per rank."""
    from pipeline.analyses.whatif.whatif import ep_reports

    def ask(con: duckdb.DuckDBPyConnection, found: list[str]) -> list[Report]:
        return ep_reports(con, found[0], mode, table, exchange=exchange, load=load, extrapolate=extrapolate)

    _print(context.obj, [run], ask, form, raw=raw)


def overlap(
    context: typer.Context,
    run: RunArgument,
    half: Annotated[
        str | None,
        typer.Option(help="A run of the same model at half the batch size.", autocompletion=complete_run),
    ] = None,
    form: ReportOption = "table",
    raw: RawOption = False,
) -> None:
    """Estimate the most that hiding communication under the other half of the batch can save."""
    from pipeline.analyses.whatif.whatif import overlap_reports

    names = [run, *([half] if half else [])]
    _print(context.obj, names, lambda con, found: overlap_reports(con, *found), form, raw=raw)


def speculate(
    context: typer.Context,
    runs: RunsArgument,
    drafts: Annotated[str, typer.Option(help="Numbers of draft tokens to try, e.g. 1,2,3.")] = "1,2,3,4,5",
    draft_ms: Annotated[
        float | None, typer.Option(min=0, help="Time of one pass of the draft model, ms.")
    ] = None,
    extrapolate: ExtrapolateOption = False,
    form: ReportOption = "table",
    raw: RawOption = False,
) -> None:
    """Estimate the cost of a verification pass of speculative decoding, and the break-even acceptance rate."""
    from pipeline.analyses.whatif.whatif import speculate_reports
    from pipeline.lake.selection import select_runs

    try:
        numbers = [int(part) for part in drafts.split(",")]
    except ValueError as error:
        raise UsageError(f"--drafts {drafts}: expected comma-separated numbers, e.g. 1,2,3") from error

    def ask(con: duckdb.DuckDBPyConnection, found: list[str]) -> list[Report]:
        return speculate_reports(con, found, drafts=numbers, draft_ms=draft_ms, extrapolate=extrapolate)

    _print(context.obj, select_runs(context.obj, runs), ask, form, raw=raw)


def _print(home: Home, names: list[str], ask: _Ask, form: ReportOption, *, raw: bool) -> None:
    from pipeline.lake.reading import find_run, opened, stable
    from pipeline.present.reports import write_reports

    def read() -> list[Report]:
        with opened(home) as con:  # a table of latencies may be a file anywhere
            return ask(con, [find_run(con, name) for name in names])

    write_reports(stable(home, read), form, raw=raw)
