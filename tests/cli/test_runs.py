"""Runs as arguments: several, patterns, completion, and the spellings of older versions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.lake.home import Home
from tests.support.commands import COMMANDS
from tests.support.homes import HANG_S, Called, copied, environment


def completed(line: str, home: Path | None = None) -> list[str]:
    """What bash is offered for the last word of a command line."""
    words = line.split(" ")
    more = {
        "_STEPLEDGER_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    } | ({"STEPLEDGER_HOME": str(home)} if home else {})
    done = subprocess.run(
        [sys.executable, "-m", "pipeline"],
        capture_output=True, text=True, timeout=HANG_S, check=False, env=environment() | more,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize("command", ["show", "build", "describe", "whatif ep"])
def test_the_shell_completes_runs(built: Home, command: str) -> None:
    """Of the home that the options name, or the environment."""
    assert completed(f"stepledger --home {built.root} {command} ") == ["2026", "a"]
    assert completed(f"stepledger {command} 2", built.root) == ["2026"]


def test_the_shell_completes_a_second_run(built: Home) -> None:
    """Commands that take several complete each."""
    assert completed("stepledger compare a 2", built.root) == ["2026"]
    assert completed("stepledger build a 2", built.root) == ["2026"]


def test_the_shell_completes_nothing_where_there_is_no_home(tmp_path: Path) -> None:
    """And prints nothing."""
    (tmp_path / "file").write_text("")
    for home in (tmp_path / "none", tmp_path / "file"):
        assert completed("stepledger show ", home) == []


def test_completion_can_be_shown_for_a_shell() -> None:
    """A script that calls the command."""
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "--show-completion", "bash"],
        capture_output=True, text=True, timeout=HANG_S, check=False,
        env=environment() | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "_STEPLEDGER_COMPLETE=complete_bash" in done.stdout


@pytest.mark.usefixtures("without_gx")
def test_several_runs_and_patterns(built: Home, tmp_path: Path, call: Callable[..., Called]) -> None:
    """In the order given, each once."""
    home = copied(built, tmp_path / "home")
    assert call("--home", home.root, "build", "a", "20*", "a")[:2] == (0, "a\n2026\n")
    assert call("--home", home.root, "rebuild", "[a-c]") == (0, "a\n", "")
    code, out, _ = call("--home", home.root, "check", "*")
    assert (code, [line.split(":")[0] for line in out.splitlines() if "page: " in line]) == (0, ["2026", "a"])
    _, out, _ = call("--home", home.root, "export", "*", "--mart", "steps")
    assert out.splitlines() == [str(home.exports / run / "steps.csv") for run in ("2026", "a")]


def test_show_prints_each_run(built: Home, call: Callable[..., Called]) -> None:
    """One after the other."""
    first, second = (call("--home", built.root, "show", run).out for run in ("a", "2026"))
    assert call("--home", built.root, "show", "a", "2026") == (0, first + second, "")


@pytest.mark.usefixtures("without_gx")
@pytest.mark.parametrize("command", ["build", "rebuild", "check"])
def test_the_option_run_goes_on_working(
    built: Home, tmp_path: Path, call: Callable[..., Called], command: str
) -> None:
    """With a note on stderr that says how to write it now."""
    home = copied(built, tmp_path / "home")
    code, out, err = call("--home", home.root, command, "--run", "a")
    assert (code, out[0]) == (0, "a")
    note = f"note: --run is deprecated; name the run as an argument: stepledger {command} a\n"
    assert err == note


def test_export_as_in_older_versions_goes_on_working(built: Home, call: Callable[..., Called]) -> None:
    """The mart as the argument, the run as an option; and the mart alone, for all runs."""
    today = call("--home", built.root, "export", "a", "--mart", "steps", "--output", "-")
    old = call("--home", built.root, "export", "steps", "--run", "a", "--output", "-")
    assert (today.code, today.err) == (0, "")
    assert (old.code, old.out) == (0, today.out)
    assert old.err.splitlines() == [
        "note: --run is deprecated; name the run as an argument: stepledger export a",
        "note: the mart as an argument is deprecated; write it as --mart steps",
    ]
    _, out, err = call("--home", built.root, "export", "steps", "--output", "-")
    assert (out, "--output takes one run" in err) == ("", True)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "watch"])
def test_no_help_names_an_old_option(name: str, call: Callable[..., Called]) -> None:
    """Hidden, so that no one learns it."""
    code, out, _ = call(*name.split(), "--help")
    assert code == 0
    assert ("--run" in out) == (name == "ingest")
