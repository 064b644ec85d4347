"""Staged events to raw tables: reasons to leave events out, times, and what each table holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import TraceError
from tests.support.builders import BASE_NS, PID, annotation, event, header, kernel, launch, memcpy, operator
from tests.support.kineto_reading import (
    Raw,
    assert_contracts_hold,
    kernel_text,
    lines,
    read_bytes,
    read_events,
)

LATE = 200_000_000_000
"""A time long after the base, as in files of long-running processes."""


def _without(made: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in made.items() if key not in keys}


def _plain(phase: str, name: str, **more: Any) -> dict[str, Any]:
    return {"ph": phase, "name": name, "pid": PID, "tid": 1, **more}


SKIPS: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("no_timestamp", "kernel"): [_without(kernel("k", LATE, 700), "ts")],
    ("zero_timestamp", "kernel"): [kernel("k", 0, 800), kernel("k", 0, 0)],
    ("no_duration", "memcpy"): [_without(memcpy("Memcpy HtoD", LATE, 5), "dur")],
    ("negative_duration", "memset"): [
        event("gpu_memset", "Memset (Device)", LATE, -900, pid=0, tid=7, device=0, stream=7)
    ],
    ("duplicate_event", "kernel"): [kernel("twice", LATE, 600, 9)] * 3,
    ("no_start", "cpu_op"): [_without(operator("aten::mm", LATE, 5), "ts")],
    ("no_start", "launch"): [_without(launch(LATE, 5), "ts")],
    ("no_start", "annotation_cpu"): [_without(annotation("a", LATE, 5), "ts")],
    ("python_function", "python_function"): [event("python_function", "f", LATE, 5)] * 2,
    ("flow", "ac2g"): [_plain("s", "ac2g", cat="ac2g", id=1), _plain("f", "ac2g", cat="ac2g", id=1)],
    ("metadata", "ph M"): [_plain("M", "process_name", args={"name": "w"})],
    ("instant", "ph i"): [_plain("i", "Record Window End", ts=5)],
    ("counter", "mtia_counters"): [_plain("C", "c", cat="mtia_counters", ts=5)],
    ("overhead", "overhead"): [event("overhead", "Buffer Flush", LATE, 5, pid=-1)],
    ("profiler_span", "Trace"): [
        event("Trace", "PyTorch Profiler (0)", LATE, 5, pid="Spans", tid="PyTorch Profiler")
    ],
    ("sync", "cuda_sync"): [event("cuda_sync", "Stream Sync", LATE, 5)],
    ("sync", "cuda_event"): [event("cuda_event", "e", LATE, 5)],
    ("other_event", "hpu_op"): [event("hpu_op", "h", LATE, 5)],
    ("other_event", "none"): [{}],
}
DUR_NS = {"no_timestamp": 700, "zero_timestamp": 800, "negative_duration": -900, "duplicate_event": 1200}


@pytest.fixture(scope="module")
def skips(tmp_path_factory: pytest.TempPathFactory) -> Raw:
    """One trace with every kind of event that is left out, and one kernel that is not."""
    return read_events(
        tmp_path_factory.mktemp("skips"),
        [kernel("good", LATE, 100, 1), *(e for group in SKIPS.values() for e in group)],
    )


@pytest.mark.parametrize(("code", "event_class"), SKIPS)
def test_what_is_left_out_is_counted_by_name(skips: Raw, code: str, event_class: str) -> None:
    """Every event that lands in no table is counted, with the GPU time that is in no table."""
    count = len(SKIPS[code, event_class]) - (code == "duplicate_event")
    assert skips.issues[code, event_class] == (count, DUR_NS.get(code))


def test_nothing_else_is_left_out(skips: Raw) -> None:
    """There is no issue but for the events that are there."""
    assert set(skips.issues) == set(SKIPS)


def test_one_of_each_duplicate_is_kept(skips: Raw) -> None:
    """An event that is in the file three times is booked once."""
    assert skips.column("gpu_activity", "name") == ["good", "twice"]


def test_books_of_the_trace(skips: Raw) -> None:
    """The trace row states what was in the file: GPU events and the exact sum of their durations."""
    assert skips.trace("gpu_events_read", "gpu_ns_read") == (9, 100 + 700 + 800 - 900 + 1800)
    assert skips.trace("first_ns", "last_ns") == (BASE_NS + LATE, BASE_NS + LATE + 600)


def test_contracts_hold_with_every_kind_of_skip(skips: Raw) -> None:
    """All tables match their contracts."""
    assert_contracts_hold(skips)


@pytest.mark.parametrize(
    "other",
    [
        kernel("b", 1000, 50, 1),
        kernel("a", 1001, 50, 1),
        kernel("a", 1000, 51, 1),
        kernel("a", 1000, 50, 2),
        kernel("a", 1000, 50, 1, stream=8),
        kernel("a", 1000, 50, 1, device=1),
    ],
    ids=["name", "start", "duration", "correlation", "stream", "device"],
)
def test_alike_is_not_the_same(tmp_path: Path, other: dict[str, Any]) -> None:
    """Kernels that differ in one field only are both booked."""
    assert len(read_events(tmp_path, [kernel("a", 1000, 50, 1), other]).tables["gpu_activity"]) == 2


def test_kernel_at_the_base_is_real(tmp_path: Path) -> None:
    """Where times start at the base, a kernel at 0 that took time is booked; one without any time was not
    measured."""
    raw = read_events(tmp_path, [kernel("first", 0, 500), kernel("lost", 0, 0), kernel("second", 900, 100)])
    assert raw.column("gpu_activity", "name") == ["first", "second"]
    assert raw.issues["zero_timestamp", "kernel"] == (1, 0)


def test_nothing_that_can_be_booked_is_refused(tmp_path: Path) -> None:
    """A file whose GPU events all lack their times is refused, and leaves no table."""
    with pytest.raises(TraceError, match="none can be booked"):
        read_events(tmp_path, [_without(kernel("k", 5, 5), "ts"), launch(1, 1)])
    assert list(tmp_path.rglob("run/*/*.parquet")) == []


def test_impossible_times_are_left_out_by_name(tmp_path: Path) -> None:
    """A time of another century and a duration of more than a day are counted, not an error, and never break
    a sum of a model."""
    huge = "9223372036854770"
    raw = read_bytes(
        tmp_path,
        lines(
            kernel_text("good"),
            kernel_text("start", ts=huge),
            kernel_text("end", dur=huge),
            head=b'{"traceEvents": [',
        ),
    )
    assert raw.column("gpu_activity", "name") == ["good"]
    assert raw.issues["no_timestamp", "kernel"][0] == 1
    assert raw.issues["no_duration", "kernel"] == (1, 9_223_372_036_854_770_000)


@pytest.mark.parametrize(
    ("head", "tail", "ts", "base"),
    [
        (b'{"traceEvents": [', b"]}", "1790857026000005.000", None),
        (b'{"baseTimeNanoseconds": 1790857026000000000, "traceEvents": [', b"]}", "5.000", BASE_NS),
        (b'{"traceEvents": [', b'], "baseTimeNanoseconds": 1790857026000000000}', "5.000", BASE_NS),
        (
            b'{"baseTimeNanoseconds": 1790857026000000000, "traceEvents": [',
            b"]}",
            "1790857026000005.000",
            None,
        ),
        (b"[", b"]", "1790857026000005", None),
    ],
    ids=["absolute", "relative", "base after the events", "absolute in spite of a base", "bare array"],
)
def test_times_are_since_the_epoch(
    tmp_path: Path, head: bytes, tail: bytes, ts: str, base: int | None
) -> None:
    """Absolute and relative times give the same nanoseconds since the epoch; only a base that was added is
    named."""
    raw = read_bytes(tmp_path, lines(kernel_text(ts=ts), head=head, tail=tail))
    assert raw.trace("first_ns", "last_ns", "base_ns") == (BASE_NS + 5000, BASE_NS + 7500, base)
    assert ("absolute_time_with_base" in raw.codes) == (b"baseTime" in head and base is None)


def test_unit_for_display_is_ignored(tmp_path: Path) -> None:
    """displayTimeUnit is for viewers: times are microseconds."""
    raw = read_events(tmp_path, [kernel("k", 5000, 2500)], header(displayTimeUnit="ns"))
    assert raw.trace("first_ns", "last_ns") == (BASE_NS + 5000, BASE_NS + 7500)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Raw:
    """A trace as torch 1.8 to 1.13 wrote it: other categories, whole microseconds, ids as text."""
    gpu = {
        "ph": "X",
        "pid": 0,
        "tid": "stream 7",
        "args": {"device": 0, "stream": 7, "external id": 4, "correlation": 4},
    }
    cpu = {"ph": "X", "pid": "25738", "tid": "140", "args": {"external id": 4, "correlation": 4}}
    events = [
        gpu | {"cat": "Kernel", "name": "k", "ts": 1623143089861000, "dur": 3},
        gpu | {"cat": "Memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "ts": 1623143089861010, "dur": 2},
        gpu | {"cat": "Memset", "name": "Memset (Device)", "ts": 1623143089861020, "dur": 0},
        cpu | {"cat": "Runtime", "name": "cudaLaunchKernel", "ts": 1623143089860000, "dur": 9},
        cpu | {"cat": "Operator", "name": "aten::mm", "ts": 1623143089860000, "dur": 9},
        cpu | {"cat": "Operator", "name": "ProfilerStep#7", "ts": 1623143089850000, "dur": 900},
        {"ph": "s", "cat": "async", "name": "launch", "id": 4, "pid": "25738", "tid": "140", "ts": 1},
    ]
    return read_events(tmp_path_factory.mktemp("old"), events, {"schemaVersion": 1})


def test_old_categories_are_the_same_kinds(old: Raw) -> None:
    """Kernel, Memcpy and Memset are GPU work; a kernel of 0 us is booked."""
    assert old.rows("gpu_activity", "kind", "dur_ns", "stream", "copy_kind") == [
        ("kernel", 3000, 7, None),
        ("memcpy", 2000, 7, "HtoD"),
        ("memset", 0, 7, None),
    ]


def test_old_cpu_side_lands(old: Raw) -> None:
    """Runtime is a launch, Operator an operator; pid and tid as text are numbers."""
    assert old.rows("launch", "name", "correlation", "pid", "tid") == [("cudaLaunchKernel", 4, 25738, 140)]
    assert old.rows("cpu_op", "name", "external_id") == [("aten::mm", 4)]


def test_old_profiler_step_is_an_annotation(old: Raw) -> None:
    """ProfilerStep#N, written as an operator in old files, marks a step."""
    assert old.rows("annotation", "name", "side", "dur_ns") == [("ProfilerStep#7", "cpu", 900_000)]


