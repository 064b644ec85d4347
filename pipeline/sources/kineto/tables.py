"""Staged events to the raw tables: types, reasons to leave an event out, ranks, and the books that must
balance."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

import duckdb

from pipeline import __version__
from pipeline.contracts import contracts
from pipeline.duck import files, literal, scalar
from pipeline.duck import rows as rows_of
from pipeline.errors import TraceError
from pipeline.sources import names, units
from pipeline.sources.issues import IssueBook, issue_codes
from pipeline.sources.job import ReadJob
from pipeline.sources.kineto import refusals
from pipeline.sources.kineto.events import GPU_KINDS
from pipeline.sources.kineto.header import Header

_GPU = ", ".join(f"'{kind}'" for kind in GPU_KINDS)
_BIGINT = 2**63
_ABSOLUTE_NS = 10**18
_LOST_STAMP_NS = 60 * 10**9


@dataclass(frozen=True)
class _Trace:
    """One rank's part of the file."""

    trace_id: str
    process: str | None
    rank: int | None
    rank_source: str | None
    fields: names.NameFields
    pid: int | None
    process_name: str | None


def land(con: duckdb.DuckDBPyConnection, job: ReadJob, glob: str, header: Header, book: IssueBook) -> None:
    """Write every raw table of the file. Raises TraceError if there is no GPU activity to book."""
    con.execute(f"CREATE TEMP VIEW staged AS SELECT * FROM read_parquet({glob})")
    kinds = {
        row[0]: row[1] for row in rows_of(con, "SELECT kind, sum(events)::BIGINT FROM staged GROUP BY ALL")
    }
    if not any(kinds.get(kind) for kind in GPU_KINDS):
        raise refusals.no_gpu_work(con, job.file_name, kinds, is_cut=header.is_cut)
    processes = rows_of(
        con, f"SELECT DISTINCT process FROM staged WHERE kind IN ({_GPU}) ORDER BY process NULLS FIRST"
    )
    refusals.mixed_processes(con, job.file_name)
    traces = [_identify(con, job, header, process, is_only=len(processes) == 1) for (process,) in processes]
    base_ns = _base(con, header, book)
    _define_views(con, traces, base_ns)
    if header.is_cut and not scalar(con, "SELECT count(*) FROM gpu WHERE device IS NOT NULL"):
        raise refusals.no_device(job.file_name)
    _land_activities(con, job, traces)
    _land_cpu_side(con, job)
    rows = _issue_rows(con, traces, book)
    _land_trace(con, job, header, traces, base_ns)
    _write(con, job, "issue", _values(rows, 7))


def _identify(
    con: duckdb.DuckDBPyConnection, job: ReadJob, header: Header, process: str | None, *, is_only: bool
) -> _Trace:
    """Rank: merged prefix, else distributedInfo, else file name, else process name, else unknown."""
    pid = scalar(
        con,
        "SELECT mode(pid) FROM staged WHERE kind = 'launch' AND process IS NOT DISTINCT FROM $1",
        [process],
    )
    process_name = scalar(
        con,
        (
            "SELECT any_value(label) FROM staged WHERE kind = 'metadata' AND name = 'process_name' AND pid = "
            "$1 "
            "AND process IS NOT DISTINCT FROM $2"
        ),
        [pid, process],
    )
    fields = names.from_file_name(job.file_name)
    told = names.coordinates(process or process_name or "")
    fields = names.NameFields(
        run=fields.run,
        rank=fields.rank,
        host=fields.host,
        dp=_first(told.get("dp"), fields.dp),
        tp=_first(told.get("tp"), fields.tp),
        pp=_first(told.get("pp"), fields.pp),
        ep=_first(told.get("ep"), fields.ep),
    )
    rank, source = None, None
    distributed = header.distributed("rank")
    if process is not None:
        rank, source = told.get("tp"), "process_prefix"
    elif distributed is not None:
        rank, source = distributed, "distributed_info"
    elif fields.rank is not None:
        rank, source = fields.rank, "file_name"
    elif "_TP" in (process_name or "") and not {"dp", "pp"} & told.keys():
        rank, source = told.get("tp"), "process_name"
    elif fields.tp is not None and not fields.dp and not fields.pp:
        rank, source = fields.tp, "file_name"
    label = re.sub(r"[^A-Za-z0-9._-]", "_", process or "")
    if process is not None and (label != process or label in {"", "rest"}):
        label += f"-{hashlib.sha256(process.encode()).hexdigest()[:8]}"  # two prefixes may differ in other characters only
    suffix = "" if is_only else f"-{label or 'rest'}"
    return _Trace(
        job.file_id + suffix, process, rank, source if rank is not None else None, fields, pid, process_name
    )


