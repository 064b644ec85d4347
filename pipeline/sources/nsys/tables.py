"""An nsys export to the relations of landing: processes become traces, session time becomes time since the
epoch, strings become names."""

from __future__ import annotations

import duckdb

from pipeline.duck import literal, rows, scalar
from pipeline.sources import landing
from pipeline.sources.issues import EXAMPLE_CHARS, IssueBook
from pipeline.sources.job import ReadJob
from pipeline.sources.nsys.clock import FARTHEST_NS, Clock, read_clock
from pipeline.sources.nsys.columns import COUNTED, EXPORT_FACTS, GPU_TABLES
from pipeline.sources.nsys.export import Export
from pipeline.sources.nsys.processes import Process, find_processes, traces_of
from pipeline.sources.units import LONGEST_NS

_COPY_KINDS = "MAP {1: 'HtoD', 2: 'DtoH', 3: 'HtoA', 4: 'AtoH', 8: 'DtoD', 9: 'HtoH', 10: 'PtoP'}"
_MEMORY_KINDS = "MAP {0: 'Pageable', 1: 'Pinned', 2: 'Device', 3: 'Array', 4: 'Managed'}"


def land(con: duckdb.DuckDBPyConnection, job: ReadJob, export: Export, book: IssueBook) -> None:
    """Write every raw table of the report. Raises TraceError if no GPU activity can be booked."""
    facts = dict(
        rows(
            con,
            f"""
            SELECT name, left(min(value), {EXAMPLE_CHARS})
            FROM (FROM nsys."META_DATA_EXPORT" UNION ALL FROM nsys."EXPORT_META_DATA")
            WHERE name IN ({", ".join(map(literal, EXPORT_FACTS))}) GROUP BY name
            """,
        )
    )
    _define_gpu(con)
    processes = find_processes(con, job)
    clock = read_clock(con, facts)
    if not clock.is_absolute:
        book.add("no_epoch", "header")
    filters = {what: facts.get(f"EXPORT_PARAM_{what}_TO_EXPORT") for what in ("TABLES", "TIMES")}
    if any(filters.values()):
        book.add(
            "filtered_export",
            "header",
            example=", ".join(f"--{what.lower()}={value}" for what, value in filters.items() if value),
        )
    landing.open_schema(con)
    _define_events(con, processes, clock.offset)
    _define_cpu_side(con, processes, clock)
    _define_tally(con, export, processes)
    _define_issues(con, processes)
    _count_records(con, export, book)
    landing.land(con, job, "nsys", traces_of(con, processes, clock.base_ns), book, where="its tables")


def _define_gpu(con: duckdb.DuckDBPyConnection) -> None:
    """nsys.gpu: GPU rows of every kind, in session time, with names and the reason to leave one out."""
    lane = """
            process_key("globalPid") AS "globalPid", "deviceId" AS device, "contextId" AS context,
            "streamId" AS stream, "correlationId" AS correlation, "start", "end"
    """.strip()
    node = 'nullif("graphNodeId", 0) AS graph_node_id'
    copy = f'{_COPY_KINDS}["copyKind"]'
    kind_of_copy = f"""coalesce({copy}, 'kind ' || "copyKind", '')"""
    memories = f"""format(' ({{}} -> {{}})', {_MEMORY_KINDS}["srcKind"], {_MEMORY_KINDS}["dstKind"])"""
    con.execute(
        f"""
        CREATE VIEW nsys.gpu AS
        SELECT *, CASE WHEN "start" IS NULL OR "start" NOT BETWEEN {-FARTHEST_NS} AND {FARTHEST_NS}
                            THEN 'no_timestamp'
                       WHEN "start" = 0 AND coalesce("end", 0) = 0 THEN 'zero_timestamp'
                       WHEN "end" IS NULL THEN 'no_duration'
                       WHEN "end" < "start" THEN 'negative_duration'
                       WHEN "end" - "start" > {LONGEST_NS} THEN 'no_duration' END AS reason
        FROM (
        SELECT 'kernel' AS kind, coalesce(full_name.value, base_name.value, '') AS name, {lane},
            {node}, nullif("graphId", 0) AS graph_id,
            format('[{{}},{{}},{{}}]', "gridX", "gridY", "gridZ") AS grid,
            format('[{{}},{{}},{{}}]', "blockX", "blockY", "blockZ") AS block
        FROM nsys."CUPTI_ACTIVITY_KIND_KERNEL" AS kernel
        LEFT JOIN nsys."StringIds" AS full_name ON kernel."demangledName" = full_name.id
        LEFT JOIN nsys."StringIds" AS base_name ON kernel."shortName" = base_name.id
        UNION ALL BY NAME
        SELECT 'memcpy' AS kind,
            trim(format('Memcpy {{}}', {kind_of_copy}) || coalesce({memories}, '')) AS name,
            {lane}, {node}, bytes, {copy} AS copy_kind
        FROM nsys."CUPTI_ACTIVITY_KIND_MEMCPY"
        UNION ALL BY NAME
        SELECT 'memset' AS kind,
            format('Memset ({{}})', coalesce({_MEMORY_KINDS}["memKind"], 'Unknown')) AS name,
            {lane}, {node}, bytes
        FROM nsys."CUPTI_ACTIVITY_KIND_MEMSET"
        UNION ALL BY NAME
        SELECT 'graph' AS kind, 'CUDA graph ' || coalesce("graphId"::VARCHAR, '') AS name,
            {lane}, "graphId" AS graph_id
        FROM nsys."CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
        )
        """
    )


