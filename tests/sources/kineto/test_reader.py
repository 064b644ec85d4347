"""The walk over a file: nothing in its layout changes what lands, and every damage is a row, an issue or a
TraceError."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import duckdb
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.errors import TraceError, UnfinishedFile
from pipeline.sources.job import ReadJob
from pipeline.sources.kineto import bytestream, read_kineto
from tests.support.builders import (
    BASE_NS,
    StepBuilder,
    annotation,
    header,
    kernel,
    launch,
    memcpy,
    operator,
    trace_json,
)
from tests.support.kineto_reading import (
    BROKEN,
    Raw,
    kernel_text,
    lines,
    read_bytes,
    read_events,
    read_file,
    salvage_bytes,
)

_NAMES = st.sampled_from(
    ["k", "gemm<1, 2>", 'quote " and \\ slash', "}, {", '},{"name": 1', "[", "é \U0001f600", "", "a\nb"]
)
_NESTED = [{"name": 1}, {"ph": "X", "name": "},{"}, [[]]]


def _kernel(name: str, start: int, dur: int, stream: int, correlation: int) -> dict[str, Any]:
    return kernel(name, start, dur, correlation, stream=stream)


_EVENT = st.one_of(
    st.builds(
        _kernel, _NAMES, st.integers(1, 50), st.integers(0, 9), st.sampled_from([7, 8]), st.integers(1, 4)
    ),
    st.builds(
        memcpy,
        st.just("Memcpy HtoD (Pinned -> Device)"),
        st.integers(1, 50),
        st.integers(0, 9),
        st.integers(1, 4),
    ),
    st.builds(launch, st.integers(1, 50), st.integers(1, 4)),
    st.builds(
        operator,
        _NAMES,
        st.integers(1, 50),
        st.integers(0, 9),
        Input_Dims=st.just([[1, 2], []]),
        Concrete_Inputs=st.just(_NESTED),
    ),
    st.builds(annotation, _NAMES, st.integers(1, 50), st.integers(0, 9)),
    st.sampled_from(
        [
            {"ph": "s", "id": 1, "cat": "ac2g"},
            {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "w"}},
            {},
        ]
    ),
)
_EVENTS = st.lists(_EVENT, max_size=25).map(lambda events: [kernel("always", 100, 5, 1), *events])
_BAD = st.sampled_from(
    [BROKEN, kernel_text("bad", ts="N/A"), kernel_text("c \x07"), kernel_text("n", dur="NaN"), b'{"a": 1,}']
)


def _texts(events: list[Any]) -> list[bytes]:
    return [json.dumps(event).encode() for event in events]


@settings(max_examples=5)
@given(
    _EVENTS,
    st.lists(_BAD, max_size=4),
    st.integers(200, 2000),
    st.integers(64, 4000),
    st.randoms(use_true_random=False),
)
def test_chunk_size_never_matters(
    tmp_path: Path,
    events: list[Any],
    bad: list[bytes],
    stretch_bytes: int,
    block_bytes: int,
    order: random.Random,
) -> None:
    """The same rows and issues land whatever the size of blocks and stretches, beside broken events too."""
    texts = _texts(events) + bad
    order.shuffle(texts)
    data = lines(*texts)
    whole = read_bytes(tmp_path, data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bytestream, "BLOCK_BYTES", block_bytes)
        pieces = read_bytes(tmp_path, data, stretch_bytes=stretch_bytes)
    assert pieces.all_rows() == whole.all_rows()


@pytest.mark.parametrize("stretch_bytes", [200, 5000])
def test_chunk_size_never_matters_in_a_longer_trace(
    tmp_path: Path, stretch_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trace of hundreds of stretches gives what one stretch gives."""
    steps = StepBuilder()
    for _ in range(4):
        steps.step([("a", 700), ("b", 900), ("c", 100)] * 4)
    data = gzip.compress(trace_json(steps.events, header()))
    whole = read_bytes(tmp_path, data)
    monkeypatch.setattr(bytestream, "BLOCK_BYTES", 700)
    assert read_bytes(tmp_path, data, stretch_bytes=stretch_bytes).all_rows() == whole.all_rows()


