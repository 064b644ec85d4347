"""Which rank, process and device each trace of a file is of."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

import duckdb

from pipeline.duck import scalar
from pipeline.sources import names
from pipeline.sources.job import ReadJob
from pipeline.sources.kineto.header import Header
from pipeline.sources.landing import Trace


def trace_ids(job: ReadJob, processes: list[str | None]) -> dict[str | None, str]:
    """Merged prefix to trace_id, in the order of the prefixes; None stands for events without a prefix."""
    if len(processes) == 1:
        return {processes[0]: job.file_id}
    return {process: f"{job.file_id}-{_label(process) or 'rest'}" for process in processes}


def _label(process: str | None) -> str:
    label = re.sub(r"[^A-Za-z0-9._-]", "_", process or "")
    if process is not None and (label != process or label in {"", "rest"}):
        # Two prefixes may differ in replaced characters only.
        label += f"-{hashlib.sha256(process.encode()).hexdigest()[:8]}"
    return label


def identify(
    con: duckdb.DuckDBPyConnection,
    job: ReadJob,
    header: Header,
    trace_id: str,
    process: str | None,
    device: int | None,
    base_ns: int | None,
) -> Trace:
    """The trace of one merged prefix; `device` is the one with most activities."""
    pid = scalar(
        con,
        "SELECT mode(pid) FROM staged WHERE kind = 'launch' AND process IS NOT DISTINCT FROM $1",
        [process],
    )
    process_name = scalar(
        con,
        """
        SELECT any_value(label) FROM staged
        WHERE kind = 'metadata' AND name = 'process_name' AND pid = $1 AND process IS NOT DISTINCT FROM $2
        """,
        [pid, process],
    )
    in_file_name = names.from_file_name(job.file_name)
    in_process = names.coordinates(process or process_name or "")
    either = replace(
        in_file_name,
        dp=in_process.get("dp", in_file_name.dp),
        tp=in_process.get("tp", in_file_name.tp),
        pp=in_process.get("pp", in_file_name.pp),
        ep=in_process.get("ep", in_file_name.ep),
    )
    rank, rank_source = _rank(header, process, process_name, in_process, either)
    gpu_names = header.device_names
    of_device = None if device is None else gpu_names.get(device)
    gpu_name = of_device or next(iter(gpu_names.values()), None)
    return Trace(
        trace_id=trace_id,
        rank=rank,
        rank_source=rank_source if rank is not None else None,
        world_size=header.distributed("world_size"),
        dp_rank=either.dp,
        tp_rank=either.tp,
        pp_rank=either.pp,
        ep_rank=either.ep,
        host=header.host or in_file_name.host,
        pid=pid,
        process_name=process_name,
        vendor=_vendor(header, gpu_name),
        gpu_name=gpu_name,
        base_ns=base_ns,
    )


def _rank(
    header: Header,
    process: str | None,
    process_name: str | None,
    in_process: dict[str, int],
    either: names.NameFields,
) -> tuple[int | None, str | None]:
    """The rank and what gave it. `either`: coordinates in the process name, else in the file name.

    Merged prefix, else distributedInfo, else file name, else process name, else unknown."""
    distributed = header.distributed("rank")
    if process is not None:
        return in_process.get("tp"), "process_prefix"
    if distributed is not None:
        return distributed, "distributed_info"
    if either.rank is not None:
        return either.rank, "file_name"
    if "_TP" in (process_name or "") and not {"dp", "pp"} & in_process.keys():
        return in_process.get("tp"), "process_name"
    if either.tp is not None and not either.dp and not either.pp:
        return either.tp, "file_name"
    return None, None


def _vendor(header: Header, gpu_name: str | None) -> str | None:
    keys = " ".join(header.values)
    if "hip_" in keys or "roctracer" in keys or re.search(r"AMD|Instinct|Radeon", gpu_name or ""):
        return "amd"
    nvidia = re.search(r"NVIDIA|Tesla|Quadro|GeForce|[AHB][12]00", gpu_name or "")
    return "nvidia" if "cuda_" in keys or "cupti" in keys or nvidia else None
