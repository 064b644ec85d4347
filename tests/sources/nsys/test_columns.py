"""Tables and columns of every schema and form: discovered, never assumed."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from pipeline.contracts import contracts
from pipeline.errors import TraceError
from tests.support.builders import raw_rows
from tests.support.nsys_builders import (
    ALL_REDUCE,
    EPOCH_NS,
    GEMM,
    VERSIONS,
    WRITERS,
    Process,
    Report,
    Tables,
    Version,
    Work,
    read_report,
    tables_of,
    two_ranks,
    write,
)


def _raw(folder: Path, tables: Tables, form: str = "sqlite") -> Path:
    folder.mkdir(exist_ok=True)
    read_report(write(folder, tables, form), folder)
    return folder


def _everything(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """All raw tables, without columns about the time and the file."""
    leave = "* EXCLUDE (file_name, ingested_at)"
    return {t: raw_rows(folder, t, leave if t == "trace" else "*") for t in contracts("raw")}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_schema_in_every_form_gives_the_known_tables(tmp_path: Path, version: Version) -> None:
    """sqlite, parquetdir and arrowdir differ in no raw table, and hold what was recorded, in nanoseconds
    since the epoch."""
    report = two_ranks()
    sqlite, parquet, arrow = (
        _everything(_raw(tmp_path / form, tables_of(report, version), form)) for form in WRITERS
    )
    for table, rows in sqlite.items():
        assert rows == parquet[table], table
        assert rows == arrow[table], table
    found = raw_rows(
        tmp_path / "sqlite", "gpu_activity", "rank, name, kind, device, stream, start_ns, dur_ns, correlation"
    )
    names = {"memcpy": "Memcpy HtoD (Pinned -> Device)", "memset": "Memset (Device)"}
    expected = [
        (
            w.process,
            names.get(w.kind, w.name),
            w.kind,
            w.device,
            w.stream,
            EPOCH_NS + w.start,
            w.dur,
            w.correlation,
        )
        for w in report.work
    ]
    assert found == sorted(expected)


@pytest.mark.parametrize("version", ["2021", "2026"])
def test_every_row_is_landed_or_counted(tmp_path: Path, version: Version) -> None:
    """Rows of the event tables = rows in the raw tables + rows left out by name, in number; and the GPU time
    as it was."""
    report = two_ranks()
    report.work.append(Work(GEMM, 9_000_000, -5))
    tables = tables_of(report, version)
    tables["NVTX_EVENTS"].rows.append({"start": 1, "eventType": 34, "text": "a mark"})
    folder = _raw(tmp_path, tables)
    assert raw_rows(folder, "trace", "sum(events_read)") == [
        (raw_rows(folder, "trace", "sum(events_kept)")[0][0] + _left_out(folder),)
    ]
    assert raw_rows(folder, "trace", "sum(gpu_events_read), sum(gpu_ns_read)") == [
        (len(report.work), sum(w.dur for w in report.work))
    ]
    assert ("negative_duration", 1, -5) in raw_rows(folder, "issue", "code, count, dur_ns")


def _left_out(folder: Path) -> int:
    codes = "('negative_duration', 'nvtx_record', 'graph_record')"
    return int(raw_rows(folder, "issue", f"sum(count) FILTER (WHERE code IN {codes})")[0][0])


def test_columns_that_a_schema_lacks_are_null(tmp_path: Path) -> None:
    """An export with the least a kernel table must have is read; the rest is NULL."""
    tables = tables_of(two_ranks(), "2021")
    kernel = tables["CUPTI_ACTIVITY_KIND_KERNEL"]
    needed = ("start", "end", "deviceId", "streamId", "correlationId", "shortName")
    kernel.drop(*(c.name for c in kernel.columns if c.name not in needed))
    folder = _raw(tmp_path, {name: tables[name] for name in ("CUPTI_ACTIVITY_KIND_KERNEL", "StringIds")})
    nothing = "context, graph_id, graph_node_id, bytes, grid, block, rank"
    assert raw_rows(folder, "gpu_activity", f"DISTINCT {nothing}") == [(None,) * 7]
    assert raw_rows(folder, "gpu_activity", "DISTINCT name") == [
        ("Marlin",), ("mystery_kernel_of_nobody",), ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL",), (GEMM,)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("form", "column"),
    [
        ("sqlite", "start"),
        ("sqlite", "end"),
        ("parquetdir", "deviceId"),
        ("parquetdir", "streamId"),
        ("arrowdir", "correlationId"),
    ],
)
def test_a_missing_minimum_is_named(tmp_path: Path, form: str, column: str) -> None:
    """The refusal says which column is missing and which are needed."""
    tables = tables_of(two_ranks())
    tables["CUPTI_ACTIVITY_KIND_KERNEL"].drop(column)
    with pytest.raises(TraceError) as refused:
        _raw(tmp_path, tables, form)
    assert refused.value.found == f"CUPTI_ACTIVITY_KIND_KERNEL without ['{column}']"
    assert (
        "CUPTI_ACTIVITY_KIND_KERNEL(start, end, deviceId, streamId, correlationId, shortName or "
        "demangledName)"
    ) in refused.value.wanted


def test_a_kernel_table_without_names_is_refused(tmp_path: Path) -> None:
    """Kernels without any name cannot be put into a category."""
    tables = tables_of(two_ranks())
    tables["CUPTI_ACTIVITY_KIND_KERNEL"].drop("shortName", "demangledName")
    with pytest.raises(TraceError, match="no column that names kernels"):
        _raw(tmp_path, tables)


@pytest.mark.parametrize("table", ["StringIds", "CUPTI_ACTIVITY_KIND_KERNEL"])
@pytest.mark.parametrize("form", ["sqlite", "parquetdir"])
def test_a_missing_table_is_named(tmp_path: Path, form: str, table: str) -> None:
    """An export without kernels or without names is refused with the missing table and what to do."""
    tables = tables_of(Report([Process(1)], [Work(GEMM, 5, 5)]))
    del tables[table]
    with pytest.raises(TraceError, match=f"no {table}, wanted .*--tables"):
        _raw(tmp_path, tables, form)


def test_a_report_without_gpu_work_is_refused(tmp_path: Path) -> None:
    """An empty kernel table is refused; the message says how to record kernels."""
    tables = tables_of(two_ranks())
    for kind in ("KERNEL", "MEMCPY", "MEMSET"):
        tables[f"CUPTI_ACTIVITY_KIND_{kind}"].rows = []
    tables["CUPTI_ACTIVITY_KIND_RUNTIME"].rows = []
    with pytest.raises(TraceError, match=r"no kernel, memcpy or memset.*VLLM_WORKER_MULTIPROC_METHOD=spawn"):
        _raw(tmp_path, tables)


def test_the_table_of_graph_nodes_is_told_from_the_table_of_graphs(tmp_path: Path) -> None:
    """CUDA_GRAPH_EVENTS means nodes until 2023 and graphs later: either is counted, and neither changes an
    activity."""
    old, new = (_raw(tmp_path / v, tables_of(two_ranks(), v)) for v in ("2023.4", "2024"))
    assert raw_rows(old, "gpu_activity") == raw_rows(new, "gpu_activity")
    counts = [raw_rows(f, "issue", "event_class, count") for f in (old, new)]
    assert counts == [[("CUDA_GRAPH_EVENTS", 3)], [("CUDA_GRAPH_EVENTS", 1), ("CUDA_GRAPH_NODE_EVENTS", 3)]]


@pytest.mark.parametrize("version", ["2022.4", "2023.4"])
def test_facts_of_the_export_are_found_under_both_names(tmp_path: Path, version: Version) -> None:
    """EXPORT_META_DATA became META_DATA_EXPORT: a normalized export is known as such under either."""
    folder = _raw(tmp_path, tables_of(two_ranks(), version, {"EXPORT_PARAM_TIME_NORMALIZE": "true"}))
    assert raw_rows(folder, "trace", "DISTINCT base_ns") == [(None,)]


def test_unsigned_ids_with_the_highest_bit_are_the_same_in_every_form(tmp_path: Path) -> None:
    """A globalPid from a host id of 128 on is negative in sqlite and unsigned in Parquet: same traces,
    launches and pids."""
    report = two_ranks(processes=[Process(101, host=0x8001), Process(102, host=0x8001)])
    report.work[0] = Work(GEMM, 2_000_000, 5, 1, node=(1 << 63) + 5)
    found = [_everything(_raw(tmp_path / form, tables_of(report), form)) for form in WRITERS]
    assert found[0] == found[1] == found[2]
    trace = raw_rows(tmp_path / "sqlite", "trace", "trace_id, pid, events_kept")
    assert trace == [("f-101", 101, 22), ("f-102", 102, 22)]
    assert raw_rows(tmp_path / "sqlite", "launch", "DISTINCT pid, tid") == [(101, 101), (102, 102)]
    assert raw_rows(tmp_path / "sqlite", "gpu_activity", "min(graph_node_id)") == [(5 - (1 << 63),)]


def test_names_with_nul_bytes_and_bytes_that_are_not_utf8_are_read(tmp_path: Path) -> None:
    """Strings may hold any byte: a name keeps what is text, shows the rest as escapes, and no other row
    suffers."""
    report = Report([Process(1)], [Work("nul", 5, 5), Work("bad", 20, 5)])
    path = write(tmp_path, tables_of(report))
    with sqlite3.connect(path) as con:
        con.execute("UPDATE StringIds SET value = ? WHERE value = 'nul'", ("a\0b",))
        con.execute("UPDATE StringIds SET value = CAST(x'6b65e9' AS TEXT) WHERE value = 'bad'")
        con.execute("UPDATE StringIds SET value = CAST(x'ff00fe' AS TEXT) WHERE value = 'an unused string'")
    con.close()
    read_report(path, tmp_path)
    assert raw_rows(tmp_path, "gpu_activity", "name", "start_ns") == [("a\0b",), (r"ke\xE9",)]


def test_kernel_names_are_the_full_ones(tmp_path: Path) -> None:
    """The demangled name is landed, as nsys spells it; the short name only where there is no other."""
    tables = tables_of(Report([Process(1)], [Work(ALL_REDUCE, 5, 5), Work(GEMM, 20, 5)]))
    tables["CUPTI_ACTIVITY_KIND_KERNEL"].rows[1]["demangledName"] = 999
    folder = _raw(tmp_path, tables)
    assert raw_rows(folder, "gpu_activity", "name", "start_ns") == [(ALL_REDUCE,), (GEMM,)]


def test_identical_rows_are_booked_once(tmp_path: Path) -> None:
    """Two kernels alike in every field are one; the other is counted with its time."""
    folder = _raw(
        tmp_path, tables_of(Report([Process(1)], [Work(GEMM, 5, 5, 1)] * 3 + [Work(GEMM, 5, 6, 1)]))
    )
    assert raw_rows(folder, "gpu_activity", "activity_id, dur_ns") == [(0, 5), (1, 6)]
    assert raw_rows(folder, "issue", "code, count, dur_ns", "code") == [
        ("duplicate_event", 2, 10),
        ("unknown_rank", 1, None),
    ]


def test_a_string_id_that_stands_twice_doubles_no_kernel(tmp_path: Path) -> None:
    """StringIds has no key in old schemas: a repeated id still names each kernel once."""
    tables = tables_of(Report([Process(1)], [Work(GEMM, 5, 5)]))
    tables["StringIds"].rows *= 2
    assert raw_rows(_raw(tmp_path, tables), "gpu_activity", "name, dur_ns") == [(GEMM, 5)]


def test_a_number_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    """A device number of 64 bits is no device: the file is refused, without a traceback."""
    with pytest.raises(TraceError, match="whole nsys export"):
        _raw(tmp_path, tables_of(Report([Process(1)], [Work(GEMM, 5, 5, device=1 << 40)])))
