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
from pipeline.sources.issues import CPU_SIDE, Issue, IssueBook, columns_of, issue_codes, left_out, relations
from pipeline.sources.job import ReadJob

_PLACE = ("trace_id", "device", "stream", "start_ns")
_IDENTITY = (
    *_PLACE, "dur_ns", "name", "correlation", "external_id", "context", "graph_id", "graph_node_id", "grid",
    "block", "bytes", "kind",
)  # fmt: skip
"""Activities that agree in all of these are one activity that the file holds more than once."""


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
    where: str,
    is_truncated: bool = False,
) -> None:
    """Write every raw table. Issues of the file as a whole (`book`) are counted with the first trace.

    Raises TraceError, and leaves no table, if a trace has no GPU activity that can be booked; `where` is the
    part of the file that holds the activities.
    """
    _write_activities(con, job, traces)
    for table in relations(con).intersection(CPU_SIDE):
        write(con, job, table, f"FROM landing.{table} WHERE trace_id IS NOT NULL AND start_ns IS NOT NULL")
    write_missing(con, job, CPU_SIDE)
    for trace in traces:
        if trace.rank is None:
            book.add("unknown_rank", "trace")
    _write_issues(con, job, left_out(con, traces[0].trace_id) + book.of_trace(traces[0].trace_id))
    _write_traces(con, job, source, traces, is_truncated=is_truncated)
    if scalar(con, f"SELECT count(*) FROM read_parquet({files(job.out, 'trace.parquet')})") != len(traces):
        for file in job.out.glob("*.parquet"):
            file.unlink()
        raise nothing_booked(job.file_name, where, "GPU activities")
    write_missing(con, job)


def write(con: duckdb.DuckDBPyConnection, job: ReadJob, table: str, query: str) -> None:
    """One raw table to Parquet, cast to its contract."""
    found = columns_of(con, f"({query})")
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
        columns = columns_of(con, "landing.gpu")
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


def _write_issues(con: duckdb.DuckDBPyConnection, job: ReadJob, issues: list[Issue]) -> None:
    if issues:
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


def _values(lines: Iterable[tuple[Any, ...]]) -> str:
    return "VALUES " + ", ".join(f"({', '.join(map(literal, line))})" for line in lines)


def nothing_booked(file_name: str, where: str, what: str) -> TraceError:
    """The refusal of a file none of whose GPU activities has usable times."""
    return TraceError(
        file_name,
        where=where,
        found=f"{what} of which none can be booked (no usable times)",
        wanted="GPU activities with start and duration",
        advice="The profiler lost them: record again.",
    )
