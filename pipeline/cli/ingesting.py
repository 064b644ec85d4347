"""The commands that take traces in: run, ingest, watch, demo."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.help import register
from pipeline.cli.options import Execution, MaxBytesOption, leave, say, takes_execution
from pipeline.errors import ExitCode, UsageError
from pipeline.lake.home import Home
from pipeline.sources.job import MAX_BYTES


def add_to(app: typer.Typer, panel: str) -> None:
    """Put the commands into the app."""
    register(app, run, "cp *.json.gz warehouse/inbox/my-run/ && stepledger run", panel)
    register(app, ingest, "stepledger ingest traces/*.json.gz --run my-run", panel)
    register(app, watch, "stepledger --home /data/stepledger watch --json-log", panel)
    register(app, demo, "stepledger --home /tmp/demo demo", panel)


@takes_execution
def run(context: typer.Context, execution: Execution, max_bytes: MaxBytesOption = MAX_BYTES) -> None:
    """Drain the inbox: ingest, build, check and export, then print the tables."""
    from pipeline.ingest.ingest import drain
    from pipeline.progress import Progress

    with execution.opened(context.obj, max_bytes) as config:
        outcome = drain(context.obj, Progress(), config)
    if not outcome.built and not outcome.codes:
        say(f"nothing new: no finished trace in {context.obj.inbox}", err=True)
    _export_and_show(context.obj, outcome.built)
    leave([*outcome.codes, *(ExitCode.QUALITY for v in outcome.verdicts.values() if v == "fail")])


@takes_execution
def ingest(
    context: typer.Context,
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH", help="Trace files, or folders (a folder is a run).")
    ],
    execution: Execution,
    run: Annotated[
        str | None, typer.Option("--run", metavar="NAME", help="The run that all files belong to.")
    ] = None,
    no_build: Annotated[
        bool, typer.Option("--no-build", help="Leave building the marts to a later `build`.")
    ] = False,
    max_bytes: MaxBytesOption = MAX_BYTES,
) -> None:
    """Ingest files or folders from outside the inbox; they stay where they are."""
    from pipeline.ingest.inbox import named
    from pipeline.ingest.ingest import ingest as ingest_items
    from pipeline.progress import Progress

    missing = [str(p) for p in paths if not p.exists()]
    if missing:
        raise UsageError(f"no such file or folder: {', '.join(missing)}")
    items = named(paths, run)
    if not items:
        raise UsageError(f"no file in {', '.join(map(str, paths))}")
    with execution.opened(context.obj, max_bytes) as config:
        outcome = ingest_items(context.obj, items, Progress(), config, is_built=not no_build)
    for run_id in outcome.runs:
        say(run_id)
    leave(outcome.codes)


@takes_execution
def watch(
    context: typer.Context,
    execution: Execution,
    json_log: Annotated[
        bool, typer.Option("--json-log", help="Log to stderr as JSON, one event per line.")
    ] = False,
    max_bytes: MaxBytesOption = MAX_BYTES,
) -> None:
    """Do what `run` does whenever files arrive in the inbox, until stopped."""
    from pipeline.ingest.watch import Stop, Watcher
    from pipeline.lake.versions import refuse_newer
    from pipeline.present.export import export_built
    from pipeline.progress import Progress

    home: Home = context.obj
    refuse_newer(home)
    progress = Progress(json_log=json_log, has_times=not sys.stderr.isatty())
    with execution.opened(home, max_bytes) as config, Stop().listening(progress.say) as stop:
        code = Watcher(
            home, config, progress, lambda outcome: export_built(home, outcome.verdicts, progress.say)
        ).run(stop)
    raise typer.Exit(int(code))


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
    sql = "SELECT step, category, calls, busy_ns FROM step_breakdown WHERE rank = 0 AND step = 0"
    say(
        "",
        f"database: {home.database}",
        "next:",
        f'  {command} --home {home.root} query "{sql}"',
        f"  {command} --home {home.root} show {DEMO_RUN}",
        f"  cp your-traces/*.json.gz {home.inbox}/ && {command} --home {home.root} run",
    )
    leave(outcome.codes)


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
            advice = f"stepledger export {run_id} --allow-failed"
            say("", f"{run_id} failed its checks and is not exported ({advice})", err=True)
            continue
        done = export_run(home, run_id, DEFAULT_MART, "csv", None, wide=False)
        say("", f"per step, rank and category: {done.path}")
