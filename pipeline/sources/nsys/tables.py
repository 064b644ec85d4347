"""An nsys export to the raw tables: processes become traces, session time becomes time since the epoch, strings become names."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import duckdb

from pipeline import __version__
from pipeline.contracts import contracts
from pipeline.duck import literal, rows, scalar
from pipeline.errors import TraceError
from pipeline.sources import names
from pipeline.sources.issues import IssueBook, issue_codes
from pipeline.sources.job import ReadJob
from pipeline.sources.nsys.columns import COUNTED, EXPORT_FACTS
from pipeline.sources.nsys.export import Export

_ABSOLUTE_NS = 10**18

_COPY_KINDS = "MAP {1: 'HtoD', 2: 'DtoH', 3: 'HtoA', 4: 'AtoH', 8: 'DtoD', 9: 'HtoH', 10: 'PtoP'}"
_MEMORY_KINDS = "MAP {0: 'Pageable', 1: 'Pinned', 2: 'Device', 3: 'Array', 4: 'Managed'}"


@dataclass(frozen=True)
class _Process:
    """One process with GPU work: one trace."""

    trace_id: str
    global_pid: int | None
    name: str | None
    rank: int | None
    rank_source: str | None
    coordinates: dict[str, int]


def land(con: duckdb.DuckDBPyConnection, job: ReadJob, export: Export, book: IssueBook) -> None:
    """Write every raw table of the report. Raises TraceError if no GPU activity can be booked."""
    facts = dict(
        rows(
            con,
            f"""SELECT name, value FROM (FROM nsys."META_DATA_EXPORT" UNION ALL FROM nsys."EXPORT_META_DATA")
            WHERE name IN ({", ".join(map(literal, EXPORT_FACTS))})""",
        )
    )
    _define_gpu(con)
    processes = _processes(con, job)
    if not processes:
        raise TraceError(
            job.file_name,
            where="its tables",
            found="no kernel, memcpy or memset",
            wanted="GPU activities",
            advice="Record with `nsys profile --trace=cuda,nvtx` (vLLM: VLLM_WORKER_MULTIPROC_METHOD=spawn) while the GPU works.",
        )
    offset, base = _offset(con, facts)
    if base is None:
        book.add("no_epoch", "header")
    if facts.get("EXPORT_PARAM_TABLES_TO_EXPORT") or facts.get("EXPORT_PARAM_TIMES_TO_EXPORT"):
        book.add("filtered_export", "header", example=f"tables {facts.get('EXPORT_PARAM_TABLES_TO_EXPORT')!r}, "
                 f"times {facts.get('EXPORT_PARAM_TIMES_TO_EXPORT')!r}")  # fmt: skip
    _define_events(con, processes, offset)
    _land_activities(con, job, processes)
    _land_cpu_side(con, job, offset)
    issues = _issue_rows(con, export, processes, book)
    _land_trace(con, job, export, processes, base)
    _write(con, job, "cpu_op", contracts("raw")["cpu_op"].empty_query())
    names_ = ", ".join(f'"{c.name}"' for c in contracts("raw")["issue"].columns)
    values = ", ".join("(" + ", ".join(map(literal, row)) + ")" for row in issues)
    _write(con, job, "issue", f"FROM (VALUES {values}) AS issue ({names_})" if issues else contracts("raw")["issue"].empty_query())


def _define_gpu(con: duckdb.DuckDBPyConnection) -> None:
    """nsys_gpu: GPU rows of every kind, in session time, with names."""
    lane = '"start", "end", "deviceId" AS device, "contextId" AS context, "streamId" AS stream, "correlationId" AS correlation, "globalPid"'
    con.execute(
        f"""
        CREATE VIEW nsys.gpu AS
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
        """
    )


def _processes(con: duckdb.DuckDBPyConnection, job: ReadJob) -> list[_Process]:
    """Processes with GPU work, in the order of their first device and pid; rank by name, else by that order."""
    found = rows(
        con,
        """
        WITH work AS (SELECT "globalPid", min(device) AS device, count(*) AS activities FROM nsys.gpu GROUP BY "globalPid"),
        thread AS (
            SELECT process_key("globalTid") AS process, max(string.value) AS name FROM nsys."ThreadNames" AS thread
            JOIN nsys."StringIds" AS string ON thread."nameId" = string.id
            WHERE regexp_matches(string.value, '(TP|DP|PP|EP)[0-9]') GROUP BY process
        )
        SELECT work."globalPid", regexp_extract(any_value(process.name), '[^/]*$'), any_value(thread.name) FROM work
        LEFT JOIN nsys."PROCESSES" AS process ON work."globalPid" = process."globalPid"
        LEFT JOIN thread ON process_key(work."globalPid") = thread.process
        GROUP BY work."globalPid", work.device ORDER BY work.device, work."globalPid"
        """,
    )
    told = names.from_file_name(job.file_name)
    by_name = [names.coordinates(thread or name or "") for _, name, thread in found]
    ranks = [c.get("tp") for c in by_name]
    is_told = all(r is not None for r in ranks) and len(set(ranks)) == len(ranks)
    made = []
    for order, (global_pid, name, _) in enumerate(found):
        rank: int | None
        source: str | None
        if len(found) == 1 and told.rank is not None:
            rank, source = told.rank, "file_name"
        elif is_told:
            rank, source = ranks[order], "process_name"
        elif len(found) > 1:
            rank, source = order, "process_order"
        else:
            rank, source = None, None
        pid = None if global_pid is None else (global_pid >> 24) & 0xFFFFFF
        suffix = "" if len(found) == 1 else f"-{pid if pid is not None else 'none'}"
        made.append(_Process(job.file_id + suffix, global_pid, name, rank, source, by_name[order]))
    return made


def _offset(con: duckdb.DuckDBPyConnection, facts: dict[str, str]) -> tuple[int, int | None]:
    """(what to add to every time, base_ns for the books). A normalised export holds UTC already: adding again would double it."""
    epoch = scalar(con, 'SELECT min("utcEpochNs") FROM nsys."TARGET_INFO_SESSION_START_TIME"')
    shift = facts.get("EXPORT_PARAM_TIME_SHIFT") or "0"
    shift_ns = int(shift) if shift.lstrip("-").isdigit() else 0
    latest = scalar(con, 'SELECT max("start") FROM nsys.gpu') or 0
    if facts.get("EXPORT_PARAM_TIME_NORMALIZE") == "true" or latest >= _ABSOLUTE_NS:
        return -shift_ns, None if epoch is None else 0
    return (epoch or 0) - shift_ns, epoch


def _define_events(con: duckdb.DuckDBPyConnection, processes: list[_Process], offset: int) -> None:
    """trace_of: process to trace; gpu: rows with trace, time since the epoch and the reason to leave one out."""
    values = ", ".join(f"({literal(p.global_pid)}::BIGINT, {literal(p.trace_id)}, {literal(p.rank)}::INTEGER)" for p in processes)
    con.execute(f'CREATE TEMP TABLE trace_of AS FROM (VALUES {values}) AS process ("globalPid", trace_id, rank)')
    con.execute(
        f"""
        CREATE VIEW gpu AS
        SELECT trace_of.trace_id, trace_of.rank, gpu.* EXCLUDE ("start", "end", "globalPid"), "start" + {offset} AS start_ns,
            "end" - "start" AS dur_ns,
            CASE WHEN "start" IS NULL THEN 'no_timestamp'
                 WHEN "start" = 0 AND coalesce("end", 0) = 0 THEN 'zero_timestamp'
                 WHEN "end" IS NULL THEN 'no_duration'
                 WHEN "end" < "start" THEN 'negative_duration' END AS reason
        FROM nsys.gpu AS gpu JOIN trace_of ON gpu."globalPid" IS NOT DISTINCT FROM trace_of."globalPid"
        """
    )


_IDENTITY = (
    "device",
    "stream",
    "start_ns",
    "dur_ns",
    "name",
    "correlation",
    "context",
    "graph_id",
    "graph_node_id",
    "grid",
    "block",
    "bytes",
    "kind",
)


def _land_activities(con: duckdb.DuckDBPyConnection, job: ReadJob, processes: list[_Process]) -> None:
    order = ", ".join(("trace_id", *_IDENTITY))
    con.execute(f"CREATE VIEW placed AS SELECT *, row_number() OVER (PARTITION BY {order}) AS copy FROM gpu WHERE reason IS NULL")
    _write(
        con,
        job,
        "gpu_activity",
        f"""SELECT * EXCLUDE (reason, copy), NULL AS external_id, NULL AS collective_name, NULL AS dtype, NULL AS in_msg_nelems,
            NULL AS out_msg_nelems, NULL AS group_size, NULL AS process_group, NULL AS process_group_ranks, NULL AS seq,
            row_number() OVER (PARTITION BY trace_id ORDER BY {order}) - 1 AS activity_id
            FROM placed WHERE copy = 1""",
    )


def _land_cpu_side(con: duckdb.DuckDBPyConnection, job: ReadJob, offset: int) -> None:
    con.execute(
        """CREATE TEMP TABLE process_trace AS
        SELECT process_key("globalPid") AS process, "globalPid" IS NULL AND count(*) OVER () = 1 AS is_only, trace_id FROM trace_of"""
    )
    # A report without globalPid is one process; its calls belong to it whatever thread id they carry.
    owner = "(process_trace.is_only OR process_key({0}) = process_trace.process)"
    con.execute(
        f"""
        CREATE VIEW call AS
        SELECT process_trace.trace_id, call."correlationId" AS correlation, NULL AS external_id,
            coalesce(regexp_replace(string.value, '_v[0-9]+$', ''), '') AS name,
            pid_of("globalTid") AS pid, tid_of("globalTid") AS tid,
            "start" + {offset} AS start_ns, "end" - "start" AS dur_ns
        FROM nsys."CUPTI_ACTIVITY_KIND_RUNTIME" AS call
        LEFT JOIN process_trace ON {owner.format('call."globalTid"')}
        LEFT JOIN nsys."StringIds" AS string ON call."nameId" = string.id
        """
    )
    _write(con, job, "launch", "FROM call WHERE trace_id IS NOT NULL AND start_ns IS NOT NULL")
    con.execute(
        f"""
        CREATE VIEW range AS
        WITH domain AS (
            SELECT process_key(nvtx."globalTid") AS process, "domainId", any_value(coalesce(nvtx.text, string.value)) AS name
            FROM nsys."NVTX_EVENTS" AS nvtx LEFT JOIN nsys."StringIds" AS string ON nvtx."textId" = string.id
            WHERE "eventType" = 75 GROUP BY ALL
        ),
        session AS (SELECT max(duration) AS duration FROM nsys."ANALYSIS_DETAILS")
        SELECT process_trace.trace_id, NULL AS external_id, coalesce(nvtx.text, string.value, '') AS name, 'cpu' AS side, domain.name AS domain,
            NULL AS device, pid_of(nvtx."globalTid") AS pid, tid_of(nvtx."globalTid") AS tid, NULL AS stream,
            nvtx."start" + {offset} AS start_ns,
            coalesce(nvtx."end" IS NULL OR nvtx."end" = session.duration, false) AS is_open,
            CASE WHEN NOT is_open THEN nvtx."end" - nvtx."start" END AS dur_ns
        FROM nsys."NVTX_EVENTS" AS nvtx
        CROSS JOIN session
        LEFT JOIN process_trace ON {owner.format('nvtx."globalTid"')}
        LEFT JOIN nsys."StringIds" AS string ON nvtx."textId" = string.id
        LEFT JOIN domain ON process_key(nvtx."globalTid") = domain.process AND nvtx."domainId" = domain."domainId"
        WHERE nvtx."eventType" IN (59, 60)
        """
    )
    _write(con, job, "annotation", "FROM range WHERE trace_id IS NOT NULL AND start_ns IS NOT NULL")


def _issue_rows(con: duckdb.DuckDBPyConnection, export: Export, processes: list[_Process], book: IssueBook) -> list[tuple[Any, ...]]:
    first = literal(processes[0].trace_id)
    found = rows(
        con,
        f"""
        SELECT trace_id, reason, kind, count(*), sum(dur_ns)::BIGINT, min(name) FROM gpu WHERE reason IS NOT NULL GROUP BY ALL
        UNION ALL SELECT trace_id, 'duplicate_event', kind, count(*), sum(dur_ns)::BIGINT, min(name) FROM placed WHERE copy > 1 GROUP BY ALL
        UNION ALL SELECT trace_id, 'opaque_graph', kind, count(*), sum(dur_ns)::BIGINT, min(name)
            FROM gpu WHERE kind = 'graph' AND reason IS NULL GROUP BY ALL
        UNION ALL SELECT {first}, 'other_process', 'launch', count(*), NULL, NULL FROM call WHERE trace_id IS NULL HAVING count(*) > 0
        UNION ALL SELECT {first}, 'other_process', 'nvtx', count(*), NULL, NULL FROM range WHERE trace_id IS NULL HAVING count(*) > 0
        UNION ALL SELECT {first}, 'no_start', 'launch', count(*), NULL, NULL
            FROM call WHERE trace_id IS NOT NULL AND start_ns IS NULL HAVING count(*) > 0
        UNION ALL SELECT {first}, 'nvtx_record', 'nvtx', count(*), NULL, NULL FROM nsys."NVTX_EVENTS"
            WHERE "eventType" IS NULL OR "eventType" NOT IN (59, 60) HAVING count(*) > 0
        UNION ALL SELECT trace_id, 'open_range', 'nvtx', count(*), NULL, min(name)
            FROM range WHERE is_open AND trace_id IS NOT NULL GROUP BY ALL
        UNION ALL SELECT {first}, 'profiler_warning', 'diagnostic', count(*), NULL, NULL
            FROM nsys."DIAGNOSTIC_EVENT" WHERE severity > 1 HAVING count(*) > 0
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
    made = [(t, code, cls, issue_codes()[code]["severity"], n, dur, ex and ex[:200]) for t, code, cls, n, dur, ex in found]
    return made + [(processes[0].trace_id, *row) for row in book.rows()]


