"""One report of several processes: one trace each, with its rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.duck import rows
from pipeline.errors import TraceError
from tests.support.builders import build_tables, raw_rows
from tests.support.nsys_builders import (
    GEMM,
    Call,
    Process,
    Range,
    Report,
    Table,
    Tables,
    Work,
    columns_of,
    read_report,
    tables_of,
    two_ranks,
    write,
)


def _raw(folder: Path, tables: Tables, name: str = "report") -> Path:
    read_report(write(folder, tables, name=name), folder)
    return folder


WHO = "trace_id, rank, rank_source, tp_rank, dp_rank, pid, process_name, world_size"


def test_process_names_tell_ranks(tmp_path: Path) -> None:
    """vLLM's and SGLang's process titles hold coordinates: they are the ranks, in whatever order the devices
    are."""
    processes = [Process(101, "VLLM::Worker_TP1_EP1"), Process(102, "VLLM::Worker_TP0_EP0")]
    found = raw_rows(_raw(tmp_path, tables_of(two_ranks(1, processes=processes))), "trace", WHO)
    assert found == [
        ("f-101", 1, "process_name", 1, None, 101, "VLLM::Worker_TP1_EP1", 2),
        ("f-102", 0, "process_name", 0, None, 102, "VLLM::Worker_TP0_EP0", 2),
    ]


def test_thread_names_tell_ranks_where_process_names_do_not(tmp_path: Path) -> None:
    """The kernel cuts process names; a thread's name with coordinates is used first."""
    processes = [
        Process(101, "python3", thread="sglang_TP3_DP0"),
        Process(102, "python3", thread="sglang_TP2_DP0"),
    ]
    found = raw_rows(_raw(tmp_path, tables_of(two_ranks(1, processes=processes))), "trace", WHO)
    assert found == [
        ("f-101", 3, "thread_name", 3, 0, 101, "python3", 2),
        ("f-102", 2, "thread_name", 2, 0, 102, "python3", 2),
    ]


