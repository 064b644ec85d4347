"""`python -m tests.benchmarks.scale`: many ranks of one run, and many small runs: time, memory and disk, as
Markdown tables.

The default is the size of a cluster's capture: 256 ranks x 40 steps x 1783 kernels (18 million), ingested,
built and queried by the installed command on this machine's cores.
"""

from __future__ import annotations

import argparse
import gzip
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path

import duckdb
import orjson

from tests.benchmarks.generate import BASE_NS, LAYER

KERNELS = 1783
_HEAD = (
    '{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "distributedInfo": '
    '{"backend": "nccl", "rank": %d, '
    '"world_size": %d}, "baseTimeNanoseconds": %d, "traceEvents": [\n'
)
_STEP_NS = 12_000_000
STEP_BREAKDOWN = (
    "SELECT step, category, sum(busy_ns) FROM step_breakdown WHERE run_id = '{run}' AND rank = "
    "3 GROUP BY ALL ORDER BY ALL"
)
ACROSS_RUNS = (
    "SELECT run_id, ms_p50, share FROM run_breakdown WHERE rollup = 'AllReduce' AND phase = "
    "'decode' ORDER BY ms_p50 DESC LIMIT 20"
)


def write_rank(path: Path, rank: int, ranks: int, steps: int, kernels: int = KERNELS) -> None:
    """A trace of one rank: per step an annotation, a graph launch, and `kernels` kernels of the replay,
    ordered and gap-free."""
    with gzip.open(path, "wt", compresslevel=1, encoding="utf-8") as out:
        out.write(_HEAD % (rank, ranks, BASE_NS))
        out.write(",\n".join(_events(rank, steps, kernels)))
        out.write('\n], "traceName": "t"}\n')


def _events(rank: int, steps: int, kernels: int) -> Iterator[str]:
    names = list(islice(cycle(LAYER), kernels))
    for step in range(steps):
        begin = 1_000_000_000 + step * _STEP_NS + rank * 137
        link = step + 1
        yield (
            f'{{"ph": "X", "cat": "user_annotation", "name": "execute_context_0(0)_generation_1(1)", "pid": '
            '1, "tid": 1, '
            f'"ts": {_us(begin)}, "dur": 900.000}}'
        )
        yield (
            f'{{"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": 1, "tid": 1, "ts": '
            f'{_us(begin + 1000)}, "dur": 90.000, '
            f'"args": {{"correlation": {link}}}}}'
        )
        at = begin + 2_000_000
        for number, (name, dur_ns) in enumerate(names):
            took = dur_ns + (rank * 31 + step * 17 + number * 7) % 97
            yield (
                f'{{"ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": 7, "ts": {_us(at)}, '
                f'"dur": {_us(took)}, '
                f'"args": {{"device": 0, "stream": 7, "correlation": {link}}}}}'
            )
            at += took + 120


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def measured(arguments: Sequence[str]) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds and the peak memory in MB (of the largest process) of one command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "pipeline", *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wall = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, after.ru_maxrss / 1024


def query_ms(home: Path, sql: str) -> float:
    """Milliseconds of one statement in a plain DuckDB session, the best of five."""
    best = float("inf")
    with duckdb.connect(str(home / "stepledger.duckdb"), read_only=True) as con:
        for _ in range(5):
            begin = time.perf_counter()
            con.execute(sql).fetchall()
            best = min(best, time.perf_counter() - begin)
    return best * 1000


def disk_mb(folder: Path) -> float:
    """Megabytes of the files below a folder."""
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) / 1e6


