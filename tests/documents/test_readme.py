"""The first page: short, and complete in what it lists; and the commands that all pages quote."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from pipeline.cli.app import app
from pipeline.ingest.demo import demo_items
from tests.support.pages import fences, pages, prose
from tests.support.paths import README, ROOT

TEXT = README.read_text(encoding="utf-8")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
QUOTED = re.compile(
    r"(?:^|[ /`;&])stepledger ((?:--home \S+ )?(?:whatif )?[a-z]+)\b(?P<rest>[^`\n]*)", re.MULTILINE
)


def _commands() -> dict[str, set[str]]:
    """Each command with its options, hidden ones too."""
    root = typer.main.get_command(app)
    found: dict[str, set[str]] = {}

    def visit(command: object, name: str) -> None:
        options = {
            option for param in getattr(command, "params", []) for option in getattr(param, "opts", [])
        }
        options |= {
            o for param in getattr(command, "params", []) for o in getattr(param, "secondary_opts", [])
        }
        found[name] = options
        for child, inner in getattr(command, "commands", {}).items():
            visit(inner, f"{name} {child}".strip())

    visit(root, "")
    return found


COMMANDS = _commands()


def _quoted() -> Iterator[tuple[Path, str, str]]:
    """(page, command, the rest of its line) for each command that a page quotes as code."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        spans = re.findall(r"`([^`\n]+)`", prose(text))
        blocks = [
            fence.body for fence in fences(text) if fence.language in {"console", "text", "ini", "python"}
        ]
        for code in (*spans, *blocks):
            for match in QUOTED.finditer(f" {code}"):
                name = re.sub(r"^--home \S+ ", "", match[1])
                yield page, name, match["rest"]


CALLS = sorted({*_quoted()})


def test_it_is_short() -> None:
    """At most 220 lines: everything else is in the rooms that it describes."""
    assert len(TEXT.splitlines()) <= 220


def test_every_command_is_listed() -> None:
    """The table of commands names every command, and none that does not exist."""
    listed = set(re.findall(r"^\| `stepledger (\w+)", TEXT, re.MULTILINE))
    hidden = {c.name or getattr(c.callback, "__name__", "") for c in app.registered_commands if c.hidden}
    assert listed == {name.split()[0] for name in COMMANDS if name} - hidden


@pytest.mark.parametrize(
    ("page", "name", "rest"), CALLS, ids=[f"{p.relative_to(ROOT)}-{n}-{r}" for p, n, r in CALLS]
)
def test_a_quoted_command_exists_with_its_options(page: Path, name: str, rest: str) -> None:
    """A command that a page quotes can be typed: it exists and has the options shown."""
    assert name in COMMANDS, page
    assert {*OPTION.findall(rest)} <= COMMANDS[name] | COMMANDS[""] | {"--help"}, page


def test_the_demo_traces_are_small() -> None:
    """The shipped traces are under 1 MB in all."""
    assert sum(Path(item.path).stat().st_size for item in demo_items()) < 1_000_000
