"""Landing: what every source shares, shown with a source of four small relations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from pipeline import duck
from pipeline.contracts import contracts
from pipeline.errors import TraceError
from pipeline.sources import landing
from pipeline.sources.issues import EXAMPLE_CHARS, IssueBook
from pipeline.sources.job import ReadJob
from pipeline.sources.landing import Trace

KERNEL = "'kernel' AS kind, 7 AS stream"
GPU = f"""
    SELECT trace_id, {KERNEL}, name, device, start_ns, dur_ns, reason FROM (VALUES
        ('f-b', 'late', 1, 300, 10, NULL), ('f-b', 'early', 1, 100, 10, NULL),
        ('f-b', 'twice', 1, 200, 10, NULL), ('f-b', 'twice', 1, 200, 10, NULL),
        ('f-a', 'only', 0, 900, 5, NULL), ('f-a', 'lost', 0, NULL, 4, 'no_timestamp')
    ) AS row (trace_id, name, device, start_ns, dur_ns, reason)
"""
LAUNCH = """
    FROM (VALUES
        ('f-a', 'cudaLaunchKernel', 1, 10, false), ('f-a', 'cudaFree', 2, NULL, false),
        ('f-b', 'cudaMalloc', 3, 30, true), (NULL, 'cudaInit', 4, 40, false)
    ) AS row (trace_id, name, correlation, start_ns, is_endless)
"""
TALLY = """
    SELECT trace_id, count(*) AS events_read, count(*) AS gpu_events_read, sum(dur_ns) AS gpu_ns_read
    FROM landing.gpu GROUP BY trace_id
"""
TRACES = [Trace("f-a", rank=3, vendor="amd"), Trace("f-b")]


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection with an empty schema for a source's relations."""
    with duckdb.connect() as made:
        landing.open_schema(made)
        yield made


@pytest.fixture
def job(tmp_path: Path) -> ReadJob:
    """A file to read, and an empty folder for its tables."""
    (tmp_path / "out").mkdir()
    return ReadJob(tmp_path / "x", "x", "f", 12, "0" * 64, "run", tmp_path / "out", tmp_path)


def _land(con: duckdb.DuckDBPyConnection, job: ReadJob, traces: list[Trace], **relations: str) -> None:
    for name, query in (relations | {"tally": TALLY}).items():
        con.execute(f"CREATE VIEW landing.{name} AS {query}")
    landing.land(con, job, "rocprof", traces, IssueBook(), where="its tables")


def _rows(con: duckdb.DuckDBPyConnection, job: ReadJob, table: str, columns: str) -> list[tuple[Any, ...]]:
    file = duck.files(job.out, f"{table}.parquet")
    return duck.rows(con, f"SELECT {columns} FROM read_parquet({file}) ORDER BY ALL")


@pytest.fixture
def landed(con: duckdb.DuckDBPyConnection, job: ReadJob) -> ReadJob:
    """Two traces of one file: activities, and calls of three processes."""
    _land(con, job, TRACES, gpu=f"FROM ({GPU}) ORDER BY name", launch=LAUNCH)
    return job


def test_activities_are_numbered_by_place_in_each_trace(
    con: duckdb.DuckDBPyConnection, landed: ReadJob
) -> None:
    """From 0, by device, stream and start, whatever their order in the file; with the rank of the trace."""
    assert _rows(con, landed, "gpu_activity", "trace_id, activity_id, name, rank") == [
        ("f-a", 0, "only", 3), ("f-b", 0, "early", None), ("f-b", 1, "twice", None), ("f-b", 2, "late", None),
    ]  # fmt: skip


def test_activities_at_one_place_are_ordered_by_what_they_are(
    con: duckdb.DuckDBPyConnection, job: ReadJob
) -> None:
    """Two that start at once on one stream are both booked, the shorter one first."""
    same = f"SELECT 't' AS trace_id, {KERNEL}, 0 AS device, 5 AS start_ns, NULL AS reason"
    _land(con, job, [Trace("t")], gpu=f"{same}, 'a' AS name, 2 AS dur_ns UNION ALL {same}, 'b', 1")
    assert _rows(con, job, "gpu_activity", "activity_id, name") == [(0, "b"), (1, "a")]


