"""The commands: arguments to one call to one print. stdout is data; progress and messages go to stderr."""

from __future__ import annotations

import os
import shutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from pipeline import __version__
from pipeline.cli import lake, questions
from pipeline.cli.options import (
    FormatOption,
    MaxBytesOption,
    MemoryOption,
    RawOption,
    RunOption,
    SchedulerOption,
    WorkersOption,
    execution_config,
    leave,
    say,
)
from pipeline.errors import ExitCode, StepledgerError, UsageError, home_trouble
from pipeline.lake.home import Home
from pipeline.sources.job import MAX_BYTES
from pipeline.text import printable_lines


class _Commands(TyperGroup):
    """The commands. What typer prints of a wrong argument is escaped: it may be a file's name."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Read the arguments before the command."""
        with _escaped():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Read those of the command, and carry it out."""
        with _escaped():
            return super().invoke(ctx)


@contextmanager
def _escaped() -> Iterator[None]:
    try:
        yield
    except TyperException as error:
        error.message = printable_lines(error.message)
        raise


app = typer.Typer(
    name="stepledger",
    cls=_Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Books every nanosecond of GPU work in an LLM-inference trace to a rank, a step and a category.",
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"stepledger {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    context: typer.Context,
    home: Annotated[
        Path, typer.Option("--home", envvar="STEPLEDGER_HOME", help="Where inbox, lake and exports are.")
    ] = Path("warehouse"),
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    context.obj = Home(home)


@app.command()
def run(
    context: typer.Context,
    max_bytes: MaxBytesOption = MAX_BYTES,
    workers: WorkersOption = None,
    memory_limit: MemoryOption = None,
    scheduler: SchedulerOption = None,
) -> None:
    """Drain the inbox: ingest, build, check, export; print the tables."""
    from pipeline.ingest.ingest import drain
    from pipeline.progress import Progress

    with execution_config(context.obj, workers, memory_limit, scheduler, max_bytes) as execution:
        outcome = drain(context.obj, Progress(), execution)
    if not outcome.built and not outcome.codes:
        say(f"nothing new: no finished trace in {context.obj.inbox}", err=True)
    _export_and_show(context.obj, outcome.built)
    leave([*outcome.codes, *(ExitCode.QUALITY for v in outcome.verdicts.values() if v == "fail")])


@app.command()
def ingest(
    context: typer.Context,
    paths: Annotated[list[Path], typer.Argument(help="Trace files, or folders (a folder is a run).")],
    run: RunOption = None,
    no_build: Annotated[
        bool, typer.Option("--no-build", help="Leave the marts for a later `build`.")
    ] = False,
    max_bytes: MaxBytesOption = MAX_BYTES,
    workers: WorkersOption = None,
    memory_limit: MemoryOption = None,
    scheduler: SchedulerOption = None,
) -> None:
    """Ingest files or folders outside the inbox; they are left where they are."""
    from pipeline.ingest.inbox import named
    from pipeline.ingest.ingest import ingest as ingest_items
    from pipeline.progress import Progress

    missing = [str(p) for p in paths if not p.exists()]
    if missing:
        raise UsageError(f"no such file or folder: {', '.join(missing)}")
    items = named(paths, run)
    if not items:
        raise UsageError(f"no file in {', '.join(map(str, paths))}")
    with execution_config(context.obj, workers, memory_limit, scheduler, max_bytes) as execution:
        outcome = ingest_items(context.obj, items, Progress(), execution, is_built=not no_build)
    for run_id in outcome.runs:
        say(run_id)
    leave(outcome.codes)


@app.command()
def show(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="The run: its name or id.")],
    phase: Annotated[str | None, typer.Option(help="prefill, decode, mixed, verify or unknown.")] = None,
    form: FormatOption = "table",
    raw: RawOption = False,
) -> None:
    """Print the breakdown table of a run."""
    from pipeline.analyses.breakdown import Screen, screens
    from pipeline.lake.reading import find_run, reading, stable
    from pipeline.present.output import write_rows
    from pipeline.present.show import print_screen

    def read() -> list[Screen]:
        with reading(context.obj) as con:
            return screens(con, find_run(con, run), phase)

    found = stable(context.obj, read)
    if form == "table":
        for screen in found:
            print_screen(screen)
        return
    rows = [row for screen in found for row in screen.rollups]
    columns = list(rows[0]) if rows else []
    write_rows(columns, [list(row.values()) for row in rows], form, raw=raw)


@app.command()
def query(
    context: typer.Context,
    sql: Annotated[
        str,
        typer.Argument(
            help="One SELECT (or DESCRIBE, SHOW, SUMMARIZE, FROM, VALUES); - reads it from stdin."
        ),
    ],
    form: FormatOption = "table",
    raw: RawOption = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0, help="Seconds until the query is stopped; 0: no limit.")
    ] = 600,
) -> None:
    """Ask the warehouse in SQL; reading only."""
    from pipeline.lake.query import open_query
    from pipeline.present.output import write_rows

    with open_query(context.obj, _from_stdin() if sql == "-" else sql, timeout) as answer:
        write_rows(answer.columns, answer.rows, form, raw=raw, has_lines=answer.is_plan)


def _from_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        trouble = f"{error.reason} at byte {error.start + 1}"
        raise UsageError(f"the statement on stdin is not UTF-8: {trouble}") from error


@app.command()
def export(
    context: typer.Context,
    mart: Annotated[str, typer.Argument(help="Which mart.")] = "step_breakdown",
    run: RunOption = None,
    form: Annotated[Literal["csv", "parquet"], typer.Option("--format", help="How to write it.")] = "csv",
    output: Annotated[str | None, typer.Option("--output", help="A file, or - for stdout.")] = None,
    wide: Annotated[bool, typer.Option("--wide", help="One row a step, one column a rollup.")] = False,
    allow_failed: Annotated[
        bool, typer.Option("--allow-failed", help="Export a run that failed its checks too.")
    ] = False,
    raw: RawOption = False,
) -> None:
    """Write a mart as CSV or Parquet, with a manifest of what it was made from."""
    from pipeline.lake.versions import refuse_unreadable
    from pipeline.present.export import export_run, export_to_stdout, readable_runs, refuse_failed

    home: Home = context.obj
    refuse_unreadable(home)
    runs, damaged = ([run], {}) if run is not None else readable_runs(home)
    if not runs and not damaged:
        raise UsageError("no runs yet: drop traces into the inbox and say `stepledger run`")
    if output is not None and len(runs) > 1:
        raise UsageError(f"--output takes one run; name it with --run: {', '.join(runs)}")
    if not allow_failed:
        for one in runs:
            refuse_failed(home, one)
    for one in runs:
        if output == "-":
            export_to_stdout(home, one, mart, form, wide=wide, raw=raw)
        else:
            done = export_run(home, one, mart, form, Path(output) if output else None, wide=wide, raw=raw)
            if done.manifest is None:
                said = f"written into {done.path}, which is no regular file: there is no manifest beside it"
                say(said, err=True)
            else:
                say(str(done.path))
    for error in damaged.values():
        say(f"not exported: {error}", err=True)
    leave([error.exit_code for error in damaged.values()])


@app.command()
def check(
    context: typer.Context,
    run: RunOption = None,
    form: FormatOption = "table",
    raw: RawOption = False,
) -> None:
    """Check the derived tables, with a page of the results; exit 5 when a run fails."""
    from pipeline.lake.reading import known_run, run_id_of
    from pipeline.lake.versions import refuse_unreadable
    from pipeline.present.output import write_rows
    from pipeline.progress import Progress
    from pipeline.quality.verdicts import check_runs, docs_page

    home: Home = context.obj
    refuse_unreadable(home)
    runs = home.run_ids() if run is None else [run_id_of(home, run, known_run)]
    if not runs:
        raise UsageError("no runs yet: drop traces into the inbox and say `stepledger run`")
    progress = Progress()
    found, codes = check_runs(home, runs, progress.say)
    columns = ["run_id", "severity", "check", "failing_rows", "means", "todo"]
    wrong = [
        [r, x.severity, x.check, x.failing_rows, x.means, x.todo]
        for r, results in found.items()
        for x in results
        if not x.is_passed
    ]
    if form == "table":
        from pipeline.quality.verdicts import verdict

        for run_id, results in found.items():
            passed = f"{sum(x.is_passed for x in results)} of {len(results)} checks passed"
            say(f"{run_id}: {verdict(results)}, {passed}; page: {docs_page(home, run_id)}")
        wrong = [row[:5] for row in wrong]
        columns = columns[:5]
    if wrong or form != "table":
        write_rows(columns, wrong, form, raw=raw)
    leave(
        [
            *codes,
            *(
                ExitCode.QUALITY
                for results in found.values()
                if any(not x.is_passed and x.severity == "fail" for x in results)
            ),
        ]
    )


@app.command()
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


@app.command()
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


@app.command()
def demo(context: typer.Context) -> None:
    """Run everything on the traces that ship with stepledger."""
    from pipeline.ingest.demo import DEMO_RUN, demo_items
    from pipeline.ingest.ingest import ingest as ingest_items
    from pipeline.progress import Progress

    home: Home = context.obj
    outcome = ingest_items(home, demo_items(), Progress())
    _export_and_show(home, outcome.runs)
    command = (
        "stepledger" if shutil.which("stepledger") else os.path.relpath(sys.argv[0])
    )  # make demo runs it from .venv/bin
    asked = "SELECT step, category, calls, busy_ns FROM step_breakdown WHERE rank = 0 AND step = 0"
    say(
        "",
        f"database: {home.database}",
        "next:",
        f'  {command} --home {home.root} query "{asked}"',
        f"  {command} --home {home.root} show {DEMO_RUN}",
        f"  cp your-traces/*.json.gz {home.inbox}/ && {command} --home {home.root} run",
    )
    leave(outcome.codes)


questions.add_to(app)
lake.add_to(app)


def _export_and_show(home: Home, built: list[str]) -> None:
    from pipeline.analyses.breakdown import Screen, screens
    from pipeline.lake.reading import reading, stable
    from pipeline.present.export import DEFAULT_MART, export_run, run_verdict
    from pipeline.present.show import print_screen

    for run_id in built:

        def read(run_id: str = run_id) -> list[Screen]:
            with reading(home) as con:
                return screens(con, run_id, None)

        for screen in stable(home, read):
            print_screen(screen)
        if run_verdict(home, run_id) == "fail":
            advice = f"stepledger export --run {run_id} --allow-failed"
            say("", f"{run_id} failed its checks and is not exported ({advice})", err=True)
            continue
        done = export_run(home, run_id, DEFAULT_MART, "csv", None, wide=False)
        say("", f"per step, rank and category: {done.path}")


def _fail(text: str, code: ExitCode) -> NoReturn:
    """End with a message. Its further lines are indented: none that a file's name begins looks like ours."""
    say(*f"stepledger: error: {text}".replace("\n", "\n  ").split("\n"), err=True)
    sys.exit(int(code))


def main() -> None:
    """Entry point: every failure that has a name becomes one line and its exit code."""
    try:
        try:
            app(standalone_mode=True)
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
        if (trouble := home_trouble(error)) is None:
            say(*traceback.format_exc().splitlines(), err=True)
            sys.exit(int(ExitCode.BUG))
        _fail(f"{trouble}: {error}", ExitCode.USAGE)
    except KeyboardInterrupt:
        sys.exit(int(ExitCode.INTERRUPTED))
