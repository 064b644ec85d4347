"""Contracts through Great Expectations: one suite a mart, and an error of the check is no finding."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

from pipeline import duck
from pipeline.contracts import Column, Contract, contracts
from pipeline.lake.home import Home
from pipeline.lake.reading import opened
from pipeline.quality import expectations
from pipeline.quality.checks import CheckError, Result, ask, checks
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


ASKED = next(check for check in checks() if check.name == "clock_jump")
"""A question that none of the broken marts here answers differently."""


def judge_one(
    judged: Judged,
    monkeypatch: pytest.MonkeyPatch,
    table: str,
    select: str,
    extra: list[Any] | None = None,
) -> list[Result]:
    """Judge a single mart, replaced by `select` over the good one, and one SQL check."""
    contract = contracts("marts")[table]
    monkeypatch.setattr(expectations, "contracts", lambda _layer: {table: contract})
    if extra is not None:
        monkeypatch.setattr(expectations, "_of_table", lambda _gxe, _contract: extra)
    judged.con.execute("BEGIN")
    try:
        judged.con.execute(f"CREATE VIEW good AS {source(judged, table)}")
        judged.con.execute(f"CREATE OR REPLACE VIEW {table} AS {select}")
        return expectations.judge(judged.con, [ask(judged.con, ASKED)])
    finally:
        judged.con.execute("ROLLBACK")


def source(judged: Judged, table: str) -> str:
    """What a mart's view reads."""
    return (
        f"FROM read_parquet({duck.files(judged.home.mart_run('a'), f'{table}.parquet')}, "
        "hive_partitioning = false)"
    )


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


@pytest.mark.parametrize(
    ("table", "select", "expectation", "columns"),
    [
        (
            "timeline",
            "SELECT * REPLACE ('rumour' AS source) FROM good",
            "expect_column_values_to_be_in_set",
            "source",
        ),
        (
            "step_breakdown",
            "SELECT * REPLACE ('magic' AS category) FROM good",
            "expect_column_values_to_be_in_set",
            "category",
        ),
        (
            "timeline",
            "SELECT * REPLACE (NULL::VARCHAR AS trace_id) FROM good LIMIT 1",
            "expect_column_values_to_not_be_null",
            "trace_id",
        ),
        (
            "gaps",
            "SELECT * REPLACE (-dur_ns AS dur_ns) FROM good",
            "expect_column_values_to_be_between",
            "dur_ns",
        ),
        (
            "run_breakdown",
            "SELECT * REPLACE (share + 1 AS share) FROM good",
            "expect_column_values_to_be_between",
            "share",
        ),
        (
            "timeline",
            "FROM good UNION ALL FROM good",
            "expect_compound_columns_to_be_unique",
            ["trace_id", "device"],
        ),
        ("run_facts", "FROM good UNION ALL FROM good", "expect_column_values_to_be_unique", "source"),
        (
            "timeline",
            "SELECT * REPLACE (device::VARCHAR AS device) FROM good",
            "expect_column_values_to_be_of_type",
            "device",
        ),
        (
            "timeline",
            "SELECT *, 1 AS surplus FROM good",
            "expect_table_columns_to_match_ordered_list",
            "surplus",
        ),
    ],
    ids=[
        "source",
        "category",
        "null",
        "negative",
        "share",
        "repeated keys",
        "repeated key",
        "type",
        "column",
    ],
)
def test_a_mart_that_breaks_its_contract_fails_its_result_and_no_other(
    judged: Judged, monkeypatch: pytest.MonkeyPatch, table: str, select: str, expectation: str, columns: Any
) -> None:
    """A value outside its set or range, a NULL, a repeated key, a wrong type: the sample says which
    expectation and shows values."""
    results = judge_one(judged, monkeypatch, table, select)
    assert [(r.check, r.is_passed) for r in results] == [(ASKED.name, True), (f"contract.{table}", False)]
    assert results[1].failing_rows > 0
    (broken,) = json.loads(results[1].sample or "")
    assert broken["expectation"] == expectation
    assert columns in (broken["columns"], *broken["unexpected"])
    assert broken["unexpected"]


def test_an_expectation_that_raises_is_an_error_and_no_finding(
    judged: Judged,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A column that does not exist says something of the check, not of the data."""
    gxe: Any = import_module("great_expectations.expectations")
    missing = [gxe.ExpectColumnValuesToNotBeNull(column="not_there")]
    with pytest.raises(CheckError, match="expect_column_values_to_not_be_null on timeline cannot be run"):
        judge_one(judged, monkeypatch, "timeline", "FROM good", missing)


def made(maker: Any, argument: Column | Contract) -> list[str]:
    """What is expected of a column or a table, as text."""

    class Named:
        def __getattr__(self, name: str) -> Any:
            return lambda **kwargs: f"{name} {kwargs}"

    return [str(one) for one in maker(Named(), argument)]


def test_every_word_of_a_contract_is_expected() -> None:
    """Not null and the type where NULL is not allowed, the range, the set, the columns in order, the
    grain."""
    column = Column("dur_ns", "BIGINT", "", min=0, values=("1", "2"))
    assert made(expectations._of_column, column) == [
        "ExpectColumnValuesToNotBeNull {'column': 'dur_ns'}",
        "ExpectColumnValuesToBeOfType {'column': 'dur_ns', 'type_': 'int64'}",
        "ExpectColumnValuesToBeBetween {'column': 'dur_ns', 'min_value': 0, 'max_value': None}",
        "ExpectColumnValuesToBeInSet {'column': 'dur_ns', 'value_set': ['1', '2']}",
    ]
    assert made(expectations._of_column, Column("step", "BIGINT", "", null=True)) == []
    assert made(expectations._of_table, Contract("t", "marts", "", ("a", "b"), (column,)))[1].startswith(
        "ExpectCompoundColumnsToBeUnique"
    )
    assert made(expectations._of_table, Contract("t", "marts", "", ("a",), (column,)))[1].startswith(
        "ExpectColumnValuesToBeUnique"
    )


def test_what_is_for_information_never_fails_a_suite() -> None:
    """Any number of rows will do; of a warning and a failure none."""
    gxe = SimpleNamespace(ExpectColumnValuesToBeBetween=lambda **kwargs: kwargs)
    limits = {
        s: expectations._of_check(gxe, Result("x", s, 3, None, "ExecutionConfig.", "Do."))
        for s in ("fail", "warn", "info")
    }
    assert [(m["severity"], m.get("max_value"), m.get("min_value")) for m in limits.values()] == [
        ("critical", 0, None),
        ("warning", 0, None),
        ("info", None, 0),
    ]
