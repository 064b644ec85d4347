"""Refusals of staged events that are not the trace of one GPU process."""

from __future__ import annotations

import duckdb

from pipeline.duck import rows as rows_of
from pipeline.duck import scalar
from pipeline.errors import TraceError


def mixed_processes(con: duckdb.DuckDBPyConnection, file: str) -> None:
    """Raise TraceError if processes without a merged prefix share correlation ids, which link launches."""
    calls = "FROM staged WHERE kind = 'launch' AND correlation <> 0"
    if not scalar(
        con,
        (
            "SELECT bool_or(first <> last) "
            f"FROM (SELECT min(pid) AS first, max(pid) AS last {calls} GROUP BY process)"
        ),
    ):
        return
    again = f"SELECT process, correlation {calls} GROUP BY ALL HAVING count(DISTINCT pid) > 1"
    if shared := scalar(con, f"SELECT count(*) FROM ({again})"):
        pids = [
            row[0]
            for row in rows_of(con, f"SELECT DISTINCT pid {calls} AND pid IS NOT NULL ORDER BY pid LIMIT 8")
        ]
        raise TraceError(
            file,
            where="traceEvents",
            found=f"launches of processes {pids} with {shared} correlation ids in common",
            wanted="one process per file, or pids with a prefix per rank",
            advice="Several ranks were merged into one file and cannot be separated: use one file per rank.",
        )


def no_device(file: str) -> TraceError:
    """The refusal of a truncated file that does not say on which device its work ran."""
    return TraceError(
        file,
        where="traceEvents",
        found="the end of the file, and GPU activities of no known device before it",
        wanted="a device in their arguments, or as their pid",
        advice="The copy is truncated: copy or record it again.",
    )


def no_gpu_work(
    con: duckdb.DuckDBPyConnection, file: str, kinds: dict[str, int], *, is_truncated: bool
) -> TraceError:
    """The refusal of events without GPU work, with the kind of file, or why its GPU work is missing."""
    total, cpu_side = (
        sum(kinds.values()),
        sum(kinds.get(kind, 0) for kind in ("launch", "cpu_op", "annotation_cpu")),
    )
    classes = {
        row[0]
        for row in rows_of(con, "SELECT DISTINCT event_class FROM staged WHERE event_class IS NOT NULL")
    }
    found = f"no kernel, memcpy or memset among {total} events"
    advice = "Record with ProfilerActivity.CUDA switched on, in the worker process that owns the GPU."
    if is_truncated:
        found, advice = (
            f"{found}, and the end of the file",
            "The file ends before its GPU work: copy or record it again.",
        )
    elif classes & {"async_npu", "HostToDevice"}:
        found, advice = (
            "a trace_view.json of an Ascend NPU",
            "Only traces of NVIDIA and AMD GPUs can be read.",
        )
    elif kinds.get("other_event", 0) * 2 > total:
        found = f"events of unknown categories {sorted(classes)[:6]}"
    elif cpu_side:
        launches = scalar(
            con,
            (
                "SELECT count(*) FROM staged WHERE kind = 'launch' AND regexp_matches(name, "
                "'Launch|Memcpy|Memset')"
            ),
        )
        there = (
            f"{launches} CUDA/HIP calls launched GPU work"
            if launches
            else f"{cpu_side} operators, calls and annotations are there"
        )
        found += f", though {there}"
        advice = (
            "The profiler recorded the CPU side only: CUPTI did not start. Check that the libcupti of this "
            "CUDA version "
            "can be loaded, that no other profiler (nsys, DCGM) holds the GPU, and that profiling is allowed "
            "for this user "
            "(NVreg_RestrictProfilingToAdminUsers=0); then record again with ProfilerActivity.CUDA switched "
            "on."
        )
    return TraceError(file, where="traceEvents", found=found, wanted="GPU activities", advice=advice)
