"""Small nsys exports of five schemas, from one list of plain events: sqlite files, parquetdir and arrowdir
folders.

Columns are those that nsys writes (2023.4 in full, other versions by their differences). Times are
nanoseconds since the session began, which was EPOCH_NS. A test changes the tables (drops a column, adds a
row) before it writes them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from pipeline.sources.job import ReadJob
from pipeline.sources.nsys import read_nsys

Version = Literal["2021", "2022.4", "2023.4", "2024", "2026"]
VERSIONS: tuple[Version, ...] = ("2021", "2022.4", "2023.4", "2024", "2026")
EPOCH_NS = 1_795_968_988_619_582_579
DURATION_NS = 10_000_000
DECODE = "execute_context_0(0)_generation_1(1)"
PREFILL = "execute_context_1(512)_generation_0(0)"
GEMM = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
MARLIN = "void marlin_moe_wna16::Marlin<(long)1125899906909960, (int)128, (bool)1>(const int4 *, int4 *)"
STRANGE = "mystery_kernel_of_nobody"

_LANE = "start! end! deviceId! contextId!:u greenContextId:u streamId!:u correlationId globalPid:u"
_DDL = {
    "CUPTI_ACTIVITY_KIND_KERNEL": f"""{_LANE} demangledName!:u shortName!:u mangledName:u
        launchType cacheConfig registersPerThread! gridX!:i gridY!:i gridZ!:i blockX!:i blockY!:i blockZ!:i
        staticSharedMemory!:i dynamicSharedMemory!:i localMemoryPerThread!:i localMemoryTotal!:i gridId!
        sharedMemoryExecuted graphNodeId:u sharedMemoryLimitConfig""",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"""{_LANE} bytes!:u copyKind!:u deprecatedSrcId srcKind
        dstKind srcDeviceId srcContextId dstDeviceId dstContextId migrationCause graphNodeId:u
        virtualAddress:u""",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_LANE} value! bytes!:u graphNodeId:u memKind",
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start! end! eventClass! globalTid:u correlationId nameId!:u "
                                    "returnValue! "
                                   "callchainId"),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_LANE} syncType! eventId!",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_LANE} graphId!:u graphExecId!:u",
    "CUDA_GRAPH_EVENTS": "start! end! eventClass! globalTid:u nameId!:u graphNodeId!:u originalGraphNodeId:u",
    "CUDA_GRAPH_NODE_EVENTS": ("start! end! eventClass! globalTid:u nameId!:u graphNodeId!:u "
                              "originalGraphNodeId:u"),
    "NVTX_EVENTS": """start! end eventType! rangeId:u category:u color text:t globalTid:u endGlobalTid:u
        textId domainId:u uint64Value:u int64Value doubleValue:f uint32Value int32Value:i floatValue:f
        jsonTextId jsonText:t""",
    "StringIds": "id!:i value!:t",
    "TARGET_INFO_GPU": ("vmId! id! name:t busLocation:t isDiscrete:b smCount uuid:t cuDevice:i computeMajor "
                       "computeMinor"),
    "TARGET_INFO_CUDA_DEVICE": "gpuId! cudaId! pid! uuid:t numMultiprocessors",
    "TARGET_INFO_CUDA_CONTEXT_INFO": ("nullStreamId! hwId! vmId! processId! deviceId! contextId! "
                                     "parentContextId isGreenContext:b"),
    "TARGET_INFO_CUDA_NULL_STREAM": "streamId! hwId! vmId! processId! deviceId! contextId!",
    "TARGET_INFO_SYSTEM_ENV": "globalVid:u devStateName!:t name!:t nameEnum! value!:t",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs:u utcTime:t localTime:t",
    "ANALYSIS_DETAILS": "globalVid!:u duration!:u startTime!:u stopTime!:u",
    "META_DATA_EXPORT": "name!:t value:t",
    "META_DATA_CAPTURE": "name!:t value:t",
    "EXPORT_META_DATA": "name!:t value:t",
    "PROCESSES": "globalPid:u pid:u name:t",
    "ThreadNames": "nameId! priority globalTid:u",
    "ProcessStreams": "globalPid!:u filenameId! contentId!",
    "PROFILER_OVERHEAD": "start! end! globalTid:u nameId!:u returnValue!",
    "DIAGNOSTIC_EVENT": "timestamp! timestampType! source! severity! text!:t globalPid:u",
    "ENUM_CUDA_KERNEL_LAUNCH_TYPE": "id! name:t label:t",
    "ENUM_CUDA_KRENEL_LAUNCH_TYPE": "id! name:t label:t",
    "ENUM_NSYS_EVENT_TYPE": "id! name:t label:t",
}  # fmt: skip
"""`!` is NOT NULL; `:u` unsigned 64 bits, `:i` 32 bits, `:b` boolean, `:f` double, `:t` text, else 64
bits."""

_ARROW = {
    "u": pa.uint64(),
    "i": pa.int32(),
    "b": pa.bool_(),
    "f": pa.float64(),
    "t": pa.string(),
    "": pa.int64(),
}
_SQLITE = {"u": "INTEGER", "i": "INTEGER", "b": "INTEGER", "f": "REAL", "t": "TEXT", "": "INTEGER"}


@dataclass(frozen=True)
class Column:
    """One column as nsys declares it."""

    name: str
    kind: str
    is_required: bool


@dataclass
class Table:
    """One table: its columns, and rows that need not name them all."""

    columns: list[Column]
    rows: list[dict[str, Any]] = field(default_factory=list)
    default: bool = False

    def drop(self, *names: str) -> None:
        """Leave out columns, as another version would."""
        self.columns = [c for c in self.columns if c.name not in names]

    def value(self, row: Mapping[str, Any], column: Column) -> Any:
        """The value of a row without one: a default if the column is NOT NULL, else NULL."""
        found = row.get(column.name)
        if found is None and (self.default or column.is_required):
            return "" if column.kind == "t" else 0
        return found


Tables = dict[str, Table]


@dataclass(frozen=True)
class Process:
    """A process: `host` is the part of a globalPid above the pid, `thread` the name of the main thread."""

    pid: int
    name: str = "VLLM::Worker"
    host: int = 1
    thread: str | None = None

    @property
    def global_pid(self) -> int:
        """The id that rows carry: host, pid, and no thread."""
        return self.host << 48 | self.pid << 24

    def global_tid(self, tid: int | None = None) -> int:
        """The id of one of its threads, by default the main one."""
        return self.global_pid | (self.pid if tid is None else tid)


@dataclass(frozen=True)
class Work:
    """Something that ran on a GPU."""

    name: str
    start: int
    dur: int
    correlation: int | None = None
    kind: str = "kernel"
    process: int = 0
    device: int = 0
    stream: int = 7
    node: int | None = None
    bytes: int = 64


@dataclass(frozen=True)
class Call:
    """A runtime or driver call."""

    start: int
    correlation: int
    name: str = "cudaLaunchKernel_v7000"
    dur: int = 5_000
    process: int = 0
    tid: int | None = None


@dataclass(frozen=True)
class Range:
    """A row of NVTX_EVENTS: by default a push/pop range; `dur` None has no end, `registered` text
    is a string id."""

    text: str
    start: int
    dur: int | None
    process: int = 0
    tid: int | None = None
    domain: int = 0
    registered: bool = False
    type: int = 59


@dataclass
class Report:
    """What was recorded."""

    processes: list[Process]
    work: list[Work] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    duration: int = DURATION_NS

    def graph(
        self,
        start: int,
        correlation: int,
        kernels: Sequence[tuple[str, int]],
        *,
        launch: int,
        process: int = 0,
        **lane: Any,
    ) -> Report:
        """One replay: the launch, and its kernels one after another (graph nodes 1, 2, ...)."""
        self.calls.append(Call(launch, correlation, "cudaGraphLaunch_v10000", process=process))
        for node, (name, dur) in enumerate(kernels, start=1):
            self.work.append(Work(name, start, dur, correlation, process=process, node=node, **lane))
            start += dur
        return self

    def step(
        self, start: int, correlation: int, label: str = DECODE, *, process: int = 0, device: int = 0
    ) -> Report:
        """A marked step: a graph of three kernels, a kernel, a copy and a memset, of 1000, 2000, 300, 40, 5
        and 6 ns."""
        self.ranges.append(Range(label, start, 20_000, process))
        kernels = [(GEMM, 1_000), (ALL_REDUCE, 2_000), (MARLIN, 300)]
        self.graph(start + 50_000, correlation, kernels, launch=start + 1_000, process=process, device=device)
        for number, (kind, dur) in enumerate((("kernel", 40), ("memcpy", 5), ("memset", 6)), start=1):
            self.calls.append(
                Call(start + 8_000 + number, correlation + number, f"cuda{kind.title()}_v3020", 1, process)
            )
            self.work.append(
                Work(STRANGE, start + 55_000 + 100 * number, dur, correlation + number, kind, process, device)
            )
        return self


def two_ranks(
    steps: int = 2, *, devices: Sequence[int] = (0, 1), processes: Iterable[Process] | None = None
) -> Report:
    """Two processes that took `steps` decode steps each, with the same correlation ids."""
    report = Report(list(processes or (Process(101, "VLLM::Worker_TP0"), Process(102, "VLLM::Worker_TP1"))))
    for step in range(steps):
        for process, device in enumerate(devices):
            report.step(
                1_000_000 + 100_000 * step + 10 * process, 1 + 10 * step, process=process, device=device
            )
    return report


def columns_of(ddl: str) -> list[Column]:
    """Columns from their names and marks."""
    made = []
    for word in ddl.split():
        name, _, kind = word.partition(":")
        made.append(Column(name.rstrip("!"), kind, name.endswith("!")))
    return made


def _schema(version: Version) -> Tables:
    """Empty tables of a version."""
    made = {name: Table(columns_of(ddl), default=version == "2021") for name, ddl in _DDL.items()}
    later = [
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
        "CUDA_GRAPH_NODE_EVENTS",
        "TARGET_INFO_CUDA_DEVICE",
        "DIAGNOSTIC_EVENT",
    ]
    gone = {
        "2021": [
            *later,
            "META_DATA_EXPORT",
            "META_DATA_CAPTURE",
            "EXPORT_META_DATA",
            "TARGET_INFO_CUDA_CONTEXT_INFO",
        ],
        "2022.4": [*later, "META_DATA_EXPORT", "META_DATA_CAPTURE", "TARGET_INFO_CUDA_CONTEXT_INFO"],
        "2023.4": [*later, "EXPORT_META_DATA", "TARGET_INFO_CUDA_NULL_STREAM"],
    }.get(version, ["EXPORT_META_DATA", "TARGET_INFO_CUDA_NULL_STREAM"])
    wrong = "KERNEL" if version in {"2021", "2022.4"} else "KRENEL"
    for name in (*gone, f"ENUM_CUDA_{wrong}_LAUNCH_TYPE"):
        del made[name]
    if version in {"2021", "2022.4"}:
        for table in made.values():
            table.drop("greenContextId")
    if version == "2021":
        for table in made.values():
            table.drop(
                "graphNodeId",
                "mangledName",
                "jsonTextId",
                "jsonText",
                "sharedMemoryLimitConfig",
                "virtualAddress",
            )
        del made["CUDA_GRAPH_EVENTS"]
    if version in {"2024", "2026"}:
        made["CUDA_GRAPH_EVENTS"].columns = columns_of(
            "start! end! eventClass! globalTid:u nameId!:u graphId!:u originalGraphId:u graphExecId:u"
        )
        made["NVTX_EVENTS"].columns += [Column("binaryData", "t", False)]
    if version == "2026":
        made["CUPTI_ACTIVITY_KIND_KERNEL"].columns += columns_of(
            "qmdBulkReleaseDone:u graphId:u clusterX:i clusterY:i clusterZ:i clusterSchedulingPolicy "
            "maxActiveClusters tensorSizeMinusOneElements!:t"
        )
        made["NVTX_EVENTS"].columns += columns_of("eventId!")
    return made


class _Strings:
    """StringIds while it grows."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.ids.setdefault(text, len(self.ids) + 1)


