"""Rows that break the contract of their mart."""

from __future__ import annotations

import json
from collections.abc import Iterator

import duckdb
import pytest

from pipeline import duck
from pipeline.contracts import Column, Contract, contracts
from pipeline.lake.home import Home
from pipeline.quality.verdicts import open_run
from pipeline.quality.violations import Requirement, contract_result, requirements


@pytest.fixture(scope="module")
def con(built: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """The relations of one good run."""
    with duck.working(tmp_path_factory.mktemp("spill"), threads=1, memory_limit="1GB") as made:
        open_run(made, built, "a")
        yield made


@pytest.mark.parametrize("table", contracts("marts"))
def test_a_good_mart_breaks_nothing(con: duckdb.DuckDBPyConnection, table: str) -> None:
    """No sample, and severity fail if it ever does."""
    result = contract_result(con, contracts("marts")[table])
    assert (result.check, result.severity, result.failing_rows, result.sample) == (
        f"contract.{table}", "fail", 0, None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("table", "select", "kind", "shown"),
    [
        (
            "timeline",
            "SELECT * REPLACE ('rumour' AS source) FROM good",
            "in_set",
            ["source"],
        ),
        (
            "step_breakdown",
            "SELECT * REPLACE ('magic' AS category) FROM good",
            "in_set",
            ["category"],
        ),
        (
            "timeline",
            "SELECT * REPLACE (NULL::VARCHAR AS trace_id) FROM good LIMIT 1",
            "not_null",
            ["trace_id"],
        ),
        (
            "gaps",
            "SELECT * REPLACE (-dur_ns AS dur_ns) FROM good",
            "in_range",
            ["dur_ns"],
        ),
        (
            "run_breakdown",
            "SELECT * REPLACE (share + 1 AS share) FROM good",
            "in_range",
            ["share"],
        ),
        (
            "timeline",
            "FROM good UNION ALL FROM good",
            "unique",
            ["trace_id", "device"],
        ),
        ("run_facts", "FROM good UNION ALL FROM good", "unique", ["source"]),
        (
            "timeline",
            "SELECT * REPLACE (device::VARCHAR AS device) FROM good",
            "columns",
            "device",
        ),
        (
            "timeline",
            "SELECT *, 1 AS surplus FROM good",
            "columns",
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
def test_rows_that_break_a_contract_are_counted_and_shown(
    con: duckdb.DuckDBPyConnection, built: Home, table: str, select: str, kind: str, shown: object
) -> None:
    """A value outside its set or range, a NULL, a repeated key, a wrong type: the sample says which."""
    mart = f"read_parquet({duck.files(built.mart_run('a'), f'{table}.parquet')}, hive_partitioning = false)"
    con.execute("BEGIN")
    try:
        con.execute(f"CREATE VIEW good AS FROM {mart}")
        con.execute(f"CREATE OR REPLACE VIEW {table} AS {select}")
        result = contract_result(con, contracts("marts")[table])
    finally:
        con.execute("ROLLBACK")
    assert result.failing_rows > 0
    (broken,) = json.loads(result.sample or "")
    assert broken["requirement"] == kind
    assert broken["values"]
    assert broken["columns"] == shown or any(str(shown) in str(value) for value in broken["values"])


def test_every_word_of_a_contract_is_required() -> None:
    """No NULL where it is not allowed, the range, the set, and the key."""
    column = Column("dur_ns", "BIGINT", "", min=0, max=9, values=("1", "2"))
    other = Column("step", "BIGINT", "", null=True)
    assert requirements(Contract("t", "marts", "", ("a", "b"), (column, other))) == [
        Requirement("not_null", ("dur_ns",), '"dur_ns" IS NULL'),
        Requirement("in_range", ("dur_ns",), '"dur_ns" < 0 OR "dur_ns" > 9'),
        Requirement("in_set", ("dur_ns",), "\"dur_ns\" NOT IN ('1', '2')"),
        Requirement("unique", ("a", "b"), ""),
    ]
