"""An nsys export to the raw tables: processes become traces, session time becomes time since the epoch,
strings become names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import duckdb

from pipeline import __version__
from pipeline.contracts import contracts
from pipeline.duck import files, literal, rows, scalar
from pipeline.sources.issues import EXAMPLE_CHARS, IssueBook, issue_codes
from pipeline.sources.job import ReadJob
from pipeline.sources.nsys.columns import COUNTED, EXPORT_FACTS, GPU_TABLES
from pipeline.sources.nsys.export import Export
from pipeline.sources.nsys.processes import MOST_PROCESSES, Process, find_processes
from pipeline.sources.units import FARTHEST_NS, LONGEST_NS

_ABSOLUTE_NS = 10**18
_FARTHEST_NS = FARTHEST_NS // 2
"""Of a time in the session: what is then added to it, the session's start, leaves it a stamp."""

_COPY_KINDS = "MAP {1: 'HtoD', 2: 'DtoH', 3: 'HtoA', 4: 'AtoH', 8: 'DtoD', 9: 'HtoH', 10: 'PtoP'}"
_MEMORY_KINDS = "MAP {0: 'Pageable', 1: 'Pinned', 2: 'Device', 3: 'Array', 4: 'Managed'}"


def land(con: duckdb.DuckDBPyConnection, job: ReadJob, export: Export, book: IssueBook) -> None:
    """Write every raw table of the report. Raises TraceError if no GPU activity can be booked."""
    facts = dict(
        rows(
            con,
            f"""SELECT name, left(min(value), {EXAMPLE_CHARS}) FROM (FROM nsys."META_DATA_EXPORT" UNION ALL FROM nsys."EXPORT_META_DATA")
            WHERE name IN ({", ".join(map(literal, EXPORT_FACTS))}) GROUP BY name""",
        )
    )
    _define_gpu(con)
    processes = find_processes(con, job)
    clock = _clock(con, facts)
    if not clock.is_absolute:
        book.add("no_epoch", "header")
    filters = {what: facts.get(f"EXPORT_PARAM_{what}_TO_EXPORT") for what in ("TABLES", "TIMES")}
    if any(filters.values()):
        book.add(
            "filtered_export",
            "header",
            example=", ".join(f"--{what.lower()}={value}" for what, value in filters.items() if value),
        )
    _define_events(con, processes, clock.offset)
    _land_activities(con, job)
    _define_cpu_side(con, processes, clock)
    _write(con, job, "launch", "FROM call WHERE trace_id IS NOT NULL AND start_ns IS NOT NULL")
    _write(con, job, "annotation", "FROM range WHERE trace_id IS NOT NULL AND start_ns IS NOT NULL")
    _write(con, job, "cpu_op", contracts("raw")["cpu_op"].empty_query())
    issues = _issue_rows(con, export, processes, book)
    _land_trace(con, job, export, processes, clock)
    names = ", ".join(f'"{c.name}"' for c in contracts("raw")["issue"].columns)
    values = ", ".join("(" + ", ".join(map(literal, row)) + ")" for row in issues)
    _write(
        con,
        job,
        "issue",
        f"FROM (VALUES {values}) AS issue ({names})" if issues else contracts("raw")["issue"].empty_query(),
    )


