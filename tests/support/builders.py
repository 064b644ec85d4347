"""The smallest valid traces: events as torch.profiler writes them, and helpers to take them through the
pipeline.

Times are given in nanoseconds and written in microseconds with three decimals, relative to BASE_NS, as torch
>= 2.4 does.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

import duckdb

from pipeline import duck
from pipeline.ingest.execution import Outcome
from pipeline.ingest.inbox import InboxItem
from pipeline.ingest.ingest import ingest
from pipeline.lake.home import Home
from pipeline.models.engine import models, prepare
from pipeline.models.rules import load_rules
from pipeline.progress import Progress
from pipeline.sources.job import ReadJob
from pipeline.sources.kineto.reader import read_kineto

BASE_NS = 1_790_857_026_000_000_000
PID, TID = 1000, 1001
DECODE = "execute_context_0(0)_generation_1(1)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"
MARLIN_MOE = (
    "void marlin_moe_wna16::Marlin<1125899906909960l, 128, 1, 8, 4, true, 4, 8, false>(int4 const*, "
    "int4 const*)"
)


class Microseconds(float):
    """A JSON number with exactly three decimals."""

    def __new__(cls, ns: int) -> Self:
        """A number of nanoseconds, written in microseconds."""
        made = super().__new__(cls, ns / 1000)
        made.ns = ns
        return made

    ns: int

    def __repr__(self) -> str:
        return str(Decimal(self.ns).scaleb(-3))


def us(ns: int) -> Microseconds:
    """Nanoseconds as a JSON number of microseconds."""
    return Microseconds(ns)


def event(
    cat: str, name: str, start_ns: int, dur_ns: int, *, pid: Any = PID, tid: Any = TID, **args: Any
) -> dict[str, Any]:
    """A complete event; argument names with `_` for blanks (`External_id`)."""
    made: dict[str, Any] = {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": us(start_ns),
        "dur": us(dur_ns),
    }
    if args:
        made["args"] = {key.replace("_", " "): value for key, value in args.items()}
    return made


def kernel(
    name: str,
    start_ns: int,
    dur_ns: int,
    correlation: int | None = None,
    *,
    device: int = 0,
    stream: int = 7,
    **args: Any,
) -> dict[str, Any]:
    """A kernel on the GPU."""
    return event(
        "kernel",
        name,
        start_ns,
        dur_ns,
        pid=device,
        tid=stream,
        device=device,
        stream=stream,
        **_link(correlation),
        **args,
    )


def memcpy(
    name: str,
    start_ns: int,
    dur_ns: int,
    correlation: int | None = None,
    *,
    device: int = 0,
    stream: int = 7,
    **args: Any,
) -> dict[str, Any]:
    """A copy on the GPU."""
    return event(
        "gpu_memcpy",
        name,
        start_ns,
        dur_ns,
        pid=device,
        tid=stream,
        device=device,
        stream=stream,
        **_link(correlation),
        **args,
    )


def _link(correlation: int | None) -> dict[str, int]:
    return {} if correlation is None else {"correlation": correlation}


def launch(
    start_ns: int, correlation: int, name: str = "cudaLaunchKernel", *, dur_ns: int = 5_000, tid: int = TID
) -> dict[str, Any]:
    """A runtime call on the CPU."""
    return event("cuda_runtime", name, start_ns, dur_ns, tid=tid, correlation=correlation)


def operator(
    name: str, start_ns: int, dur_ns: int, external_id: int = 1, *, tid: int = TID, **args: Any
) -> dict[str, Any]:
    """An operator on the CPU."""
    return event("cpu_op", name, start_ns, dur_ns, tid=tid, External_id=external_id, **args)


def annotation(
    name: str, start_ns: int, dur_ns: int, external_id: int = 1, *, tid: int = TID
) -> dict[str, Any]:
    """A user annotation on the CPU."""
    return event("user_annotation", name, start_ns, dur_ns, tid=tid, External_id=external_id)


def header(rank: int | None = 0, world_size: int = 1, **extra: Any) -> dict[str, Any]:
    """Top-level keys before traceEvents in torch >= 2.8."""
    made: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [
            {"id": d, "name": "NVIDIA H200", "totalGlobalMem": 1} for d in range(max(world_size, 1))
        ],
        "cuda_runtime_version": 13000,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
    }
    if rank is not None:
        made["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world_size}
    return made | extra


def trace_json(
    events: Iterable[Any], head: dict[str, Any] | None = None, tail: dict[str, Any] | None = None
) -> bytes:
    """A trace file: the head's keys, the events, the tail's keys."""
    parts = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in (header() if head is None else head).items()]
    parts.append('"traceEvents": [\n' + ",\n".join(f"  {json.dumps(e)}" for e in events) + "\n]")
    parts += [
        f"{json.dumps(k)}: {json.dumps(v)}"
        for k, v in ({"traceName": "t.json"} if tail is None else tail).items()
    ]
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode()


def write_trace(
    path: Path, events: Iterable[Any], head: dict[str, Any] | None = None, tail: dict[str, Any] | None = None
) -> Path:
    """Write a trace; a name that ends in .gz is compressed."""
    data = trace_json(events, head, tail)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


@dataclass
class StepBuilder:
    """Decode steps of one rank, one after another: an annotation, launches in it, kernels on the GPU."""

    events: list[dict[str, Any]] = field(default_factory=list)
    now_ns: int = 1_000_000
    correlation: int = 0

    def step(
        self,
        kernels: list[tuple[str, int]],
        label: str = DECODE,
        *,
        gap_ns: int = 1_000,
        lead_ns: int = 50_000,
        graph: bool = False,
    ) -> StepBuilder:
        """Add a step of (name, dur_ns) kernels, `gap_ns` apart, launched `lead_ns` before they start;
        `graph`: by one replay."""
        begin = self.now_ns
        self.events.append(annotation(label, begin, lead_ns // 2, external_id=begin))
        at = begin + lead_ns
        if graph:
            self.correlation += 1
            self.events.append(launch(begin + 1_000, self.correlation, "cudaGraphLaunch"))
        for number, (name, dur_ns) in enumerate(kernels):
            if not graph:
                self.correlation += 1
                self.events.append(launch(begin + 1_000 + number, self.correlation, dur_ns=0))
            self.events.append(kernel(name, at, dur_ns, self.correlation))
            at += dur_ns + gap_ns
        self.now_ns = at
        return self


def read_raw(path: Path, folder: Path, **options: Any) -> Path:
    """Read one trace into `folder`/run/file_id=F (file_id from the name); returns the run's folder for
    `build_tables`."""
    file_id = path.name.split(".")[0]
    out, work = folder / "run" / f"file_id={file_id}", folder / f"work-{file_id}"
    out.mkdir(parents=True)
    work.mkdir()
    read_kineto(ReadJob(path, path.name, file_id, path.stat().st_size, "0" * 64, "run", out, work), **options)
    return folder / "run"


def raw_rows(folder: Path, table: str, columns: str = "*", order: str = "ALL") -> list[tuple[Any, ...]]:
    """Rows of a raw table written by read_raw."""
    scan = f"read_parquet('{folder}/run/*/{table}.parquet', hive_partitioning = false)"
    with duckdb.connect() as con:
        return duck.rows(con, f"SELECT {columns} FROM {scan} ORDER BY {order}")


def build_tables(run_folder: Path, spill: Path) -> duckdb.DuckDBPyConnection:
    """A connection with every model of the run built as a table, to be queried by tests."""
    con = duck.working(spill, threads=2, memory_limit="1GB")
    prepare(con, run_folder, "run", load_rules(), "build", "inputs")
    for model in models():
        con.execute(f"CREATE TABLE {model.name} AS {model.sql}")
    return con


def build_from(folder: Path, *ranks: Iterable[Any]) -> duckdb.DuckDBPyConnection:
    """Write one trace per list of events (rank 0, 1, ...), read them all and build every model."""
    run = folder
    for rank, events in enumerate(ranks):
        path = write_trace(folder / f"r{rank}.json", events, header(rank, len(ranks)))
        run = read_raw(path, folder)
    return build_tables(run, folder / "spill")


def ingest_into(home: Home, *paths: Path, run: str = "run") -> Outcome:
    """Ingest files into a home, as the command does."""
    return ingest(home, [InboxItem(p, run, Path(run) / p.name) for p in paths], Progress(quiet=True))