def test_old_file_keeps_contracts(old: Raw) -> None:
    """Files without device properties, base and rank give valid tables too."""
    assert_contracts_hold(old)
    assert old.trace("vendor", "gpu_name", "rank", "base_ns", "world_size") == (None, None, None, None, None)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Raw:
    """A trace in which every column that a table can have is filled."""
    comms: dict[str, Any] = {
        "Collective_name": "allreduce",
        "dtype": "BFloat16",
        "In_msg_nelems": 7168,
        "Out_msg_nelems": 7168,
        "Group_size": 8,
    }
    comms |= {"Process_Group_Name": "0", "Process_Group_Ranks": "[0, 1]", "Seq": 12}
    events = [
        kernel(
            "nccl",
            5000,
            100,
            3,
            External_id=9,
            context=1,
            grid=[24, 1, 1],
            block=[544, 1, 1],
            graph_id=2,
            graph_node_id=5,
            **comms,
        ),
        memcpy("Memcpy PtoP (Device -> Device)", 6000, 10, 4, bytes=4096),
        operator(
            "record_param_comms",
            900,
            300,
            9,
            Input_Dims=[[1, 7168], []],
            Input_type=["c10::BFloat16", ""],
            **comms,
        ),
        launch(1000, 3),
        annotation("step", 800, 500, 8),
        event("gpu_user_annotation", "step", 4999, 102, pid=0, tid=7, External_id=8),
    ]
    return read_events(tmp_path_factory.mktemp("full"), events)


