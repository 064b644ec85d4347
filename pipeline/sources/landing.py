"""What every source shares: numbers of activities, exact duplicates, issues, trace rows, and writing.

A source calls `open_schema`, defines relations in the schema `landing` of its connection, and calls `land`:

- gpu: GPU activities, with the columns of raw.gpu_activity and `reason`, the issue code of a row that cannot
  be booked. `trace_id` is never NULL.
- launch, cpu_op, annotation: CPU-side events, with the columns of the raw table. `trace_id` is NULL for a
  process without GPU work, `start_ns` for an event without a usable start. Optional: `event_class`, the kind
  in raw.issue (default: the name of the relation), and `is_endless`, the duration was set to NULL.
- tally: what the file holds of each trace: `trace_id`, `events_read`, `gpu_events_read`, `gpu_ns_read`.
- issue: what only this source finds: `trace_id`, `code`, `event_class`, `count`, `dur_ns`, `example`.

`gpu` and `tally` are required. A raw table without a relation lands with no rows, and a column that a
relation lacks is NULL.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

import duckdb

from pipeline import __version__
from pipeline.contracts import contracts
from pipeline.duck import files, literal, rows, scalar
from pipeline.errors import TraceError
from pipeline.sources.issues import EXAMPLE_CHARS, IssueBook, issue_codes
from pipeline.sources.job import ReadJob

CPU_SIDE = ("launch", "cpu_op", "annotation")
_PLACE = ("trace_id", "device", "stream", "start_ns")
_IDENTITY = (
    *_PLACE, "dur_ns", "name", "correlation", "external_id", "context", "graph_id", "graph_node_id", "grid",
    "block", "bytes", "kind",
)  # fmt: skip
"""Activities that agree in all of these are one activity that the file holds more than once."""

_Issue = tuple[str, str, str, int, int | None, str | None]
"""trace_id, code, event_class, count, dur_ns, example."""


@dataclass(frozen=True)
class Trace:
    """One rank's part of a file: the columns of raw.trace that only its source knows."""

    trace_id: str
    rank: int | None = None
    rank_source: str | None = None
    world_size: int | None = None
    dp_rank: int | None = None
    tp_rank: int | None = None
    pp_rank: int | None = None
    ep_rank: int | None = None
    host: str | None = None
    pid: int | None = None
    process_name: str | None = None
    vendor: str | None = None
    gpu_name: str | None = None
    base_ns: int | None = None


def open_schema(con: duckdb.DuckDBPyConnection) -> None:
    """Make the schema of the relations that a source gives."""
    con.execute("CREATE SCHEMA landing")


def devices(con: duckdb.DuckDBPyConnection) -> dict[str, int | None]:
    """The device with most activities, by trace."""
    return dict(
        rows(con, "SELECT trace_id, mode(device) FROM landing.gpu WHERE reason IS NULL GROUP BY trace_id")
    )


def land(
    con: duckdb.DuckDBPyConnection,
    job: ReadJob,
    source: str,
    traces: Sequence[Trace],
    book: IssueBook,
    *,
    is_truncated: bool = False,
) -> None:
    """Write every raw table. Issues of the file as a whole (`book`) are counted with the first trace.

    Raises TraceError, and leaves no table, where a trace has no GPU activity that can be booked.
    """
    given = {
        name for (name,) in rows(con, "SELECT view_name FROM duckdb_views() WHERE schema_name = 'landing'")
    }
    _write_activities(con, job, traces)
    for table in given.intersection(CPU_SIDE):
        write(con, job, table, f"FROM landing.{table} WHERE trace_id IS NOT NULL AND start_ns IS NOT NULL")
    write_missing(con, job, CPU_SIDE)
    _write_issues(con, job, _issues(con, traces, book, given))
    _write_traces(con, job, source, traces, is_truncated=is_truncated)
    write_missing(con, job)


def write(con: duckdb.DuckDBPyConnection, job: ReadJob, table: str, query: str) -> None:
    """One raw table to Parquet, cast to its contract."""
    found = _columns(con, f"({query})")
    columns = contracts("raw")[table].columns
    value = {column.name: f'"{column.name}"' if column.name in found else "NULL" for column in columns}
    select = ", ".join(f'{value[c.name]}::{c.type} AS "{c.name}"' for c in columns)
    con.execute(
        f"COPY (SELECT {select} FROM ({query})) TO {literal(job.out / f'{table}.parquet')} "
        "(FORMAT parquet, COMPRESSION zstd)"
    )


