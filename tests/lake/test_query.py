"""People's SQL: reading works, and nothing that writes, looks elsewhere or changes the session gets
through."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import gettempdir

import duckdb
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from pipeline import duck
from pipeline.cli import app
from pipeline.errors import ExitCode, UsageError
from pipeline.lake import query
from pipeline.lake.home import Home
from pipeline.lake.query import open_query, run_query
from pipeline.lake.reading import reading
from pipeline.present.output import TABLE_ROWS
from tests.support.homes import HANG_S, command, copied, environment, fingerprint

# LAKE stands for the lake's folder, SECRET and OTHER for a file and a database outside it, LINK and TREE for
# links in the lake that point outside.
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
    (
        "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('WITH x AS (COPY (SELECT 1) TO "
        "''LAKE/x.csv'') SELECT * FROM x'))"
    ),
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
    "EXPLAIN ANALYZE EXPORT DATABASE 'LAKE/x'",
    "COPY (SELECT 1) TO 'LINK'",
    "COPY (SELECT 1) TO 'LAKE/x' (FORMAT parquet, PARTITION_BY (a), OVERWRITE true)",
    "COPY run_facts FROM 'LAKE/marts/run_id=a/run_facts.parquet'",
    "COPY FROM DATABASE stepledger TO m",
    "TRUNCATE run_facts",
    "MERGE INTO run_facts USING run_facts AS r ON true WHEN MATCHED THEN DELETE",
    "ALTER VIEW runs RENAME TO r",
    "CREATE MACRO m() AS 1",
    "CREATE SEQUENCE s",
    "CREATE PERSISTENT SECRET x (TYPE s3)",
]
SESSION = [
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "PREPARE p AS SELECT 1; EXECUTE p",
    "PREPARE p AS COPY (SELECT 1) TO 'LAKE/x.csv'; EXECUTE p",
    "EXPLAIN ANALYZE EXECUTE p",
    "EXPLAIN PREPARE p AS SELECT 1",
    "DEALLOCATE p",
    "SELECT 1; SELECT 2",
    "SELECT 1; COPY (SELECT 1) TO 'LAKE/x.csv'",
    "",
    "-- nothing",
    "ATTACH ':memory:' AS m",
    "ATTACH 'LAKE/x.duckdb' AS m",
    "ATTACH 'OTHER' AS m (READ_ONLY)",
    "DETACH stepledger",
    "INSTALL sqlite",
    "FORCE INSTALL sqlite FROM 'LAKE'",
    "LOAD json",
    "LOAD 'LAKE/x.duckdb_extension'",
    "SET threads = 1",
    "SET GLOBAL memory_limit = '1TB'",
    "SET VARIABLE a = 1",
    "RESET memory_limit",
    "SET enable_external_access = true",
    "RESET allowed_directories",
    "PRAGMA database_list",
    "PRAGMA enable_profiling",
    "CALL pragma_version()",
    "CALL enable_logging()",
    "BEGIN",
    "USE raw",
    "PIVOT runs ON source USING count(*)",
    "WITH p AS (PIVOT runs ON source USING count(*)) FROM p",
    "SELECT * FROM (PIVOT runs ON source USING count(*))",
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
    "SELECT * FROM read_ndjson('SECRET')",
    "SELECT * FROM parquet_metadata('SECRET')",
    "SELECT * FROM read_text(['LAKE/marts/run_id=a/steps.parquet', 'SECRET'])",
    "SELECT * FROM 'LAKE/../../secret.csv'",
    "SELECT * FROM 'LINK'",
    "SELECT * FROM read_text('file://SECRET')",
    "SELECT * FROM read_text('/proc/self/environ')",
    "SELECT * FROM read_csv('/dev/stdin')",
    "SELECT * FROM read_duckdb('OTHER', table_name = 't')",
    "SELECT * FROM 'OTHER'",
    "SELECT * FROM variable_of_the_caller",
    "SELECT * FROM table_of_the_module",
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
    ("UNPIVOT (SELECT 1 AS a, 2 AS b) ON a, b", ["name", "value"]),
    ("SELECT 'COPY_QUERY_NODE' AS type, {'type': 'X_NODE'} AS s", ["type", "s"]),
    ("SELECT comment FROM duckdb_columns() WHERE table_name = 'steps'", ["comment"]),
]


@pytest.fixture(scope="module")
def places(built: Home) -> Iterator[dict[str, str]]:
    """A file outside the lake, and links in the lake that lead there."""
    lake = built.raw.parent.resolve()
    secret = built.root.resolve().parent / "secret.csv"
    secret.write_text("a,b\n1,2\n")
    other = secret.with_name("other.duckdb")
    with duckdb.connect(str(other)) as con:
        con.execute("CREATE TABLE t AS SELECT '1,2' AS a")
    folder = secret.parent / "elsewhere"
    folder.mkdir()
    shutil.copy(secret, folder)
    link, tree = lake / "link.csv", lake / "tree"
    link.symlink_to(secret)
    tree.symlink_to(folder)
    yield {
        "LAKE": str(lake),
        "SECRET": str(secret),
        "OTHER": str(other),
        "LINK": str(link),
        "TREE": str(tree),
    }
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
def test_nothing_looks_outside_the_lake(
    built: Home, places: dict[str, str], monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    """Neither by a path, nor through a link, nor into the process."""
    variable_of_the_caller = pa.table({"a": ["1,2"]})
    monkeypatch.setattr("pipeline.lake.query.table_of_the_module", variable_of_the_caller, raising=False)
    assert "1,2" not in _refused(built, places, sql)


@pytest.mark.parametrize(("sql", "columns"), READS)
def test_reading_works(built: Home, places: dict[str, str], sql: str, columns: list[str] | None) -> None:
    """Every kind of question that reads gets its answer."""
    found, rows = run_query(built, filled(sql, places))
    assert rows
    assert columns is None or found == columns


def test_a_refusal_names_what_was_found_and_what_is_allowed(built: Home) -> None:
    """The user reads it and knows."""
    with pytest.raises(UsageError, match=r"DELETE is not a read-only statement\. Use one SELECT"):
        run_query(built, "DELETE FROM runs")


def test_a_pivot_without_values_is_answered_with_how_to_write_it(built: Home) -> None:
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


def test_a_home_without_a_warehouse_is_answered_with_what_to_do(tmp_path: Path) -> None:
    """Before the first run there is nothing to ask."""
    with pytest.raises(UsageError, match="no warehouse yet"):
        run_query(Home(tmp_path), "SELECT 1")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT repeat('x', 4000000000)",
        "SELECT length(repeat('x', 4000000000))",
        "SELECT length(repeat('x', 3000000000) || repeat('y', 3000000000))",
        "SELECT list_resize([1], 1000000000)",
        "SELECT len(range(2000000000))",
    ],
)
@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_a_value_that_memory_cannot_hold_is_a_usage_error(built: Home, sql: str, form: str) -> None:
    """DuckDB's functions allocate outside its own limit; neither a crash nor a traceback comes of it."""
    done = command("--home", built.root, "query", sql, "--format", form)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, ""), done.stderr
    assert "Out of Memory" in done.stderr
    assert "needs more memory than allowed. Select fewer or shorter values" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_an_answer_too_large_as_text_is_a_usage_error(built: Home, tmp_path: Path, form: str) -> None:
    """The database answers, and printing it takes the rest of what there is."""
    program = (
        "from pipeline.cli import app\nfrom pipeline.lake import query\nquery.MEMORY = "
        "500_000_000\napp.main()"
    )
    sql = """SELECT repeat('"' || chr(27), 30_000_000)"""
    arguments = ["--home", str(built.root), "query", sql, "--format", form]
    with (tmp_path / "out").open("w") as out:
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            stdout=out, stderr=subprocess.PIPE, text=True, check=False, timeout=HANG_S, env=environment(),
        )  # fmt: skip
    assert done.returncode == ExitCode.USAGE, done.stderr
    assert "needs more memory than allowed" in done.stderr
    assert "Traceback" not in done.stderr