def _define_gpu(con: duckdb.DuckDBPyConnection) -> None:
    """nsys_gpu: GPU rows of every kind, in session time, with names."""
    lane = (
        '"start", "end", "deviceId" AS device, "contextId" AS context, "streamId" AS stream, '
        '"correlationId" AS correlation, '
    )
    lane += 'process_key("globalPid") AS "globalPid"'
    con.execute(
        f"""
        CREATE VIEW nsys.gpu AS
        SELECT *, CASE WHEN "start" IS NULL OR "start" NOT BETWEEN {-_FARTHEST_NS} AND {_FARTHEST_NS} THEN 'no_timestamp'
                       WHEN "start" = 0 AND coalesce("end", 0) = 0 THEN 'zero_timestamp'
                       WHEN "end" IS NULL THEN 'no_duration'
                       WHEN "end" < "start" THEN 'negative_duration'
                       WHEN "end" - "start" > {LONGEST_NS} THEN 'no_duration' END AS reason
        FROM (
        SELECT 'kernel' AS kind, coalesce(full_name.value, base_name.value, '') AS name, {lane},
            nullif("graphId", 0) AS graph_id, nullif("graphNodeId", 0) AS graph_node_id,
            format('[{{}},{{}},{{}}]', "gridX", "gridY", "gridZ") AS grid, format('[{{}},{{}},{{}}]', "blockX", "blockY", "blockZ") AS block,
            NULL::BIGINT AS bytes, NULL AS copy_kind
        FROM nsys."CUPTI_ACTIVITY_KIND_KERNEL" AS kernel
        LEFT JOIN nsys."StringIds" AS full_name ON kernel."demangledName" = full_name.id
        LEFT JOIN nsys."StringIds" AS base_name ON kernel."shortName" = base_name.id
        UNION ALL
        SELECT 'memcpy', trim(format('Memcpy {{}}', coalesce({_COPY_KINDS}["copyKind"], 'kind ' || "copyKind", ''))
            || coalesce(format(' ({{}} -> {{}})', {_MEMORY_KINDS}["srcKind"], {_MEMORY_KINDS}["dstKind"]), '')), {lane},
            NULL, nullif("graphNodeId", 0), NULL, NULL, bytes, {_COPY_KINDS}["copyKind"]
        FROM nsys."CUPTI_ACTIVITY_KIND_MEMCPY"
        UNION ALL
        SELECT 'memset', format('Memset ({{}})', coalesce({_MEMORY_KINDS}["memKind"], 'Unknown')), {lane},
            NULL, nullif("graphNodeId", 0), NULL, NULL, bytes, NULL
        FROM nsys."CUPTI_ACTIVITY_KIND_MEMSET"
        UNION ALL
        SELECT 'graph', 'CUDA graph ' || coalesce("graphId"::VARCHAR, ''), {lane}, "graphId", NULL, NULL, NULL, NULL, NULL
        FROM nsys."CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
        )
        """
    )


@dataclass(frozen=True)
class _Clock:
    """How times become time since the epoch: `offset` is added to each, `base_ns` of it is the session's
    start."""

    offset: int
    base_ns: int | None
    is_absolute: bool
    session_end_ns: int | None


def _clock(con: duckdb.DuckDBPyConnection, facts: dict[str, str | None]) -> _Clock:
    """A normalised export holds UTC already: adding the session's start again would double it. A shift is
    taken out."""
    epoch = scalar(
        con,
        (
            'SELECT min("utcEpochNs") FROM nsys."TARGET_INFO_SESSION_START_TIME" WHERE "utcEpochNs" BETWEEN '
            "1 "
            "AND $1"
        ),
        [_FARTHEST_NS],
    )
    duration = scalar(con, 'SELECT max(duration) FROM nsys."ANALYSIS_DETAILS" WHERE duration > 0')
    shift = facts.get("EXPORT_PARAM_TIME_SHIFT") or "0"
    shift_ns = int(shift) if re.fullmatch(r"-?[0-9]{1,18}", shift) else 0
    latest = scalar(con, 'SELECT max("start") FROM nsys.gpu WHERE reason IS NULL') or 0
    is_normal = facts.get("EXPORT_PARAM_TIME_NORMALIZE") == "true" or latest >= _ABSOLUTE_NS
    end = None if duration is None or (is_normal and epoch is None) else (epoch or 0) + duration
    if is_normal:
        return _Clock(-shift_ns, None, is_absolute=True, session_end_ns=end)
    return _Clock((epoch or 0) - shift_ns, epoch, is_absolute=epoch is not None, session_end_ns=end)