def tables_of(report: Report, version: Version = "2023.4", facts: Mapping[str, str] | None = None) -> Tables:
    """The export's tables; `facts` are values of META_DATA_EXPORT."""
    made, string = _schema(version), _Strings()
    string("an unused string")
    pid_of = [p.global_pid for p in report.processes]
    for work in report.work:
        lane = {
            "start": work.start,
            "end": work.start + work.dur,
            "deviceId": work.device,
            "contextId": 1,
            "streamId": work.stream,
            "correlationId": work.correlation,
            "globalPid": pid_of[work.process],
            "graphNodeId": work.node,
            "bytes": work.bytes,
        }
        short_name = work.name.split("<")[0].split("(")[0].split(" ")[-1].split("::")[-1]
        name = {
            "demangledName": string(work.name),
            "shortName": string(short_name),
            **dict.fromkeys(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "gridId"), 1),
            "graphId": 0 if work.node is None else 5,
        }
        extra = {
            "kernel": name,
            "memcpy": {"copyKind": 1, "srcKind": 1, "dstKind": 2},
            "memset": {"memKind": 2},
        }
        extra["graph"] = {"graphId": 5, "graphExecId": 9}
        kind = "GRAPH_TRACE" if work.kind == "graph" else work.kind.upper()
        made[f"CUPTI_ACTIVITY_KIND_{kind}"].rows.append(lane | extra[work.kind])
    for call in report.calls:
        made["CUPTI_ACTIVITY_KIND_RUNTIME"].rows.append({
            "start": call.start, "end": call.start + call.dur,
            "globalTid": report.processes[call.process].global_tid(call.tid),
            "correlationId": call.correlation, "nameId": string(call.name),
        })  # fmt: skip
    for number, row in enumerate(report.ranges):
        text = {"textId": string(row.text)} if row.registered else {"text": row.text}
        made["NVTX_EVENTS"].rows.append({
            "start": row.start, "end": None if row.dur is None else row.start + row.dur,
            "eventType": row.type, "domainId": row.domain,
            "globalTid": report.processes[row.process].global_tid(row.tid), "eventId": number, **text,
        })  # fmt: skip
    for process in report.processes:
        made["PROCESSES"].rows.append(
            {"globalPid": process.global_pid, "pid": process.pid, "name": process.name}
        )
        if process.thread:
            made["ThreadNames"].rows.append(
                {"nameId": string(process.thread), "globalTid": process.global_tid()}
            )
    _facts(made, report, version, facts or {})
    made["StringIds"].rows = [{"id": number, "value": text} for text, number in string.ids.items()]
    return {name: table for name, table in made.items() if table.rows or name.startswith("ENUM_")}