def test_memory_is_bounded_only_while_a_query_lasts(built: Home) -> None:
    """A caller that uses it as a library gets its own limit back."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with open_query(built, "SELECT 1"):
        status = Path("/proc/self/status").read_text(encoding="ascii")
        in_use_bytes = int(status.split("VmData:")[1].split()[0]) * 1024
        assert 0 < resource.getrlimit(resource.RLIMIT_DATA)[0] < in_use_bytes + 2 * query.MEMORY
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_no_memory_for_a_thread_is_a_usage_error(built: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python calls that a RuntimeError."""

    def start(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def read_all() -> None:
        with open_query(built, HUGE) as answer:
            monkeypatch.setattr("pipeline.duck.Thread.start", start)
            list(answer.rows)

    with pytest.raises(UsageError, match="needs more memory"):
        read_all()


@pytest.mark.parametrize(
    ("sql", "says"),
    [(b"SELECT '\xff'", "not UTF-8: invalid start byte at byte 9"), (b"SELECT 1\0", "contains a NUL byte")],
)
def test_a_statement_on_stdin_that_is_no_text_is_a_usage_error(built: Home, sql: bytes, says: str) -> None:
    """It says where."""
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "--home", built.root, "query", "-"],
        input=sql, capture_output=True, check=False, timeout=HANG_S, env=environment(),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, b"")
    assert says in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_a_statement_from_a_windows_editor_is_read(built: Home) -> None:
    """The mark that it writes before UTF-8 is not part of the statement."""
    arguments = ["--home", str(built.root), "query", "-", "--format", "csv"]
    for sql, wanted in ((b"SELECT 1 AS n", "n\n1\n"), (b"EXPLAIN SELECT 1", "explain_key,explain_value\n")):
        done = CliRunner().invoke(app.app, arguments, input=b"\xef\xbb\xbf" + sql)
        assert done.stdout.startswith(wanted)


