"""`python -m tests.benchmarks.ingest`: stepledger against orjson, HTA and TraceLens in one run, as a Markdown
table.

CPU seconds are the measure (the machine may be busy with other things); each figure is the best of `--repeat`
runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from tests.benchmarks.generate import FLAVOURS, generate
from tests.support.paths import ROOT

LABELS = {
    "orjson": "`orjson.loads` of the whole file",
    "land": "stepledger: trace to committed Parquet",
    "build": "stepledger: models alone",
    "answer": "stepledger: full answer (ingest and build)",
    "hta": "HTA: load and `get_gpu_kernel_breakdown`",
    "tracelens": "TraceLens: load and kernel table",
}
PEERS = ("hta", "tracelens")
WORKER_FILES = 4
Figures = dict[str, float]


def start(
    name: str, file: Path, folder: Path, python: str, threads: int | None = None
) -> subprocess.Popen[bytes]:
    """A contestant in a process of its own."""
    env = os.environ | ({"BENCHMARK_THREADS": str(threads)} if threads else {})
    command = [python, "-m", "tests.benchmarks.contestants", name, str(file), str(folder)]
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> Figures | None:
    """Its figures; None if it is not installed."""
    out, err = process.communicate()
    if process.returncode:
        raise SystemExit(f"{process.args!r} failed:\n{err.decode(errors='replace')[-2000:]}")
    found: Figures | None = json.loads(out)
    return found


def best(name: str, file: Path, python: str, repeat: int) -> Figures | None:
    """The run with the least CPU."""
    runs = []
    for _ in range(1 if name in PEERS else repeat):
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            figures = finish(start(name, file, Path(folder), python))
        if figures is None:
            return None
        runs.append(figures)
    return min(runs, key=lambda f: f["cpu"])


def workers(file: Path, count: int, repeat: int) -> float:
    """Wall seconds in which `count` workers of one thread each land WORKER_FILES files; the best of
    `repeat`."""
    return min(_workers(file, count) for _ in range(repeat))


def _workers(file: Path, count: int) -> float:
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        started = time.perf_counter()
        waves = range(0, WORKER_FILES, count)
        for wave in waves:
            running = [
                start("land", file, Path(folder) / str(wave + n), sys.executable, threads=1)
                for n in range(count)
            ]
            for process in running:
                finish(process)
        return time.perf_counter() - started


def table(flavour: str, sizes: Sequence[Path], found: dict[tuple[str, Path], Figures | None]) -> list[str]:
    """Markdown: a row per contestant, and per size CPU, its ratio to orjson, wall and peak memory."""
    heads = [
        f"{p.stat().st_size / 1e6:.0f} MB: {what}"
        for p in sizes
        for what in ("CPU s", "x orjson", "wall s", "peak MB")
    ]
    lines = [f"| {flavour} | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    for name, label in LABELS.items():
        cells: list[str] = []
        for size in sizes:
            figures, base = found.get((name, size)), found["orjson", size]
            if figures is None or base is None:
                cells += ["not installed" if (name, size) in found else "not run", "", "", ""]
            else:
                ratio = f"{figures['cpu'] / base['cpu']:.2f}"
                cells += [
                    f"{figures['cpu']:.2f}",
                    ratio,
                    f"{figures['wall']:.2f}",
                    f"{figures['peak_mb']:.0f}",
                ]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return lines


def verdicts(sizes: Sequence[Path], found: dict[tuple[str, Path], Figures | None]) -> list[str]:
    """The targets, and what was measured."""
    small, large = sizes[0], sizes[-1]

    def ratio(over: tuple[str, Path], under: tuple[str, Path], what: str = "cpu") -> float | None:
        one, other = found.get(over), found.get(under)
        return one[what] / other[what] if one and other else None

    growth = large.stat().st_size / small.stat().st_size
    checks = [
        ("trace to Parquet, CPU / orjson's", ratio(("land", large), ("orjson", large)), "at most 1"),
        (
            f"peak memory at {growth:.1f}x the file",
            ratio(("land", large), ("land", small), "peak_mb"),
            "at most 1.15",
        ),
        ("HTA's CPU / full answer's", ratio(("hta", large), ("answer", large)), "at least 8"),
        (
            f"models' CPU at {growth:.1f}x the events",
            ratio(("build", large), ("build", small)),
            f"at most {growth * 1.1:.1f}",
        ),
    ]
    return [
        f"- {label}: {value:.2f} (target: {target})" for label, value, target in checks if value is not None
    ]


def machine() -> str:
    """What the figures were measured on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = ", ".join(f"{name} {version(name)}" for name in ("duckdb", "orjson", "pyarrow"))
    return (
        f"{os.cpu_count()} cores, {memory:.0f} GB, {platform.machine()}, Python "
        f"{platform.python_version()}, {versions}"
    )


def peer_versions(python: str) -> str:
    """Versions of the peers that the interpreter has."""
    code = (
        "from importlib.metadata import version, PackageNotFoundError\n"
        "for n in ('HolisticTraceAnalysis', 'TraceLens', 'pandas'):\n"
        "    try: print(n, version(n), end='; ')\n"
        "    except PackageNotFoundError: print(n, 'not installed', end='; ')"
    )
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip("; ")


def main() -> None:
    """Generate, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--megabytes", type=float, nargs="+", default=[25, 250], help="file sizes; the last is the large one"
    )
    parser.add_argument("--flavour", nargs="+", choices=sorted(FLAVOURS), default=["graph", "eager"])
    parser.add_argument(
        "--peers-python", default=sys.executable, help="an interpreter that has HTA and TraceLens"
    )
    parser.add_argument(
        "--peers-at", choices=["large", "all", "none"], default="large", help="sizes at which the peers run"
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--no-workers", action="store_true", help="skip the comparison of one worker with two"
    )
    given = parser.parse_args()
    print(f"{machine()}; peers: {peer_versions(given.peers_python)}; best of {given.repeat}\n")
    with tempfile.TemporaryDirectory() as folder:
        for flavour in given.flavour:
            sizes = _generated(Path(folder), flavour, given.megabytes)
            found = _measured(sizes, given)
            print("\n".join([*table(flavour, sizes, found), "", *verdicts(sizes, found)]))
            if not given.no_workers:
                one, two = (workers(sizes[0], count, given.repeat) for count in (1, 2))
                print(
                    f"- {WORKER_FILES} files, two workers of one thread against one: {one / two:.2f}x "
                    "(target: at least 1.7)"
                )
            print(flush=True)
            for path in sizes:
                path.unlink()


def _generated(folder: Path, flavour: str, megabytes: Sequence[float]) -> list[Path]:
    paths = []
    for size in megabytes:
        path = folder / f"{flavour}-{size:g}_rank0.json"
        generate(path, int(size * 1_000_000), flavour)
        paths.append(path)
    return paths


def _measured(sizes: Sequence[Path], given: argparse.Namespace) -> dict[tuple[str, Path], Figures | None]:
    found = {}
    for size in sizes:
        for name in LABELS:
            is_peer = name in PEERS
            if is_peer and (given.peers_at == "none" or (given.peers_at == "large" and size != sizes[-1])):
                continue
            found[name, size] = best(
                name, size, given.peers_python if is_peer else sys.executable, given.repeat
            )
    return found


if __name__ == "__main__":
    main()
