"""Real traces of the shared folder, through the whole walk, against a direct look at their JSON."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from pipeline.errors import ExitCode
from pipeline.ingest.inbox import named
from pipeline.ingest.ingest import ingest
from pipeline.lake.home import Home
from pipeline.progress import Progress

GPU = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}
CAPTURES = (
    "A_nccl_graph_b1",
    "A_nccl_graph_b1_prefill",
    "A_nccl_graph_b1_scopes",
    "C_nccl_graph_b16",
    "C_nccl_mixed_prefill_decode",
    "E2_compiled_nograph_nccl_b1",
    "E_eager_nccl_b1_nostack",
    "t8_A_nccl_graph_b1",
)
CLASSIFIED = (
    *(f"captures/{name}" for name in CAPTURES),
    "captures/G_micro",
    "tracelens-inference-sglang-decode",
    "tracelens-inference-sglang-prefilldecode",
    "tracelens-inference-vllm-decode-full",
    "tracelens-inference-vllm-prefilldecode-piecewise",
)
OTHERS = (
    "hta-amd-trace",
    "hta-execution-trace",
    "hta-nccl-parser-config",
    "hta-ns-resolution-trace",
    "kineto-resnet50-num-workers-0",
    "tracelens-mi210-gpu-only-trace",
)


class Built:
    """One set of traces, ingested once for the session's tests: its warehouse, and the events of its
    files."""

    def __init__(self, home: Home, folder: Path) -> None:
        self.con = duckdb.connect(str(home.database), read_only=True)
        self.files = sorted(
            p for p in folder.iterdir() if p.name.endswith((".json.gz", ".json")) and p.name != "capture.json"
        )

    def one(self, sql: str) -> Any:
        """The only value of a query."""
        return self.con.sql(sql).fetchall()[0][0]


@pytest.fixture(scope="session")
def built(shared_traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Build a set by its folder name, once."""
    made: dict[str, Built] = {}

    def build(name: str) -> Built:
        folder = shared_traces / name
        if not folder.is_dir():
            pytest.skip(f"{name} is not among the shared traces")
        if name not in made:
            home = Home(tmp_path_factory.mktemp("real") / "home")
            ingest(home, named([folder], None), Progress(quiet=True))
            made[name] = Built(home, folder)
        return made[name]

    return build


def gpu_events(path: Path) -> list[dict[str, Any]]:
    """GPU events of a file by a direct look, with exact numbers."""
    raw = path.read_bytes()
    data = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw, parse_float=Decimal)
    events = data.get("traceEvents", []) if isinstance(data, dict) else data
    return [e for e in events if isinstance(e, dict) and e.get("cat") in GPU and e.get("ph") == "X"]


@pytest.mark.parametrize("name", [*CLASSIFIED, *OTHERS])
def test_every_activity_and_nanosecond_is_booked_once(built: Any, name: str) -> None:
    """Activities and total ns in the JSON = raw.gpu_activity + skipped by name = the activity mart =
    step_breakdown; books close."""
    traces = built(name)
    read = [e for path in traces.files if (found := gpu_events(path)) for e in found]
    skipped = (
        "SELECT {} FROM raw.issue WHERE event_class IN ('kernel', 'memcpy', 'memset') AND code IN "
        "('zero_timestamp', 'duplicate_event')"
    )
    count = traces.one("SELECT count(*) FROM raw.gpu_activity")
    total = traces.one("SELECT sum(dur_ns) FROM raw.gpu_activity")
    assert len(read) == count + traces.one(skipped.format("coalesce(sum(count), 0)"))
    assert sum(Decimal(str(e["dur"])) for e in read) * 1000 == total + traces.one(
        skipped.format("coalesce(sum(dur_ns), 0)")
    )
    for mart, number in (
        ("activity", "count(*)"),
        ("step_breakdown", "sum(calls)"),
        ("timeline", "sum(activities)"),
    ):
        assert traces.one(f"SELECT {number} FROM {mart}") == count, mart
    for mart, column in (("activity", "dur_ns"), ("step_breakdown", "busy_ns"), ("timeline", "busy_ns")):
        assert traces.one(f"SELECT sum({column}) FROM {mart}") == total, mart
    assert (
        traces.one(
            "SELECT count(*) FROM timeline WHERE exposed_ns + idle_ns + unknown_ns <> end_ns - start_ns"
        )
        == 0
    )
    assert traces.one("SELECT sum(exposed_ns) FROM activity") == traces.one(
        "SELECT sum(exposed_ns) FROM timeline"
    )
    open_steps = "wall_ns <> exposed_ns - exposed_outside_ns + borrowed_ns + idle_inside_ns + gap_after_ns"
    assert traces.one(f"SELECT count(*) FROM steps WHERE {open_steps}") == 0


@pytest.mark.parametrize("name", CLASSIFIED)
def test_unclassified_time_is_under_one_per_cent(built: Any, name: str) -> None:
    """Rules name at least 99 % of the busy time of the vLLM and SGLang sets."""
    unclassified = built(name).one(
        "SELECT coalesce(sum(dur_ns) FILTER (WHERE category = 'unclassified'), 0) / sum(dur_ns) FROM activity"
    )
    assert unclassified < 0.01


@pytest.mark.parametrize("name", [f"captures/{name}" for name in CAPTURES])
def test_every_capture_activity_has_its_step(built: Any, name: str) -> None:
    """In vLLM's annotated captures every activity belongs to a step, found by its launch."""
    assert built(name).con.sql("SELECT DISTINCT placed_by FROM activity").fetchall() == [
        ("launch_same_thread",)
    ]