@pytest.mark.parametrize(
    "names", [("python3", "python3"), ("Worker_TP0", "python3"), ("Worker_TP0_DP0", "Worker_TP0_DP1")]
)
def test_names_that_do_not_tell_processes_apart_leave_their_order(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    """Nothing, one name only, or the same tensor rank twice: ranks are numbered by device and pid, and
    rank_source says so."""
    processes = [Process(101, names[0]), Process(102, names[1])]
    found = raw_rows(
        _raw(tmp_path, tables_of(two_ranks(1, devices=(1, 0), processes=processes))),
        "trace",
        "trace_id, rank, rank_source",
    )
    assert found == [("f-101", 1, "process_order"), ("f-102", 0, "process_order")]


def test_a_report_of_one_process_has_the_rank_of_its_file_name(tmp_path: Path) -> None:
    """One report per rank: the file's name gives it, before the process's name."""
    report = Report([Process(101, "VLLM::Worker_TP0")], [Work(GEMM, 5, 5)])
    assert raw_rows(_raw(tmp_path, tables_of(report), "serve_rank3"), "trace", WHO) == [
        ("f", 3, "file_name", 0, None, 101, "VLLM::Worker_TP0", None)
    ]  # fmt: skip


def test_one_process_of_which_nothing_tells_has_no_rank(tmp_path: Path) -> None:
    """Its rank is unknown, and an issue says what to do."""
    folder = _raw(tmp_path, tables_of(Report([Process(101, "python3")], [Work(GEMM, 5, 5)])))
    assert raw_rows(folder, "trace", "rank, rank_source") == [(None, None)]
    assert raw_rows(folder, "issue", "code") == [("unknown_rank",)]


def test_one_pid_in_two_containers_is_two_processes(tmp_path: Path) -> None:
    """Containers repeat pids: higher bits separate the processes, and trace ids include them."""
    processes = [Process(17, host=1), Process(17, host=0x8002)]
    folder = _raw(tmp_path, tables_of(two_ranks(1, devices=(0, 0), processes=processes)))
    assert raw_rows(folder, "trace", "trace_id, rank, pid, gpu_events_read") == [
        ("f-1.17", 0, 17, 6),
        ("f-32770.17", 1, 17, 6),
    ]
    assert sorted(raw_rows(folder, "launch", "trace_id")) == [("f-1.17",)] * 4 + [("f-32770.17",)] * 4


def test_correlation_ids_that_processes_share_join_within_each(tmp_path: Path) -> None:
    """Both processes count from 1, and both call their device 0: each activity goes to the launch of its own
    process."""
    report = two_ranks(2, devices=(0, 0))
    with build_tables(read_report(write(tmp_path, tables_of(report)), tmp_path), tmp_path / "spill") as con:
        found = rows(
            con,
            "SELECT rank, step, kernels, activities, busy_ns, graph_launches, method FROM steps ORDER BY ALL",
        )
        late = rows(
            con, "SELECT count(*) FROM int_activity_launch WHERE launch_ns IS NULL OR launch_ns > start_ns"
        )
    assert found == [(rank, step, 4, 6, 3_351, 1, "nvtx") for rank in (0, 1) for step in (0, 1)]
    assert late == [(0,)]


def test_device_zero_of_every_process_is_a_device_of_its_own(tmp_path: Path) -> None:
    """deviceId is the process's ordinal: two workers on device 0 are two lanes, and no time is added up
    across them."""
    report = two_ranks(1, devices=(0, 0))
    with build_tables(read_report(write(tmp_path, tables_of(report)), tmp_path), tmp_path / "spill") as con:
        assert rows(con, "SELECT rank, device, activities, exposed_ns FROM timeline ORDER BY ALL") == [
            (0, 0, 6, 3_351),
            (1, 0, 6, 3_351),
        ]


def test_processes_are_ordered_by_gpu_where_the_report_says_which(tmp_path: Path) -> None:
    """All call their device 0, but TARGET_INFO_CUDA_DEVICE names the GPU: ranks follow it, and so does the
    GPU's name."""
    tables = tables_of(two_ranks(1, devices=(0, 0), processes=[Process(101), Process(102)]), "2024")
    tables["TARGET_INFO_CUDA_DEVICE"] = Table(columns_of("gpuId! cudaId! pid! uuid:t"), [
        {"gpuId": 1, "cudaId": 0, "pid": 101}, {"gpuId": 0, "cudaId": 0, "pid": 102},
    ])  # fmt: skip
    tables["TARGET_INFO_GPU"].rows[1]["name"] = "NVIDIA H100"
    found = raw_rows(_raw(tmp_path, tables), "trace", "trace_id, rank, gpu_name")
    assert found == [("f-101", 1, "NVIDIA H100"), ("f-102", 0, "NVIDIA H200")]


def test_a_report_without_global_pids_is_one_process_of_unknown_rank(tmp_path: Path) -> None:
    """Old and converted files name no process: all work is one trace, and calls and ranges of any thread
    belong to it."""
    tables = tables_of(Report([Process(101), Process(102)]).step(1_000_000, 1).step(1_100_000, 11, process=1))
    for kind in ("KERNEL", "MEMCPY", "MEMSET"):
        tables[f"CUPTI_ACTIVITY_KIND_{kind}"].drop("globalPid")
    folder = _raw(tmp_path, tables)
    assert raw_rows(folder, "trace", "trace_id, rank, pid, world_size, events_read, events_kept") == [
        ("f", None, None, None, 25, 22)
    ]
    assert raw_rows(folder, "issue", "code, count", "code") == [("graph_record", 3), ("unknown_rank", 1)]


def test_calls_without_a_thread_belong_to_the_only_process(tmp_path: Path) -> None:
    """Where an export has no globalTid, one process's calls can only be its own."""
    tables = tables_of(Report([Process(101)]).step(1_000_000, 1))
    tables["CUPTI_ACTIVITY_KIND_RUNTIME"].drop("globalTid")
    assert raw_rows(_raw(tmp_path, tables), "launch", "DISTINCT trace_id, pid") == [("f", None)]


def test_calls_and_ranges_of_processes_without_gpu_work_are_counted(tmp_path: Path) -> None:
    """The engine's front end calls CUDA and has ranges too: they are left out by name."""
    report = Report([Process(101), Process(55, "api_server")]).step(1_000_000, 1)
    report.calls.append(Call(5, 1, process=1))
    report.ranges.append(Range("request", 5, 5, process=1))
    found = raw_rows(_raw(tmp_path, tables_of(report)), "issue", "code, event_class, count")
    assert {("other_process", "launch", 1), ("other_process", "nvtx", 1)} <= set(found)


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("/usr/bin/python3", "python3"),
        ("/opt/serve/bin/vllm serve --api-key hunter2", "vllm"),
        (r"C:\Program\nsys.exe -x", "nsys.exe"),
        ("VLLM::Worker_TP0", "VLLM::Worker_TP0"),
        ("", None),
        ("TOKEN=hunter2", None),
    ],
)
def test_of_a_process_name_only_the_program_is_kept(tmp_path: Path, name: str, program: str | None) -> None:
    """Paths and arguments may hold passwords: they are removed."""
    folder = _raw(tmp_path, tables_of(Report([Process(101, name)], [Work(GEMM, 5, 5)])))
    assert raw_rows(folder, "trace", "process_name") == [(program,)]


def test_more_processes_than_a_machine_has_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would be a trace of its own; as many as are allowed are read."""
    monkeypatch.setattr("pipeline.sources.nsys.processes.MOST_PROCESSES", 2)
    _raw(tmp_path / "two", tables_of(two_ranks()))
    three = two_ranks(processes=[Process(n) for n in (1, 2, 3)])
    three.work.append(Work(GEMM, 5, 5, process=2))
    with pytest.raises(TraceError, match="more than 2 processes with GPU work"):
        _raw(tmp_path / "three", tables_of(three))


def test_of_a_name_of_megabytes_the_program_is_kept(tmp_path: Path) -> None:
    """A command line is shortened to more than the longest path."""
    processes = [
        Process(1, f"/bin/VLLM::Worker_TP3 {'x' * 1_000_000}", thread=f"sglang_TP5 {'x' * 1_000_000}")
    ]
    assert raw_rows(
        _raw(tmp_path, tables_of(two_ranks(devices=(0,), processes=processes))), "trace", "rank, process_name"
    ) == [(5, "VLLM::Worker_TP3")]