def _define_events(con: duckdb.DuckDBPyConnection, processes: list[Process], offset: int) -> None:
    """trace_of: process to trace; gpu: rows with trace, time since the epoch and the reason to leave one
    out."""
    values = ", ".join(
        f"({literal(p.global_pid)}::BIGINT, {literal(p.trace_id)}, {literal(p.rank)}::INTEGER)"
        for p in processes
    )
    con.execute(
        f'CREATE TEMP TABLE trace_of AS FROM (VALUES {values}) AS process ("globalPid", trace_id, rank)'
    )
    # A process none of whose rows can be booked is no trace: its rows are counted with the first.
    con.execute(
        f"""
        CREATE VIEW gpu AS
        SELECT coalesce(trace_of.trace_id, {literal(processes[0].trace_id)}) AS trace_id, trace_of.rank,
            gpu.* EXCLUDE ("start", "end", "globalPid"), "start" + {offset} AS start_ns, "end" - "start" AS dur_ns
        FROM nsys.gpu AS gpu LEFT JOIN trace_of ON gpu."globalPid" IS NOT DISTINCT FROM trace_of."globalPid"
        """
    )


_IDENTITY = ("device", "stream", "start_ns", "dur_ns", "name", "correlation", "context", "graph_id", "graph_node_id",
             "grid", "block", "bytes", "kind")  # fmt: skip


def _land_activities(con: duckdb.DuckDBPyConnection, job: ReadJob) -> None:
    """Sort once, then number the rows as they stand in the sorted file: half the work of a window
    function."""
    order = ", ".join(("trace_id", *_IDENTITY))
    scan = _sorted(
        con, job, "sorted", f"SELECT * EXCLUDE (reason) FROM gpu WHERE reason IS NULL ORDER BY {order}"
    )
    con.execute("CREATE VIEW duplicate AS FROM gpu LIMIT 0")
    if scalar(con, f"SELECT count(*) - count(DISTINCT hash({order})) FROM {scan}"):
        again = f"({order}) IS NOT DISTINCT FROM lag(({order})) OVER (ORDER BY file_row_number)"
        con.execute(
            f"CREATE OR REPLACE VIEW duplicate AS SELECT * FROM (SELECT *, {again} AS again FROM {scan}) "
            "WHERE again"
        )
        once = f"SELECT * EXCLUDE (again) FROM (SELECT *, {again} AS again FROM {scan}) WHERE NOT again"
        scan = _sorted(
            con, job, "once", f"SELECT * EXCLUDE (file_row_number) FROM ({once}) ORDER BY file_row_number"
        )
    first = dict(rows(con, f"SELECT trace_id, min(file_row_number) FROM {scan} GROUP BY trace_id"))
    begin = " ".join(f"WHEN {literal(trace_id)} THEN {row}" for trace_id, row in first.items())
    here = {"trace_id", "rank", "activity_id", "copy_kind", *_IDENTITY}
    kineto_only = ", ".join(
        f"NULL AS {c.name}" for c in contracts("raw")["gpu_activity"].columns if c.name not in here
    )
    con.execute("SET preserve_insertion_order = true")
    _write(
        con,
        job,
        "gpu_activity",
        f"SELECT *, {kineto_only}, file_row_number - CASE trace_id {begin} END AS activity_id FROM {scan}",
    )
    con.execute("SET preserve_insertion_order = false")


def _sorted(con: duckdb.DuckDBPyConnection, job: ReadJob, name: str, query: str) -> str:
    """Write rows in order to a scratch file; returns a scan of it with their place in it."""
    con.execute(
        f"COPY ({query}) TO {literal(job.work / f'{name}.parquet')} (FORMAT parquet, COMPRESSION lz4_raw)"
    )
    return (
        f"read_parquet({files(job.work, f'{name}.parquet')}, hive_partitioning = false, file_row_number "
        "= "
        "true)"
    )