def test_capture_a_has_its_known_steps(built: Any) -> None:
    """Scenario A: 16 decode steps on each rank; 1783 kernels, 123 NCCL all-reduces and 120 Marlin MoE kernels
    in every one."""
    con = built("captures/A_nccl_graph_b1").con
    assert con.sql(
        "SELECT rank, phase, count(*), min(kernels), max(kernels) FROM steps GROUP BY ALL ORDER BY ALL"
    ).fetchall() == [(rank, "decode", 16, 1783, 1783) for rank in (0, 1)]
    rows = con.sql(
        "SELECT DISTINCT category, subcategory, calls FROM step_breakdown WHERE subcategory IN ('nccl', "
        "'marlin') ORDER BY ALL"
    ).fetchall()
    assert rows == [("allreduce", "nccl", 123), ("moe_gemm", "marlin", 120)]
    assert con.sql("SELECT DISTINCT activities FROM steps").fetchall() == [(1796,)]


def test_capture_a_leaves_a_skewed_first_step_out_of_means(built: Any) -> None:
    """The first step of rank 1 holds an all-reduce that waited 17 ms for the other profiler: kept, flagged,
    not averaged."""
    rows = (
        built("captures/A_nccl_graph_b1")
        .con.sql("SELECT rank, step, incomplete_reason FROM steps WHERE NOT is_complete")
        .fetchall()
    )
    assert rows == [(1, 0, "capture_start_skew")]


def test_capture_a_totals_per_name_equal_a_direct_count(built: Any) -> None:
    """kernel_breakdown's calls and totals per name equal a count over the JSON of both ranks."""
    traces = built("captures/A_nccl_graph_b1")
    calls: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for path in traces.files:
        for e in gpu_events(path):
            calls[e["name"]] += 1
            total[e["name"]] += int(e["dur"] * 1000)
    rows = traces.con.sql(
        "SELECT name, sum(calls), sum(round(ms_total * 1e6))::BIGINT FROM kernel_breakdown GROUP BY name"
    ).fetchall()
    assert {name: (n, ns) for name, n, ns in rows} == {name: (calls[name], total[name]) for name in calls}


@pytest.mark.parametrize("rank", [0, 1])
def test_capture_a_equals_torchs_own_table(built: Any, shared_traces: Path, rank: int) -> None:
    """Cut name, calls and printed total of every GPU row of torch's key_averages table are those of
    raw.gpu_activity."""
    text = (shared_traces / "captures" / "A_nccl_graph_b1" / f"profiler_out_{rank}.txt").read_text()
    printed: Counter[tuple[str, str, str]] = Counter()
    for line in text.splitlines():
        name, fields = line[:55].strip(), line[55:].split()
        on_gpu = len(fields) == 10 and fields[1] == fields[3] == "0.000us" and fields[5] != "0.000us"
        if on_gpu and not name.startswith(("execute_", "nccl:")):
            printed[(name, fields[5], fields[9])] += 1
    ours: Counter[tuple[str, str, str]] = Counter()
    rows = built("captures/A_nccl_graph_b1").con.sql(
        f"SELECT name, count(*), sum(dur_ns) FROM raw.gpu_activity WHERE rank = {rank} GROUP BY name"
    )
    for name, calls, ns in rows.fetchall():
        value = f"{ns / 1e6:.3f}ms" if ns >= 1_000_000 else f"{ns / 1e3:.3f}us"
        ours[(name if len(name) <= 55 else name[:52] + "...", value, str(calls))] += 1
    assert sum(printed.values()) > 40
    assert ours == printed


def test_capture_c_has_its_phases_and_batches(built: Any) -> None:
    """Scenario C mixed: 32 step rows on each rank, 30 with GPU work in the phases and batch sizes that their
    labels say, 2 empty."""
    traces = built("captures/C_nccl_mixed_prefill_decode")
    rows = traces.con.sql(
        "SELECT rank, phase, label, context_requests, generation_requests, activities FROM steps"
    ).fetchall()
    assert Counter(r[0] for r in rows) == {0: 32, 1: 32}
    assert Counter(r[1] for r in rows) == {"decode": 48, "mixed": 10, "prefill": 2, "empty": 4}
    for _, phase, label, context, generation, activities in rows:
        counts = re.fullmatch(r"execute_context_(\d+)\(\d+\)_generation_(\d+)\(\d+\)", label)
        assert counts is not None
        assert (context, generation) == (int(counts[1]), int(counts[2]))
        expected = {(False, True): "decode", (True, False): "prefill", (True, True): "mixed"}.get(
            (context > 0, generation > 0), "empty"
        )
        assert phase == expected
        assert (activities > 0) == (phase != "empty")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("captures/X_smoke_cupti_missing", "CUPTI"),
        ("ascend-npu-trace-view", "Ascend"),
        ("hta-cpu-only", "no kernel, memcpy or memset"),
        ("hta-memory-analysis", "memory timeline"),
        ("tracelens-rocprof", "rocprofv3"),
    ],
)
def test_what_carries_no_gpu_work_is_refused_by_name(
    shared_traces: Path, home: Home, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    """A file that cannot carry the answer is refused with what it looks like, and nothing is landed."""
    folder = shared_traces / name
    if not folder.is_dir():
        pytest.skip(f"{name} is not among the shared traces")
    outcome = ingest(home, named([folder], None), Progress())
    assert set(outcome.codes) == {ExitCode.TRACE}
    assert words in capsys.readouterr().err
    assert home.run_ids() == []
