"""Options that several commands share."""

from __future__ import annotations

from typing import Any

import pytest
from typer.main import get_command

from pipeline.cli import app
from pipeline.cli.options import Execution, takes_execution
from tests.support.commands import COMMANDS

EXECUTING = ["run", "ingest", "watch", "build", "rebuild"]


@pytest.mark.parametrize("name", EXECUTING)
def test_commands_that_do_work_share_its_options(name: str) -> None:
    """Each has all of them, with the same help."""
    commands: dict[str, Any] = get_command(app.app).commands  # type: ignore[attr-defined]
    found = {param.name: param.help for param in commands[name].params if param.name in vars(Execution())}
    first = {param.name: param.help for param in commands["run"].params if param.name in vars(Execution())}
    assert found == first
    assert sorted(found) == ["memory_limit", "scheduler", "workers"]


def test_no_other_command_has_them() -> None:
    """An option that does nothing would mislead."""
    commands: dict[str, Any] = get_command(app.app).commands  # type: ignore[attr-defined]
    having = {name for name in commands if "workers" in {param.name for param in commands[name].params}}
    assert having == set(EXECUTING)
    assert set(EXECUTING) <= set(COMMANDS)


def test_a_command_gets_them_as_one_argument() -> None:
    """Its other arguments stay."""
    seen: list[tuple[int, Execution]] = []

    @takes_execution
    def command(number: int, execution: Execution) -> None:
        seen.append((number, execution))

    command(3, workers=2, memory_limit=None, scheduler="tcp://x")
    assert seen == [(3, Execution(2, None, "tcp://x"))]