def _facts(made: Tables, report: Report, version: Version, facts: Mapping[str, str]) -> None:
    made["TARGET_INFO_GPU"].rows = [
        {"id": n, "name": "NVIDIA H200", "isDiscrete": True, "cuDevice": n, "uuid": f"GPU-{n}"}
        for n in range(2)
    ]
    made["TARGET_INFO_SESSION_START_TIME"].rows = [{"utcEpochNs": EPOCH_NS, "utcTime": "2026-11-29T16:16:28"}]
    made["ANALYSIS_DETAILS"].rows = [
        {"globalVid": 1 << 48, "duration": report.duration, "startTime": 5, "stopTime": 9}
    ]
    nodes = made.get("CUDA_GRAPH_NODE_EVENTS", made.get("CUDA_GRAPH_EVENTS"))
    if nodes is not None:
        nodes.rows = [
            {"start": 1, "end": 2, "graphNodeId": n}
            for n in sorted({w.node for w in report.work if w.node is not None})
        ]
    if "CUDA_GRAPH_NODE_EVENTS" in made:
        made["CUDA_GRAPH_EVENTS"].rows = [{"start": 1, "end": 2, "graphId": 5, "graphExecId": 9}]
    for name in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        if name in made:
            values = {
                "EXPORT_SCHEMA_VERSION": version,
                "EXPORT_PARAM_TIME_NORMALIZE": "false",
                "EXPORT_PARAM_TIME_SHIFT": "0",
            }
            values.update({"EXPORT_PARAM_TABLES_TO_EXPORT": "", "EXPORT_PARAM_TIMES_TO_EXPORT": ""}, **facts)
            made[name].rows = [{"name": key, "value": value} for key, value in values.items()]
    for name in ("ENUM_CUDA_KERNEL_LAUNCH_TYPE", "ENUM_CUDA_KRENEL_LAUNCH_TYPE"):
        if name in made:
            made[name].rows = [{"id": 1, "name": "REGULAR", "label": "Regular"}]


