"""Every command of the CLI with arguments to call it, for tests of what holds for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import typer

from pipeline.cli import app
from pipeline.ingest.execution import ExecutionConfig
from pipeline.ingest.ingest import drain
from pipeline.lake.home import Home
from pipeline.lake.run_config import describe
from pipeline.progress import Progress
from tests.support.builders import DECODE, header, ingest_into, write_trace
from tests.support.homes import drop
from tests.support.planted_ranks import Planted
from tests.support.served import CACHE, FACTS, STEP, TABLE


@dataclass(frozen=True)
class Words:
    """What the names in a home are made of, and what its kernel is called."""

    part: str = "x"
    kernel: str = "mystery_kernel"


@dataclass(frozen=True)
class Place:
    """A home with two runs, files in the inbox and the quarantine, and files outside it."""

    home: Home
    words: Words
    folder: Path

    @property
    def run(self) -> str:
        """A run's name."""
        return f"one{self.words.part}"

    @property
    def other(self) -> str:
        """Another run of the same model, at another batch."""
        return f"two{self.words.part}"

    @property
    def trace(self) -> Path:
        """A trace that is in no run yet."""
        return self.folder / f"new{self.words.part}-rank-0.json"

    @property
    def table(self) -> Path:
        """Latencies."""
        return self.folder / f"latency{self.words.part}.csv"


def fill(home: Home, folder: Path, words: Words) -> Place:
    """Make such a home. The names of runs, files, GPUs, kernels and rules are made of the words given."""
    place = Place(home, words, folder)
    home.ensure()
    rule = f'[[rule]]\nid = "mine"\nname = "no_such"\ncategory = "cast"\nnote = {_toml(words.part)}\n'
    home.user_rules.write_text(rule)
    folder.mkdir(parents=True, exist_ok=True)
    place.table.write_text(TABLE, encoding="utf-8")
    for run, tokens in ((place.run, 1), (place.other, 2)):
        describe(home, home.run_id_for(run), dict(FACTS))
        paths = [*traces(folder / f"of-{tokens}", words, tokens), place.table]
        assert ingest_into(home, *paths, run=run).codes == []
    place.trace.write_bytes(traces(folder / "new", words, 3)[0].read_bytes())
    broken = folder / "broken.json"
    broken.write_text("{}")
    drop(home, broken, f"{place.run}/broken{words.part}.json")
    assert drain(home, Progress(quiet=True), ExecutionConfig()).codes != []
    drop(home, place.trace, f"three{words.part}/ready{words.part}.json")
    (home.inbox / f"writing{words.part}.json.part").write_text("")
    return place


def traces(folder: Path, words: Words, tokens: int) -> list[Path]:
    """Two ranks that serve a small model."""
    planted = Planted(names=(*STEP, words.kernel), args={CACHE: {"grid": [tokens, 1, 1]}})
    label = f"execute_context_0(0)_generation_{tokens}({tokens})"
    gpus = [{"id": device, "name": f"GPU{words.part}", "totalGlobalMem": 1} for device in range(2)]
    return [
        write_trace(
            folder / f"serve{words.part}-rank-{rank}.json",
            [event | {"name": label} if event["name"] == DECODE else event for event in events],
            header(rank, 2, deviceProperties=gpus),
        )
        for rank, events in enumerate(planted.events())
    ]


def _toml(text: str) -> str:
    return '"' + "".join(f"\\U{ord(c):08x}" for c in text) + '"'


Arguments = Callable[[Place], list[list[Any]]]
"""What a command is called with, but for its format. `watch` does not end by itself: it has its own tests."""
ARGUMENTS: dict[str, Arguments] = {
    "run": lambda _: [[]],
    "ingest": lambda p: [[p.trace]],
    "show": lambda p: [[p.run]],
    "query": lambda _: [["SELECT name, gpu_name, file_name, run_name FROM kernel_breakdown, raw.trace"]],
    "export": lambda p: [
        [p.run, "--mart", "kernel_breakdown", "--allow-failed", "--output", "-"],
        [p.run, "--wide", "--allow-failed", "--output", "-"],
    ],
    "check": lambda p: [[p.run]],
    "runs": lambda _: [[]],
    "rules": lambda p: [[], ["--explain", p.words.kernel]],
    "demo": lambda _: [[]],
    "audit": lambda p: [[p.run]],
    "ranks": lambda p: [[p.run]],
    "bandwidth": lambda p: [[p.run]],
    "bench": lambda p: [[p.run], [p.run, "--table", p.table]],
    "compare": lambda p: [[p.run, p.other, "--anyway"]],
    "curve": lambda p: [[p.run, p.other]],
    "whatif ep": lambda p: [[p.run, "--mode", "dp_ep", "--table", p.table]],
    "whatif overlap": lambda p: [[p.other]],
    "whatif speculate": lambda p: [[p.run, p.other, "--draft-ms", "1"]],
    "build": lambda p: [[p.run]],
    "rebuild": lambda _: [[]],
    "describe": lambda p: [[p.run, f"notes={p.words.part}"]],
    "retry": lambda _: [[]],
    "forget": lambda p: [[p.run, "--yes"]],
    "compact": lambda _: [["--older-than-days", "0"]],
    "status": lambda _: [[], ["--issues"]],
    "watch": lambda _: [],
}


def every_command(app: typer.Typer = app.app, before: str = "") -> Iterator[tuple[str, Callable[..., Any]]]:
    """Each command of the app with its function, those of groups too."""
    for command in app.registered_commands:
        assert command.callback is not None
        yield f"{before}{command.name or command.callback.__name__}", command.callback
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from every_command(group.typer_instance, f"{before}{group.name} ")


COMMANDS = dict(every_command())


def formats(name: str) -> tuple[str, ...]:
    """The formats in which a command prints, or none."""
    hint = get_type_hints(COMMANDS[name], include_extras=True).get("form")
    return () if hint is None else get_args(get_args(hint)[0])
