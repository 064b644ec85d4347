"""The commands that hand out tables: query, export, runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from pipeline.cli.help import register
from pipeline.cli.options import FormatOption, RawOption, leave, say
from pipeline.cli.runs import AnyRunsArgument, OldRunOption, with_old_option
from pipeline.errors import UsageError
from pipeline.lake.home import Home


def add_to(app: typer.Typer, panel: str) -> None:
    """Put the commands into the app."""
    register(app, query, "stepledger query 'SELECT * FROM run_breakdown' --format csv", panel)
    register(app, export, "stepledger export my-run --mart steps --format parquet", panel)
    register(app, runs, "stepledger runs --format json", panel)


def query(
    context: typer.Context,
    sql: Annotated[
        str,
        typer.Argument(
            metavar="SQL",
            help="One SELECT (or DESCRIBE, SHOW, SUMMARIZE, FROM, VALUES); - reads it from stdin.",
        ),
    ],
    form: FormatOption = "table",
    raw: RawOption = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0, help="Stop the query after this many seconds; 0: no limit.")
    ] = 600,
) -> None:
    """Run a read-only SQL query."""
    from pipeline.lake.query import open_query
    from pipeline.present.output import write_rows

    with open_query(context.obj, _from_stdin() if sql == "-" else sql, timeout) as answer:
        write_rows(answer.columns, answer.rows, form, raw=raw, has_lines=answer.is_plan)


def _from_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        problem = f"{error.reason} at byte {error.start + 1}"
        raise UsageError(f"the statement on stdin is not UTF-8: {problem}") from error


def export(
    context: typer.Context,
    names: AnyRunsArgument = None,
    mart: Annotated[
        str | None, typer.Option("--mart", help="The mart to write (default: step_breakdown).")
    ] = None,
    form: Annotated[Literal["csv", "parquet"], typer.Option("--format", help="File format.")] = "csv",
    output: Annotated[str | None, typer.Option("--output", help="A file, or - for stdout.")] = None,
    wide: Annotated[bool, typer.Option("--wide", help="One row per step, one column per rollup.")] = False,
    allow_failed: Annotated[
        bool, typer.Option("--allow-failed", help="Also export runs that failed their checks.")
    ] = False,
    raw: RawOption = False,
    old_run: OldRunOption = None,
) -> None:
    """Write a mart of these runs (without a name: all) as CSV or Parquet, with a manifest of its inputs."""
    from pipeline.lake.selection import readable_run, select_runs
    from pipeline.lake.versions import refuse_unreadable
    from pipeline.present.export import (
        DEFAULT_MART,
        export_run,
        export_to_stdout,
        readable_runs,
        refuse_failed,
    )

    home: Home = context.obj
    refuse_unreadable(home)
    names, mart = _old_mart(home, with_old_option(names, old_run, "export"), mart, old_run)
    mart = mart or DEFAULT_MART
    chosen = select_runs(home, names, readable_run) if names else home.run_ids()
    found, damaged = readable_runs(home, chosen)
    if not found and not damaged:
        raise UsageError("no runs yet: drop traces into the inbox and run `stepledger run`")
    if output is not None and len(found) > 1:
        raise UsageError(f"--output takes one run; name one of {', '.join(found)}")
    if not allow_failed:
        for one in found:
            refuse_failed(home, one)
    for one in found:
        if output == "-":
            export_to_stdout(home, one, mart, form, wide=wide, raw=raw)
            continue
        done = export_run(home, one, mart, form, Path(output) if output else None, wide=wide, raw=raw)
        if done.manifest is None:
            say(f"written to {done.path}, which is not a regular file: no manifest beside it", err=True)
        else:
            say(str(done.path))
    for error in damaged.values():
        say(f"not exported: {error}", err=True)
    leave([error.exit_code for error in damaged.values()])


def _old_mart(
    home: Home, names: list[str], mart: str | None, old_run: str | None
) -> tuple[list[str], str | None]:
    """The runs and the mart. Versions before 0.3 took the mart as the argument: that goes on working, with a
    note."""
    from pipeline.contracts import contracts

    first = names[0] if names else None
    is_old = first is not None and mart is None and first != old_run
    if not is_old or first not in contracts("marts") or first in home.run_ids():
        return names, mart
    say(f"note: the mart as an argument is deprecated; write it as --mart {first}", err=True)
    return names[1:], first


def runs(context: typer.Context, form: FormatOption = "table", raw: RawOption = False) -> None:
    """List the runs."""
    from pipeline.lake.query import run_query
    from pipeline.present.output import write_rows

    columns, rows = run_query(
        context.obj,
        "SELECT run_id, source, verdict, traces, ranks, ranks_expected, decode_steps, prefill_steps, "
        "gpu_name, engine "
        "FROM runs ORDER BY run_id, source",
    )
    write_rows(columns, rows, form, raw=raw)