@settings(max_examples=5)
@given(_EVENTS, st.randoms(use_true_random=False))
def test_event_order_never_matters(tmp_path: Path, events: list[Any], order: random.Random) -> None:
    """Events in any order give the same tables, activity_id included."""
    shuffled = list(events)
    order.shuffle(shuffled)
    assert read_events(tmp_path, shuffled).all_rows() == read_events(tmp_path, events).all_rows()


@settings(max_examples=3)
@given(_EVENTS, st.integers(0, 10**18))
def test_base_moves_every_time_alike(tmp_path: Path, events: list[Any], base_ns: int) -> None:
    """Another base moves every start by the difference, and nothing else."""
    here = read_events(tmp_path, events)
    there = read_events(tmp_path, events, header(baseTimeNanoseconds=base_ns))
    for table in ("gpu_activity", "launch", "cpu_op", "annotation"):
        moved = [row | {"start_ns": row["start_ns"] - BASE_NS + base_ns} for row in here.tables[table]]
        assert sorted(map(repr, moved)) == sorted(map(repr, there.tables[table]))


WHOLE_TRACE = trace_json(
    [kernel(f"k{n}", 10 * n + 5, 3, n) for n in range(12)] + [launch(1, n) for n in range(4)], header()
)


def _rows_or_trace_error(folder: Path, data: bytes, **options: Any) -> Raw | None:
    own = Path(mkdtemp(dir=folder))
    try:
        return read_bytes(own, data, **options)
    except TraceError as error:
        refused = error
    assert refused.file == "t.json"
    assert list(own.rglob("run/*/*")) == []
    return None


@settings(max_examples=20)
@given(st.integers(0, len(WHOLE_TRACE) - 1), st.sampled_from([300, 1 << 20]))
def test_a_truncated_file_gives_rows_or_a_trace_error(tmp_path: Path, at: int, stretch_bytes: int) -> None:
    """A file truncated at any byte is refused and leaves no table, or everything before its tail is read."""
    raw = _rows_or_trace_error(tmp_path, WHOLE_TRACE[:at], stretch_bytes=stretch_bytes)
    assert raw is None or len(raw.tables["gpu_activity"]) == 12


_PARTS = [json.dumps(e).encode() for e in StepBuilder().step([("a", 700), ("b", 900)] * 6).events]
_PARTS.insert(5, BROKEN)
PARTED = lines(*_PARTS, tail=b'\n], "traceName": {"a": "}"}}')


@settings(max_examples=25)
@example(at=PARTED.index(BROKEN) + len(BROKEN), stretch_bytes=300, pack=bytes)
@given(
    st.integers(0, len(PARTED) - 1),
    st.sampled_from([300, 1 << 20]),
    st.sampled_from([bytes, lambda data: gzip.compress(data)[:-8]]),
)
def test_complete_events_of_a_truncated_file_are_salvaged(
    tmp_path: Path, at: int, stretch_bytes: int, pack: Callable[[bytes], bytes]
) -> None:
    """All events before the truncation land, and nothing else; without GPU work there is a TraceError."""
    ends = [PARTED.index(part) + len(part) for part in _PARTS]
    # Only what follows a broken event shows where it ends.
    complete = [part for part, end in zip(_PARTS, ends, strict=True) if end + (part == BROKEN) <= at]
    if not any(b'"kernel"' in part for part in complete):
        with pytest.raises(TraceError) as caught:
            salvage_bytes(tmp_path, pack(PARTED[:at]), stretch_bytes=stretch_bytes)
        assert not isinstance(caught.value, UnfinishedFile)
        return
    raw = salvage_bytes(tmp_path, pack(PARTED[:at]), stretch_bytes=stretch_bytes)
    assert raw.trace("is_truncated", "events_read") == (True, len(complete))
    assert len(raw.tables["gpu_activity"]) == sum(b'"kernel"' in part for part in complete)
    assert raw.issues["truncated_file", "file"] == (1, None)


@pytest.mark.parametrize("at", [-1, -9, len(PARTED) - 200, 40, 0])
def test_a_file_without_its_end_is_unfinished(tmp_path: Path, at: int) -> None:
    """Unless it is to be salvaged, it may still be written."""
    with pytest.raises(UnfinishedFile):
        read_bytes(tmp_path, PARTED[:at])


