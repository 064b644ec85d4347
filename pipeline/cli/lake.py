"""The commands that maintain a home: build, rebuild, check, retry, forget, compact, status."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.help import register
from pipeline.cli.options import Execution, FormatOption, RawOption, leave, say, takes_execution
from pipeline.cli.runs import AnyRunsArgument, OldRunOption, RunArgument, with_old_option
from pipeline.errors import ExitCode, UsageError
from pipeline.events import on_wait
from pipeline.lake.home import Home
from pipeline.text import counted, printable


def add_to(app: typer.Typer, panel: str) -> None:
    """Put the commands into the app."""
    register(app, build, "stepledger build 'A_*'", panel)
    register(app, rebuild, "stepledger rebuild --workers 4", panel)
    register(app, check, "stepledger check my-run --format json", panel)
    register(app, retry, "stepledger retry my-run/rank-0.json.gz", panel)
    register(app, forget, "stepledger forget my-run --yes", panel)
    register(app, compact, "stepledger compact --older-than-days 30", panel)
    register(app, status, "stepledger status --issues", panel)


@takes_execution
def build(
    context: typer.Context, execution: Execution, names: AnyRunsArgument = None, old_run: OldRunOption = None
) -> None:
    """Build the marts of these runs; without a name, of those whose files, rules or models changed."""
    from pipeline.ingest.ingest import stale
    from pipeline.lake.selection import landed_run, select_runs

    home: Home = context.obj
    names = with_old_option(names, old_run, "build")
    _build(home, select_runs(home, names, landed_run) if names else stale(home), execution)


@takes_execution
def rebuild(
    context: typer.Context, execution: Execution, names: AnyRunsArgument = None, old_run: OldRunOption = None
) -> None:
    """Build the marts of these runs from the raw tables; without a name, of all."""
    from pipeline.lake.selection import landed_run, select_runs

    home: Home = context.obj
    names = with_old_option(names, old_run, "rebuild")
    _build(home, select_runs(home, names, landed_run) if names else home.run_ids(), execution)


def _build(home: Home, runs: list[str], execution: Execution) -> None:
    from pipeline.ingest.ingest import build as build_runs
    from pipeline.progress import Progress

    with execution.opened(home) as config:
        outcome = build_runs(home, runs, Progress(), config)
    for run_id in outcome.built:
        say(run_id)
    leave(outcome.codes)


def check(
    context: typer.Context,
    names: AnyRunsArgument = None,
    form: FormatOption = "table",
    raw: RawOption = False,
    old_run: OldRunOption = None,
) -> None:
    """Check the marts of these runs (without a name: all), and write a page for each."""
    from pipeline.lake.selection import select_runs
    from pipeline.lake.versions import refuse_unreadable
    from pipeline.present.output import write_rows
    from pipeline.progress import Progress
    from pipeline.quality.verdicts import check_runs, docs_page, verdict

    home: Home = context.obj
    refuse_unreadable(home)
    names = with_old_option(names, old_run, "check")
    runs = select_runs(home, names) if names else home.run_ids()
    if not runs:
        raise UsageError("no runs yet: drop traces into the inbox and run `stepledger run`")
    found, codes = check_runs(home, runs, Progress().say)
    columns = ["run_id", "severity", "check", "failing_rows", "means", "todo"]
    failed = [
        [run_id, x.severity, x.check, x.failing_rows, x.means, x.todo]
        for run_id, results in found.items()
        for x in results
        if not x.is_passed
    ]
    if form == "table":
        for run_id, results in found.items():
            passed = f"{sum(x.is_passed for x in results)} of {len(results)} checks passed"
            say(f"{run_id}: {verdict(results)}, {passed}; page: {docs_page(home, run_id)}")
        columns, failed = columns[:5], [row[:5] for row in failed]
    if failed or form != "table":
        write_rows(columns, failed, form, raw=raw)
    leave([*codes, *(ExitCode.QUALITY for results in found.values() if verdict(results) == "fail")])


def retry(
    context: typer.Context,
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE", help="Files as `status` names them; none: all.")
    ] = None,
) -> None:
    """Put quarantined files back into the inbox, for the next `run` or a running `watch`."""
    from pipeline.ingest.quarantine import retry as retry_files
    from pipeline.lake.versions import refuse_newer
    from pipeline.progress import Progress

    home: Home = context.obj
    refuse_newer(home)
    with home.writing(on_wait(Progress().say)):
        for place in retry_files(home, files):
            say(str(place))


def forget(
    context: typer.Context,
    run: RunArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Remove a run from the lake; its original files stay in the archive."""
    from pipeline.lake.database import write_database
    from pipeline.lake.selection import landed_run
    from pipeline.lake.tidy import forget as forget_run
    from pipeline.lake.versions import refuse_unreadable
    from pipeline.progress import Progress

    home: Home = context.obj
    refuse_unreadable(home)
    run_id = landed_run(home, run)
    if not yes:
        _confirm(f"Remove run {run_id} from the lake ({home.raw_run(run_id)})?")
    with home.writing(on_wait(Progress().say)):
        forget_run(home, run_id)
        write_database(home)
    say(run_id)


def _confirm(question: str) -> None:
    """Ask. Raises UsageError unless the answer is yes, and where no one can answer."""
    try:
        is_confirmed = typer.confirm(printable(question), err=True)
    except typer.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        typer.echo(err=True)  # the question has not ended its line
        raise UsageError("nothing was removed: no one answered; --yes removes without asking") from error
    if not is_confirmed:
        raise UsageError("nothing was removed")


def compact(
    context: typer.Context,
    older_than_days: Annotated[
        float, typer.Option("--older-than-days", min=0, help="Only runs that were built this long ago.")
    ] = 7,
) -> None:
    """Merge the marts of old runs into few files, which keeps queries over thousands of runs fast."""
    from pipeline.lake.compact import compact_runs, compactable
    from pipeline.lake.database import write_database
    from pipeline.lake.tidy import tidy
    from pipeline.lake.versions import refuse_unreadable
    from pipeline.progress import Progress

    home: Home = context.obj
    refuse_unreadable(home)
    progress = Progress()
    with home.writing(on_wait(progress.say)):
        tidy(home)
        runs = compactable(home, older_than_days * 86_400)
        if runs:
            with progress.task(f"compacting {counted(len(runs), 'run')}"):
                compact_runs(home, runs)
        write_database(home)
    say(f"{counted(len(runs), 'run')} compacted")


def status(
    context: typer.Context,
    issues: Annotated[
        bool, typer.Option("--issues", help="Problems that readers counted, by run and code.")
    ] = False,
    form: FormatOption = "table",
    raw: RawOption = False,
) -> None:
    """Show what waits in the inbox, what is quarantined and why, and the runs."""
    from pipeline.ingest.status import issue_rows, status_rows
    from pipeline.present.output import write_rows

    columns, rows = issue_rows(context.obj) if issues else status_rows(context.obj)
    write_rows(columns, rows, form, raw=raw)
