"""The SQL that pages show runs on the demo, and returns what they say."""

from __future__ import annotations

import csv
import io
from itertools import pairwise

import pytest

from pipeline.lake.home import Home
from pipeline.lake.query import run_query
from tests.support.pages import fences
from tests.support.paths import ROOT


def _fences(page: str) -> list[tuple[str, str]]:
    return [(f.language, f.body) for f in fences((ROOT / page).read_text(encoding="utf-8"))]


RECIPES = [body for language, body in _fences("sql/README.md") if language == "sql"]
ANSWERED = [
    (query, answer)
    for (first, query), (second, answer) in pairwise(_fences("pipeline/README.md"))
    if (first, second) == ("sql", "csv")
]


def test_there_are_ten_recipes() -> None:
    """The page of SQL recipes has ten."""
    assert len(RECIPES) == 10


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_answers_on_the_demo(demo_home: Home, recipe: str) -> None:
    """Each SQL recipe runs through `query` and returns rows."""
    _, rows = run_query(demo_home, recipe)
    assert rows


def test_the_path_of_an_event_has_three_stations() -> None:
    """The map follows one kernel through a raw table, a mart of activities and a mart of steps."""
    assert len(ANSWERED) == 3


@pytest.mark.parametrize(("query", "answer"), ANSWERED)
def test_the_path_of_an_event_is_that_of_the_demo(demo_home: Home, query: str, answer: str) -> None:
    """The numbers beside each query of the map are what it returns."""
    columns, rows = run_query(demo_home, query)
    assert [columns, *([str(value) for value in row] for row in rows)] == [*csv.reader(io.StringIO(answer))]
