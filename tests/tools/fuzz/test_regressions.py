"""Mutants that once got the better of a reader, cut down to what mattered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.ipc
import pytest

from pipeline import duck
from pipeline.errors import TraceError
from pipeline.ingest.land import land
from pipeline.lake.home import Home
from tests.support import nsys_builders
from tests.support.builders import ALL_REDUCE, GEMM, StepBuilder, header, ingest_into, kernel, trace_json

SKIPS = "('no_start', 'graph_record', 'nvtx_record', 'other_process', 'other_record', 'sync', 'overhead')"


def landed(home: Home, path: Path) -> None:
    """Land a file into the home's only run."""
    land(home, path, "run", lambda _bytes: None, threads=1, memory_limit="256MB")


def asked(home: Home, sql: str) -> list[tuple[Any, ...]]:
    """Rows of a query over the raw tables {trace} and {issue}."""
    tables = {
        t: f"read_parquet({duck.files(home.raw, f'*/*/{t}.parquet')}, hive_partitioning = false)"
        for t in ("trace", "issue")
    }
    with duckdb.connect() as con:
        return duck.rows(con, sql.format(**tables))


def json_file(folder: Path, text: bytes) -> Path:
    """A chrome trace of these bytes."""
    path = folder / "m-rank-0.json"
    path.write_bytes(text)
    return path


def test_half_of_a_surrogate_pair_in_a_bad_value_is_shown_replaced(home: Home, tmp_path: Path) -> None:
    r"""A time of "\ud800" is counted as bad_value; its example is text that can be written."""
    late = json.dumps(kernel(GEMM, 5_000, 10, 2) | {"ts": "\ud800"})
    landed(
        home,
        json_file(
            tmp_path, trace_json([kernel(GEMM, 1_000, 10, 1)]).replace(b"\n]", f",\n{late}\n]".encode())
        ),
    )
    [(example,)] = asked(home, "SELECT example FROM {issue} WHERE code = 'bad_value'")
    assert example.endswith("ts = ?")


@pytest.mark.parametrize("base", [10**40, "9" * 30, "soon", [1]])
def test_a_base_time_that_is_no_time_is_a_bad_value(home: Home, tmp_path: Path, base: object) -> None:
    """A baseTimeNanoseconds beyond 64 bits, or no number, is counted and not added."""
    landed(
        home, json_file(tmp_path, trace_json([kernel(GEMM, 1_000, 10, 1)], header(baseTimeNanoseconds=base)))
    )
    assert asked(home, "SELECT event_class, count FROM {issue} WHERE code = 'bad_value'") == [
        ("baseTimeNanoseconds", 1)
    ]
    assert asked(home, "SELECT base_ns, first_ns FROM {trace}") == [(None, 1_000)]


def test_an_exponent_beyond_all_bounds_is_a_bad_value(home: Home, tmp_path: Path) -> None:
    """Python's Decimal refuses an exponent of twenty digits; the file is read anyway."""
    late = json.dumps(kernel(GEMM, 5_000, 10, 2)).replace('"ts": 5.0', '"ts": 1e99999999999999999999')
    landed(
        home,
        json_file(
            tmp_path, trace_json([kernel(GEMM, 1_000, 10, 1)]).replace(b"\n]", f",\n{late}\n]".encode())
        ),
    )
    assert asked(home, "SELECT event_class, count FROM {issue} WHERE code = 'bad_value'") == [("ts", 1)]


@pytest.mark.parametrize("prefixes", [("[A.b]", "[A_b]", "[A b]"), ("[rest]", "[]")])
def test_processes_whose_prefixes_look_alike_are_traces_of_their_own(
    home: Home, tmp_path: Path, prefixes: tuple[str, ...]
) -> None:
    """Prefixes of merged processes that differ in odd characters only, or are called like our own name for
    none, do not share a trace_id."""
    landed(
        home,
        json_file(
            tmp_path,
            trace_json([kernel(GEMM, 1_000, 10, n) | {"pid": f"{p} 7"} for n, p in enumerate(prefixes)]),
        ),
    )
    assert asked(home, "SELECT count(DISTINCT trace_id) FROM {trace}") == [(len(prefixes),)]


def test_impossible_times_do_not_stop_the_run(home: Home, tmp_path: Path) -> None:
    """Stamps and durations near the ends of 64 bits are counted under their names; sums in the models never
    see them."""
    steps = (
        StepBuilder().step([(GEMM, 1_000), (ALL_REDUCE, 2_000)]).step([(GEMM, 1_000), (ALL_REDUCE, 2_000)])
    )
    odd = [
        e | change
        for e in steps.events
        for change in ({"dur": 5e15}, {"ts": 9.2e15}, {"ts": -9.2e15}, {"dur": -9.2e15})
    ]
    outcome = ingest_into(home, json_file(tmp_path, trace_json([*steps.events, *odd])))
    assert (outcome.built, outcome.codes) == (["run"], [])
    assert asked(home, ("SELECT event_class, count FROM {issue} WHERE code IN ('no_duration', 'bad_value') "
                       "ORDER BY ALL")) == [
        ("annotation_cpu", 2), ("kernel", 4), ("launch", 4)
    ]  # fmt: skip