def test_kernel_arguments_land(full: Raw) -> None:
    """A kernel keeps launch shape, graph ids and collective arguments."""
    columns = (
        "context",
        "external_id",
        "graph_id",
        "graph_node_id",
        "grid",
        "block",
        "collective_name",
        "dtype",
    )
    assert full.rows("gpu_activity", *columns)[-1] == (
        1,
        9,
        2,
        5,
        "[24,1,1]",
        "[544,1,1]",
        "allreduce",
        "BFloat16",
    )
    more = ("in_msg_nelems", "out_msg_nelems", "group_size", "process_group", "process_group_ranks", "seq")
    assert (7168, 7168, 8, "0", "[0, 1]", 12) in full.rows("gpu_activity", *more)


def test_a_copy_has_its_direction(full: Raw) -> None:
    """A copy keeps its direction and size."""
    assert ("memcpy", "PtoP", 4096) in full.rows("gpu_activity", "kind", "copy_kind", "bytes")


def test_operator_keeps_its_shapes(full: Raw) -> None:
    """Shapes and types are JSON text; collective arguments are columns."""
    columns = ("external_id", "input_dims", "input_types", "collective_name", "group_size", "seq")
    assert full.rows("cpu_op", *columns) == [(9, "[[1,7168],[]]", '["c10::BFloat16",""]', "allreduce", 8, 12)]


