"""The command that records what a trace does not hold: facts about a run's model and how it was served."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.cli.help import register
from pipeline.cli.options import leave, say
from pipeline.cli.runs import complete_run
from pipeline.errors import UsageError
from pipeline.lake.home import Home
from pipeline.sources.names import as_text

_FACT = re.compile(r"([a-z][a-z0-9_]*)=(.*)", re.DOTALL)
_NOT_COPIED = {"measured_tpot_ms"}
"""A measurement of one run is no fact about another."""


def add_to(app: typer.Typer, panel: str) -> None:
    """Put the command into the app."""
    example = "stepledger describe 'A_*' --config config.json tp=8 link=pcie4_x16"
    register(app, describe, example, panel, context_settings={"ignore_unknown_options": True})


def describe(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN KEY=VALUE",
            help="Runs, then facts; `layers=` without a value clears one.",
            autocompletion=complete_run,
        ),
    ],
    config: Annotated[
        Path | None, typer.Option("--config", help="Read facts from a Hugging Face config.json.")
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            "--like", metavar="RUN", help="Copy the facts of this run.", autocompletion=complete_run
        ),
    ] = None,
) -> None:
    """Record facts about runs that their traces do not hold, and rebuild the runs.

    Keys are columns of the table run_config: model, layers, hidden_size, experts, tp, link, ...
    A run.toml beside the traces takes the same keys.
    Later sources win: --like, then --config, then KEY=VALUE.
    """
    from pipeline.ingest.ingest import describe_runs
    from pipeline.lake.selection import select_runs
    from pipeline.progress import Progress

    home: Home = context.obj
    names, given = _split(words)
    facts: dict[str, Any] = {}
    if like is not None:
        facts |= _copied(home, like)
    if config is not None:
        facts |= _read(config)
    facts |= given
    if not names:
        raise UsageError("no run given; see `stepledger describe --help`")
    if not facts:
        raise UsageError("no facts given; write them as layers=61, or see `stepledger describe --help`")
    runs = select_runs(home, names)
    outcome = describe_runs(home, runs, facts, Progress())
    say(*runs)
    leave(outcome.codes)


def _split(words: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Names of runs, and facts: key=value, or an option of versions before 0.3. Raises UsageError."""
    from pipeline.lake.run_config import from_text

    names: list[str] = []
    facts: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        if word.startswith("--"):
            key, text = _from_old_option(word, rest)
        elif found := _FACT.fullmatch(word):
            key, text = found[1], found[2]
        else:
            names.append(word)
            continue
        facts[key] = from_text(key, as_text(text))
    return names, facts


def _from_old_option(word: str, rest: Iterator[str]) -> tuple[str, str]:
    """The fact that an option of versions before 0.3 gives, with a note on stderr. Raises UsageError."""
    from pipeline.lake.run_config import OLD_KEYS, fields

    option, _, text = word.partition("=")
    name = option.removeprefix("--").replace("-", "_")
    key = OLD_KEYS.get(name, name)
    if word in {"--sequence-parallel", "--no-sequence-parallel"}:
        key, text = "sequence_parallel", "false" if word.startswith("--no-") else "true"
    elif key not in fields():
        raise UsageError(f"no option {option}; facts are written as layers=61")
    elif "=" not in word and (text := next(rest, "")) == "":
        raise UsageError(f"{option} needs a value; write it as {key}=VALUE")
    say(f"note: {option} is deprecated; write it as {key}={text}", err=True)
    return key, text


def _copied(home: Home, like: str) -> dict[str, Any]:
    """The facts of another run, but for what was measured on it. Raises UsageError where it has none."""
    from pipeline.lake.run_config import config_of
    from pipeline.lake.selection import any_run

    run_id = any_run(home, like)
    known = {key: value for key, value in config_of(home, run_id).items() if value is not None}
    facts = {key: value for key, value in known.items() if key not in _NOT_COPIED}
    if not facts:
        raise UsageError(
            f"run {run_id} has no facts to copy: record them with `stepledger describe {run_id}`"
        )
    left_out = [key for key in known if key in _NOT_COPIED]
    note = f"; not copied: {', '.join(left_out)}, which was measured on that run" if left_out else ""
    say(f"from run {run_id}: {_listed(facts)}{note}", err=True)
    return facts


def _read(config: Path) -> dict[str, Any]:
    """The facts of a config.json, saying which were found under which key, and which were not."""
    from pipeline.lake.model_config import read_model_config

    found = read_model_config(config)
    say(
        f"from {config}: {', '.join(f'{k}={v} ({found.taken_from[k]})' for k, v in found.facts.items())}",
        f"not in {config}: {', '.join(found.missing) or 'nothing'}",
        err=True,
    )
    return found.facts


def _listed(facts: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in facts.items())