def _define_cpu_side(con: duckdb.DuckDBPyConnection, processes: list[Process], clock: _Clock) -> None:
    """call: runtime and driver calls; range: NVTX ranges; each with the trace of its process, NULL for a
    process without GPU work."""
    con.execute(
        'CREATE TEMP TABLE process_trace AS SELECT "globalPid" AS process, trace_id FROM trace_of WHERE '
        '"globalPid" IS NOT NULL'
    )
    owner = "process_trace.trace_id"
    if len(processes) == 1:
        # A report without globalPid is one process: calls belong to it whatever thread id they carry, or if
        # they carry none.
        is_its_own = "true" if processes[0].global_pid is None else '"globalTid" IS NULL'
        owner = (
            f"CASE WHEN {is_its_own} THEN {literal(processes[0].trace_id)} ELSE process_trace.trace_id END"
        )
    con.execute(
        f"""
        CREATE VIEW call AS
        WITH string AS (SELECT id, regexp_replace(value, '_v[0-9]+$', '') AS name FROM nsys."StringIds")
        SELECT {owner} AS trace_id, call."correlationId" AS correlation, NULL AS external_id, coalesce(string.name, '') AS name,
            pid_of("globalTid") AS pid, tid_of("globalTid") AS tid,
            {_placed('"start"', clock)} AS start_ns, coalesce("end" - "start" > {LONGEST_NS}, false) AS is_endless,
            CASE WHEN NOT is_endless THEN "end" - "start" END AS dur_ns
        FROM nsys."CUPTI_ACTIVITY_KIND_RUNTIME" AS call
        LEFT JOIN process_trace ON process_key("globalTid") = process_trace.process
        LEFT JOIN string ON call."nameId" = string.id
        """
    )
    con.execute(
        f"""
        CREATE VIEW range AS
        WITH domain AS (
            SELECT process_key(nvtx."globalTid") AS process, "domainId", min(coalesce(nvtx.text, string.value)) AS name
            FROM nsys."NVTX_EVENTS" AS nvtx LEFT JOIN nsys."StringIds" AS string ON nvtx."textId" = string.id
            WHERE "eventType" = 75 GROUP BY ALL
        )
        SELECT {owner} AS trace_id, NULL AS external_id, coalesce(nvtx.text, string.value, '') AS name, 'cpu' AS side, domain.name AS domain,
            NULL AS device, pid_of("globalTid") AS pid, tid_of("globalTid") AS tid, NULL AS stream,
            {_placed('nvtx."start"', clock)} AS start_ns,
            coalesce(
                nvtx."end" IS NULL OR nvtx."end" < nvtx."start" OR nvtx."end" - nvtx."start" > {LONGEST_NS}
                OR nvtx."end" + {clock.offset} = {literal(clock.session_end_ns)}, false
            ) AS is_open,
            CASE WHEN NOT is_open THEN nvtx."end" - nvtx."start" END AS dur_ns
        FROM nsys."NVTX_EVENTS" AS nvtx
        LEFT JOIN process_trace ON process_key(nvtx."globalTid") = process_trace.process
        LEFT JOIN nsys."StringIds" AS string ON nvtx."textId" = string.id
        LEFT JOIN domain ON process_key(nvtx."globalTid") IS NOT DISTINCT FROM domain.process AND nvtx."domainId" = domain."domainId"
        WHERE nvtx."eventType" IN (59, 60)
        """
    )


def _placed(column: str, clock: _Clock) -> str:
    """SQL: a stamp of the session since the epoch; NULL for one that is none."""
    return f"CASE WHEN {column} BETWEEN {-_FARTHEST_NS} AND {_FARTHEST_NS} THEN {column} + {clock.offset} END"