def _first(*values: int | None) -> int | None:
    return next((v for v in values if v is not None), None)


def _base(con: duckdb.DuckDBPyConnection, header: Header, book: IssueBook) -> int | None:
    """What to add to every time: the file's base, unless its times are absolute already."""
    base, told = header.integer("baseTimeNanoseconds"), header.values.get("baseTimeNanoseconds")
    if told is not None and (base is None or not -_BIGINT <= base < _BIGINT):
        book.add("bad_value", "baseTimeNanoseconds", example=f"baseTimeNanoseconds = {told!s:.60}")
        base = None
    if not base and not header.is_cut:
        return None
    usual = scalar(
        con, f"SELECT quantile_disc(ts_ns, 0.5) FROM staged WHERE kind IN ({_GPU})"
    )  # one broken stamp must not decide
    if not base:  # torch 2.4 to 2.6 wrote it behind the events
        if usual is not None and usual < _ABSOLUTE_NS:
            book.add("no_epoch", "header")
        return None
    if usual is not None and usual >= _ABSOLUTE_NS:
        book.add(
            "absolute_time_with_base", "header", example=f"baseTimeNanoseconds = {base}, a time = {usual} ns"
        )
        return None
    return base


def _define_views(con: duckdb.DuckDBPyConnection, traces: list[_Trace], base_ns: int | None) -> None:
    """event: staged events with trace_id, typed numbers and absolute times; gpu: with the reason to leave one
    out."""
    # Events without a merged prefix (spans, metadata) are counted with the first trace.
    owner = " ".join(
        f"WHEN process = '{_q(t.process)}' THEN '{t.trace_id}'" for t in traces if t.process is not None
    )
    trace_id = f"CASE {owner} ELSE '{traces[0].trace_id}' END" if owner else f"'{traces[0].trace_id}'"
    con.execute(
        f"""CREATE TEMP VIEW event AS SELECT * REPLACE (
                coalesce(name, '') AS name, CASE WHEN kind IN ({_GPU}) OR dur_ns <= {units.LONGEST_NS} THEN dur_ns END AS dur_ns
            ), {trace_id} AS trace_id, kind NOT IN ({_GPU}) AND dur_ns > {units.LONGEST_NS} AS is_endless,
            CASE WHEN try(ts_ns + {base_ns or 0}) BETWEEN {-units.FARTHEST_NS} AND {units.FARTHEST_NS}
                 THEN try((ts_ns + {base_ns or 0})::BIGINT) END AS start_ns FROM staged"""
    )
    # A stamp of 0 means "not measured" (CUPTI: start = end = 0) if it is far from all others or has no
    # duration.
    earliest = scalar(con, f"SELECT min(ts_ns) FROM staged WHERE kind IN ({_GPU}) AND ts_ns > 0")
    lost = "true" if (earliest or 0) > _LOST_STAMP_NS else "coalesce(dur_ns, 0) = 0"
    con.execute(
        f"""CREATE TEMP VIEW gpu AS SELECT * EXCLUDE (device, stream), coalesce(device, try_cast(pid AS INTEGER)) AS device,
            coalesce(stream, tid) AS stream,
            CASE WHEN start_ns IS NULL THEN 'no_timestamp'
                 WHEN ts_ns = 0 AND {lost} THEN 'zero_timestamp'
                 WHEN dur_ns IS NULL OR dur_ns > {units.LONGEST_NS} THEN 'no_duration'
                 WHEN dur_ns < 0 THEN 'negative_duration' END AS reason
            FROM event WHERE kind IN ({_GPU})"""
    )