@pytest.mark.parametrize(
    ("sql", "says"),
    [("SELECT '\udcff'", "not UTF-8: surrogates not allowed"), ("SELECT 1\0", "contains a NUL byte")],
)
def test_a_statement_that_is_no_text_is_a_usage_error(built: Home, sql: str, says: str) -> None:
    """Bytes of the command line that are no UTF-8 come as surrogates."""
    with pytest.raises(UsageError, match=says):
        run_query(built, sql)


def test_a_plan_is_printed_with_its_lines(built: Home) -> None:
    """As DuckDB draws it; what a value has of line breaks is escaped."""
    plan = CliRunner().invoke(app.app, ["--home", str(built.root), "query", "EXPLAIN SELECT 1"]).stdout
    assert len(plan.splitlines()) > 3
    assert "\\n" not in plan
    value = CliRunner().invoke(app.app, ["--home", str(built.root), "query", "SELECT chr(10) AS v"]).stdout
    assert [line.strip() for line in value.splitlines()] == ["v", r"\n"]


HUGE = "SELECT * FROM range(100_000_000_000_000)"
ENDLESS = {
    "rows": HUGE,
    "no_row": "SELECT * FROM range(100_000_000_000_000) AS r (n) WHERE sqrt(n) < -1",
    "sum": "SELECT sum(sqrt(n)) FROM range(100_000_000_000_000) AS r (n)",
    "recursion": "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r",
    "join": "SELECT count(*) FROM range(10_000_000) AS a (n), range(10_000_000) AS b (m) WHERE n * m < 0",
    "unexplained": "EXPLAIN ANALYZE SELECT sum(sqrt(n)) FROM range(100_000_000_000_000) AS r (n)",
}
INTERRUPTIBLE = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\nfrom pipeline.cli "
    "import app; app.main()"
)


