"""Staged events to the relations of landing: types, absolute times, and why an event is left out."""

from __future__ import annotations

import duckdb

from pipeline.duck import literal, scalar
from pipeline.duck import rows as rows_of
from pipeline.sources import landing, units
from pipeline.sources.issues import IssueBook, issue_codes
from pipeline.sources.job import ReadJob
from pipeline.sources.kineto import refusals
from pipeline.sources.kineto.events import GPU_KINDS
from pipeline.sources.kineto.header import Header
from pipeline.sources.kineto.traces import identify, trace_ids

_GPU = ", ".join(f"'{kind}'" for kind in GPU_KINDS)
_COPY_KINDS = "HtoD|DtoH|DtoD|PtoP|HtoH|HtoA|AtoH"
_BIGINT = 2**63
_ABSOLUTE_NS = 10**18
_LOST_STAMP_NS = 60 * 10**9


def land(con: duckdb.DuckDBPyConnection, job: ReadJob, glob: str, header: Header, book: IssueBook) -> None:
    """Write every raw table of the file. Raises TraceError if there is no GPU activity to book."""
    con.execute(f"CREATE TEMP VIEW staged AS SELECT * FROM read_parquet({glob})")
    kinds = {
        row[0]: row[1] for row in rows_of(con, "SELECT kind, sum(events)::BIGINT FROM staged GROUP BY ALL")
    }
    if not any(kinds.get(kind) for kind in GPU_KINDS):
        raise refusals.no_gpu_work(con, job.file_name, kinds, is_truncated=header.is_truncated)
    processes = rows_of(
        con, f"SELECT DISTINCT process FROM staged WHERE kind IN ({_GPU}) ORDER BY process NULLS FIRST"
    )
    refusals.mixed_processes(con, job.file_name)
    trace_of = trace_ids(job, [process for (process,) in processes])
    base_ns = _base(con, header, book)
    landing.open_schema(con)
    _define_events(con, trace_of, base_ns)
    _define_gpu(con)
    _define_cpu_side(con)
    _define_issues(con)
    _count_unread(con, book)
    if header.is_truncated and not scalar(con, "SELECT count(*) FROM landing.gpu WHERE device IS NOT NULL"):
        raise refusals.no_device(job.file_name)
    devices = landing.devices(con)
    traces = [
        identify(con, job, header, trace_id, process, devices.get(trace_id), base_ns)
        for process, trace_id in trace_of.items()
    ]
    landing.land(con, job, "kineto", traces, book, where="traceEvents", is_truncated=header.is_truncated)


def _base(con: duckdb.DuckDBPyConnection, header: Header, book: IssueBook) -> int | None:
    """What to add to every time: the file's base, unless its times are absolute already."""
    base, written = header.integer("baseTimeNanoseconds"), header.values.get("baseTimeNanoseconds")
    if written is not None and (base is None or not -_BIGINT <= base < _BIGINT):
        book.add("bad_value", "baseTimeNanoseconds", example=f"baseTimeNanoseconds = {written!s:.60}")
        base = None
    if not base and not header.is_truncated:
        return None
    usual = scalar(
        con, f"SELECT quantile_disc(ts_ns, 0.5) FROM staged WHERE kind IN ({_GPU})"
    )  # the median: one broken stamp must not decide
    if not base:  # torch 2.4 to 2.6 wrote it after the events
        if usual is not None and usual < _ABSOLUTE_NS:
            book.add("no_epoch", "header")
        return None
    if usual is not None and usual >= _ABSOLUTE_NS:
        book.add(
            "absolute_time_with_base", "header", example=f"baseTimeNanoseconds = {base}, a time = {usual} ns"
        )
        return None
    return base


def _define_events(
    con: duckdb.DuckDBPyConnection, trace_of: dict[str | None, str], base_ns: int | None
) -> None:
    """event: staged events with trace_id, typed numbers and absolute times; landing.tally counts them."""
    # Events without a merged prefix (spans, metadata) are counted with the first trace.
    first = literal(next(iter(trace_of.values())))
    owner = " ".join(
        f"WHEN process = {literal(process)} THEN {literal(trace_id)}"
        for process, trace_id in trace_of.items()
        if process is not None
    )
    is_gpu, start = f"kind IN ({_GPU})", f"ts_ns + {base_ns or 0}"
    con.execute(
        f"""
        CREATE TEMP VIEW event AS
        SELECT * REPLACE (
                coalesce(name, '') AS name,
                CASE WHEN {is_gpu} OR dur_ns <= {units.LONGEST_NS} THEN dur_ns END AS dur_ns
            ),
            {f"CASE {owner} ELSE {first} END" if owner else first} AS trace_id,
            NOT {is_gpu} AND dur_ns > {units.LONGEST_NS} AS is_endless,
            CASE WHEN try({start}) BETWEEN {-units.FARTHEST_NS} AND {units.FARTHEST_NS}
                 THEN try(({start})::BIGINT) END AS start_ns
        FROM staged
        """
    )
    con.execute(
        f"""
        CREATE VIEW landing.tally AS
        SELECT trace_id, sum(events)::BIGINT AS events_read,
            count(*) FILTER (WHERE {is_gpu}) AS gpu_events_read,
            coalesce(sum(dur_us * 1000), 0) AS gpu_ns_read
        FROM event GROUP BY trace_id
        """
    )