_IDENTITY = ("device", "stream", "start_ns", "dur_ns", "name", "correlation", "external_id", "context", "graph_id",
             "graph_node_id", "grid", "block", "bytes", "kind")  # fmt: skip


def _land_activities(con: duckdb.DuckDBPyConnection, job: ReadJob, traces: list[_Trace]) -> None:
    # Rarely do two activities start at once on one stream: then place and start order them all, and none is
    # repeated.
    place, identity = ", ".join(("trace_id", *_IDENTITY[:3])), ", ".join(("trace_id", *_IDENTITY))
    source, order = "SELECT * FROM gpu WHERE reason IS NULL", place
    if scalar(con, f"SELECT count(*) - count(DISTINCT hash({place})) FROM gpu WHERE reason IS NULL"):
        order = identity
        if scalar(con, f"SELECT count(*) - count(DISTINCT hash({identity})) FROM gpu WHERE reason IS NULL"):
            again = f"({identity}) IS NOT DISTINCT FROM lag(({identity})) OVER (ORDER BY {identity}) AS again"
            source = f"SELECT * FROM (SELECT *, {again} FROM ({source})) "
            con.execute(f"CREATE TEMP VIEW duplicate AS {source} WHERE again")
            source += "WHERE NOT again"
    rank = " ".join(f"WHEN '{t.trace_id}' THEN {t.rank}" for t in traces if t.rank is not None)
    _write(
        con,
        job,
        "gpu_activity",
        f"""SELECT *, {f"CASE trace_id {rank} END" if rank else "NULL"} AS rank,
            row_number() OVER () - 1 - {_first_rows(con, source, traces)} AS activity_id,
            CASE WHEN kind = 'memcpy' THEN nullif(regexp_extract(name, '\\b(HtoD|DtoH|DtoD|PtoP|HtoH|HtoA|AtoH)\\b', 1), '') END AS copy_kind
            FROM (SELECT * FROM ({source}) ORDER BY {order})""",
    )


def _first_rows(con: duckdb.DuckDBPyConnection, source: str, traces: list[_Trace]) -> str:
    """SQL: how many rows of other traces stand before a trace's first one, in the order of trace_id.

    Rows are sorted once and numbered as they come, which costs half of a numbering by partition and a sort
    for the file.
    """
    if len(traces) == 1:
        return "0"
    counts = rows_of(con, f"SELECT trace_id, count(*) FROM ({source}) GROUP BY trace_id ORDER BY trace_id")
    if not counts:  # no activity of any trace can be booked
        return "0"
    firsts = accumulate((count for _, count in counts), initial=0)
    return (
        "CASE trace_id "
        + " ".join(
            f"WHEN '{trace_id}' THEN {first}" for (trace_id, _), first in zip(counts, firsts, strict=False)
        )
        + " END"
    )


def _land_cpu_side(con: duckdb.DuckDBPyConnection, job: ReadJob) -> None:
    placed = "start_ns IS NOT NULL"
    _write(con, job, "launch", f"SELECT * FROM event WHERE kind = 'launch' AND {placed}")
    _write(con, job, "cpu_op", f"SELECT * FROM event WHERE kind = 'cpu_op' AND {placed}")
    _write(
        con,
        job,
        "annotation",
        f"""SELECT * EXCLUDE (device, pid, tid, stream), replace(kind, 'annotation_', '') AS side, NULL AS domain,
            CASE WHEN kind = 'annotation_gpu' THEN coalesce(device, try_cast(pid AS INTEGER)) END AS device,
            CASE WHEN kind = 'annotation_gpu' THEN coalesce(stream, tid) END AS stream,
            CASE WHEN kind = 'annotation_cpu' THEN pid END AS pid,
            CASE WHEN kind = 'annotation_cpu' THEN tid END AS tid, false AS is_open
            FROM event WHERE kind LIKE 'annotation_%' AND {placed}""",
    )