def one_big_run(folder: Path, ranks: int, steps: int, options: Sequence[str]) -> Iterator[str]:
    """Ingest, build and query one run of many ranks."""
    home, dropped = folder / "home", folder / "big"
    dropped.mkdir(parents=True)
    for rank in range(ranks):
        write_rank(dropped / f"big-rank-{rank}.json.gz", rank, ranks, steps)
    yield (
        f"One run: {ranks} ranks x {steps} steps x {KERNELS} kernels = "
        f"{ranks * steps * KERNELS / 1e6:.1f} "
        f"M, {disk_mb(dropped):.0f} MB of gz."
    )
    yield ""
    yield "| command | wall s | CPU s | peak MB (largest process so far) |"
    yield "|---|---:|---:|---:|"
    for arguments in (["ingest", str(dropped), "--no-build"], ["build"]):
        wall, cpu, peak = measured(["--home", str(home), *arguments, *options])
        yield f"| {arguments[0]} | {wall:.0f} | {cpu:.0f} | {peak:.0f} |"
    yield ""
    yield (
        f"Disk: raw {disk_mb(home / 'lake' / 'raw'):.0f} MB, marts {disk_mb(home / 'lake' / 'marts'):.0f} MB."
    )
    yield (
        f"`step_breakdown` of one rank of the run: {query_ms(home, STEP_BREAKDOWN.format(run='big')):.0f} "
        "ms (target under 100)."
    )


def many_runs(folder: Path, runs: int) -> Iterator[str]:
    """One small run built for real and its marts copied under other names; a question over all, before and
    after `compact`."""
    home, dropped = folder / "home", folder / "small"
    dropped.mkdir(parents=True)
    for rank in range(2):
        write_rank(dropped / f"small-rank-{rank}.json.gz", rank, 2, 6, 200)
    measured(["--home", str(home), "ingest", str(dropped)])
    _copy_run(home, "small", runs)
    measured(["--home", str(home), "query", "SELECT 1"])
    yield f"| {runs} runs | one run by its id, ms | a question over all runs, ms (target under 1000) |"
    yield "|---|---:|---:|"
    one = STEP_BREAKDOWN.format(run="small-0007").replace("rank = 3", "rank = 1")
    yield f"| a folder each | {query_ms(home, one):.0f} | {query_ms(home, ACROSS_RUNS):.0f} |"
    measured(["--home", str(home), "compact", "--older-than-days", "0"])
    yield (
        f"| compacted, the folders still there for those who read them | {query_ms(home, one):.0f} | "
        f"{query_ms(home, ACROSS_RUNS):.0f} |"
    )
    manifest = home / "lake" / "compact" / "manifest.json"
    content = orjson.loads(manifest.read_bytes())
    manifest.write_bytes(orjson.dumps(content | {"made_at": dict.fromkeys(content["made_at"], 0.0)}))
    measured(["--home", str(home), "build"])
    yield f"| compacted, the folders gone | {query_ms(home, one):.0f} | {query_ms(home, ACROSS_RUNS):.0f} |"


def _copy_run(home: Path, source: str, runs: int) -> None:
    """The marts, results of checks and raw folders of a run under other ids, with the id replaced in every
    table."""
    with duckdb.connect() as con:
        for number in range(runs - 1):
            run = f"{source}-{number:04d}"
            (home / "lake" / "raw" / f"run_id={run}").mkdir(parents=True)
            for folder in (home / "lake" / "raw" / f"run_id={source}").iterdir():
                shutil.copytree(folder, home / "lake" / "raw" / f"run_id={run}" / folder.name)
            for layer in ("marts", "quality"):
                target = home / "lake" / layer / f"run_id={run}"
                target.mkdir(parents=True)
                for file in (home / "lake" / layer / f"run_id={source}").glob("*.parquet"):
                    con.execute(
                        f"COPY (SELECT * REPLACE ('{run}' AS run_id) FROM read_parquet('{file}', "
                        "hive_partitioning = false)) "
                        f"TO '{target / file.name}' (FORMAT parquet, COMPRESSION zstd)"
                    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--memory-limit", default="4GB")
    parser.add_argument("--folder", type=Path, help="keep everything here instead of in a temporary folder")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.folder or Path(temporary)
        for line in one_big_run(
            folder / "one", chosen.ranks, chosen.steps, ["--memory-limit", chosen.memory_limit]
        ):
            print(line, flush=True)
        print(flush=True)
        for line in many_runs(folder / "many", chosen.runs):
            print(line, flush=True)


if __name__ == "__main__":
    main()