def write_missing(con: duckdb.DuckDBPyConnection, job: ReadJob, tables: Iterable[str] | None = None) -> None:
    """The tables (default: every raw table) that are not written yet, with no rows."""
    for table in contracts("raw") if tables is None else tables:
        if not (job.out / f"{table}.parquet").exists():
            write(con, job, table, contracts("raw")[table].empty_query())


def _write_activities(con: duckdb.DuckDBPyConnection, job: ReadJob, traces: Sequence[Trace]) -> None:
    """Sort the activities once and number them as they come: half the cost of numbers by partition."""
    booked, order = "FROM landing.gpu WHERE reason IS NULL", ", ".join(_PLACE)
    # Activities rarely start at once on one stream: then their place orders them all, and none is repeated.
    if _repeats(con, booked, order):
        columns = _columns(con, "landing.gpu")
        order = ", ".join(column for column in _IDENTITY if column in columns)
        if _repeats(con, booked, order):
            again = f"({order}) IS NOT DISTINCT FROM lag(({order})) OVER (ORDER BY {order})"
            numbered = f"FROM (SELECT *, {again} AS again {booked})"
            con.execute(f"CREATE VIEW landing.duplicate AS {numbered} WHERE again")
            booked = f"{numbered} WHERE NOT again"
    _number_traces(con, booked, traces)
    write(
        con,
        job,
        "gpu_activity",
        f"""
        SELECT *, row_number() OVER () - 1 - rows_before AS activity_id
        FROM (SELECT * FROM (SELECT * {booked}) JOIN landing.number USING (trace_id) ORDER BY {order})
        """,
    )


def _repeats(con: duckdb.DuckDBPyConnection, booked: str, columns: str) -> bool:
    return bool(scalar(con, f"SELECT count(*) > count(DISTINCT hash({columns})) {booked}"))


def _number_traces(con: duckdb.DuckDBPyConnection, booked: str, traces: Sequence[Trace]) -> None:
    """landing.number: each trace's rank, and how many rows of other traces precede its first one."""
    before = {traces[0].trace_id: 0}
    if len(traces) > 1:
        counts = rows(con, f"SELECT trace_id, count(*) {booked} GROUP BY trace_id ORDER BY trace_id")
        starts = accumulate((count for _, count in counts), initial=0)
        before = {trace_id: start for (trace_id, _), start in zip(counts, starts, strict=False)}
    con.execute("CREATE TABLE landing.number (trace_id VARCHAR, rank INTEGER, rows_before BIGINT)")
    numbers = [(trace.trace_id, trace.rank, before.get(trace.trace_id, 0)) for trace in traces]
    con.execute(f"INSERT INTO landing.number {_values(numbers)}")


def _issues(
    con: duckdb.DuckDBPyConnection, traces: Sequence[Trace], book: IssueBook, given: set[str]
) -> list[_Issue]:
    """Rows left out and why, values set to NULL, what the source found, and what was counted on the way."""
    first = traces[0].trace_id
    example = f"left(min(name), {EXAMPLE_CHARS})"
    found: list[_Issue] = []
    found += rows(
        con,
        f"SELECT trace_id, reason, kind, count(*), try_cast(sum(dur_ns) AS BIGINT), {example} "
        "FROM landing.gpu WHERE reason IS NOT NULL GROUP BY ALL",
    )
    if scalar(
        con, "SELECT count(*) FROM duckdb_views() WHERE schema_name = 'landing' AND view_name = 'duplicate'"
    ):
        found += rows(
            con,
            f"SELECT trace_id, 'duplicate_event', kind, count(*), sum(dur_ns)::BIGINT, {example} "
            "FROM landing.duplicate GROUP BY ALL",
        )
    for table in CPU_SIDE:
        if table in given:
            found += _cpu_side_issues(con, table, first)
    if "issue" in given:
        columns = f"trace_id, code, event_class, count, dur_ns, left(example, {EXAMPLE_CHARS})"
        found += rows(con, f"SELECT {columns} FROM landing.issue")
    for trace in traces:
        if trace.rank is None:
            book.add("unknown_rank", "trace")
    return found + [
        (first, code, event_class, count, dur_ns, text)
        for code, event_class, _, count, dur_ns, text in book.rows()
    ]


