"""The processes of a report with GPU work: one trace each, its rank taken from names or from their order."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import duckdb

from pipeline.duck import rows
from pipeline.errors import TraceError
from pipeline.sources import names
from pipeline.sources.issues import EXAMPLE_CHARS
from pipeline.sources.job import ReadJob
from pipeline.sources.landing import Trace, devices, nothing_booked

MOST_PROCESSES = 1_024
"""Each is a trace of its own, with files and keys of its own; a report is of one machine."""
_LETTERS = 4_096
"""Characters of a name that are read: paths are not longer, and a name may be megabytes."""
_PROGRAM = re.compile(r"[\w.:+-]{1,64}", re.ASCII)


@dataclass(frozen=True)
class Process:
    """One process with GPU work: one trace."""

    trace_id: str
    global_pid: int | None
    name: str | None
    rank: int | None
    rank_source: str | None
    coordinates: dict[str, int]
    gpu: int | None

    @property
    def pid(self) -> int | None:
        """The process id that the operating system gave, without host and VM."""
        return None if self.global_pid is None else _pid(self.global_pid)


def find_processes(con: duckdb.DuckDBPyConnection, job: ReadJob) -> list[Process]:
    """Processes with GPU work that can be booked, in the order of GPU and pid.

    The rank comes from the name of the file, the thread or the process, else from that order. Raises
    TraceError if there are no such processes, or too many.
    """
    found = rows(
        con,
        f"""
        WITH work AS (
            SELECT "globalPid", min(device) AS device FROM nsys.gpu WHERE reason IS NULL GROUP BY "globalPid"
        ),
        thread AS (
            SELECT process_key("globalTid") AS process, max(string.value) AS name
            FROM nsys."ThreadNames" AS thread
            JOIN nsys."StringIds" AS string ON thread."nameId" = string.id
            WHERE regexp_matches(string.value, '(TP|DP|PP|EP)[0-9]') GROUP BY process
        ),
        gpu AS (
            SELECT pid, "cudaId" AS device, min("gpuId") AS gpu
            FROM nsys."TARGET_INFO_CUDA_DEVICE" GROUP BY ALL
        )
        SELECT work."globalPid", left(min(process.name), {_LETTERS}), left(min(thread.name), {_LETTERS}),
            min(gpu.gpu)
        FROM work
        LEFT JOIN nsys."PROCESSES" AS process ON work."globalPid" = process_key(process."globalPid")
        LEFT JOIN thread ON work."globalPid" = thread.process
        LEFT JOIN gpu ON pid_of(work."globalPid") = gpu.pid AND work.device = gpu.device
        GROUP BY work."globalPid", work.device
        ORDER BY coalesce(min(gpu.gpu), work.device), (work."globalPid" >> 48) & 65535, work."globalPid"
        LIMIT {MOST_PROCESSES + 1}
        """,
    )
    if not found:
        raise _no_gpu_work(con, job.file_name)
    if len(found) > MOST_PROCESSES:
        raise TraceError(
            job.file_name,
            where="its tables",
            found=f"more than {MOST_PROCESSES} processes with GPU work",
            wanted="the report of one machine",
            advice="Export the report again.",
        )
    by_thread = [names.coordinates(thread or "") for _, _, thread, _ in found]
    by_name = [names.coordinates(_program(name) or "") for _, name, _, _ in found]
    rank_of, source = _ranks(job.file_name, by_thread, by_name)
    pids = Counter(_pid(g) for g, _, _, _ in found if g is not None)
    return [
        Process(
            trace_id=job.file_id + ("" if len(found) == 1 else _suffix(global_pid, pids)),
            global_pid=global_pid,
            name=_program(name),
            rank=rank_of[at],
            rank_source=source,
            coordinates=by_thread[at] or by_name[at],
            gpu=gpu,
        )
        for at, (global_pid, name, _, gpu) in enumerate(found)
    ]


def traces_of(con: duckdb.DuckDBPyConnection, processes: list[Process], base_ns: int | None) -> list[Trace]:
    """A trace per process, with the name of its GPU."""
    by_ordinal, by_gpu = (
        dict(
            rows(
                con,
                f"""
                SELECT {key}, left(min(name), {EXAMPLE_CHARS})
                FROM nsys."TARGET_INFO_GPU" WHERE name IS NOT NULL
                GROUP BY ALL ORDER BY ALL LIMIT {MOST_PROCESSES}
                """,
            )
        )
        for key in ('coalesce("cuDevice", id)', "id")
    )
    any_name = next(iter(by_ordinal.values()), None)
    device_of = devices(con)
    return [
        Trace(
            trace_id=p.trace_id,
            rank=p.rank,
            rank_source=p.rank_source,
            world_size=len(processes) if len(processes) > 1 else None,
            dp_rank=p.coordinates.get("dp"),
            tp_rank=p.coordinates.get("tp"),
            pp_rank=p.coordinates.get("pp"),
            ep_rank=p.coordinates.get("ep"),
            pid=p.pid,
            process_name=p.name,
            vendor="nvidia",
            gpu_name=by_gpu.get(p.gpu) or by_ordinal.get(device_of.get(p.trace_id)) or any_name,
            base_ns=base_ns,
        )
        for p in processes
    ]


def _ranks(
    file_name: str, by_thread: list[dict[str, int]], by_name: list[dict[str, int]]
) -> tuple[list[int | None], str | None]:
    """The rank of each process and its source: names if each gives a different rank, else the order."""
    in_file_name = names.from_file_name(file_name).rank
    if len(by_name) == 1 and in_file_name is not None:
        return [in_file_name], "file_name"
    for coordinates, source in ((by_thread, "thread_name"), (by_name, "process_name")):
        ranks = [c.get("tp") for c in coordinates]
        if None not in ranks and len(set(ranks)) == len(ranks):
            return ranks, source
    if len(by_name) > 1:
        return list(range(len(by_name))), "process_order"
    return [None], None


def _program(name: str | None) -> str | None:
    """The name of the program or process. Paths and arguments are removed: they may hold passwords."""
    words = (name or "").split()
    if not words:
        return None
    program = re.split(r"[/\\]", words[0])[-1]
    return program if _PROGRAM.fullmatch(program) else None


def _pid(global_pid: int) -> int:
    return (global_pid >> 24) & 0xFFFFFF


def _suffix(global_pid: int | None, pids: Counter[int]) -> str:
    if global_pid is None:
        return "-none"
    pid = _pid(global_pid)
    return f"-{pid}" if pids[pid] == 1 else f"-{(global_pid >> 48) & 0xFFFF}.{pid}"


def _no_gpu_work(con: duckdb.DuckDBPyConnection, file: str) -> TraceError:
    unusable = rows(con, "SELECT count(*) FROM nsys.gpu")[0][0]
    if unusable:
        return nothing_booked(file, "its tables", f"{unusable} GPU activities")
    return TraceError(
        file,
        where="its tables",
        found="no kernel, memcpy or memset",
        wanted="GPU activities",
        advice=(
            "Record with `nsys profile --trace=cuda,nvtx` (vLLM: VLLM_WORKER_MULTIPROC_METHOD=spawn) "
            "while the GPU works."
        ),
    )