def _issue_rows(
    con: duckdb.DuckDBPyConnection, export: Export, processes: list[Process], book: IssueBook
) -> list[tuple[Any, ...]]:
    first = literal(processes[0].trace_id)
    found = rows(
        con,
        f"""
        SELECT trace_id, code, event_class, events, dur_ns, left(example, {EXAMPLE_CHARS}) FROM (
        SELECT trace_id, reason, kind, count(*), sum(dur_ns)::BIGINT, min(name) FROM gpu WHERE reason IS NOT NULL GROUP BY ALL
        UNION ALL SELECT trace_id, 'duplicate_event', kind, count(*), sum(dur_ns)::BIGINT, min(name) FROM duplicate GROUP BY ALL
        UNION ALL SELECT trace_id, 'opaque_graph', kind, count(*), sum(dur_ns)::BIGINT, min(name)
            FROM gpu WHERE kind = 'graph' AND reason IS NULL GROUP BY ALL
        UNION ALL SELECT {first}, 'other_process', 'launch', count(*), NULL, NULL FROM call WHERE trace_id IS NULL HAVING count(*) > 0
        UNION ALL SELECT {first}, 'other_process', 'nvtx', count(*), NULL, NULL FROM range WHERE trace_id IS NULL HAVING count(*) > 0
        UNION ALL SELECT trace_id, 'no_start', 'launch', count(*), NULL, NULL
            FROM call WHERE trace_id IS NOT NULL AND start_ns IS NULL GROUP BY trace_id
        UNION ALL SELECT trace_id, 'no_start', 'nvtx', count(*), NULL, NULL
            FROM range WHERE trace_id IS NOT NULL AND start_ns IS NULL GROUP BY trace_id
        UNION ALL SELECT {first}, 'nvtx_record', 'nvtx', count(*), NULL, NULL FROM nsys."NVTX_EVENTS"
            WHERE "eventType" IS NULL OR "eventType" NOT IN (59, 60) HAVING count(*) > 0
        UNION ALL SELECT trace_id, 'bad_value', 'launch', count(*), NULL, min(name)
            FROM call WHERE is_endless AND trace_id IS NOT NULL GROUP BY ALL
        UNION ALL SELECT trace_id, 'open_range', 'nvtx', count(*), NULL, min(name)
            FROM range WHERE is_open AND trace_id IS NOT NULL GROUP BY ALL
        UNION ALL SELECT {first}, 'profiler_warning', 'diagnostic', count(*), NULL, NULL
            FROM nsys."DIAGNOSTIC_EVENT" WHERE severity > 1 HAVING count(*) > 0
        ) AS found (trace_id, code, event_class, events, dur_ns, example)
        """,
    )
    ranges = scalar(con, "SELECT count(*) FROM range")
    domains = scalar(con, """SELECT count(*) FROM nsys."NVTX_EVENTS" WHERE "eventType" = 75""")
    if domains and not ranges:
        book.add("domains_without_ranges", "nvtx", domains)
    for table, count in export.counted.items():
        if count:
            book.add(COUNTED[table], table, count)
    for p in processes:
        if p.rank is None:
            book.add("unknown_rank", "trace")
    made = [
        (t, code, cls, issue_codes()[code]["severity"], n, dur, example)
        for t, code, cls, n, dur, example in found
    ]
    return made + [(processes[0].trace_id, *row) for row in book.rows()]


