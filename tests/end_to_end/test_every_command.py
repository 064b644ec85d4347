"""What holds for every command: nothing a terminal obeys is printed, CSV has no formula, any home will do."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import shutil
import signal
import subprocess
import sys
import tty
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ExitCode
from pipeline.ingest.demo import DEMO_TRACES
from pipeline.lake.database import write_database
from pipeline.lake.home import Home
from pipeline.lake.reading import print_left_out
from tests.support.commands import ARGUMENTS, COMMANDS, Place, Words, fill, formats
from tests.support.homes import HANG_S, Called, environment, fingerprint

ODD = "\x1b]0;x\x07\x9b31m\u202e\rz"
FORMULA = "=HYPERLINK(0)"
WITHOUT_DEMO = not DEMO_TRACES.is_dir()
READING = (
    "show", "query", "export", "runs", "rules", "audit", "ranks", "bandwidth", "bench", "compare", "curve",
    "whatif ep", "whatif overlap", "whatif speculate", "status",
)  # fmt: skip
"""Commands that change no home; `export` is called with `--output -`."""
ENDINGS: dict[str, set[int]] = {"check": {ExitCode.OK, ExitCode.QUALITY}}
"""Commands that may end with another exit code than 0."""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A home whose every name has an escape sequence, a C1 control, a bidi control and a carriage return."""
    folder = tmp_path_factory.mktemp("planted")
    return fill(Home(folder / "home"), folder / "files", Words(ODD, FORMULA + ODD))


def copy_of(place: Place, folder: Path) -> Place:
    """A copy of a home, to be changed."""
    root = folder / "place" / "home"
    shutil.copytree(place.home.root, root)
    write_database(Home(root))
    return replace(place, home=Home(root))


@pytest.fixture
def mine(planted: Place, tmp_path: Path) -> Place:
    """A copy of it, to be changed."""
    return copy_of(planted, tmp_path)


@pytest.fixture
def given(planted: Place, tmp_path: Path, name: str) -> Place:
    """What the command `name` is called on: a copy, if it writes."""
    return planted if name in READING else copy_of(planted, tmp_path)


def obeyed(text: str) -> str:
    """What of a text a terminal may obey."""
    return "".join(sorted({c for c in text if not c.isprintable() and c != "\n"}))


def cases(form: Callable[[str], tuple[str, ...]]) -> list[Any]:
    """Each command in each of these formats of it."""
    no_demo = pytest.mark.skipif(WITHOUT_DEMO, reason="the demo traces are not there")
    found = []
    for name in ARGUMENTS:
        marks = [no_demo] if name == "demo" else []
        found += [pytest.param(name, one, marks=marks, id=f"{name} {one}".strip()) for one in form(name)]
    return found


def every_format(name: str) -> tuple[str, ...]:
    """All formats of a command, or none."""
    return formats(name) or ("",)


def only_csv(name: str) -> tuple[str, ...]:
    """CSV, of a command that has it."""
    return tuple(form for form in formats(name) if form == "csv")


def test_every_command_is_called_here() -> None:
    """A new one cannot be forgotten."""
    assert ARGUMENTS.keys() == COMMANDS.keys()


@pytest.mark.usefixtures("without_gx")
@pytest.mark.parametrize(("name", "form"), cases(every_format))
def test_nothing_that_a_terminal_obeys_is_printed(
    given: Place,
    call: Callable[..., Called],
    name: str,
    form: str,
) -> None:
    """Neither to stdout nor to stderr. CSV and Parquet in a pipe are data, and stay what they are."""
    for arguments in ARGUMENTS[name](given):
        option = ["--format", form] if form else []
        code, out, err = call("--home", given.home.root, *name.split(), *arguments, *option)
        assert code in ENDINGS.get(name, {0}), err
        assert obeyed(err) == ""
        assert form in {"csv", "parquet"} or obeyed(out) == ""


@pytest.mark.parametrize(("name", "form"), cases(only_csv))
def test_csv_on_a_terminal_is_escaped_too(given: Place, name: str, form: str) -> None:
    """Of every command that prints it."""
    for arguments in ARGUMENTS[name](given):
        code, shown = on_a_terminal("--home", given.home.root, *name.split(), *arguments, "--format", form)
        assert code in ENDINGS.get(name, {0}), shown
        assert obeyed(shown) == ""


def on_a_terminal(*arguments: object) -> tuple[int, str]:
    """Run a command with stdout and stderr on a terminal that has no colors: exit code, and what is shown."""
    terminal, inside = os.openpty()
    tty.setraw(inside)
    command = [sys.executable, "-m", "pipeline", *map(str, arguments)]
    plain = environment() | {"TERM": "dumb"}
    with subprocess.Popen(command, stdout=inside, stderr=inside, env=plain) as process:
        os.close(inside)
        shown = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while part := os.read(terminal, 65536):
                shown += part
        os.close(terminal)
    return process.returncode, shown.decode()


