"""Text from elsewhere: on one line, with nothing that a terminal obeys or a spreadsheet runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import duckdb
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipeline
from pipeline.text import FORMULA, counted, json_text, no_formula, printable, printable_lines

FORMULAS = [f"{first}1" for first in "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"]
TEXTS = ["", "a", "a=1", " =1", "'=1", "1-1", "a\n=1", "日本", "void f<a, b>(int)"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a 'b' é", "a 'b' é"),
        ("a\nb", r"a\nb"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\x9b31m", r"\x9b31m"),
        ("\x7f", r"\x7f"),
        ("\u202e", r"\u202e"),
        ("\udcff", r"\udcff"),
    ],
)
def test_a_text_stays_on_its_line(text: str, wanted: str) -> None:
    """What moves a terminal's cursor, turns a line around or cannot be printed is escaped."""
    assert printable(text) == wanted


@given(st.text(st.characters(codec=None)))
def test_nothing_unprintable_is_left(text: str) -> None:
    """Of any text at all; escaping twice is escaping once."""
    escaped = printable(text)
    assert escaped.isprintable()
    assert printable(escaped) == escaped


def test_a_message_keeps_its_lines() -> None:
    """Line feeds only."""
    assert printable_lines("one\ntwo\r\x1b") == "one\ntwo\\r\\x1b"


@given(st.text(st.characters(codec=None)))
def test_json_is_lossless_and_printable(text: str) -> None:
    """Whatever is not printable is escaped, beyond 16 bits as a pair."""
    written = json_text(text)
    assert written.isprintable()
    assert json.loads(written).encode("utf-16", "surrogatepass") == text.encode("utf-16", "surrogatepass")


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_becomes_text(text: str) -> None:
    """By an apostrophe before it, in Python as in DuckDB and polars."""
    assert no_formula(text) == f"'{text}"
    assert duckdb.execute("SELECT regexp_matches($1, $2)", [text, FORMULA]).fetchall() == [(True,)]
    assert pl.Series([text]).str.contains(FORMULA).to_list() == [True]


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_no_formula_stays(text: str) -> None:
    """Only the first character counts."""
    assert no_formula(text) == text
    assert duckdb.execute("SELECT regexp_matches($1, $2)", [text, FORMULA]).fetchall() == [(False,)]
    assert pl.Series([text]).str.contains(FORMULA).to_list() == [False]


def test_every_way_to_print_goes_through_one_function() -> None:
    """Nothing in the package prints by itself but these modules, and each of them escapes."""
    direct = re.compile(r"\bprint\(|sys\.std(out|err)\.write|typer\.(echo|secho)\(|\.confirm\(")
    package = Path(pipeline.__file__).parent
    modules = package.rglob("*.py")
    found = {
        path.relative_to(package).as_posix()
        for path in modules
        if direct.search(path.read_text(encoding="utf-8"))
    }
    assert found == {
        "cli/app.py",
        "cli/lake.py",
        "cli/options.py",
        "duck.py",
        "present/output.py",
        "progress.py",
        "present/reports.py",
        "present/show.py",
        "lake/reading.py",
    }


@pytest.mark.parametrize(
    ("number", "expected"), [(0, "0 steps"), (1, "1 step"), (2, "2 steps"), (1000, "1,000 steps")]
)
def test_a_number_agrees_with_its_noun(number: int, expected: str) -> None:
    """Singular for one, thousands separated."""
    assert counted(number, "step") == expected


def test_an_irregular_plural_can_be_given() -> None:
    """As in 2 entries."""
    assert (counted(1, "entry", "entries"), counted(2, "entry", "entries")) == ("1 entry", "2 entries")
