"""Real nsys reports of the shared folder: against a direct count in SQL, and against torch.profiler on the
same model."""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest

from pipeline.errors import ExitCode
from pipeline.ingest.inbox import named
from pipeline.ingest.ingest import ingest
from pipeline.lake.home import Home
from pipeline.progress import Progress

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = {"memcpy": "CUPTI_ACTIVITY_KIND_MEMCPY", "memset": "CUPTI_ACTIVITY_KIND_MEMSET"}
REPORTS = (
    "captures/F_nsys/node.sqlite",
    *(
        f"nsys-ai/{name}.sqlite"
        for name in (
            "h100_2gpu_1s",
            "healthy_1pct",
            "healthy_judged_1pct",
            "mfu_2gpu_after",
            "mfu_2gpu_before",
            "mock",
        )
    ),
)

MEAN_TOLERANCE = 0.30
"""How far the mean duration of one kernel may differ between the two captures, which are two runs of the same
model (the largest found is 25.1 %, of triton_red_fused_fused_add_rms_norm_moe_forward_shared_0; half of them
are within 3.2 %)."""
TOTAL_TOLERANCE = 0.03
"""How far the time of all such kernels of a step together may differ."""


@pytest.fixture(scope="session")
def warehouse(shared_traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A connection to the warehouse of one report or folder, made once."""
    made: dict[str, duckdb.DuckDBPyConnection] = {}

    def build(name: str) -> duckdb.DuckDBPyConnection:
        if not (shared_traces / name).exists():
            pytest.skip(f"{name} is not among the shared traces")
        if name not in made:
            home = Home(tmp_path_factory.mktemp("real") / "home")
            outcome = ingest(home, named([shared_traces / name], "run"), Progress(quiet=True))
            assert outcome.codes == []
            made[name] = duckdb.connect(str(home.database), read_only=True)
        return made[name]

    return build


def _direct(path: Path, sql: str) -> list[tuple[Any, ...]]:
    con = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    try:
        return con.execute(sql).fetchall()
    finally:
        con.close()


@pytest.mark.parametrize("name", REPORTS)
def test_counts_and_nanoseconds_equal_a_direct_count(warehouse: Any, shared_traces: Path, name: str) -> None:
    """Kernels, copies and memsets per device and process: as many rows and as many ns as SQL finds in the
    file itself."""
    path = shared_traces / name
    con = warehouse(name)
    columns = {row[1] for row in _direct(path, f"PRAGMA table_info({KERNELS})")}
    process = "(globalPid >> 24) & 16777215" if "globalPid" in columns else "NULL"
    present = {row[0] for row in _direct(path, "SELECT name FROM sqlite_master")}
    for kind, table in ({"kernel": KERNELS} | COPIES).items():
        expected = (
            _direct(
                path, f'SELECT {process}, deviceId, count(*), sum("end" - start) FROM {table} GROUP BY 1, 2'
            )
            if table in present
            else []
        )
        found = con.execute(
            "SELECT trace.pid, device, count(*), sum(dur_ns)::BIGINT FROM raw.gpu_activity JOIN raw.trace "
            "USING (run_id, trace_id) "
            "WHERE kind = ? GROUP BY ALL",
            [kind],
        ).fetchall()
        skipped = con.execute(
            "SELECT coalesce(sum(count), 0) FROM raw.issue WHERE event_class = ?", [kind]
        ).fetchall()
        assert skipped == [(0,)]
        assert Counter(found) == Counter(expected), kind


@pytest.mark.parametrize("name", REPORTS)
def test_the_books_close(warehouse: Any, name: str) -> None:
    """Every row of the file is landed or counted, and the marts hold every activity and nanosecond once."""
    con = warehouse(name)
    skips = "('sync', 'overhead', 'graph_record', 'other_record', 'other_process', 'nvtx_record')"
    (left,) = con.sql(f"SELECT coalesce(sum(count), 0) FROM raw.issue WHERE code IN {skips}").fetchall()[0]
    assert con.sql(f"SELECT sum(events_read) = sum(events_kept) + {left} FROM raw.trace").fetchall() == [
        (True,)
    ]
    total = con.sql("SELECT count(*), sum(dur_ns) FROM raw.gpu_activity").fetchall()
    assert (
        con.sql("SELECT sum(gpu_events_read), sum(gpu_ns_read)::HUGEINT FROM raw.trace").fetchall() == total
    )
    assert con.sql("SELECT count(*), sum(dur_ns) FROM activity").fetchall() == total
    assert con.sql("SELECT sum(activities), sum(busy_ns) FROM timeline").fetchall() == total
    assert con.sql(
        "SELECT count(*) FROM timeline WHERE exposed_ns + idle_ns + unknown_ns <> end_ns - start_ns"
    ).fetchall() == [(0,)]


@pytest.mark.parametrize("name", REPORTS)
def test_unclassified_time_is_under_one_per_cent(warehouse: Any, name: str) -> None:
    """The rules that name Kineto's kernels name nsys's spelling of them too."""
    share = "coalesce(sum(dur_ns) FILTER (WHERE category = 'unclassified'), 0) / sum(dur_ns)"
    assert warehouse(name).sql(f"SELECT {share} FROM activity").fetchall()[0][0] < 0.01


def test_the_two_exports_of_one_report_are_one(warehouse: Any) -> None:
    """node.sqlite and node_pqtdir, apart from ids and names of the files, hold the same raw tables."""
    sqlite, parquet = (warehouse(f"captures/F_nsys/{name}") for name in ("node.sqlite", "node_pqtdir"))
    for table, leave in {
        "gpu_activity": "trace_id, file_id",
        "launch": "trace_id, file_id",
        "annotation": "trace_id, file_id",
        "trace": "trace_id, file_id, sha256, file_name, file_bytes, ingested_at, events_read",
    }.items():
        sql = f"SELECT * EXCLUDE ({leave}) FROM raw.{table} ORDER BY ALL"
        assert sqlite.execute(sql).fetchall() == parquet.execute(sql).fetchall(), table


def test_the_report_has_its_known_steps(warehouse: Any) -> None:
    """On each rank 1 prefill, 13 decode steps of 1783 kernels (1763 by one graph launch) and an empty one, by
    method nvtx."""
    con = warehouse("captures/F_nsys/node.sqlite")
    steps = con.sql(
        "SELECT rank, phase, method, count(*), min(kernels), max(kernels), min(graph_launches) FROM steps "
        "GROUP BY ALL ORDER BY ALL"
    )
    per_rank = [
        ("decode", "nvtx", 13, 1783, 1783, 1),
        ("empty", "nvtx", 1, 0, 0, 0),
        ("prefill", "nvtx", 1, 1721, 1721, 0),
    ]
    assert steps.fetchall() == [(rank, *row) for rank in (0, 1) for row in per_rank]
    replays = con.sql(
        "SELECT DISTINCT count(*) FROM activity SEMI JOIN raw.launch ON activity.trace_id = launch.trace_id "
        "AND activity.correlation = launch.correlation AND launch.name = 'cudaGraphLaunch' WHERE kind = "
        "'kernel' AND phase = 'decode' "
        "GROUP BY activity.trace_id, activity.correlation"
    )
    assert replays.fetchall() == [(1763,)]
    calls = con.sql(
        "SELECT DISTINCT category, subcategory, calls FROM step_breakdown WHERE phase = 'decode' AND "
        "subcategory IN ('nccl', 'marlin')"
    )
    assert sorted(calls.fetchall()) == [("allreduce", "nccl", 123), ("moe_gemm", "marlin", 120)]


def _per_step(con: duckdb.DuckDBPyConnection) -> dict[str, tuple[str, int, float, float]]:
    """short_name: category, calls in the decode steps, calls a step, mean us."""
    (steps,) = con.sql("SELECT count(*) FROM steps WHERE phase = 'decode'").fetchall()[0]
    rows = con.sql(
        "SELECT short_name, any_value(category), sum(calls)::BIGINT, 1000 * sum(ms_total) / sum(calls) FROM "
        "kernel_breakdown "
        "WHERE phase = 'decode' GROUP BY short_name"
    )
    return {name: (category, calls, calls / steps, us) for name, category, calls, us in rows.fetchall()}


def test_nsys_and_torch_agree_on_one_model(warehouse: Any) -> None:
    """Per short name, calls a decode step are equal; mean durations of what computes are within
    MEAN_TOLERANCE, together TOTAL_TOLERANCE."""
    nsys, torch = (
        _per_step(warehouse(f"captures/{name}")) for name in ("F_nsys/node.sqlite", "A_nccl_graph_b1")
    )
    frequent = {
        name for kernels in (nsys, torch) for name, (_, calls, _, _) in kernels.items() if calls >= 100
    }
    assert frequent <= nsys.keys() & torch.keys()
    assert {n: nsys[n][2] for n in nsys.keys() & torch.keys()} == {
        n: torch[n][2] for n in nsys.keys() & torch.keys()
    }
    assert sum(row[2] for row in nsys.values()) == sum(row[2] for row in torch.values()) == 1796
    compared = {
        n
        for n in frequent
        if torch[n][3] > 1 and torch[n][0] not in {"allreduce", "collective", "memcpy", "memset"}
    }
    assert len(compared) > 20
    off = {
        n: nsys[n][3] / torch[n][3] - 1
        for n in compared
        if abs(nsys[n][3] / torch[n][3] - 1) > MEAN_TOLERANCE
    }
    assert off == {}
    total_nsys, total_torch = (
        sum(kernels[n][2] * kernels[n][3] for n in compared) for kernels in (nsys, torch)
    )
    assert abs(total_nsys / total_torch - 1) < TOTAL_TOLERANCE


def test_a_graph_level_capture_is_refused_with_the_advice(
    shared_traces: Path, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    """nsys 2023.4 leaves replayed kernels out of a graph-level capture: refused, with the option that records
    them."""
    path = shared_traces / "captures" / "F_nsys" / "graph_level.sqlite"
    if not path.is_file():
        pytest.skip("graph_level.sqlite is not among the shared traces")
    outcome = ingest(home, named([path], None), Progress())
    assert outcome.codes == [ExitCode.TRACE]
    err = capsys.readouterr().err
    assert "graph launches, but none of their kernels" in err
    assert "--cuda-graph-trace=node" in err
    assert home.run_ids() == []