@pytest.mark.parametrize("value", [2**63 - 1, 4 * 10**18, -4 * 10**18])
def test_impossible_times_of_a_report_do_not_stop_the_run(home: Home, tmp_path: Path, value: int) -> None:
    """The same of an nsys report: the stamps of some rows are beyond all bounds, and the run is built of the
    others."""
    tables = nsys_builders.tables_of(nsys_builders.two_ranks())
    for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
        tables[table].rows[0]["start"] = value
        tables[table].rows[1]["end"] = value
    outcome = ingest_into(home, nsys_builders.write(tmp_path, tables))
    assert (outcome.built, outcome.codes) == (["run"], [])


@pytest.mark.parametrize("shift", ["--5", "9" * 60, "soon"])
def test_a_time_shift_that_is_no_time_is_not_added(home: Home, tmp_path: Path, shift: str) -> None:
    """EXPORT_PARAM_TIME_SHIFT is text in the file, and may hold any."""
    report = nsys_builders.two_ranks()
    landed(
        home,
        nsys_builders.write(
            tmp_path, nsys_builders.tables_of(report, facts={"EXPORT_PARAM_TIME_SHIFT": shift})
        ),
    )
    assert asked(home, "SELECT min(first_ns) FROM {trace}") == [
        (nsys_builders.EPOCH_NS + min(w.start for w in report.work),)
    ]


def test_calls_and_ranges_without_a_start_are_counted_with_their_own_trace(
    home: Home, tmp_path: Path
) -> None:
    """In a report of two processes each trace's books close, though no NVTX range and no call says when it
    began."""
    tables = nsys_builders.tables_of(nsys_builders.two_ranks())
    for table in ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME"):
        tables[table].drop("start")
    landed(home, nsys_builders.write(tmp_path, tables))
    skipped = f"SELECT trace_id, sum(count) AS events FROM {{issue}} WHERE code IN {SKIPS} GROUP BY trace_id"
    rows = asked(
        home, f"SELECT events_read - events_kept - events FROM {{trace}} JOIN ({skipped}) USING (trace_id)"
    )
    assert rows == [(0,), (0,)]


def test_a_schema_that_is_no_text_is_a_damaged_export(home: Home, tmp_path: Path) -> None:
    """Bytes in a database's schema that are not UTF-8 make sqlite3 raise UnicodeDecodeError, which is no
    sqlite3.Error."""
    path = nsys_builders.write(tmp_path, nsys_builders.tables_of(nsys_builders.two_ranks()))
    path.write_bytes(path.read_bytes().replace(b'CREATE TABLE "PROCESSES"', b'CREATE TABLE \xdf"ROCESSES"'))
    with pytest.raises(TraceError, match="whole nsys export"):
        landed(home, path)


def arrow_report(folder: Path, table: str, change: Any) -> Path:
    """An arrowdir of which one table is changed."""
    path = nsys_builders.write(folder, nsys_builders.tables_of(nsys_builders.two_ranks()), "arrowdir")
    file = path / f"{table}.arrow"
    made = change(pyarrow.ipc.open_stream(file.read_bytes()).read_all())
    with pyarrow.ipc.new_stream(str(file), made.schema) as writer:
        writer.write_table(made)
    return path


def test_a_repeated_column_is_refused(home: Home, tmp_path: Path) -> None:
    """An Arrow table may hold two columns of one name, and either could be meant."""
    path = arrow_report(tmp_path, "StringIds", lambda t: t.append_column("id", t.column("id")))
    with pytest.raises(TraceError, match="column id more than once"):
        landed(home, path)


@pytest.mark.parametrize(
    ("table", "column", "kind"),
    [
        ("StringIds", "id", pa.timestamp("ns")),
        ("NVTX_EVENTS", "start", pa.timestamp("ns")),
        ("PROCESSES", "globalPid", pa.list_(pa.int64())),
    ],
)
def test_a_column_of_a_type_that_is_no_number_is_refused(
    home: Home, tmp_path: Path, table: str, column: str, kind: Any
) -> None:
    """A folder's tables may have columns of any type: times where numbers are due are refused by name, not
    cast."""

    def change(found: pa.Table) -> pa.Table:
        at = found.schema.get_field_index(column)
        return found.set_column(at, column, pa.nulls(found.num_rows, kind))

    with pytest.raises(TraceError, match=f"{table} with {column} as"):
        landed(home, arrow_report(tmp_path, table, change))


def test_merged_processes_of_which_nothing_can_be_booked_are_refused(home: Home, tmp_path: Path) -> None:
    """Two ranks in one file, every kernel with a negative duration: no activity is left of either."""
    kernels = [kernel(GEMM, 1_000 + n, -10, n) | {"pid": f"[TP{n}] 7"} for n in range(2)]
    with pytest.raises(TraceError) as refused:
        landed(home, json_file(tmp_path, trace_json(kernels)))
    assert refused.value.where == "traceEvents"
    assert "none can be booked" in refused.value.found
