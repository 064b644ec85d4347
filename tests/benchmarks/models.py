"""`python -m tests.benchmarks.models`: CPU seconds of each model at two trace sizes, as a Markdown table.

Linear or n log n means: ten times the events, at most eleven times the time. Models that take less than a
tenth of a second at the large size are measured as well, but judged by nothing: their time is that of
starting a query.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pipeline import duck
from pipeline.ingest.land import land
from pipeline.lake.home import Home
from pipeline.models.engine import models, prepare
from pipeline.models.rules import load_rules
from tests.benchmarks.generate import FLAVOURS, generate

WATCHED = (
    "int_layer",
    "int_role",
    "int_replay_pass",
    "int_pattern_pass",
    "int_step_lost",
    "int_step_match",
    "gaps",
)
"""Models of steps and layers: always shown. Others are shown where they grow faster than the events."""
SMALLEST_S = 0.1


def cpu_of_models(file: Path, folder: Path, repeat: int) -> dict[str, float]:
    """CPU seconds of each model on one trace, the best of `repeat` builds."""
    home = Home(folder)
    home.ensure()
    threads = os.cpu_count() or 1
    land(home, file, "run", lambda _: None, threads=threads, memory_limit="256MB")
    best: dict[str, float] = {}
    for number in range(repeat):
        spill = folder / f"spill-{number}"
        spill.mkdir()
        with duck.working(spill, threads=threads, memory_limit="1GB") as con:
            prepare(con, home.raw_run("run"), "run", load_rules(), "build", "inputs")
            for model in models():
                begin = time.process_time()
                con.execute(f"CREATE TABLE {model.name} AS {model.sql}")
                taken = time.process_time() - begin
                best[model.name] = min(taken, best.get(model.name, taken))
    return best


def table(flavour: str, growth: float, small: dict[str, float], large: dict[str, float]) -> list[str]:
    """A row per model watched, per model that grows too fast, and for all together."""
    lines = [
        f"| {flavour}, {growth:.1f}x the events | small, CPU s | large, CPU s | growth | target |",
        "|---|---:|---:|---:|---|",
    ]
    target = growth * 1.1
    for name in sorted(small, key=lambda n: -large[n]):
        ratio = large[name] / max(small[name], 1e-3)
        is_slow = large[name] >= SMALLEST_S and ratio > target
        if name in WATCHED or is_slow:
            lines.append(
                f"| {name} | {small[name]:.3f} | {large[name]:.3f} | {ratio:.1f} | "
                f"{'missed' if is_slow else 'met'} |"
            )
    total = sum(large.values()) / sum(small.values())
    lines.append(
        f"| all models | {sum(small.values()):.3f} | {sum(large.values()):.3f} | {total:.1f} | at most "
        f"{target:.1f} |"
    )
    return lines


def compare(folder: Path, flavour: str, megabytes: Sequence[float], repeat: int) -> list[str]:
    """Generate, land and build a small and a large trace."""
    found, steps = [], []
    for size in megabytes:
        path = folder / f"{flavour}-{size:g}_rank0.json"
        steps.append(generate(path, int(size * 1_000_000), flavour))
        found.append(cpu_of_models(path, folder / f"{flavour}-{size:g}", repeat))
        path.unlink()
    return table(flavour, steps[-1] / steps[0], found[0], found[-1])


def main() -> None:
    """Generate, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--megabytes", type=float, nargs=2, default=[25, 250], help="file sizes, small and large"
    )
    parser.add_argument("--flavour", nargs="+", choices=sorted(FLAVOURS), default=["graph"])
    parser.add_argument("--repeat", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for flavour in given.flavour:
            print("\n".join(compare(Path(folder), flavour, given.megabytes, given.repeat)), flush=True)


if __name__ == "__main__":
    main()
