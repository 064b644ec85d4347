"""Runs as arguments of commands: how they are declared, completed by the shell, and spelled in older
scripts."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.options import say
from pipeline.lake.home import Home


def complete_run(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of the home's runs that begin like this; none, without a word, where they cannot be listed."""
    with suppress(Exception):  # a shell that completes has no place for an error message
        home = Home(Path(context.find_root().params.get("home") or "warehouse"))
        return [run_id for run_id in home.run_ids() if run_id.startswith(incomplete)]
    return []


RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="The run: its name or id.", autocompletion=complete_run)
]
RunsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN", help="Runs: names, ids or quoted patterns like 'A_*'.", autocompletion=complete_run
    ),
]
AnyRunsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN", help="Runs: names, ids or quoted patterns like 'A_*'.", autocompletion=complete_run
    ),
]
OldRunOption = Annotated[str | None, typer.Option("--run", hidden=True)]
"""Where versions before 0.3 took the run; it goes on working for a version."""


def with_old_option(runs: list[str] | None, old_run: str | None, command: str) -> list[str]:
    """The runs of a command, with that of the old option `--run`, which gets a note on stderr."""
    if old_run is None:
        return runs or []
    say(f"note: --run is deprecated; name the run as an argument: stepledger {command} {old_run}", err=True)
    return [*(runs or []), old_run]