def write_sqlite(path: Path, tables: Tables) -> Path:
    """One .sqlite file, without an index, as nsys writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    con = sqlite3.connect(path)
    for name, table in tables.items():
        not_null = [" NOT NULL" if c.is_required or table.default else "" for c in table.columns]
        columns = ", ".join(
            f'"{c.name}" {_SQLITE[c.kind]}{no}' for c, no in zip(table.columns, not_null, strict=True)
        )
        con.execute(f'CREATE TABLE "{name}" ({columns})')
        holes = ", ".join("?" * len(table.columns))
        con.executemany(
            f'INSERT INTO "{name}" VALUES ({holes})',
            [[_signed(table.value(r, c)) for c in table.columns] for r in table.rows],
        )
    con.commit()
    con.close()
    return path


def _signed(value: Any) -> Any:
    return value - (1 << 64) if isinstance(value, int) and value >= 1 << 63 else value


def _arrow_table(table: Table) -> pa.Table:
    schema = pa.schema([pa.field(c.name, _ARROW[c.kind], nullable=not c.is_required) for c in table.columns])
    return pa.table(
        [pa.array([table.value(r, c) for r in table.rows], _ARROW[c.kind]) for c in table.columns],
        schema=schema,
    )


def write_parquetdir(folder: Path, tables: Tables) -> Path:
    """A folder of <TABLE>.parquet, uncompressed; META_DATA_CAPTURE is missing there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        if name != "META_DATA_CAPTURE":
            pyarrow.parquet.write_table(_arrow_table(table), folder / f"{name}.parquet", compression="none")
    return folder