def _cpu_side_issues(con: duckdb.DuckDBPyConnection, table: str, first: str) -> list[_Issue]:
    """Events of processes without GPU work, without a start, and durations longer than any can be."""
    columns = _columns(con, f"landing.{table}")
    event_class = "event_class" if "event_class" in columns else literal(table)
    endless = "is_endless" if "is_endless" in columns else "false"
    text = f"left(name, {EXAMPLE_CHARS})"
    issues: list[_Issue] = []
    for trace_id, cls, count, unplaced, unplaced_name, unbounded, unbounded_name in rows(
        con,
        f"""
        SELECT trace_id, {event_class}, count(*),
            count(*) FILTER (WHERE start_ns IS NULL), min({text}) FILTER (WHERE start_ns IS NULL),
            count(*) FILTER (WHERE {endless}), min({text}) FILTER (WHERE {endless})
        FROM landing.{table} WHERE trace_id IS NULL OR start_ns IS NULL OR {endless} GROUP BY ALL
        """,
    ):
        if trace_id is None:
            issues.append((first, "other_process", cls, count, None, None))
            continue
        if unplaced:
            issues.append((trace_id, "no_start", cls, unplaced, None, unplaced_name))
        if unbounded:
            issues.append((trace_id, "bad_value", cls, unbounded, None, unbounded_name))
    return issues


def _write_issues(con: duckdb.DuckDBPyConnection, job: ReadJob, issues: list[_Issue]) -> None:
    if not issues:
        return
    values = _values((*issue, issue_codes()[issue[1]]["severity"]) for issue in issues)
    names = "trace_id, code, event_class, count, dur_ns, example, severity"
    write(con, job, "issue", f"FROM ({values}) AS issue ({names})")


def _write_traces(
    con: duckdb.DuckDBPyConnection, job: ReadJob, source: str, traces: Sequence[Trace], *, is_truncated: bool
) -> None:
    names = [field.name for field in fields(Trace)]
    con.execute("CREATE TABLE landing.trace AS " + contracts("raw")["trace"].empty_query())
    con.execute(f"INSERT INTO landing.trace ({', '.join(names)}) {_values(map(astuple, traces))}")
    scan = {
        table: f"read_parquet({files(job.out, f'{table}.parquet')}, hive_partitioning = false)"
        for table in ("gpu_activity", *CPU_SIDE)
    }
    kept = " UNION ALL ".join(f"SELECT trace_id FROM {one}" for one in scan.values())
    of_file: dict[str, Any] = {
        "run_name": job.run_name,
        "source": source,
        "file_name": job.file_name,
        "file_bytes": job.file_bytes,
        "sha256": job.sha256,
        "ingested_at": datetime.now(UTC).replace(tzinfo=None),
        "stepledger_version": __version__,
        "is_truncated": is_truncated,
    }
    write(
        con,
        job,
        "trace",
        f"""
        WITH kept AS (SELECT trace_id, count(*) AS events_kept FROM ({kept}) GROUP BY trace_id),
        span AS (
            SELECT trace_id, min(start_ns) AS first_ns, max(start_ns + dur_ns) AS last_ns
            FROM {scan["gpu_activity"]} GROUP BY trace_id
        )
        SELECT {", ".join(f"trace.{name}" for name in names)}, span.* EXCLUDE (trace_id), kept.events_kept,
            tally.events_read, tally.gpu_events_read, tally.gpu_ns_read,
            {", ".join(f"{literal(value)} AS {name}" for name, value in of_file.items())}
        FROM landing.trace AS trace JOIN landing.tally AS tally USING (trace_id) JOIN kept USING (trace_id)
        JOIN span USING (trace_id)
        """,
    )
    if scalar(con, f"SELECT count(*) FROM read_parquet({files(job.out, 'trace.parquet')})") != len(traces):
        for file in job.out.glob("*.parquet"):
            file.unlink()
        raise nothing_booked(job.file_name, "GPU activities")


def _columns(con: duckdb.DuckDBPyConnection, relation: str) -> set[str]:
    return {name for name, *_ in rows(con, f"DESCRIBE FROM {relation}")}


def _values(lines: Iterable[tuple[Any, ...]]) -> str:
    return "VALUES " + ", ".join(f"({', '.join(map(literal, line))})" for line in lines)


def nothing_booked(file_name: str, what: str) -> TraceError:
    """The refusal of a file none of whose GPU activities has usable times."""
    return TraceError(
        file_name,
        where="its events",
        found=f"{what} of which none can be booked (no usable times)",
        wanted="GPU activities with start and duration",
        advice="The profiler lost them: record again.",
    )
