"""The commands that answer questions from the marts: audit, ranks, bandwidth, bench, whatif, compare,
curve."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipeline.cli.options import RawOption
from pipeline.errors import ExitCode, UsageError
from pipeline.lake.home import Home

if TYPE_CHECKING:
    import duckdb

    from pipeline.analyses.report import Report

    _Ask = Callable[[duckdb.DuckDBPyConnection, list[str]], list[Report]]

RunArgument = Annotated[str, typer.Argument(help="The run: its name or id.")]
PhaseOption = Annotated[str | None, typer.Option(help="prefill, decode, mixed, verify or unknown.")]
TableOption = Annotated[
    str | None,
    typer.Option("--table", help="Latencies: a CSV, the output of nccl-tests, or a run that holds them."),
]
ExtrapolateOption = Annotated[
    bool, typer.Option("--extrapolate", help="Answer beyond the sizes that were measured, too.")
]
ReportOption = Annotated[
    Literal["table", "json", "csv", "md"], typer.Option("--format", help="How to print.")
]

whatif = typer.Typer(
    no_args_is_help=True, help="What a change would do to a traced step, with every assumption."
)


def add_to(app: typer.Typer) -> None:
    """Put the commands into the app."""
    for command in (audit, ranks, bandwidth, bench, compare, curve):
        app.command(rich_help_panel="Ask about collectives, bandwidth and changes")(command)
    app.add_typer(whatif, name="whatif", rich_help_panel="Ask about collectives, bandwidth and changes")


def audit(
    context: typer.Context,
    run: RunArgument,
    form: ReportOption = "table",
    raw: RawOption = False,
) -> None:
    """Count the all-reduces of a step by kind and place, against what the model and its parallelism need."""
    from pipeline.analyses.audit.audit import audit as ask

    _print(context.obj, [run], lambda con, found: ask(con, found[0]), form, raw=raw)


def ranks(
    context: typer.Context,
    run: RunArgument,
    form: ReportOption = "table",
    raw: RawOption = False,
) -> None:
    """Part waiting for the last rank from the collective itself, call by call, and say who was late and
    why."""
    from pipeline.analyses.stragglers import ranks as ask

    _print(context.obj, [run], lambda con, found: ask(con, found[0]), form, raw=raw)


def bandwidth(
    context: typer.Context,
    run: RunArgument,
    phase: PhaseOption = None,
    form: ReportOption = "table",
    raw: RawOption = False,
) -> None:
    """Bytes and bandwidth of collectives beside the link's limit, and of memory in a decode step."""
    from pipeline.analyses.bandwidth import bandwidth_reports

    _print(context.obj, [run], lambda con, found: bandwidth_reports(con, found[0], phase), form, raw=raw)


def bench(
    context: typer.Context,
    run: RunArgument,
    table: TableOption = None,
    form: ReportOption = "table",
    raw: RawOption = False,
) -> None:
    """Put measured latencies beside the same operation and size in the trace."""
    from pipeline.analyses.bench import bench_reports

    _print(context.obj, [run], lambda con, found: bench_reports(con, found[0], table), form, raw=raw)


def compare(
    context: typer.Context,
    before: Annotated[str, typer.Argument(metavar="A", help="The run before.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The run after.")],
    phase: Annotated[
        str | None,
        typer.Option(help="The phase to compare (default: decode, else the first that both have)."),
    ] = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Compare different work all the same.")] = False,
    noise: Annotated[
        list[str] | None,
        typer.Option("--noise", help="Repeated captures of A: their differences are the noise floor."),
    ] = None,
    fail_over: Annotated[
        str | None,
        typer.Option(
            "--fail-over", help="Exit 5 where wall or a row is slower by more, e.g. 5%, beyond noise."
        ),
    ] = None,
    form: ReportOption = "table",
    raw: RawOption = False,
) -> None:
    """What changed between two runs, beyond noise, and whether they may be compared at all."""
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
    runs: Annotated[list[str], typer.Argument(help="Runs of one model at several sizes.")],
    phase: PhaseOption = None,
    form: ReportOption = "table",
    raw: RawOption = False,
) -> None:
    """Milliseconds of each category against batch, graph tokens and context, over many runs."""
    from pipeline.analyses.curve import curve as ask
    from pipeline.present.reports import write_reports

    write_reports(ask(context.obj, runs, phase), form, raw=raw)


@whatif.command()
def ep(
    context: typer.Context,
    run: RunArgument,
    mode: Annotated[
        Literal["tp_ep", "dp_ep", "tp_attn_a2a"],
        typer.Option("--mode", help="Which layout of expert parallelism."),
    ],
    table: TableOption = None,
    exchange: Annotated[
        Literal["ag_rs", "a2a"] | None, typer.Option(help="How tokens go to experts and back.")
    ] = None,
    load: Annotated[
        float | None,
        typer.Option(min=1, help="The fullest rank's experts' tokens over the mean, as measured."),
    ] = None,
    extrapolate: ExtrapolateOption = False,
    form: ReportOption = "table",
    raw: RawOption = False,
) -> None:
    """Expert parallelism, from 1 to 1024 tokens per rank."""
    from pipeline.analyses.whatif.whatif import ep_reports

    def ask(con: duckdb.DuckDBPyConnection, found: list[str]) -> list[Report]:
        return ep_reports(con, found[0], mode, table, exchange=exchange, load=load, extrapolate=extrapolate)

    _print(context.obj, [run], ask, form, raw=raw)


@whatif.command()
def overlap(
    context: typer.Context,
    run: RunArgument,
    half: Annotated[str | None, typer.Option(help="A run of the same model at half the batch.")] = None,
    form: ReportOption = "table",
    raw: RawOption = False,
) -> None:
    """The ceiling of hiding communication under the other half of the batch."""
    from pipeline.analyses.whatif.whatif import overlap_reports

    names = [run, *([half] if half else [])]
    _print(context.obj, names, lambda con, found: overlap_reports(con, *found), form, raw=raw)


@whatif.command()
def speculate(
    context: typer.Context,
    runs: Annotated[list[str], typer.Argument(help="Runs of one model at several batch sizes.")],
    drafts: Annotated[str, typer.Option(help="Numbers of draft tokens, e.g. 1,2,3.")] = "1,2,3,4,5",
    draft_ms: Annotated[
        float | None, typer.Option(min=0, help="Time of one pass of the draft model.")
    ] = None,
    extrapolate: ExtrapolateOption = False,
    form: ReportOption = "table",
    raw: RawOption = False,
) -> None:
    """Speculative decoding: what a verifying pass costs, and the acceptance at which it breaks even."""
    from pipeline.analyses.whatif.whatif import speculate_reports

    try:
        numbers = [int(part) for part in drafts.split(",")]
    except ValueError as error:
        raise UsageError(f"--drafts {drafts}: numbers with commas between them, e.g. 1,2,3") from error

    def ask(con: duckdb.DuckDBPyConnection, found: list[str]) -> list[Report]:
        return speculate_reports(con, found, drafts=numbers, draft_ms=draft_ms, extrapolate=extrapolate)

    _print(context.obj, runs, ask, form, raw=raw)


def _print(home: Home, names: list[str], ask: _Ask, form: ReportOption, *, raw: bool) -> None:
    from pipeline.lake.reading import find_run, opened, stable
    from pipeline.present.reports import write_reports

    def read() -> list[Report]:
        with opened(home) as con:  # a table of latencies may be a file anywhere
            return ask(con, [find_run(con, name) for name in names])

    write_reports(stable(home, read), form, raw=raw)