def _define_events(con: duckdb.DuckDBPyConnection, processes: list[Process], offset: int) -> None:
    """trace_of: process to trace; landing.gpu: rows with trace and time since the epoch."""
    values = ", ".join(f"({literal(p.global_pid)}::BIGINT, {literal(p.trace_id)})" for p in processes)
    con.execute(f'CREATE TEMP TABLE trace_of AS FROM (VALUES {values}) AS process ("globalPid", trace_id)')
    # A process without a row that can be booked is no trace: its rows are counted with the first one.
    con.execute(
        f"""
        CREATE VIEW landing.gpu AS
        SELECT coalesce(trace_of.trace_id, {literal(processes[0].trace_id)}) AS trace_id,
            gpu.* EXCLUDE ("start", "end", "globalPid"),
            "start" + {offset} AS start_ns, "end" - "start" AS dur_ns
        FROM nsys.gpu AS gpu LEFT JOIN trace_of ON gpu."globalPid" IS NOT DISTINCT FROM trace_of."globalPid"
        """
    )


def _define_cpu_side(con: duckdb.DuckDBPyConnection, processes: list[Process], clock: Clock) -> None:
    """landing.launch: runtime and driver calls; landing.annotation: NVTX ranges; both by process."""
    con.execute(
        """
        CREATE TEMP TABLE process_trace AS
        SELECT "globalPid" AS process, trace_id FROM trace_of WHERE "globalPid" IS NOT NULL
        """
    )
    owner = "process_trace.trace_id"
    if len(processes) == 1:
        # A report without globalPid is one process: all calls belong to it, with or without a thread id.
        is_its_own = "true" if processes[0].global_pid is None else '"globalTid" IS NULL'
        owner = (
            f"CASE WHEN {is_its_own} THEN {literal(processes[0].trace_id)} ELSE process_trace.trace_id END"
        )
    con.execute(
        f"""
        CREATE VIEW landing.launch AS
        WITH string AS (SELECT id, regexp_replace(value, '_v[0-9]+$', '') AS name FROM nsys."StringIds")
        SELECT {owner} AS trace_id, call."correlationId" AS correlation, coalesce(string.name, '') AS name,
            pid_of("globalTid") AS pid, tid_of("globalTid") AS tid, {clock.placed('"start"')} AS start_ns,
            coalesce("end" - "start" > {LONGEST_NS}, false) AS is_endless,
            CASE WHEN NOT is_endless THEN "end" - "start" END AS dur_ns
        FROM nsys."CUPTI_ACTIVITY_KIND_RUNTIME" AS call
        LEFT JOIN process_trace ON process_key("globalTid") = process_trace.process
        LEFT JOIN string ON call."nameId" = string.id
        """
    )
    con.execute(
        f"""
        CREATE VIEW landing.annotation AS
        WITH domain AS (
            SELECT process_key(nvtx."globalTid") AS process, "domainId",
                min(coalesce(nvtx.text, string.value)) AS name
            FROM nsys."NVTX_EVENTS" AS nvtx
            LEFT JOIN nsys."StringIds" AS string ON nvtx."textId" = string.id
            WHERE "eventType" = 75 GROUP BY ALL
        )
        SELECT {owner} AS trace_id, 'nvtx' AS event_class, coalesce(nvtx.text, string.value, '') AS name,
            'cpu' AS side, domain.name AS domain, pid_of("globalTid") AS pid, tid_of("globalTid") AS tid,
            {clock.placed('nvtx."start"')} AS start_ns,
            coalesce(
                nvtx."end" IS NULL OR nvtx."end" < nvtx."start" OR nvtx."end" - nvtx."start" > {LONGEST_NS}
                OR nvtx."end" + {clock.offset} = {literal(clock.session_end_ns)}, false
            ) AS is_open,
            CASE WHEN NOT is_open THEN nvtx."end" - nvtx."start" END AS dur_ns
        FROM nsys."NVTX_EVENTS" AS nvtx
        LEFT JOIN process_trace ON process_key(nvtx."globalTid") = process_trace.process
        LEFT JOIN nsys."StringIds" AS string ON nvtx."textId" = string.id
        LEFT JOIN domain ON process_key(nvtx."globalTid") IS NOT DISTINCT FROM domain.process
            AND nvtx."domainId" = domain."domainId"
        WHERE nvtx."eventType" IN (59, 60)
        """
    )