def _land_trace(
    con: duckdb.DuckDBPyConnection, job: ReadJob, export: Export, processes: list[Process], clock: _Clock
) -> None:
    now = datetime.now(UTC).replace(tzinfo=None)
    by_ordinal, by_gpu = (
        dict(rows(con, f"""SELECT {key}, left(min(name), {EXAMPLE_CHARS}) FROM nsys."TARGET_INFO_GPU" WHERE name IS NOT NULL
            GROUP BY ALL ORDER BY ALL LIMIT {MOST_PROCESSES}"""))
        for key in ('coalesce("cuDevice", id)', "id")
    )  # fmt: skip
    device_of = dict(
        rows(con, "SELECT trace_id, mode(device) FROM gpu WHERE reason IS NULL GROUP BY trace_id")
    )
    known = []
    for p in processes:
        gpu_name = (
            by_gpu.get(p.gpu)
            or by_ordinal.get(device_of.get(p.trace_id))
            or next(iter(by_ordinal.values()), None)
        )
        c = p.coordinates
        known.append(
            (
                p.trace_id,
                p.rank,
                p.rank_source,
                c.get("dp"),
                c.get("tp"),
                c.get("pp"),
                c.get("ep"),
                p.pid,
                p.name,
                gpu_name,
            )
        )
    values = ", ".join("(" + ", ".join(map(literal, row)) + ")" for row in known)
    landed = {
        t: f"read_parquet({files(job.out, f'{t}.parquet')}, hive_partitioning = false)"
        for t in ("gpu_activity", "launch", "annotation")
    }
    kept = " UNION ALL ".join(f"SELECT trace_id FROM {scan}" for scan in landed.values())
    # Every row of the event tables is counted once; rows of no trace (other processes, marks, counted tables)
    # with the first.
    everything = sum(export.counted.values()) + sum(
        scalar(con, f'SELECT count(*) FROM nsys."{table}"')
        for table in (*GPU_TABLES.values(), "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS")
    )
    first = literal(processes[0].trace_id)
    con.execute(f"CREATE TEMP TABLE known AS FROM (VALUES {values}) AS known (trace_id, rank, rank_source, "
                "dp_rank, tp_rank, pp_rank, ep_rank, pid, "
                "process_name, gpu_name)")  # fmt: skip
    _write(
        con,
        job,
        "trace",
        f"""
        WITH span AS (
            SELECT trace_id, min(start_ns) AS first_ns, max(start_ns + dur_ns) AS last_ns FROM {landed["gpu_activity"]} GROUP BY trace_id
        ),
        own AS (
            SELECT trace_id, count(*) AS events
            FROM (SELECT trace_id FROM gpu UNION ALL SELECT trace_id FROM call UNION ALL SELECT trace_id FROM range)
            WHERE trace_id IS NOT NULL GROUP BY trace_id
        ),
        gpu_read AS (SELECT trace_id, count(*) AS gpu_events_read, coalesce(sum(dur_ns), 0) AS gpu_ns_read FROM gpu GROUP BY trace_id),
        kept AS (SELECT trace_id, count(*) AS events_kept FROM ({kept}) GROUP BY trace_id)
        SELECT known.*, {literal(job.run_name)} AS run_name, 'nsys' AS source, {literal(job.file_name)} AS file_name,
            {job.file_bytes} AS file_bytes, {literal(job.sha256)} AS sha256, {len(processes) if len(processes) > 1 else "NULL"} AS world_size,
            NULL AS host, 'nvidia' AS vendor, {literal(clock.base_ns)} AS base_ns, span.* EXCLUDE (trace_id),
            own.events + CASE WHEN trace_id = {first} THEN {everything} - (SELECT sum(events) FROM own)::BIGINT ELSE 0 END AS events_read,
            kept.events_kept, gpu_read.* EXCLUDE (trace_id), {literal(str(now))}::TIMESTAMP AS ingested_at,
            {literal(__version__)} AS stepledger_version, false AS is_truncated
        FROM known JOIN span USING (trace_id) JOIN own USING (trace_id) JOIN gpu_read USING (trace_id) JOIN kept USING (trace_id)
        """,
    )


def _write(con: duckdb.DuckDBPyConnection, job: ReadJob, table: str, query: str) -> None:
    """One raw table to Parquet, cast to its contract."""
    select = contracts("raw")[table].select_list()
    con.execute(
        f"COPY (SELECT {select} FROM ({query})) TO {literal(job.out / f'{table}.parquet')} (FORMAT parquet, "
        "COMPRESSION zstd)"
    )