@settings(max_examples=8)
@given(st.integers(0, len(gzip.compress(WHOLE_TRACE, mtime=0)) - 1))
def test_cut_gzip_is_a_trace_error(tmp_path: Path, at: int) -> None:
    """A compressed file truncated at any byte is refused, and leaves no table."""
    assert _rows_or_trace_error(tmp_path, gzip.compress(WHOLE_TRACE, mtime=0)[:at]) is None


@settings(max_examples=8)
@given(st.integers(0, len(WHOLE_TRACE) - 1), st.binary(min_size=1, max_size=6))
def test_damaged_text_gives_rows_or_a_trace_error(tmp_path: Path, at: int, damage: bytes) -> None:
    """Bytes overwritten anywhere give rows whose books balance, or a TraceError: no other exception."""
    _rows_or_trace_error(
        tmp_path, WHOLE_TRACE[:at] + damage + WHOLE_TRACE[at + len(damage) :], stretch_bytes=500
    )


def test_a_file_that_needs_too_much_memory_is_a_trace_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only that file is refused: the next one is read."""

    def land(*_rest: object) -> None:
        raise duckdb.OutOfMemoryException("failed to allocate")

    monkeypatch.setattr("pipeline.sources.kineto.tables.land", land)
    with pytest.raises(TraceError, match="more than 256MB of memory"):
        read_bytes(tmp_path, WHOLE_TRACE)


def test_event_longer_than_a_stretch(tmp_path: Path) -> None:
    """An event may be longer than a stretch, or a block."""
    long = operator("aten::cat", 5, 5, Input_Dims=[[n] for n in range(20_000)])
    raw = read_events(tmp_path, [kernel("a", 1, 1), long, kernel("b", 3, 1)], stretch_bytes=1000)
    assert raw.column("gpu_activity", "name") == ["a", "b"]
    assert len(json.loads(raw.column("cpu_op", "input_dims")[0])) == 20_000


def test_broken_events_among_many_stretches(tmp_path: Path) -> None:
    """Broken events all over a file cost themselves only, whatever the stretches."""
    texts = [
        text
        for n in range(40)
        for text in (kernel_text(f"k{n:02}", ts=str(5000 + n)), *([BROKEN] if n % 7 == 3 else []))
    ]
    raw = read_bytes(tmp_path, lines(*texts), stretch_bytes=700)
    assert raw.column("gpu_activity", "name") == [f"k{n:02}" for n in range(40)]
    assert raw.issues["unreadable_event", "python_function"] == (6, None)


def test_progress_is_told(tmp_path: Path) -> None:
    """The job counts every byte that was read from disk."""
    sizes: list[int] = []
    path = tmp_path / "t.json"
    path.write_bytes(WHOLE_TRACE)
    (tmp_path / "out").mkdir()
    (tmp_path / "work").mkdir()
    read_kineto(
        ReadJob(
            path,
            path.name,
            "f",
            len(WHOLE_TRACE),
            "0" * 64,
            "run",
            tmp_path / "out",
            tmp_path / "work",
            on_read=sizes.append,
        )
    )
    assert sum(sizes) == len(WHOLE_TRACE)


CUPTI = "CUPTI did not start"
PLAIN = "Record with ProfilerActivity.CUDA"
NO_GPU_WORK: dict[str, tuple[list[Any], str, str]] = {
    "launches": (
        [launch(1, 1), launch(2, 2, "cudaMemcpyAsync")],
        "2 CUDA/HIP calls launched GPU work",
        CUPTI,
    ),
    "operators": ([operator("aten::mm", 1, 5)], "no kernel, memcpy or memset", CUPTI),
    "annotations": ([annotation("step", 1, 5)], "no kernel, memcpy or memset", CUPTI),
    "nothing": ([], "no kernel, memcpy or memset among 0 events", PLAIN),
    "python only": (
        [{"ph": "X", "cat": "python_function", "name": "f", "ts": 1, "dur": 1}],
        "no kernel, memcpy or memset",
        PLAIN,
    ),
    "unknown": (
        [{"ph": "X", "cat": "xpu_op", "name": "f", "ts": 1, "dur": 1}],
        r"unknown categories \['xpu_op'\]",
        PLAIN,
    ),
    "Ascend": (
        [
            {"ph": "s", "cat": "async_npu", "name": "a", "id": 1},
            operator("aten::mm", 1, 5),
            {"ph": "X", "cat": "enqueue", "ts": "1.5", "dur": 1},
        ],
        "Ascend NPU",
        "NVIDIA and AMD",
    ),
}


@pytest.mark.parametrize("what", NO_GPU_WORK)
def test_trace_without_gpu_work_is_refused_with_advice(tmp_path: Path, what: str) -> None:
    """A trace without GPU activity is refused; where the CPU side was recorded, the advice is about CUPTI."""
    events, found, advice = NO_GPU_WORK[what]
    with pytest.raises(TraceError, match=found) as caught:
        read_events(tmp_path, events)
    assert advice in caught.value.advice
    assert list(tmp_path.rglob("run/*/*")) == []


@pytest.mark.parametrize("data", [b"[]", b'{"traceEvents": []}', b'\xef\xbb\xbf{"traceEvents":[ ] }'])
def test_trace_without_events_is_refused(tmp_path: Path, data: bytes) -> None:
    """A trace of no events has no GPU activity."""
    with pytest.raises(TraceError, match="among 0 events"):
        read_bytes(tmp_path, data)


REAL = [
    "captures/G_micro/G_micro_rank0.pt.trace.json.gz",
    "hta-amd-trace/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "hta-execution-trace/benchmark_simple_add_trace.json.gz",
    "kineto-resnet50-num-workers-0/worker0.pt.trace.json.gz",
    "tracelens-inference-sglang-decode/sglang_Qwen3-8B_decode.json.gz",
    "tracelens-inference-vllm-decode-full/graph_execution.json.gz",
    "tracelens-inference-vllm-prefilldecode-piecewise/graph_execution.json.gz",
    "tracelens-mi210-gpu-only-trace/gpu_only_trace.json.gz",
]
_GPU = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
}


def _shared(shared_traces: Path, name: str) -> Path:
    path = shared_traces / name
    if not path.is_file():
        pytest.skip(f"{name} is not on this machine")
    return path


@pytest.mark.parametrize("name", REAL)
def test_real_trace_is_booked_to_the_nanosecond(shared_traces: Path, tmp_path: Path, name: str) -> None:
    """Counts and exact time per kind of GPU work are what a few lines of plain Python find in the file."""
    path = _shared(shared_traces, name)
    events = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)["traceEvents"]
    calls: Counter[str] = Counter()
    time: Counter[str] = Counter()
    for e in events:
        if e.get("ph") == "X" and (kind := _GPU.get(str(e.get("cat")).lower())):
            calls[kind] += 1
            time[kind] += int(e["dur"] * 1000)
    raw = read_file(path, tmp_path)
    landed = raw.rows("gpu_activity", "kind", "dur_ns")
    assert Counter(kind for kind, _ in landed) == calls
    assert {kind: sum(ns for k, ns in landed if k == kind) for kind in calls} == time
    assert raw.trace("events_read", "gpu_ns_read") == (len(events), sum(time.values()))


SMOKE = "smoke_dp0_pp0_tp0_dcp0_ep0_rank0.1795968595060704456.pt.trace.json.gz"
REFUSED = {
    "ascend-npu-trace-view/trace_view.json": "Ascend NPU",
    "hta-memory-analysis/memory_timeline.raw.gz": "memory timeline",
    "hta-execution-trace/benchmark_simple_add_et.json.gz": "execution trace",
    "tracelens-rocprof/908_results.json.gz": "rocprofv3",
    "hta-cpu-only/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz": "no kernel, memcpy or memset",
    f"captures/X_smoke_cupti_missing/{SMOKE}": CUPTI,
}


@pytest.mark.parametrize("name", REFUSED)
def test_real_file_that_is_no_gpu_trace_is_refused(shared_traces: Path, tmp_path: Path, name: str) -> None:
    """Files of other tools and captures without GPU work are refused by name, and leave no table."""
    with pytest.raises(TraceError, match=REFUSED[name]):
        read_file(_shared(shared_traces, name), tmp_path)
    assert list(tmp_path.rglob("run/*/*")) == []