def _rebuild(home: Home, run_id: str) -> None:
    """Put another folder in the place of a run's marts, as a build does."""
    folder = home.mart_run(run_id)
    shutil.copytree(folder, home.staging / "new")
    folder.rename(home.staging / f"old-{run_id}-{time.monotonic_ns()}")
    (home.staging / "new").rename(folder)


def test_rows_are_handed_out_while_the_statement_still_runs(built: Home) -> None:
    """An answer of any size is read in batches; rows that are not fetched are never computed, and the session
    closes at once."""
    with open_query(built, HUGE) as answer:
        assert answer.columns == ["range"]
        assert [next(answer.rows)[0] for _ in range(30_000)] == list(range(30_000))


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_large_answer_is_printed_whole_and_in_order(built: Home, form: str) -> None:
    """Over the seams between batches, too."""
    done = CliRunner().invoke(
        app.app,
        ["--home", str(built.root), "query", "SELECT n FROM range(25_001) AS r (n)", "--format", form],
    )
    rows = (
        [r["n"] for r in json.loads(done.stdout)]
        if form == "json"
        else [int(line) for line in done.stdout.splitlines()[1:]]
    )
    assert rows == list(range(25_001))


def test_a_table_of_an_endless_answer_ends_with_a_note(built: Home) -> None:
    """Its widths need all its rows; the rest is for CSV."""
    done = CliRunner().invoke(app.app, ["--home", str(built.root), "query", HUGE])
    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) == 1 + TABLE_ROWS
    assert f"only the first {TABLE_ROWS} rows are shown; more rows: use --format csv" in done.stderr


@pytest.mark.parametrize("sql", ENDLESS.values(), ids=ENDLESS)
def test_a_query_over_its_time_is_stopped(built: Home, sql: str) -> None:
    """Wrong usage, with the option that allows more; the home can be queried again."""
    with (
        pytest.raises(UsageError, match=r"not finished after 0\.2 s and was stopped; .*--timeout SECONDS"),
        open_query(built, sql, 0.2) as answer,
    ):
        for _ in answer.rows:
            pass
    assert run_query(built, "SELECT 1") == (["1"], [(1,)])