def _define_tally(con: duckdb.DuckDBPyConnection, export: Export, processes: list[Process]) -> None:
    """landing.tally: every row of the event tables once; rows of no trace are counted with the first one."""
    everything = sum(export.counted.values()) + sum(
        scalar(con, f'SELECT count(*) FROM nsys."{table}"')
        for table in (*GPU_TABLES.values(), "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS")
    )
    con.execute(
        f"""
        CREATE VIEW landing.tally AS
        WITH own AS (
            SELECT trace_id, count(*) AS events
            FROM (
                SELECT trace_id FROM landing.gpu
                UNION ALL SELECT trace_id FROM landing.launch
                UNION ALL SELECT trace_id FROM landing.annotation
            )
            WHERE trace_id IS NOT NULL GROUP BY trace_id
        ),
        gpu AS (
            SELECT trace_id, count(*) AS gpu_events_read, coalesce(sum(dur_ns), 0) AS gpu_ns_read
            FROM landing.gpu GROUP BY trace_id
        )
        SELECT gpu.*, own.events + CASE WHEN trace_id = {literal(processes[0].trace_id)}
            THEN {everything} - (SELECT sum(events) FROM own)::BIGINT ELSE 0 END AS events_read
        FROM own JOIN gpu USING (trace_id)
        """
    )


def _define_issues(con: duckdb.DuckDBPyConnection, processes: list[Process]) -> None:
    first = literal(processes[0].trace_id)
    con.execute(
        f"""
        CREATE VIEW landing.issue AS
        SELECT trace_id, 'opaque_graph' AS code, kind AS event_class, count(*) AS count,
            sum(dur_ns)::BIGINT AS dur_ns, min(name) AS example
        FROM landing.gpu WHERE kind = 'graph' AND reason IS NULL GROUP BY ALL
        UNION ALL
        SELECT trace_id, 'open_range', 'nvtx', count(*), NULL, min(name)
        FROM landing.annotation WHERE is_open AND trace_id IS NOT NULL GROUP BY ALL
        UNION ALL
        SELECT {first}, 'nvtx_record', 'nvtx', count(*), NULL, NULL FROM nsys."NVTX_EVENTS"
        WHERE "eventType" IS NULL OR "eventType" NOT IN (59, 60) HAVING count(*) > 0
        UNION ALL
        SELECT {first}, 'profiler_warning', 'diagnostic', count(*), NULL, NULL
        FROM nsys."DIAGNOSTIC_EVENT" WHERE severity > 1 HAVING count(*) > 0
        """
    )


def _count_records(con: duckdb.DuckDBPyConnection, export: Export, book: IssueBook) -> None:
    """Tables of which only the number of rows is read, and NVTX domains in a report without ranges."""
    domains, ranges = rows(
        con,
        """
        SELECT count(*) FILTER (WHERE "eventType" = 75), count(*) FILTER (WHERE "eventType" IN (59, 60))
        FROM nsys."NVTX_EVENTS"
        """,
    )[0]
    if domains and not ranges:
        book.add("domains_without_ranges", "nvtx", domains)
    for table, count in export.counted.items():
        if count:
            book.add(COUNTED[table], table, count)