def _define_gpu(con: duckdb.DuckDBPyConnection) -> None:
    # A stamp of 0 means "not measured" (CUPTI: start = end = 0) if it is far from all others or has no
    # duration.
    earliest = scalar(con, f"SELECT min(ts_ns) FROM staged WHERE kind IN ({_GPU}) AND ts_ns > 0")
    lost = "true" if (earliest or 0) > _LOST_STAMP_NS else "coalesce(dur_ns, 0) = 0"
    con.execute(
        f"""
        CREATE VIEW landing.gpu AS
        SELECT * EXCLUDE (device, stream), coalesce(device, try_cast(pid AS INTEGER)) AS device,
            coalesce(stream, tid) AS stream,
            CASE WHEN kind = 'memcpy'
                 THEN nullif(regexp_extract(name, '\\b({_COPY_KINDS})\\b', 1), '') END AS copy_kind,
            CASE WHEN start_ns IS NULL THEN 'no_timestamp'
                 WHEN ts_ns = 0 AND {lost} THEN 'zero_timestamp'
                 WHEN dur_ns IS NULL OR dur_ns > {units.LONGEST_NS} THEN 'no_duration'
                 WHEN dur_ns < 0 THEN 'negative_duration' END AS reason
        FROM event WHERE kind IN ({_GPU})
        """
    )


def _define_cpu_side(con: duckdb.DuckDBPyConnection) -> None:
    con.execute(
        "CREATE VIEW landing.launch AS SELECT * EXCLUDE (event_class) FROM event WHERE kind = 'launch'"
    )
    con.execute(
        "CREATE VIEW landing.cpu_op AS SELECT * EXCLUDE (event_class) FROM event WHERE kind = 'cpu_op'"
    )
    con.execute(
        """
        CREATE VIEW landing.annotation AS
        SELECT * EXCLUDE (device, pid, tid, stream, event_class), kind AS event_class,
            replace(kind, 'annotation_', '') AS side,
            CASE WHEN kind = 'annotation_gpu' THEN coalesce(device, try_cast(pid AS INTEGER)) END AS device,
            CASE WHEN kind = 'annotation_gpu' THEN coalesce(stream, tid) END AS stream,
            CASE WHEN kind = 'annotation_cpu' THEN pid END AS pid,
            CASE WHEN kind = 'annotation_cpu' THEN tid END AS tid, false AS is_open
        FROM event WHERE kind LIKE 'annotation_%'
        """
    )


def _define_issues(con: duckdb.DuckDBPyConnection) -> None:
    """Events of kinds that are not landed, and times with digits below a nanosecond."""
    skips = ", ".join(
        literal(code) for code, entry in issue_codes().items() if entry.get("skip") and code != "metadata"
    )
    con.execute(
        f"""
        CREATE VIEW landing.issue AS
        SELECT trace_id, kind AS code, event_class, sum(events)::BIGINT AS count, NULL::BIGINT AS dur_ns,
            min(CASE WHEN kind LIKE '%able_%' OR kind LIKE 'not_%' THEN name END) AS example
        FROM event WHERE kind IN ({skips}) GROUP BY ALL
        UNION ALL
        SELECT trace_id, 'metadata', 'ph M', count(*), NULL, NULL
        FROM event WHERE kind = 'metadata' GROUP BY ALL
        UNION ALL
        SELECT trace_id, 'sub_ns_time', kind, count(*), NULL, min(name)
        FROM event WHERE is_sub_ns GROUP BY ALL
        """
    )


def _count_unread(con: duckdb.DuckDBPyConnection, book: IssueBook) -> None:
    """Arguments that are NULL because their text is not the number that it should be."""
    unread = "SELECT unnest(unread) AS text FROM staged WHERE unread IS NOT NULL"
    for name, count, text in rows_of(
        con,
        f"""
        SELECT split_part(text, ' = ', 1) AS field, count(*), min(text) FROM ({unread})
        WHERE text IS NOT NULL GROUP BY ALL
        """,
    ):
        book.add("bad_value", name, count, example=text)
