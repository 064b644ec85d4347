"""The help of every command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from pipeline.cli import app
from tests.support.commands import COMMANDS
from tests.support.homes import Called

GROUPS = ["", "whatif"]


@pytest.mark.parametrize("name", [*COMMANDS, *GROUPS])
def test_a_flag_shows_no_type(name: str) -> None:
    """`--help` takes no value, and none is shown."""
    done = CliRunner().invoke(app.app, [*name.split(), "--help"])
    assert done.exit_code == 0
    assert "--help" in done.stdout
    assert "<bool>" not in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_an_example_that_parses(name: str) -> None:
    """Below its help: it names the command, and its options and arguments exist."""
    done = CliRunner().invoke(app.app, [*name.split(), "--help"], env={"COLUMNS": "200"})
    (example,) = re.findall(r"Example: (.*)", done.stdout)
    words = shlex.split(example.strip().rpartition("&&")[2])
    assert words[0] == "stepledger"
    command, context, rest = get_command(app.app), None, words[1:]
    for part in ("", *name.split()):
        if part:
            assert rest.pop(0) == part
            command = command.commands[part]  # type: ignore[attr-defined]
        context = command.make_context(part, rest, parent=context)
        rest = [*context._protected_args, *context.args]
    assert rest == []


def test_a_wrong_option_is_answered_with_usage(call: Callable[..., Called]) -> None:
    """Exit code 2, nothing on stdout."""
    code, out, err = call("show", "a", "--nonsense")
    assert (code, out) == (2, "")
    assert "--nonsense" in err
