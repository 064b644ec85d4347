"""Great Expectations judges counts: of checks and of contracts."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

from pipeline import duck
from pipeline.contracts import contracts
from pipeline.lake.home import Home
from pipeline.lake.reading import opened
from pipeline.quality import expectations
from pipeline.quality.checks import CheckError, Result, checks
from pipeline.quality.verdicts import check_run, open_run
from tests.support.builders import ingest_into
from tests.support.homes import pair


class Judged:
    """A home whose run `a` was checked, and a connection to its relations."""

    def __init__(self, home: Home, con: duckdb.DuckDBPyConnection, results: list[Result]) -> None:
        self.home, self.con, self.results = home, con, results


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judged]:
    """One real check of a small run of two ranks; other tests judge single marts."""
    folder = tmp_path_factory.mktemp("judged")
    home = Home(folder / "home")
    assert ingest_into(home, *pair(folder), run="a").codes == []
    results = check_run(home, "a")
    with duck.working(folder / "spill", threads=2, memory_limit="1GB") as con:
        open_run(con, home, "a")
        yield Judged(home, con, results)


def test_every_mart_of_a_good_run_keeps_its_contract(judged: Judged) -> None:
    """One result a mart, of severity fail, beside those of the SQL checks."""
    assert [r.check for r in judged.results] == [
        *(c.name for c in checks()),
        *(f"contract.{t}" for t in contracts("marts")),
    ]
    of_contracts = [r for r in judged.results if r.check.startswith("contract.")]
    assert [(r.check, r.sample) for r in of_contracts if not r.is_passed] == []
    assert {r.severity for r in of_contracts} == {"fail"}


def test_the_results_are_in_the_warehouse(judged: Judged) -> None:
    """Contracts too, with the build's id."""
    with opened(judged.home) as con:
        found = dict(
            duck.rows(
                con, 'SELECT "check", is_passed FROM quality INNER JOIN run_facts USING (run_id, build_id)'
            )
        )
    assert found == {r.check: r.is_passed for r in judged.results}


def test_what_is_for_information_never_fails(judged: Judged) -> None:
    """Any number of rows will do; of a warning and a failure none."""
    results = [Result(f"of_{s}", s, 3, None, "Means.", "Do.") for s in ("fail", "warn", "info")]
    assert expectations._validate(results) == {"of_fail": False, "of_warn": False, "of_info": True}


def test_the_severity_and_the_remedy_go_along() -> None:
    """As Great Expectations names and keeps them."""
    gxe = SimpleNamespace(ExpectColumnValuesToBeBetween=lambda **kwargs: kwargs)
    made = expectations.expectation(gxe, Result("x", "warn", 3, None, "Means.", "Do."))
    assert (made["column"], made["severity"], made["max_value"]) == ("x", "warning", 0)
    assert made["meta"]["notes"]["content"] == ["warn: Means.", "Do."]


def test_an_expectation_that_raises_is_an_error_and_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column that does not exist says something of the check, not of the data."""

    def misnamed(gxe: Any, _result: Result) -> Any:
        return gxe.ExpectColumnValuesToNotBeNull(column="not_there")

    monkeypatch.setattr(expectations, "expectation", misnamed)
    with pytest.raises(CheckError, match="the expectation of not_there cannot be run"):
        expectations._validate([Result("x", "fail", 0, None, "Means.", "Do.")])


def test_a_verdict_that_contradicts_the_count_is_an_error(
    judged: Judged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of the two is believed."""
    monkeypatch.setattr(expectations, "_validate", lambda results: {one.check: False for one in results})
    with pytest.raises(CheckError, match="Great Expectations contradicts its 0 rows"):
        expectations.judge(judged.con, [])
