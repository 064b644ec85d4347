"""Thresholds: one data file, read by Python and by SQL."""

from __future__ import annotations

import re

import pytest

from pipeline.resources import resource
from pipeline.thresholds import Threshold, threshold, thresholds
from tests.support.tables import evaluate


@pytest.mark.parametrize("one", thresholds().values(), ids=lambda one: one.name)
def test_sql_and_python_read_the_same_value(one: Threshold) -> None:
    """The macro of a threshold is the value that Python reads."""
    assert float(evaluate(f"{one.name}()")) == threshold(one.name) == one.value


@pytest.mark.parametrize("one", thresholds().values(), ids=lambda one: one.name)
def test_every_threshold_has_a_unit_and_a_sentence(one: Threshold) -> None:
    """A reader of the file learns what the number counts and what it decides."""
    assert one.unit
    assert one.meaning.endswith(".")


@pytest.mark.parametrize("name", thresholds())
def test_every_threshold_is_used(name: str) -> None:
    """A number that nothing reads any more is removed from the file."""
    sql = "".join(path.read_text(encoding="utf-8") for path in resource("sql").rglob("*.sql"))
    python = "".join(
        path.read_text(encoding="utf-8") for path in resource("schemas").parent.glob("pipeline/**/*.py")
    )
    assert re.search(rf"\b{name}\(\)", sql) or f'threshold("{name}")' in python


def test_an_unknown_threshold_is_an_error() -> None:
    """A misspelled name never becomes a default."""
    with pytest.raises(KeyError):
        threshold("jiter_ns")