def write_arrowdir(folder: Path, tables: Tables) -> Path:
    """A folder of <TABLE>.arrow, each an Arrow IPC stream; META_DATA_CAPTURE is missing there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        if name != "META_DATA_CAPTURE":
            made = _arrow_table(table)
            with pyarrow.ipc.new_stream(str(folder / f"{name}.arrow"), made.schema) as writer:
                writer.write_table(made)
    return folder


WRITERS = {"sqlite": write_sqlite, "parquetdir": write_parquetdir, "arrowdir": write_arrowdir}
ENDINGS = {"sqlite": ".sqlite", "parquetdir": "_pqtdir", "arrowdir": "_arwdir"}


def write(folder: Path, tables: Tables, form: str = "sqlite", name: str = "report") -> Path:
    """An export of that form under the name that nsys gives it."""
    return WRITERS[form](folder / f"{name}{ENDINGS[form]}", tables)


def read_report(path: Path, folder: Path, file_id: str = "f") -> Path:
    """Read one report into `folder`/run/file_id=F, for raw_rows and build_tables; returns the run's
    folder."""
    out, work = folder / "run" / f"file_id={file_id}", folder / f"work-{file_id}"
    out.mkdir(parents=True)
    work.mkdir()
    read_nsys(ReadJob(path, path.name, file_id, 1, "0" * 64, "run", out, work, threads=1))
    return folder / "run"
