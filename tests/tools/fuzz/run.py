"""`python -m tests.tools.fuzz.run --mutants 50000 --seed 0 --workers 2`: counts of outcomes; exit 1 if any is
a finding.

Findings are saved, each under its number; `--only NUMBER` (with the same --seed and --no-real) tries one
again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from tests.support.paths import SHARED_TRACES
from tests.tools.fuzz.mutate import mutant
from tests.tools.fuzz.seeds import Seed, own_seeds, real_seeds
from tests.tools.fuzz.trial import GOOD, Result
from tests.tools.fuzz.worker import SECONDS, Worker

_SAY_EVERY = 1_000


class Run:
    """Mutants handed out to workers, and what became of them."""

    def __init__(self, seeds: list[Seed], seed: int, numbers: range, save: Path, seconds: float) -> None:
        self.seeds, self.seed, self.save, self.seconds = seeds, seed, save, seconds
        self.counts: Counter[str] = Counter()
        self.verdicts: Counter[str] = Counter()
        self.findings: dict[int, Result] = {}
        self._numbers, self._lock, self._begin = iter(numbers), Lock(), time.monotonic()

    def _next(self) -> Iterator[int]:
        while True:
            with self._lock:
                number = next(self._numbers, None)
            if number is None:
                return
            yield number

    def work(self, _worker: int) -> None:
        """One worker: take numbers until there are no more."""
        worker = Worker(self.seeds, self.seed, seconds=self.seconds)
        try:
            for number in self._next():
                result = worker.run(number)
                with self._lock:
                    self._note(number, result)
        finally:
            worker.close()

    def _note(self, number: int, result: Result) -> None:
        self.counts[result.outcome] += 1
        if result.verdict:
            self.verdicts[result.verdict] += 1
        if result.outcome not in GOOD:
            self.findings[number] = result
            folder = self.save / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            saved = mutant(self.seeds, self.seed, number)
            if not (folder / saved.name).exists():
                saved.write(folder)
            print(f"{number}: {result.outcome}: {result.detail}", file=sys.stderr, flush=True)
        done = self.counts.total()
        if done % _SAY_EVERY == 0:
            rate = done / (time.monotonic() - self._begin)
            print(f"{done} mutants, {rate:.1f} a second, {dict(self.counts)}", file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run mutants; 0 if every outcome is one that a reader may have."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=50_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="what one mutant may take")
    parser.add_argument("--only", type=int, help="try the mutant of this number alone, build included")
    parser.add_argument(
        "--no-real", action="store_true", help="leave out seeds cut from the shared real traces"
    )
    parser.add_argument(
        "--save",
        type=Path,
        default=Path(tempfile.gettempdir()) / "stepledger-fuzz",
        help="where findings are kept",
    )
    options = parser.parse_args(arguments)
    seeds = own_seeds()
    if options.no_real or not SHARED_TRACES.is_dir():
        print("without seeds from the shared real traces", file=sys.stderr)
    else:
        seeds += real_seeds(SHARED_TRACES)
    if options.only is not None:
        worker = Worker(seeds, options.seed, seconds=options.seconds)
        result = worker.run(options.only, build=True)
        worker.close()
        print(f"{options.only}: {result}")
        return int(result.outcome not in GOOD)
    run = Run(
        seeds,
        options.seed,
        range(options.first, options.first + options.mutants),
        options.save,
        options.seconds,
    )
    with ThreadPoolExecutor(options.workers) as pool:
        list(pool.map(run.work, range(options.workers)))
    for outcome, count in run.counts.most_common():
        print(f"{outcome:>20} {count:8}")
    print(f"verdicts of those built: {dict(run.verdicts)}")
    if run.findings:
        print(f"{len(run.findings)} findings in {options.save}: {sorted(run.findings)[:20]}")
    return int(bool(run.findings))


if __name__ == "__main__":
    sys.exit(main())
