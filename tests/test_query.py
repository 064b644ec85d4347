"""People's SQL: reading works, and nothing that writes, looks elsewhere or changes the session gets through."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.home import Home
from pipeline.query import run_query
from tests.homes import fingerprint

# LAKE stands for the lake's folder, SECRET for a file outside it, LINK and TREE for links in the lake that point outside.
WRITES = [
    "COPY (SELECT 1) TO 'LAKE/x.parquet'",
    "COPY (SELECT 1) TO 'LAKE/marts/run_id=a/steps.parquet' (FORMAT parquet)",
    "EXPORT DATABASE 'LAKE/x'",
    "EXPLAIN COPY (SELECT 1) TO 'LAKE/x.csv'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO 'LAKE/x.csv'",
    "explain analyze\ncopy (SELECT 1) TO 'LAKE/x.csv'",
    "EXPLAIN (ANALYZE) COPY (SELECT 1) TO 'LAKE/x.csv'",
    "EXPLAIN (ANALYZE, FORMAT json) COPY (SELECT 1) TO 'LAKE/x.csv'",
    "EXPLAIN ANALYZE (FORMAT json) COPY (SELECT 1) TO 'LAKE/x.csv'",
    "EXPLAIN ANALYZE (FORMAT ') SELECT $$ ') COPY (SELECT 1) TO 'LAKE/x.csv' -- $$",
    "/* a */ EXPLAIN ANALYZE COPY (SELECT 1) TO 'LAKE/x.csv'",
    "-- a\nEXPLAIN ANALYZE COPY (SELECT 1) TO 'LAKE/x.csv'",
    "EXPLAIN /* a */ ANALYZE COPY (SELECT 1) TO 'LAKE/x.csv'",
    "/* /* */ EXPLAIN SELECT $a$ */ EXPLAIN ANALYZE COPY (SELECT 1) TO 'LAKE/x.csv' --$a$",
    "-- x\rEXPLAIN ANALYZE COPY (SELECT 1) TO 'LAKE/x.csv' /* \nEXPLAIN SELECT 1 --*/",
    "WITH x AS (COPY (SELECT 1) TO 'LAKE/x.csv') SELECT * FROM x",
    "SELECT * FROM (WITH x AS (COPY (SELECT 1) TO 'LAKE/x.csv') SELECT * FROM x)",
    "SELECT (WITH x AS (COPY (SELECT 1) TO 'LAKE/x.csv') SELECT * FROM x)",
    "EXPLAIN ANALYZE WITH x AS (COPY (SELECT 1) TO 'LAKE/x.csv') SELECT * FROM x",
    "SUMMARIZE (WITH x AS (COPY (SELECT 1) TO 'LAKE/x.csv') SELECT * FROM x)",
    "WITH x AS (DELETE FROM runs RETURNING *) SELECT * FROM x",
    "WITH x AS (INSERT INTO runs VALUES (1) RETURNING *) SELECT * FROM x",
    "SELECT * FROM query('COPY (SELECT 1) TO ''LAKE/x.csv''')",
    "SELECT * FROM query('WITH x AS (COPY (SELECT 1) TO ''LAKE/x.csv'') SELECT * FROM x')",
    "SELECT * FROM system.main.query('SELECT 1')",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('WITH x AS (COPY (SELECT 1) TO ''LAKE/x.csv'') SELECT * FROM x'))",
    "SELECT * FROM enable_logging(storage = 'file', storage_config = {'path': 'LAKE/logs'})",
    "SELECT * FROM enable_logging('QueryLog', storage = 'file', storage_path = 'LAKE/logs')",
    "FROM enable_profiling(format = 'json', save_location = 'LAKE/profile.json')",
    "CREATE TABLE t (a INTEGER)",
    "CREATE TEMP TABLE t (a INTEGER)",
    "CREATE VIEW v AS SELECT 1",
    "INSERT INTO run_facts SELECT * FROM run_facts",
    "UPDATE run_facts SET source = 'x'",
    "DELETE FROM run_facts",
    "DROP VIEW runs",
    "COMMENT ON VIEW runs IS 'x'",
    "VACUUM",
    "CHECKPOINT",
    "FROM force_checkpoint()",
    "IMPORT DATABASE 'LAKE'",
]
SESSION = [
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "SELECT 1; SELECT 2",
    "SELECT 1; COPY (SELECT 1) TO 'LAKE/x.csv'",
    "",
    "-- nothing",
    "ATTACH ':memory:' AS m",
    "ATTACH 'LAKE/x.duckdb' AS m",
    "INSTALL sqlite",
    "LOAD json",
    "SET threads = 1",
    "SET enable_external_access = true",
    "RESET allowed_directories",
    "PRAGMA database_list",
    "PRAGMA enable_profiling",
    "CALL pragma_version()",
    "CALL enable_logging()",
    "BEGIN",
    "USE raw",
    "PIVOT runs ON source USING count(*)",
]
ELSEWHERE = [
    "SELECT * FROM 'SECRET'",
    "SELECT * FROM read_csv('SECRET')",
    "SELECT * FROM read_text('SECRET')",
    "SELECT * FROM read_blob('SECRET')",
    "SELECT * FROM read_json('SECRET')",
    "SELECT * FROM sniff_csv('SECRET')",
    "SELECT * FROM query_table('SECRET')",
    "SELECT * FROM glob('LAKE/../*')",
    "SELECT * FROM glob('LAKE/../../*')",
    "SELECT * FROM read_text('LAKE/../../secret.csv')",
    "SELECT * FROM read_text('LAKE/../stepledger.duckdb')",
    "SELECT * FROM read_text('LINK')",
    "SELECT * FROM read_text('TREE/secret.csv')",
    "SELECT * FROM glob('TREE/*')",
    "SELECT * FROM read_parquet('https://example.invalid/x.parquet')",
    "SELECT * FROM variable_of_the_caller",
    "SELECT getenv('HOME')",
    "FROM duckdb_secrets()",
]
READS = [
    ("SELECT 1 AS one", ["one"]),
    ("SELECT 1;", ["1"]),
    ("  -- why\n/* because */ SELECT 1 AS one", ["one"]),
    ("WITH a AS (SELECT 1 AS one) SELECT * FROM a", ["one"]),
    ("WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) FROM r", ["n"]),
    ("SELECT 1 AS one UNION ALL SELECT 2 ORDER BY 1", ["one"]),
    ("FROM (SELECT run_id FROM runs)", ["run_id"]),
    ("VALUES (1, 2)", ["col0", "col1"]),
    ("TABLE runs", None),
    ("DESCRIBE runs", None),
    ("SHOW TABLES", ["name"]),
    ("SHOW ALL TABLES", None),
    ("SUMMARIZE run_breakdown", None),
    ("EXPLAIN SELECT 1", ["explain_key", "explain_value"]),
    ("EXPLAIN ANALYZE SELECT count(*) FROM activity", ["explain_key", "explain_value"]),
    ("EXPLAIN (ANALYZE, FORMAT json) SELECT 1", ["explain_key", "explain_value"]),
    ("PIVOT runs ON source IN ('kineto') USING count(*) GROUP BY run_id", ["run_id", "kineto"]),
    ("SELECT count(*) AS n FROM read_parquet('LAKE/marts/run_id=a/steps.parquet')", ["n"]),
    ("SELECT count(*) AS n FROM read_parquet('LAKE/raw/*/*/trace.parquet', union_by_name = true)", ["n"]),
    ("SELECT i FROM range(3) AS r (i)", ["i"]),
    ("SELECT unnest([1, 2]) AS n", ["n"]),
    ("SELECT 'COPY_QUERY_NODE' AS type, {'type': 'X_NODE'} AS s", ["type", "s"]),
    ("SELECT comment FROM duckdb_columns() WHERE table_name = 'steps'", ["comment"]),
]


@pytest.fixture(scope="module")
def places(built: Home) -> Iterator[dict[str, str]]:
    """A file outside the lake, and links in the lake that lead there."""
    lake = built.raw.parent.resolve()
    secret = built.root.resolve().parent / "secret.csv"
    secret.write_text("a,b\n1,2\n")
    link, tree = lake / "link.csv", lake / "tree"
    link.symlink_to(secret)
    tree.symlink_to(secret.parent)
    yield {"LAKE": str(lake), "SECRET": str(secret), "LINK": str(link), "TREE": str(tree)}
    link.unlink()
    tree.unlink()


def filled(sql: str, places: dict[str, str]) -> str:
    """The statement with real paths."""
    for word, path in places.items():
        sql = sql.replace(word, path)
    return sql


def _refused(home: Home, places: dict[str, str], sql: str) -> str:
    before = fingerprint(home.root)
    with pytest.raises(UsageError) as refusal:
        run_query(home, filled(sql, places))
    assert fingerprint(home.root) == before
    return str(refusal.value)


@pytest.mark.parametrize("sql", WRITES)
def test_nothing_writes(built: Home, places: dict[str, str], sql: str) -> None:
    """Refused as wrong usage, and not a byte of the home changes."""
    _refused(built, places, sql)


@pytest.mark.parametrize("sql", SESSION)
def test_nothing_but_one_reading_statement_runs(built: Home, places: dict[str, str], sql: str) -> None:
    """Whatever prepares, loads, attaches or sets is refused."""
    assert _refused(built, places, sql)


@pytest.mark.parametrize("sql", ELSEWHERE)
def test_nothing_looks_outside_the_lake(built: Home, places: dict[str, str], sql: str) -> None:
    """Neither by a path, nor through a link, nor into the process."""
    variable_of_the_caller = [1]
    assert "1,2" not in _refused(built, places, sql)
    assert variable_of_the_caller == [1]


@pytest.mark.parametrize(("sql", "columns"), READS)
def test_reading_works(built: Home, places: dict[str, str], sql: str, columns: list[str] | None) -> None:
    """Every kind of question that reads gets its answer."""
    found, rows = run_query(built, filled(sql, places))
    assert rows
    assert columns is None or found == columns


def test_a_refusal_says_what_was_found_and_what_to_ask_instead(built: Home) -> None:
    """The user reads it and knows."""
    with pytest.raises(UsageError, match=r"DELETE is not a reading statement\. Ask with one SELECT"):
        run_query(built, "DELETE FROM runs")


def test_a_pivot_without_values_is_told_how(built: Home) -> None:
    """DuckDB would have to write a type for it."""
    with pytest.raises(UsageError, match=r"IN \(\.\.\.\)"):
        run_query(built, "PIVOT runs ON source USING count(*)")


def test_a_wrong_column_is_a_usage_error_that_names_it(built: Home) -> None:
    """DuckDB's own message, with its suggestion."""
    with pytest.raises(UsageError, match="durns"):
        run_query(built, "SELECT durns FROM activity")


def test_rows_and_names_come_as_they_are(built: Home) -> None:
    """Numbers stay numbers and NULL stays None."""
    assert run_query(built, "SELECT run_id, traces, NULL AS nothing FROM runs ORDER BY run_id") == (
        ["run_id", "traces", "nothing"],
        [("2026", 2, None), ("a", 2, None)],
    )


def test_a_home_without_a_warehouse_says_what_to_do(tmp_path: Path) -> None:
    """Before the first run there is nothing to ask."""
    with pytest.raises(UsageError, match="no warehouse yet"):
        run_query(Home(tmp_path), "SELECT 1")
