"""NVTX ranges: names from both places, domains, and the steps that engines mark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.duck import rows
from tests.support.builders import build_tables, raw_rows
from tests.support.nsys_builders import (
    DECODE,
    PREFILL,
    Process,
    Range,
    Report,
    Tables,
    read_report,
    tables_of,
    write,
)


def _raw(folder: Path, tables: Tables) -> Path:
    read_report(write(folder, tables), folder)
    return folder


def _with(*ranges: Range) -> Report:
    report = Report([Process(101)]).step(1_000_000, 1)
    report.ranges = list(ranges)
    return report


def test_a_name_is_text_or_a_registered_string(tmp_path: Path) -> None:
    """`text` if it is in the row, the string of `textId` if it was registered."""
    folder = _raw(
        tmp_path, tables_of(_with(Range("plain", 10, 5), Range("registered", 20, 5, registered=True)))
    )
    assert raw_rows(folder, "annotation", "name, dur_ns", "start_ns") == [("plain", 5), ("registered", 5)]


@pytest.mark.parametrize("column", ["textId", "text", "domainId"])
def test_a_column_of_names_may_be_missing(tmp_path: Path, column: str) -> None:
    """Older schemas lack one or the other: what is there is used, the rest is an unnamed range, and nothing
    fails."""
    tables = tables_of(_with(Range("plain", 10, 5), Range("registered", 20, 5, registered=True)))
    tables["NVTX_EVENTS"].drop(column)
    expected = {"textId": ["plain", ""], "text": ["", "registered"], "domainId": ["plain", "registered"]}[
        column
    ]
    assert [r[0] for r in raw_rows(_raw(tmp_path, tables), "annotation", "name", "start_ns")] == expected


def test_ranges_carry_the_name_of_their_domain(tmp_path: Path) -> None:
    """A domain id means something within its process only; 0 is the default domain and has no name."""
    report = Report([Process(101), Process(102)]).step(1_000_000, 1).step(1_000_000, 1, process=1, device=1)
    report.ranges = [
        Range("NCCL", 1, None, domain=3, type=75),
        Range("TensorRT", 1, None, 1, domain=3, type=75, registered=True),
        Range("a", 10, 5, domain=3),
        Range("b", 20, 5, 1, domain=3),
        Range("c", 30, 5),
        Range("d", 40, 5, domain=4),
    ]
    folder = _raw(tmp_path, tables_of(report))
    assert raw_rows(folder, "annotation", "name, domain", "start_ns") == [
        ("a", "NCCL"),
        ("b", "TensorRT"),
        ("c", None),
        ("d", None),
    ]


def test_rows_that_are_no_ranges_are_counted(tmp_path: Path) -> None:
    """Marks, categories, domains and thread names are left out by name; start/end ranges are ranges."""
    kinds = [Range(f"type {t}", 10 * t, None, type=t) for t in (33, 34, 39, 75, 76)]
    folder = _raw(tmp_path, tables_of(_with(*kinds, Range("start/end", 999, 5, type=60))))
    assert raw_rows(folder, "annotation", "name") == [("start/end",)]
    assert ("nvtx_record", 5) in raw_rows(folder, "issue", "code, count")


def test_domains_without_ranges_are_pointed_out(tmp_path: Path) -> None:
    """Python's nvtx under some versions records domains only: the issue says why there are no steps."""
    folder = _raw(tmp_path, tables_of(_with(Range("serve", 1, None, domain=3, type=75))))
    assert ("domains_without_ranges", "warn", 1) in raw_rows(folder, "issue", "code, severity, count")


@pytest.mark.parametrize("is_there", [True, False])
def test_a_report_without_ranges_is_read(tmp_path: Path, is_there: bool) -> None:
    """An empty NVTX table or none at all: activities and launches are there, and no step is invented from
    ranges."""
    tables = tables_of(_with(Range("x", 1, 1)))
    tables["NVTX_EVENTS"].rows = []
    if not is_there:
        del tables["NVTX_EVENTS"]
    folder = _raw(tmp_path, tables)
    assert raw_rows(folder, "annotation") == []
    assert raw_rows(folder, "trace", "gpu_events_read, events_kept") == [(6, 10)]


VLLM = [PREFILL, DECODE, "execute_context_0(0)_generation_2(2)"]
SGLANG = ["step[EXTEND bs=15 toks=15360]", "step[DECODE bs=1]", "step[DECODE bs=2]"]
TENSORRT = ["[Executor] _forward_step 7: 1 ctx reqs, 0 gen reqs", ("[Executor] _forward_step 8: 0 ctx reqs, "
                                                                   "1 "
                                                                  "gen reqs"),
            "[Executor] _forward_step 9: 0 ctx reqs, 0 ctx tokens, 2 gen reqs"]  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "labels"),
    [("vllm", VLLM), ("sglang", SGLANG), ("tensorrt_llm", TENSORRT)],
    ids=["vllm", "sglang", "tensorrt_llm"],
)
def test_steps_come_from_the_markers_of_each_engine(tmp_path: Path, engine: str, labels: list[str]) -> None:
    """Every marked forward pass is a step found by method nvtx, with its phase and what was launched from
    it."""
    report = Report([Process(101)])
    for number, label in enumerate(labels):
        report.step(1_000_000 + 100_000 * number, 1 + 10 * number, label)
        report.ranges.append(Range("nested work", 1_000_500 + 100_000 * number, 100))
    found, engines = _steps(tmp_path, report)
    assert found == [
        (n, phase, "nvtx", label, 4, 6)
        for n, (phase, label) in enumerate(zip(("prefill", "decode", "decode"), labels, strict=True))
    ]
    assert engines == [(engine,)]


def test_steps_go_by_the_time_of_launch(tmp_path: Path) -> None:
    """The GPU lags: work that starts during the next step's range belongs to the step that launched
    it."""
    report = Report([Process(101)])
    for number in range(3):
        report.step(1_000_000 + 30_000 * number, 1 + 10 * number)
    found, _ = _steps(tmp_path, report)
    assert [row[4:] for row in found] == [(4, 6)] * 3


def _steps(folder: Path, report: Report) -> tuple[list[Any], list[Any]]:
    with build_tables(read_report(write(folder, tables_of(report)), folder), folder / "spill") as con:
        steps = rows(con, "SELECT step, phase, method, label, kernels, activities FROM steps ORDER BY step")
        return steps, rows(con, "SELECT engine FROM run_facts")
