"""One contestant on one file in a process of its own: `python -m tests.benchmarks.contestants NAME FILE
FOLDER`.

Imports stand before the clock: what is compared is the work on the file. Prints one JSON object; `null` if
the contestant is not installed. Runs in any interpreter (peers may need one of their own), so nothing is
imported on top.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

Work = Callable[[], object]
READ_MEMORY = "256MB"


def _orjson(file: Path, _folder: Path) -> Work:
    import orjson

    return lambda: orjson.loads(file.read_bytes())


def _land(file: Path, folder: Path) -> Work:
    from pipeline.ingest.land import land
    from pipeline.lake.home import Home

    home = Home(folder)
    home.ensure()
    return lambda: land(home, file, "run", lambda _: None, threads=_threads(), memory_limit=READ_MEMORY)


def _build(file: Path, folder: Path) -> Work:
    """The models alone: landing happens before the clock starts."""
    from pipeline.lake.home import Home
    from pipeline.lake.settings import Settings
    from pipeline.models.build import build_run
    from pipeline.models.rules import load_rules

    _land(file, folder)()
    return lambda: build_run(Home(folder), "run", load_rules(), Settings(workers=1))


def _answer(file: Path, folder: Path) -> Work:
    """Everything from the trace to the tables that `show` reads, as the command does it."""
    from pipeline.ingest.inbox import InboxItem
    from pipeline.ingest.ingest import ingest
    from pipeline.lake.home import Home
    from pipeline.progress import Progress

    return lambda: ingest(
        Home(folder), [InboxItem(file, "run", Path("run") / file.name)], Progress(quiet=True)
    )


def _hta(file: Path, _folder: Path) -> Work:
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found,unused-ignore]

    def work() -> object:
        analysis = TraceAnalysis(trace_files={0: str(file)}, trace_dir=str(file.parent))
        return analysis.get_gpu_kernel_breakdown(visualize=False)

    return work


def _tracelens(file: Path, _folder: Path) -> Work:
    from TraceLens import TreePerfAnalyzer  # type: ignore[import-not-found,unused-ignore]

    return lambda: TreePerfAnalyzer.from_file(str(file)).get_df_kernel_launchers()


CONTESTANTS: dict[str, tuple[str, Callable[[Path, Path], Work]]] = {
    "orjson": ("orjson", _orjson),
    "land": ("pipeline", _land),
    "build": ("pipeline", _build),
    "answer": ("pipeline", _answer),
    "hta": ("hta", _hta),
    "tracelens": ("TraceLens", _tracelens),
}
"""Name to the module that it needs and the function that prepares its work."""


def _threads() -> int:
    return int(os.environ.get("BENCHMARK_THREADS") or os.cpu_count() or 1)


def _cpu() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in used)


def measure(work: Work) -> dict[str, Any]:
    """CPU seconds (user and system, children included), wall seconds and peak resident megabytes."""
    cpu, wall = _cpu(), time.perf_counter()
    kept = work()
    taken = {"cpu": _cpu() - cpu, "wall": time.perf_counter() - wall}
    del kept
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return taken | {"peak_mb": peak / 1024}


def main() -> None:
    """Measure one contestant; its own output goes to stderr, so that stdout is the result alone."""
    name, file, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    module, prepare = CONTESTANTS[name]
    result, stdout = None, os.dup(1)
    os.dup2(2, 1)
    if find_spec(module):
        result = measure(prepare(file, folder))
    os.write(stdout, json.dumps(result).encode())


if __name__ == "__main__":
    main()