def test_an_annotation_differs_from_its_gpu_twin(full: Raw) -> None:
    """The CPU side has a process and thread, the GPU side a device and stream; one id joins them."""
    columns = ("side", "external_id", "device", "stream", "pid", "tid", "is_open")
    assert full.rows("annotation", *columns) == [
        ("cpu", 8, None, None, PID, 1001, False),
        ("gpu", 8, 0, 7, None, None, False),
    ]


def test_full_trace_keeps_contracts(full: Raw) -> None:
    """All columns have the types of their contracts."""
    assert_contracts_hold(full)


def test_activity_ids_follow_device_stream_and_time(tmp_path: Path) -> None:
    """activity_id is the position by device, stream, start, duration, name and correlation."""
    wanted = [
        kernel("b", 9000, 10, 5, device=0, stream=7),
        kernel("a", 1000, 10, 5, device=0, stream=8),
        kernel("a", 1000, 20, 1, device=0, stream=8),
        kernel("b", 1000, 20, 1, device=0, stream=8),
        kernel("b", 1000, 20, 2, device=0, stream=8),
        kernel("a", 500, 10, 1, device=1, stream=7),
    ]
    raw = read_events(tmp_path, wanted[::-1])
    found = raw.rows("gpu_activity", "activity_id", "device", "stream", "dur_ns", "name", "correlation")
    assert [row[1:] for row in found] == [
        (e["args"]["device"], e["args"]["stream"], e["dur"].ns, e["name"], e["args"]["correlation"])
        for e in wanted
    ]


def test_event_without_name_lands(tmp_path: Path) -> None:
    """An event without a name is not lost."""
    raw = read_events(
        tmp_path,
        [
            _without(e, "name")
            for e in (kernel("k", 5, 5), launch(1, 1), operator("o", 1, 1), annotation("a", 1, 1))
        ],
    )
    assert {raw.tables[table][0]["name"] for table in ("gpu_activity", "launch", "cpu_op", "annotation")} == {
        ""
    }
    assert_contracts_hold(raw)
