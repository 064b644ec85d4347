"""Session time becomes time since the epoch once, and ranges without an end do no harm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.duck import rows
from pipeline.errors import TraceError
from tests.support.builders import build_tables, raw_rows
from tests.support.nsys_builders import (
    DECODE,
    DURATION_NS,
    EPOCH_NS,
    GEMM,
    Process,
    Range,
    Report,
    Tables,
    Work,
    read_report,
    tables_of,
    write,
)


def _raw(folder: Path, tables: Tables) -> Path:
    folder.mkdir(exist_ok=True)
    read_report(write(folder, tables), folder)
    return folder


def _moved(tables: Tables, by_ns: int) -> Tables:
    """The same tables with other times, as nsys writes them with --ts-normalize or --ts-shift."""
    for table in tables.values():
        for row in table.rows:
            row.update({c: row[c] + by_ns for c in ("start", "end") if row.get(c) is not None})
    return tables


def _one_step() -> Report:
    return Report([Process(1)]).step(1_000_000, 1)


@pytest.mark.parametrize(
    ("by_ns", "facts", "base_ns"),
    [
        (0, {}, EPOCH_NS),
        (EPOCH_NS, {"EXPORT_PARAM_TIME_NORMALIZE": "true"}, None),
        (EPOCH_NS, {}, None),
        (700, {"EXPORT_PARAM_TIME_SHIFT": "700"}, EPOCH_NS),
        (-700, {"EXPORT_PARAM_TIME_SHIFT": "-700"}, EPOCH_NS),
        (EPOCH_NS + 700, {"EXPORT_PARAM_TIME_NORMALIZE": "true", "EXPORT_PARAM_TIME_SHIFT": "700"}, None),
    ],
    ids=["session", "normalized", "normalized_unsaid", "shifted", "shifted_back", "both"],
)
def test_every_way_to_export_times_gives_the_same_absolute_times(
    tmp_path: Path, by_ns: int, facts: dict[str, str], base_ns: int | None
) -> None:
    """The session's start is added unless the export did so already, and a shift is subtracted; base_ns says
    what was added."""
    report = _one_step()
    report.ranges.append(Range("never closed", 1_000_500, DURATION_NS - 1_000_500))
    folder = _raw(tmp_path, _moved(tables_of(report, facts=facts), by_ns))
    assert raw_rows(folder, "gpu_activity", "min(start_ns)") == [(EPOCH_NS + 1_050_000,)]
    assert raw_rows(folder, "launch", "min(start_ns)") == [(EPOCH_NS + 1_001_000,)]
    assert raw_rows(folder, "annotation", "name, start_ns, dur_ns, is_open") == [
        (DECODE, EPOCH_NS + 1_000_000, 20_000, False),
        ("never closed", EPOCH_NS + 1_000_500, None, True),
    ]
    assert raw_rows(folder, "trace", "base_ns") == [(base_ns,)]
    assert ("no_epoch",) not in raw_rows(folder, "issue", "code")


def test_a_report_that_does_not_say_when_it_began_keeps_session_time(tmp_path: Path) -> None:
    """Without the session's start, times stay relative and an issue says that they cannot be compared with
    other files."""
    tables = tables_of(_one_step())
    del tables["TARGET_INFO_SESSION_START_TIME"]
    folder = _raw(tmp_path, tables)
    assert raw_rows(folder, "trace", "base_ns, first_ns") == [(None, 1_050_000)]
    assert ("no_epoch", "warn") in raw_rows(folder, "issue", "code, severity")


@pytest.mark.parametrize("end", [None, DURATION_NS, 0], ids=["null", "session_end", "before_start"])
def test_a_range_without_an_end_of_its_own_is_open(tmp_path: Path, end: int | None) -> None:
    """NULL, the session's end and an end before the start all mean that the range was never closed; an issue
    counts them."""
    tables = tables_of(_one_step())
    tables["NVTX_EVENTS"].rows[0]["end"] = end
    folder = _raw(tmp_path, tables)
    assert raw_rows(folder, "annotation", "dur_ns, is_open") == [(None, True)]
    assert ("open_range", "info", 1, DECODE) in raw_rows(folder, "issue", "code, severity, count, example")


def _steps(folder: Path, report: Report) -> list[tuple[Any, ...]]:
    run = read_report(write(folder, tables_of(report)), folder)
    with build_tables(run, folder / "spill") as con:
        return rows(
            con, f"SELECT step, phase, kernels, activities, end_ns - {EPOCH_NS} FROM steps ORDER BY step"
        )


def test_an_open_last_step_keeps_its_work(tmp_path: Path) -> None:
    """A step interrupted by the end of recording keeps all that was launched in it, to the last activity."""
    report = Report([Process(1)]).step(1_000_000, 1).step(1_100_000, 11)
    report.ranges[1] = Range(DECODE, 1_100_000, None)
    assert _steps(tmp_path, report) == [(0, "decode", 4, 6, 1_055_306), (1, "decode", 4, 6, 1_155_306)]


def test_an_open_step_does_not_swallow_the_steps_behind_it(tmp_path: Path) -> None:
    """A range that was pushed and never popped ends where the next step of its thread begins: all later steps
    are there."""
    report = Report([Process(1)]).step(1_000_000, 1).step(1_100_000, 11).step(1_200_000, 21)
    report.ranges[0] = Range(DECODE, 1_000_000, DURATION_NS - 1_000_000)
    assert [row[:4] for row in _steps(tmp_path, report)] == [(n, "decode", 4, 6) for n in range(3)]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"start": 0, "end": 0}, "zero_timestamp"),
        ({"start": None}, "no_timestamp"),
        ({"end": None}, "no_duration"),
        ({"end": 3}, "negative_duration"),
    ],
)
def test_a_kernel_without_usable_times_is_counted_not_booked(
    tmp_path: Path, change: dict[str, Any], code: str
) -> None:
    """Its row is left out by name, and the other kernels are booked."""
    tables = tables_of(Report([Process(1)], [Work(GEMM, 5, 5), Work(GEMM, 50, 5)]))
    kernel = tables["CUPTI_ACTIVITY_KIND_KERNEL"]
    kernel.rows[0].update(change)
    kernel.columns = [
        type(c)(c.name, c.kind, c.is_required and c.name not in {"start", "end"}) for c in kernel.columns
    ]
    folder = _raw(tmp_path, tables)
    assert raw_rows(folder, "gpu_activity", "start_ns") == [(EPOCH_NS + 50,)]
    assert (code, "kernel", 1) in raw_rows(folder, "issue", "code, event_class, count")
    assert raw_rows(folder, "trace", "gpu_events_read") == [(2,)]


def test_a_process_none_of_whose_kernels_has_times_is_no_trace(tmp_path: Path) -> None:
    """Its rows are counted with the first trace, and its calls as those of another process."""
    report = Report([Process(1), Process(2)], [Work(GEMM, 5, 5), Work(GEMM, 0, 0, process=1)])
    folder = _raw(tmp_path, tables_of(report))
    assert raw_rows(folder, "trace", "trace_id, gpu_events_read") == [("f", 2)]
    assert ("zero_timestamp", 1) in raw_rows(folder, "issue", "code, count")


def test_a_report_without_any_usable_time_is_refused(tmp_path: Path) -> None:
    """The message says that there is GPU work, but none with usable times."""
    with pytest.raises(TraceError, match="2 GPU activities of which none can be booked"):
        _raw(tmp_path, tables_of(Report([Process(1)], [Work(GEMM, 0, 0), Work(GEMM, 9, -1)])))


@pytest.mark.parametrize("what", ["TABLES", "TIMES"])
def test_a_filtered_export_is_said_to_be_one(tmp_path: Path, what: str) -> None:
    """--tables and --times separate launches from kernels: an issue says so, with the filter."""
    folder = _raw(tmp_path, tables_of(_one_step(), facts={f"EXPORT_PARAM_{what}_TO_EXPORT": "x/y"}))
    assert ("filtered_export", "warn", f"--{what.lower()}=x/y") in raw_rows(
        folder, "issue", "code, severity, example"
    )