def _issue_rows(
    con: duckdb.DuckDBPyConnection, traces: list[_Trace], book: IssueBook
) -> list[tuple[Any, ...]]:
    """Skipped events by reason and class, values that are NULL because they could not be read, and what the
    book has."""
    skips = ", ".join(f"'{code}'" for code, entry in issue_codes().items() if entry.get("skip"))
    rows = rows_of(
        con,
        f"""
        SELECT trace_id, kind, event_class, sum(events)::BIGINT, NULL, min(CASE WHEN kind LIKE '%able_%' OR kind LIKE 'not_%' THEN name END)
            FROM event WHERE kind IN ({skips}) GROUP BY ALL
        UNION ALL SELECT trace_id, 'metadata', 'ph M', count(*), NULL, NULL FROM event WHERE kind = 'metadata' GROUP BY ALL
        UNION ALL SELECT trace_id, reason, kind, count(*), try_cast(sum(dur_ns) AS BIGINT), min(name) FROM gpu WHERE reason IS NOT NULL GROUP BY ALL
        UNION ALL SELECT trace_id, 'no_start', kind, count(*), NULL, min(name) FROM event
            WHERE start_ns IS NULL AND kind IN ('launch', 'cpu_op', 'annotation_cpu', 'annotation_gpu') GROUP BY ALL
        UNION ALL SELECT trace_id, 'bad_value', kind, count(*), NULL, min(name) FROM event WHERE is_endless GROUP BY ALL
        UNION ALL SELECT trace_id, 'sub_ns_time', kind, count(*), NULL, min(name) FROM event WHERE is_sub_ns GROUP BY ALL
        """,
    )
    rows = [row for row in rows if row[1] != "metadata" or row[2] == "ph M"]
    if scalar(con, "SELECT count(*) FROM duckdb_views() WHERE view_name = 'duplicate'"):
        rows += rows_of(
            con,
            (
                "SELECT trace_id, 'duplicate_event', kind, count(*), sum(dur_ns)::BIGINT, min(name) FROM "
                "duplicate GROUP BY ALL"
            ),
        )
    unread = "SELECT unnest(unread) AS text FROM staged WHERE unread IS NOT NULL"
    for name, count, text in rows_of(
        con,
        (
            f"SELECT split_part(text, ' = ', 1) AS field, count(*), min(text) FROM ({unread}) WHERE text IS "
            "NOT "
            "NULL GROUP BY ALL"
        ),
    ):
        book.add("bad_value", name, count, example=text)
    for trace in traces:
        if trace.rank is None:
            book.add("unknown_rank", "trace")
    first = traces[0].trace_id
    found = [
        (t, code, cls, issue_codes()[code]["severity"], n, dur, ex and ex[:200])
        for t, code, cls, n, dur, ex in rows
    ]
    return found + [(first, *row) for row in book.rows()]


