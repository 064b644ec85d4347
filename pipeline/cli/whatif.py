"""The commands that estimate changes from the marts: whatif ep, overlap, speculate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipeline.cli.help import Commands, register
from pipeline.cli.options import RawOption
from pipeline.cli.questions import ReportOption, TableOption, print_answer
from pipeline.cli.runs import RunArgument, RunsArgument, complete_run
from pipeline.errors import UsageError

if TYPE_CHECKING:
    import duckdb

    from pipeline.analyses.report import Report

ExtrapolateOption = Annotated[
    bool, typer.Option("--extrapolate", help="Extrapolate beyond the measured sizes.")
]
_whatif = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="Estimate what a change would do to a traced step, with every assumption.",
)


def add_to(app: typer.Typer, panel: str) -> None:
    """Put the group of commands into the app."""
    register(_whatif, ep, "stepledger whatif ep my-run --mode dp_ep --table latencies.csv")
    register(_whatif, overlap, "stepledger whatif overlap my-run --half my-run-at-half-the-batch")
    register(_whatif, speculate, "stepledger whatif speculate b1 b2 b4 --draft-ms 0.8")
    app.add_typer(_whatif, name="whatif", rich_help_panel=panel)


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

    print_answer(context.obj, [run], ask, form, raw=raw)


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
    print_answer(context.obj, names, lambda con, found: overlap_reports(con, *found), form, raw=raw)


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
    """Estimate the cost of a speculative verification pass, and the break-even acceptance rate."""
    from pipeline.analyses.whatif.whatif import speculate_reports
    from pipeline.lake.selection import select_runs

    try:
        numbers = [int(part) for part in drafts.split(",")]
    except ValueError as error:
        raise UsageError(f"--drafts {drafts}: expected comma-separated numbers, e.g. 1,2,3") from error

    def ask(con: duckdb.DuckDBPyConnection, found: list[str]) -> list[Report]:
        return speculate_reports(con, found, drafts=numbers, draft_ms=draft_ms, extrapolate=extrapolate)

    print_answer(context.obj, select_runs(context.obj, runs), ask, form, raw=raw)
