"""README.md stays true: its generated parts, its SQL recipes, its commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline.cli.app import app
from pipeline.ingest.demo import demo_items
from pipeline.ingest.ingest import ingest
from pipeline.lake.home import Home
from pipeline.lake.query import run_query
from pipeline.progress import Progress
from tests.support.paths import README
from tests.tools import docs

TEXT = README.read_text(encoding="utf-8")
RECIPES = re.findall(r"```sql\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture(scope="module")
def demo_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with the demo traces."""
    home = Home(tmp_path_factory.mktemp("demo") / "home")
    ingest(home, demo_items(), Progress(quiet=True))
    return home


def test_tables_are_those_of_the_contracts() -> None:
    """The column tables equal what schemas/ says; `make docs` rewrites them."""
    assert docs.part(TEXT, "tables") == docs.tables()


def test_the_printed_table_is_what_the_demo_prints() -> None:
    """The table in the README is the demo's output at 80 columns."""
    assert docs.part(TEXT, "demo") == docs.demo()


def test_the_answers_are_what_the_commands_print() -> None:
    """The section of questions is the commands' own output, of the demo traces."""
    assert docs.part(TEXT, "questions") == docs.questions()


def test_there_are_ten_recipes() -> None:
    """The page of SQL recipes has ten."""
    assert len(RECIPES) == 10


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_answers_on_the_demo(demo_home: Home, recipe: str) -> None:
    """Each SQL recipe runs through `query` and returns rows."""
    _, rows = run_query(demo_home, recipe)
    assert rows


def test_every_command_is_listed() -> None:
    """The README's table of commands names every command, and none that does not exist."""
    listed = set(re.findall(r"^\| `stepledger (\w+)", TEXT, re.MULTILINE))
    commands = {
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback
    }
    assert listed == commands | {str(group.name) for group in app.registered_groups}


def test_the_demo_traces_are_small() -> None:
    """The shipped traces are under 1 MB in all."""
    assert sum(Path(item.path).stat().st_size for item in demo_items()) < 1_000_000
