"""The traces of a file: merged prefixes, ranks and their sources, coordinates, vendor and device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.builders import PID, annotation, event, header, kernel, launch, operator
from tests.support.kineto_reading import Raw, assert_contracts_hold, read_events


def _process_name(name: str, pid: object = PID) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0, "args": {"name": name}}


RANKS = {
    "distributedInfo before file name": (3, "cap_rank5.json", None, (3, "distributed_info")),
    "file name before process name": (None, "cap_rank5.json", "VLLM::Worker_TP1", (5, "file_name")),
    "process name": (None, "cap.json", "VLLM::Worker_TP1_EP1", (1, "process_name")),
    "SGLang's process name": (None, "cap.json", "sglang::scheduler_TP2", (2, "process_name")),
    "process name of a data-parallel rank": (None, "cap.json", "VLLM::Worker_DP1_TP1", (None, None)),
    "tensor-parallel rank in the file name": (None, "1759255878.904894-TP-2.json", None, (2, "file_name")),
    "tensor-parallel rank of a data-parallel file": (
        None,
        "1759255878.904894-TP-2-DP-1.json",
        None,
        (None, None),
    ),
    "no rank, with any pid": (None, "cap.json", "python3", (None, None)),
    "empty rank": ("", "cap.json", None, (None, None)),
    "empty rank, rank in the file name": ("", "rank2.json", None, (2, "file_name")),
}


@pytest.mark.parametrize("what", RANKS)
def test_the_rank_comes_from_the_best_source(tmp_path: Path, what: str) -> None:
    """distributedInfo, else file name, else process name, never the pid; else NULL, and an issue."""
    rank, file_name, process_name, wanted = RANKS[what]
    head = header(None) | ({} if rank is None else {"distributedInfo": {"rank": rank}})
    events = [
        kernel("k", 5000, 100, 1, device=4),
        launch(1000, 1),
        *([_process_name(process_name)] if process_name else []),
    ]
    raw = read_events(tmp_path, events, head, file_name)
    assert raw.trace("rank", "rank_source") == wanted
    assert raw.column("gpu_activity", "rank") == [wanted[0]]
    assert ("unknown_rank" in raw.codes) == (wanted[0] is None)


def test_coordinates_and_host_of_the_names(tmp_path: Path) -> None:
    """Parallel coordinates come from the file's name or its process's."""
    events = [kernel("k", 5000, 100, 1), launch(1000, 1), _process_name("VLLM::Worker_TP1_EP5")]
    raw = read_events(tmp_path, events, name="dp2_pp0_tp1_rank3.json")
    assert raw.trace("dp_rank", "tp_rank", "pp_rank", "ep_rank", "process_name", "pid") == (
        2,
        1,
        0,
        5,
        "VLLM::Worker_TP1_EP5",
        PID,
    )


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Raw:
    """SGLang's merged file: two ranks with the same correlation ids, every pid prefixed."""
    events = []
    for rank in range(2):
        prefix = f"[TP{rank:02}-DP00-PP00-EP0{rank}] "
        own = [
            kernel(f"k{rank}", 5000, 100 + rank, 1),
            launch(1000, 1, f"launch{rank}"),
            operator(f"op{rank}", 900, 300),
        ]
        own += [annotation(f"step{rank}", 800, 500), _process_name(f"sglang::scheduler_TP{rank}")]
        events += [e | {"pid": f"{prefix}{e['pid']}"} for e in own]
    events.append(event("Trace", "PyTorch Profiler (0)", 1, 5, pid="Spans", tid="PyTorch Profiler"))
    return read_events(
        tmp_path_factory.mktemp("merged"), events, header(None), "merged-1759255878.904894.json"
    )


def test_merged_file_gives_a_trace_per_rank(merged: Raw) -> None:
    """Each prefix of the pids is a trace of its own, with rank and coordinates from the prefix."""
    columns = ("rank", "rank_source", "tp_rank", "dp_rank", "ep_rank", "process_name", "pid")
    assert merged.rows("trace", *columns) == [
        (0, "process_prefix", 0, 0, 0, "sglang::scheduler_TP0", PID),
        (1, "process_prefix", 1, 0, 1, "sglang::scheduler_TP1", PID),
    ]


@pytest.mark.parametrize(
    ("table", "stem"), [("gpu_activity", "k"), ("launch", "launch"), ("cpu_op", "op"), ("annotation", "step")]
)
def test_merged_ranks_stay_separate(merged: Raw, table: str, stem: str) -> None:
    """Rows of different ranks have different trace ids, so equal correlation ids are not joined."""
    ids = {row["rank"]: row["trace_id"] for row in merged.tables["trace"]}
    assert len(set(ids.values())) == 2
    assert set(merged.rows(table, "name", "trace_id")) == {(f"{stem}{rank}", ids[rank]) for rank in (0, 1)}


def test_activity_ids_start_at_0_in_each_rank(merged: Raw) -> None:
    """Numbers count within a trace; contracts hold for a file of several traces."""
    assert merged.column("gpu_activity", "activity_id") == [0, 0]
    assert_contracts_hold(merged)


def test_events_without_prefix_are_counted_once(merged: Raw) -> None:
    """An event of no rank is counted with one of them."""
    assert [row["count"] for row in merged.tables["issue"] if row["code"] == "profiler_span"] == [1]


@pytest.fixture(scope="module")
def amd(tmp_path_factory: pytest.TempPathFactory) -> Raw:
    """An AMD trace: devices are not counted from 0, their names are empty, graph kernels have no grid."""
    head = header() | {
        "deviceProperties": [{"id": d, "name": ""} for d in range(8)],
        "roctracer_version": 4.1,
        "hip_runtime_version": 70253211,
    }
    del head["cuda_runtime_version"]
    events = [
        kernel("Cijk_Ailk", 5000, 100, 1, device=9, stream=0, kind="Dispatch Kernel"),
        launch(1000, 1, "hipGraphLaunch"),
    ]
    return read_events(tmp_path_factory.mktemp("amd"), events, head)


def test_amd_is_known_by_its_versions(amd: Raw) -> None:
    """Keys of HIP or roctracer give the vendor; an empty device name is no name."""
    assert amd.trace("vendor", "gpu_name") == ("amd", None)


def test_an_amd_device_is_that_of_the_file(amd: Raw) -> None:
    """A device id that does not start at 0 is kept, and is not the rank."""
    assert amd.rows("gpu_activity", "device", "stream", "grid", "rank") == [(9, 0, None, 0)]
    assert amd.rows("launch", "name", "correlation") == [("hipGraphLaunch", 1)]
