"""The commands: arguments to one call to one print. stdout is data; progress and messages go to stderr."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from pipeline import __version__
from pipeline.cli import describe, ingesting, lake, questions, tables, whatif
from pipeline.cli.help import Commands, register
from pipeline.cli.options import FormatOption, RawOption, leave, say
from pipeline.cli.runs import RunsArgument
from pipeline.errors import ExitCode, StepledgerError, home_trouble
from pipeline.lake.home import Home

app = typer.Typer(
    name="stepledger",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Example: stepledger --home /tmp/demo demo",
    help="Assign every nanosecond of GPU work in an LLM-inference trace to a rank, a step and a category.",
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"stepledger {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    context: typer.Context,
    home: Annotated[
        Path,
        typer.Option("--home", envvar="STEPLEDGER_HOME", help="The folder with inbox, lake and exports."),
    ] = Path("warehouse"),
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    context.obj = Home(home)


def show(
    context: typer.Context,
    names: RunsArgument,
    phase: Annotated[str | None, typer.Option(help="prefill, decode, mixed, verify or unknown.")] = None,
    form: FormatOption = "table",
    raw: RawOption = False,
) -> None:
    """Print the breakdown tables of runs."""
    from pipeline.analyses.breakdown import Screen, screens
    from pipeline.lake.reading import reading, stable
    from pipeline.lake.selection import readable_run, select_runs
    from pipeline.present.output import write_rows
    from pipeline.present.show import print_screen

    run_ids = select_runs(context.obj, names, readable_run)

    def read() -> list[Screen]:
        with reading(context.obj) as con:
            return [screen for run_id in run_ids for screen in screens(con, run_id, phase)]

    found = stable(context.obj, read)
    if form == "table":
        for screen in found:
            print_screen(screen)
        return
    rows = [row for screen in found for row in screen.rollups]
    columns = list(rows[0]) if rows else []
    write_rows(columns, [list(row.values()) for row in rows], form, raw=raw)


def rules(
    context: typer.Context,
    explain: Annotated[
        str | None, typer.Option("--explain", help="A kernel name: which rule claims it, and why.")
    ] = None,
    op: Annotated[str | None, typer.Option("--op", help="With --explain: the launching operator.")] = None,
    check_file: Annotated[
        Path | None,
        typer.Option(
            "--check", help="A kernel_rules.toml or step_markers.toml: list its problems; exit 2 if any."
        ),
    ] = None,
    form: FormatOption = "table",
    raw: RawOption = False,
) -> None:
    """Show the kernel rules in force, the user's own first."""
    from pipeline.lake.versions import refuse_newer
    from pipeline.models.check_rules import check_rules
    from pipeline.models.explain import explain_name, rule_rows
    from pipeline.present.output import write_rows

    if check_file is not None:
        checked = check_rules(check_file)
        say(*[f"{check_file}: {problem}" for problem in checked.problems] or [checked.summary])
        leave([ExitCode.USAGE] if checked.problems else [])
        return
    refuse_newer(context.obj)
    columns, rows = rule_rows(context.obj) if explain is None else explain_name(context.obj, explain, op)
    write_rows(columns, rows, form, raw=raw)


_TABLES, _QUESTIONS, _HOME = (
    "Ingest traces and read tables",
    "Ask about collectives, bandwidth and changes",
    "Maintain a home",
)
ingesting.add_to(app, _TABLES)
register(app, show, "stepledger show my-run --phase decode", _TABLES)
tables.add_to(app, _TABLES)
questions.add_to(app, _QUESTIONS)
whatif.add_to(app, _QUESTIONS)
describe.add_to(app, _HOME)
lake.add_to(app, _HOME)
register(app, rules, "stepledger rules --explain ncclDevKernel_AllReduce_Sum_bf16_RING_LL", _HOME)


def _fail(text: str, code: ExitCode) -> NoReturn:
    """End with a message. Its further lines are indented: none that a file's name begins looks like ours."""
    say(*f"stepledger: error: {text}".replace("\n", "\n  ").split("\n"), err=True)
    sys.exit(int(code))


def main() -> None:
    """Entry point: every failure that has a name becomes one line and its exit code."""
    try:
        try:
            app(prog_name="stepledger")
        finally:
            sys.stdout.flush()
    except StepledgerError as error:
        _fail(str(error), error.exit_code)
    except (BrokenPipeError, SystemExit) as leaving:
        # `stepledger query ... | head`: the reader has what it wants. Typer turns a broken pipe into exit 1,
        # a bug here.
        if not isinstance(leaving, BrokenPipeError) and not isinstance(leaving.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(int(ExitCode.OK))
    except Exception as error:
        if (problem := home_trouble(error)) is None:
            say(*traceback.format_exc().splitlines(), err=True)
            sys.exit(int(ExitCode.BUG))
        _fail(f"{problem}: {error}", ExitCode.USAGE)
    except KeyboardInterrupt:
        sys.exit(int(ExitCode.INTERRUPTED))