def test_every_row_that_is_left_out_is_counted(con: duckdb.DuckDBPyConnection, landed: ReadJob) -> None:
    """Duplicates, unusable times, calls without a start or a process; and a duration that was set to NULL."""
    found = _rows(con, landed, "issue", "trace_id, code, event_class, severity, count, dur_ns, example")
    assert [row for row in found if row[1] != "unknown_rank"] == [
        ("f-a", "no_start", "launch", "warn", 1, None, "cudaFree"),
        ("f-a", "no_timestamp", "kernel", "fail", 1, 4, "lost"),
        ("f-a", "other_process", "launch", "info", 1, None, None),
        ("f-b", "bad_value", "launch", "warn", 1, None, "cudaMalloc"),
        ("f-b", "duplicate_event", "kernel", "warn", 1, 10, "twice"),
    ]


def test_a_trace_of_unknown_rank_is_counted_with_the_first(
    con: duckdb.DuckDBPyConnection, landed: ReadJob
) -> None:
    """What concerns the file as a whole is an issue of its first trace."""
    assert _rows(con, landed, "issue", "trace_id, code, event_class, count")[3] == (
        "f-a", "unknown_rank", "trace", 1,
    )  # fmt: skip


def test_calls_of_other_processes_and_without_a_start_are_not_landed(
    con: duckdb.DuckDBPyConnection, landed: ReadJob
) -> None:
    """The others are, and a column that the source does not give is NULL."""
    assert _rows(con, landed, "launch", "trace_id, name, external_id") == [
        ("f-a", "cudaLaunchKernel", None), ("f-b", "cudaMalloc", None),
    ]  # fmt: skip


def test_the_trace_row_says_what_was_read_and_landed(con: duckdb.DuckDBPyConnection, landed: ReadJob) -> None:
    """One row per trace: what its source knows, the file, the span of its activities, and the counts."""
    known, counted = (
        "trace_id, source, rank, vendor, file_bytes",
        "first_ns, last_ns, events_read, events_kept",
    )
    columns = f"{known}, {counted}, is_truncated"
    assert _rows(con, landed, "trace", columns) == [
        ("f-a", "rocprof", 3, "amd", 12, 900, 905, 2, 2, False),
        ("f-b", "rocprof", None, None, 12, 100, 310, 4, 4, False),
    ]


def test_every_raw_table_is_written(con: duckdb.DuckDBPyConnection, landed: ReadJob) -> None:
    """Also those of which the source has no relation: with no rows, and of the shape of their contract."""
    for table, contract in contracts("raw").items():
        contract.check(con, f"read_parquet({duck.files(landed.out, f'{table}.parquet')})")
    assert _rows(con, landed, "cpu_op", "*") == _rows(con, landed, "microbench", "*") == []


def test_issues_of_the_source_are_landed(con: duckdb.DuckDBPyConnection, job: ReadJob) -> None:
    """With the severity of their code, and an example of bounded length."""
    gpu = f"FROM ({GPU}) WHERE trace_id = 'f-b'"
    issue = (
        "SELECT 'f-b' AS trace_id, 'opaque_graph' AS code, 'graph' AS event_class, 2 AS count, 9 AS dur_ns, "
        "repeat('x', 5000) AS example"
    )
    _land(con, job, [Trace("f-b", rank=0)], gpu=gpu, issue=issue)
    found = _rows(con, job, "issue", "code, severity, count, dur_ns, strlen(example)")
    assert ("opaque_graph", "warn", 2, 9, EXAMPLE_CHARS) in found


def test_a_trace_without_an_activity_to_book_is_refused(con: duckdb.DuckDBPyConnection, job: ReadJob) -> None:
    """And none of its tables is left."""
    with pytest.raises(TraceError, match=r"its tables: found .* none can be booked"):
        _land(con, job, TRACES, gpu=f"FROM ({GPU}) WHERE trace_id = 'f-b'")
    assert list(job.out.iterdir()) == []