@pytest.mark.parametrize("arguments", [[], ["--json-log"]], ids=["text", "json"])
def test_watch_prints_nothing_that_a_terminal_obeys(mine: Place, arguments: list[str]) -> None:
    """It reads what is in the inbox, and SIGTERM ends it with 0 after the current file."""
    command = [sys.executable, "-m", "pipeline", "--home", str(mine.home.root), "watch", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, env=environment()) as process:
        assert process.stderr is not None
        log = b""
        while b"exported to" not in log:
            line = process.stderr.readline()
            assert line, log
            log += line
        process.send_signal(signal.SIGTERM)
        out, rest = process.communicate(timeout=HANG_S)
    assert process.returncode == 0
    assert b"read: ready" in log
    assert obeyed((out + log + rest).decode()) == ""


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_wrong_arguments_are_shown_escaped(planted: Place, call: Callable[..., Called], name: str) -> None:
    """A shell puts names of files there."""
    for wrong in ([f"--{ODD}"], ["--format", ODD], [ODD] * 9):
        code, out, err = call("--home", planted.home.root, *name.split(), *wrong)
        assert code in {ExitCode.USAGE, ExitCode.QUALITY}, err
        assert obeyed(out + err) == ""
        assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", ODD],
        ["query", f"SELECT {ODD}\nFROM"],
        ["export", ODD],
        ["retry", ODD],
        ["ingest", f"no{ODD}.json"],
    ],
)
def test_errors_are_escaped(planted: Place, call: Callable[..., Called], arguments: list[str]) -> None:
    """With what was asked for in them; their own lines stay, and only the first is one of stepledger's."""
    code, out, err = call("--home", planted.home.root, *arguments)
    assert (code, out, obeyed(err)) == (ExitCode.USAGE, "", "")
    assert err.startswith("stepledger: error: ")
    assert all(line.startswith("  ") for line in err.splitlines()[1:])


def test_a_bug_is_escaped_and_exits_1(
    planted: Place,
    call: Callable[..., Called],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A traceback shows values."""

    def fail(*_rest: object) -> None:
        raise ValueError(ODD)

    monkeypatch.setattr("pipeline.ingest.status.status_rows", fail)
    code, out, err = call("--home", planted.home.root, "status")
    assert (code, out, obeyed(err)) == (ExitCode.BUG, "", "")
    assert err.startswith("Traceback")
    assert r"ValueError: \x1b]0;x" in err


def test_why_a_run_is_left_out_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    """The reason names a damaged file."""
    print_left_out({"r": ODD})
    assert capsys.readouterr() == ("", "left out: run r: \\x1b]0;x\\x07\\x9b31m\\u202e\\rz\n")


def is_formula(cell: str) -> bool:
    """Would a spreadsheet run it? A number is none."""
    try:
        float(cell)
    except ValueError:
        return cell[:1] in {"=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20"}
    return False


@pytest.mark.parametrize(
    "arguments",
    [["rules", "--explain", "a\udcff", "--op", "\udcff"], ["describe", "{run}", "notes=\udcff"]],
)
def test_an_argument_that_is_no_text_is_taken_as_text(
    mine: Place,
    call: Callable[..., Called],
    arguments: list[str],
) -> None:
    """Bytes that are no UTF-8 come as surrogates, which no database takes."""
    code, _, err = call("--home", mine.home.root, *(argument.format(run=mine.run) for argument in arguments))
    assert code == 0, err


@pytest.mark.usefixtures("without_gx")
@pytest.mark.parametrize(("name", "form"), cases(only_csv))
def test_no_csv_holds_a_formula(given: Place, call: Callable[..., Called], name: str, form: str) -> None:
    """Of every command that prints CSV; each takes --raw."""
    for arguments in ARGUMENTS[name](given):
        for raw in ([], ["--raw"]):
            code, out, err = call(
                "--home", given.home.root, *name.split(), *arguments, "--format", form, *raw
            )
            assert code in ENDINGS.get(name, {0}), err
            rows = list(csv.reader(io.StringIO(out, newline="")))
            assert raw or [cell for row in rows for cell in row if is_formula(cell)] == []


def test_raw_csv_holds_names_as_they_are(mine: Place, call: Callable[..., Called]) -> None:
    """With the formula that is a kernel's name."""
    arguments = ["--home", mine.home.root, "query", "SELECT name FROM kernel_breakdown", "--format", "csv"]
    for raw, wanted in (([], f"'{FORMULA}{ODD}"), (["--raw"], f"{FORMULA}{ODD}")):
        out = call(*arguments, *raw)[1]
        assert [wanted] in list(csv.reader(io.StringIO(out, newline="")))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The same home with harmless names."""
    folder = tmp_path_factory.mktemp("plain")
    return fill(Home(folder / "home"), folder / "files", Words())


def ways(name: str) -> tuple[str, ...]:
    """How a command is given its home. One place reads the variable: not every writer needs both."""
    return ("option", "environment") if name in {*READING, "run"} else ("option",)


@pytest.mark.parametrize(("name", "way"), cases(ways))
def test_every_command_takes_a_relative_home(
    plain: Place,
    tmp_path: Path,
    call: Callable[..., Called],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    way: str,
) -> None:
    """From another folder, by the option as by the environment: the README's ./warehouse is one."""
    place = plain if name in READING else copy_of(plain, tmp_path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    relative = os.path.relpath(place.home.root)
    monkeypatch.delenv("STEPLEDGER_HOME", raising=False)
    if way == "environment":
        monkeypatch.setenv("STEPLEDGER_HOME", relative)
    options = ["--home", relative] if way == "option" else []
    for arguments in ARGUMENTS[name](plain):
        code, _, err = call(*options, *name.split(), *arguments)
        assert code in ENDINGS.get(name, {0}), err
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_reading_commands_change_nothing(plain: Place, call: Callable[..., Called]) -> None:
    """Other tests call them on a home that they share."""
    before = fingerprint(plain.home.root)
    for name in READING:
        for arguments in ARGUMENTS[name](plain):
            call("--home", plain.home.root, *name.split(), *arguments)
    assert fingerprint(plain.home.root) == before