def _land_trace(
    con: duckdb.DuckDBPyConnection, job: ReadJob, header: Header, traces: list[_Trace], base_ns: int | None
) -> None:
    now, devices = datetime.now(UTC).replace(tzinfo=None), header.device_names
    values: list[tuple[Any, ...]] = []
    for t in traces:
        device = scalar(
            con, "SELECT mode(device) FROM gpu WHERE trace_id = $1 AND reason IS NULL", [t.trace_id]
        )
        gpu_name = devices.get(device) or next(iter(devices.values()), None)
        values.append((
            t.trace_id, job.run_name, job.file_name, job.file_bytes, job.sha256, t.rank, t.rank_source,
            header.distributed("world_size"), t.fields.dp, t.fields.tp, t.fields.pp, t.fields.ep, header.host or t.fields.host, t.pid,
            t.process_name, _vendor(header, gpu_name), gpu_name, base_ns, now, __version__,
        ))  # fmt: skip
    known = ("trace_id", "run_name", "file_name", "file_bytes", "sha256", "rank", "rank_source", "world_size", "dp_rank",
             "tp_rank", "pp_rank", "ep_rank", "host", "pid", "process_name", "vendor", "gpu_name", "base_ns", "ingested_at",
             "stepledger_version")  # fmt: skip
    con.execute("CREATE TEMP TABLE known AS " + contracts("raw")["trace"].empty_query())
    con.executemany(f"INSERT INTO known ({', '.join(known)}) VALUES ({', '.join('?' * len(known))})", values)
    kept = " UNION ALL ".join(
        f"SELECT trace_id FROM read_parquet({files(job.out, f'{table}.parquet')})"
        for table in ("gpu_activity", "launch", "cpu_op", "annotation")
    )
    _write(
        con,
        job,
        "trace",
        f"""
        WITH read AS (SELECT trace_id, sum(events)::BIGINT AS events_read, count(*) FILTER (WHERE kind IN ({_GPU})) AS gpu_events_read,
                             coalesce(sum(dur_us * 1000), 0) AS gpu_ns_read FROM event GROUP BY trace_id),
        kept AS (SELECT trace_id, count(*) AS events_kept FROM ({kept}) GROUP BY trace_id),
        span AS (SELECT trace_id, min(start_ns) AS first_ns, max(start_ns + dur_ns) AS last_ns
                 FROM read_parquet({files(job.out, "gpu_activity.parquet")}) GROUP BY trace_id)
        SELECT known.* EXCLUDE (source, first_ns, last_ns, events_read, events_kept, gpu_events_read, gpu_ns_read, is_truncated),
            'kineto' AS source, span.first_ns, span.last_ns, read.* EXCLUDE (trace_id), kept.events_kept, {header.is_cut} AS is_truncated
        FROM known JOIN read USING (trace_id) JOIN kept USING (trace_id) JOIN span USING (trace_id)
        """,
    )
    missing = scalar(con, f"SELECT count(*) FROM read_parquet({files(job.out, 'trace.parquet')})")
    if missing != len(traces):
        for file in job.out.glob("*.parquet"):
            file.unlink()
        raise TraceError(
            job.file_name,
            where="traceEvents",
            found="GPU activities of which none can be booked (no usable times)",
            wanted="kernels with time stamps and durations",
            advice="The profiler lost them: record again.",
        )


def _vendor(header: Header, gpu_name: str | None) -> str | None:
    keys = " ".join(header.values)
    if "hip_" in keys or "roctracer" in keys or re.search(r"AMD|Instinct|Radeon", gpu_name or ""):
        return "amd"
    if (
        "cuda_" in keys
        or "cupti" in keys
        or re.search(r"NVIDIA|Tesla|Quadro|GeForce|[AHB][12]00", gpu_name or "")
    ):
        return "nvidia"
    return None


def _write(con: duckdb.DuckDBPyConnection, job: ReadJob, table: str, query: str) -> None:
    """One raw table to Parquet, cast to its contract."""
    target = _q(str(job.out / f"{table}.parquet"))
    select = contracts("raw")[table].select_list()
    con.execute(f"COPY (SELECT {select} FROM ({query})) TO '{target}' (FORMAT parquet, COMPRESSION zstd)")


def _values(rows: list[tuple[Any, ...]], width: int) -> str:
    """A VALUES query of literal rows for the issue table."""
    if not rows:
        return contracts("raw")["issue"].empty_query()
    names_ = [c.name for c in contracts("raw")["issue"].columns][:width]
    body = ", ".join("(" + ", ".join(literal(v) for v in row) + ")" for row in rows)
    return f"SELECT * FROM (VALUES {body}) AS issue ({', '.join(chr(34) + n + chr(34) for n in names_)})"


def _q(text: str | None) -> str:
    return (text or "").replace("'", "''")