def test_the_time_of_a_query_is_an_option_with_a_default(
    built: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0 is no limit; less is refused."""
    limits: list[float] = []

    class Noted(duck.Patience):
        """Says what it was given."""

        def __init__(self, limit_s: float, advice: str) -> None:
            limits.append(limit_s)
            super().__init__(limit_s, advice)

    monkeypatch.setattr(duck, "Patience", Noted)
    for option in ([], ["--timeout", "0"], ["--timeout", "1e3"]):
        assert (
            CliRunner().invoke(app.app, ["--home", str(built.root), "query", "SELECT 1", *option]).exit_code
            == 0
        )
    assert limits == [query.TIMEOUT_S, 0, 1000]
    assert (
        CliRunner()
        .invoke(app.app, ["--home", str(built.root), "query", "SELECT 1", "--timeout", "-1"])
        .exit_code
        == ExitCode.USAGE
    )


@pytest.mark.parametrize(
    "sql", [ENDLESS["no_row"], ENDLESS["sum"], ENDLESS["recursion"]], ids=["no_row", "sum", "recursion"]
)
def test_ctrl_c_stops_an_endless_query(built: Home, tmp_path: Path, sql: str) -> None:
    """Exit 130, and nothing is left: neither in the home nor where it spills."""
    before = fingerprint(built.root)
    process = _asking(built, tmp_path, sql)
    while not list(tmp_path.glob("stepledger-*")):  # the session makes it just before the statement begins
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=HANG_S)
    assert (process.returncode, "Traceback" in err) == (ExitCode.INTERRUPTED, False), err
    assert list(tmp_path.iterdir()) == []
    assert fingerprint(built.root) == before


def test_ctrl_c_stops_a_query_that_prints(built: Home, tmp_path: Path) -> None:
    """Between two rows as well as inside the database."""
    process = _asking(built, tmp_path, HUGE)
    assert process.stdout is not None
    assert process.stdout.readline() == "range\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=HANG_S)
    assert process.returncode == ExitCode.INTERRUPTED


def _asking(home: Home, spill: Path, sql: str) -> subprocess.Popen[str]:
    arguments = ["--home", str(home.root), "query", sql, "--format", "csv", "--timeout", "60"]
    return subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment() | {"TMPDIR": str(spill)},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("limit_s", "code", "message"), [(0.1, ExitCode.USAGE, "too long"), (0, ExitCode.INTERRUPTED, "")]
)
def test_what_cannot_be_stopped_does_not_keep_the_process(
    limit_s: float, code: ExitCode, message: str
) -> None:
    """DuckDB sees no interrupt inside one long function call: the process ends anyway, at the limit as
    at Ctrl-C."""
    program = (
        "import os, signal, threading, time\nfrom pipeline import duck\nduck.STOP_S = 0.1\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"if not {limit_s}: threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        f"duck.Patience({limit_s}, 'too long').wait(lambda: time.sleep(600), lambda: None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert (done.returncode, done.stderr) == (code, f"stepledger: error: {message}\n" if message else "")


def test_a_rebuild_before_the_first_row_is_out_asks_again(
    built: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is of one build, without a message."""
    home, tries = copied(built, tmp_path / "home"), []
    start = query._Stream.start

    def rebuilt_once(self: query._Stream, sql: str) -> list[str]:
        tries.append(sql)
        columns = start(self, sql)
        if len(tries) == 1:
            _rebuild(home, "a")
        return columns

    monkeypatch.setattr(query._Stream, "start", rebuilt_once)
    assert run_query(home, "SELECT count(*) AS n FROM runs") == (["n"], [(2,)])
    assert len(tries) == 2


def test_a_rebuild_after_the_first_row_is_an_error_that_asks_to_repeat(built: Home, tmp_path: Path) -> None:
    """What is printed cannot be taken back; a JSON of it stays truncated."""
    home = copied(built, tmp_path / "home")
    with open_query(home, "FROM range(50_000)") as answer:
        next(answer.rows)
        _rebuild(home, "a")
        with pytest.raises(UsageError, match=r"rebuilt while the rows were printed.*run the query again"):
            list(answer.rows)


def test_a_run_that_comes_while_an_answer_is_printed_is_no_error(built: Home, tmp_path: Path) -> None:
    """The statement does not see it."""
    home = copied(built, tmp_path / "home")
    with open_query(home, "FROM range(50_000)") as answer:
        next(answer.rows)
        shutil.copytree(home.mart_run("a"), home.mart_run("new"))
        assert len(list(answer.rows)) == 50_000 - 1


def test_the_session_has_bounds_and_spills_outside_the_home(built: Home) -> None:
    """Memory and spilled bytes are limited, and a home that is only readable stays untouched."""
    with reading(built) as con:
        ((memory, most, spill),) = duck.rows(
            con,
            (
                "SELECT current_setting('memory_limit'), current_setting('max_temp_directory_size'), "
                "current_setting('temp_directory')"
            ),
        )
    assert (memory, most) == ("1.8 GiB", "14.9 GiB")
    assert Path(spill).parent == Path(gettempdir())
    assert not Path(spill).exists()


def test_more_than_may_be_held_is_a_usage_error(built: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sort of more than memory and disk may take is refused by the database, not by the system."""
    monkeypatch.setattr(duck, "READ_MEMORY", "60MB")
    monkeypatch.setattr("pipeline.lake.reading.SPILL_LIMIT", "1MB")
    before = fingerprint(built.root)
    with pytest.raises(UsageError, match="Out of Memory"):
        run_query(built, "SELECT * FROM range(20_000_000) AS r (n) ORDER BY hash(n)")
    assert fingerprint(built.root) == before