def _land_trace(con: duckdb.DuckDBPyConnection, job: ReadJob, export: Export, processes: list[_Process], base: int | None) -> None:
    now = datetime.now(UTC).replace(tzinfo=None)
    gpus = dict(rows(con, """SELECT coalesce("cuDevice", id), name FROM nsys."TARGET_INFO_GPU" WHERE name IS NOT NULL"""))
    known = []
    for p in processes:
        device = scalar(con, f"SELECT mode(device) FROM gpu WHERE trace_id = {literal(p.trace_id)}")
        gpu_name = gpus.get(device) or next(iter(gpus.values()), None)
        pid = None if p.global_pid is None else (p.global_pid >> 24) & 0xFFFFFF
        c = p.coordinates
        known.append((p.trace_id, p.rank, p.rank_source, c.get("dp"), c.get("tp"), c.get("pp"), c.get("ep"), pid, p.name, gpu_name))
    values = ", ".join("(" + ", ".join(map(literal, row)) + ")" for row in known)
    landed = {t: f"read_parquet({literal(job.out / f'{t}.parquet')}, hive_partitioning = false)" for t in ("gpu_activity", "launch", "annotation")}
    kept = " UNION ALL ".join(f"SELECT trace_id FROM {scan}" for scan in landed.values())
    # Every row of the event tables is counted once; rows of no trace (other processes, marks, counted tables) with the first.
    everything = sum(export.counted.values()) + sum(
        scalar(con, f"SELECT count(*) FROM {view}") for view in ("nsys.gpu", 'nsys."CUPTI_ACTIVITY_KIND_RUNTIME"', 'nsys."NVTX_EVENTS"')
    )
    first = literal(processes[0].trace_id)
    con.execute(f"CREATE TEMP TABLE known AS FROM (VALUES {values}) AS known (trace_id, rank, rank_source, dp_rank, tp_rank, pp_rank, ep_rank, pid, "
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
            NULL AS host, 'nvidia' AS vendor, {literal(base)} AS base_ns, span.* EXCLUDE (trace_id),
            own.events + CASE WHEN trace_id = {first} THEN {everything} - (SELECT sum(events) FROM own)::BIGINT ELSE 0 END AS events_read,
            kept.events_kept, gpu_read.* EXCLUDE (trace_id), {literal(str(now))}::TIMESTAMP AS ingested_at,
            {literal(__version__)} AS stepledger_version, false AS is_truncated
        FROM known JOIN span USING (trace_id) JOIN own USING (trace_id) JOIN gpu_read USING (trace_id) JOIN kept USING (trace_id)
        """,
    )


def _write(con: duckdb.DuckDBPyConnection, job: ReadJob, table: str, query: str) -> None:
    """One raw table to Parquet, cast to its contract."""
    select = contracts("raw")[table].select_list()
    order = " ORDER BY trace_id, activity_id" if table == "gpu_activity" else ""
    con.execute(f"COPY (SELECT {select} FROM ({query}){order}) TO {literal(job.out / f'{table}.parquet')} (FORMAT parquet, COMPRESSION zstd)")
