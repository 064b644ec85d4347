"""Whatever columns and tables an export lacks: correct kernels, or a refusal."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import TraceError
from tests.support.builders import raw_rows
from tests.support.nsys_builders import EPOCH_NS, VERSIONS, Version, read_report, tables_of, two_ranks, write


@st.composite
def _cuts(draw: st.DrawFn) -> tuple[Version, list[str], dict[str, list[str]]]:
    """A schema, tables to leave out of it, and columns to leave out of the others."""
    version: Version = draw(st.sampled_from(VERSIONS))
    tables = tables_of(two_ranks(1), version)
    gone = draw(st.lists(st.sampled_from(sorted(tables)), max_size=4, unique=True))
    columns = {}
    for name in draw(st.lists(st.sampled_from(sorted(tables)), max_size=4, unique=True)):
        columns[name] = draw(
            st.lists(st.sampled_from([c.name for c in tables[name].columns]), max_size=4, unique=True)
        )
    return version, gone, columns


@settings(max_examples=20, derandomize=True)
@given(cuts=_cuts(), form=st.sampled_from(["sqlite", "parquetdir"]))
def test_any_missing_table_or_column_leaves_correct_kernels_or_a_refusal(
    cuts: tuple[Version, list[str], dict[str, list[str]]], form: str
) -> None:
    """Start, duration, name and stream of every kernel are right, or the file is refused; nothing else is
    ever raised."""
    version, gone, columns = cuts
    report = two_ranks(1)
    tables = tables_of(report, version)
    for name, dropped in columns.items():
        if len(dropped) < len(tables[name].columns):
            tables[name].drop(*dropped)
    for name in gone:
        del tables[name]
    kernel = tables.get("CUPTI_ACTIVITY_KIND_KERNEL")
    there = {c.name for c in kernel.columns} if kernel else set()
    strings = {c.name for c in tables["StringIds"].columns} if "StringIds" in tables else set()
    is_enough = {"start", "end", "deviceId", "streamId", "correlationId"} <= there and bool(
        there & {"shortName", "demangledName"}
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            read_report(write(folder, tables, form), folder)
        except TraceError:
            assert not (is_enough and {"id", "value"} <= strings)
            return
        found = raw_rows(folder, "gpu_activity", "start_ns, dur_ns, name, stream")
        kernels = [
            (r[0], r[1], r[3])
            for r in raw_rows(folder, "gpu_activity", "start_ns, dur_ns, name, stream, kind")
            if r[4] == "kernel"
        ]
        full = {r[2] for r in found}
    knows_epoch = "TARGET_INFO_SESSION_START_TIME" in tables and "utcEpochNs" in {
        c.name for c in tables["TARGET_INFO_SESSION_START_TIME"].columns
    }
    offset = EPOCH_NS if knows_epoch else 0
    assert is_enough
    work = [w for w in report.work if w.kind == "kernel"]
    assert sorted(kernels) == sorted((w.start + offset, w.dur, w.stream) for w in work)
    if "demangledName" in there:
        assert {w.name for w in work} <= full
