"""Running the SQL of questions."""

from __future__ import annotations

import duckdb
import pytest

from pipeline.analyses import sql
from pipeline.lake.home import Home
from pipeline.lake.reading import reading
from tests.support.questions import RUN, ask, marts


def test_macros_are_there_in_a_read_only_session(built: Home) -> None:
    """A session that sees the lake only can use the macros of the models, and keep temporary tables."""
    with reading(built) as con:
        steps = {"run_id": "a", "source": "kineto", "phase": "decode"}
        sql.temp_table(con, "sample_step", "compare/steps", **steps)
        assert sql.one(con, "compare/left_out") == {"units": 0}
        assert len(sql.rows(con, "compare/units")) == 3


def test_an_error_names_the_file() -> None:
    """The table that it misses is named, too; the class of the error stays."""
    with pytest.raises(duckdb.CatalogException, match=r"sql/questions/compare/units\.sql: .*sample_step"):
        ask("compare/units", {})
    with pytest.raises(duckdb.InvalidInputException, match=r"sql/questions/breakdown/phases\.sql: .*source"):
        ask("breakdown/phases", {}, run_id="run")


def test_a_value_is_never_sql() -> None:
    """Quotes in a run's name are text."""
    run = RUN | {"run_id": "it's'; DROP TABLE steps; --"}
    assert ask("breakdown/phases", {"steps": [{"step": 0, "phase": "decode", **run}]}, **run) == [
        ("decode", 1, 1, 1)
    ]


def test_no_row_is_no_value() -> None:
    """A scalar of nothing is None."""
    with marts({}) as con:
        assert sql.scalar(con, "step_facts/largest_source", run_id="run", phase="decode") is None
