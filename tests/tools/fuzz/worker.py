"""A process that tries one mutant after another; the caller sees a hang or a crash as an outcome, and gets a
new process."""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from pipeline.lake.home import Home
from tests.tools.fuzz.mutate import as_is, mutant
from tests.tools.fuzz.seeds import Seed
from tests.tools.fuzz.trial import Result, trial

SECONDS = 20
PEAK_BYTES = 900 << 20
"""The most memory that a mutant may take: libraries and DuckDB's own limits (256 MB to read, 1 GB to build)
on tiny files."""
_ADDRESS_BYTES = 12 << 30
_RENEW_AFTER = 2_000
BUILD_EVERY = 20
"""Mutants whose number this divides are built and checked too, if they land: about one of fifty that land."""


class Worker:
    """One process at a time, replaced when it dies, hangs, or took too much memory."""

    def __init__(self, seeds: Sequence[Seed], seed: int, *, seconds: float = SECONDS) -> None:
        self.seeds, self._seed, self._seconds = seeds, seed, seconds
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._done = 0

    def run(self, number: int, *, build: bool | None = None) -> Result:
        """The outcome of the mutant of this number."""
        return self._outcome(number, number % BUILD_EVERY == 0 if build is None else build, is_seed=False)

    def run_seed(self, number: int) -> Result:
        """The outcome of a seed as it is."""
        return self._outcome(number, build=False, is_seed=True)

    def _outcome(self, number: int, build: bool, *, is_seed: bool) -> Result:
        pipe, process = self._started()
        pipe.send((number, build, is_seed))
        if not pipe.poll(self._seconds):
            process.kill()
            self.close()
            return Result("hang", f"no outcome after {self._seconds} s")
        result: Result
        try:
            result, peak = pipe.recv()
        except EOFError:
            process.join()
            self.close()
            return Result("crash", f"the process died with {process.exitcode}")
        self._done += 1
        if peak > PEAK_BYTES:
            self.close()
            return (
                Result("memory", f"{peak >> 20} MB at the most, outcome {result}")
                if result.outcome in {"landed", "refused"}
                else result
            )
        if self._done >= _RENEW_AFTER:
            self.close()
        return result

    def _started(self) -> tuple[Connection, BaseProcess]:
        if self._pipe is None or self._process is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_work, args=(theirs, self.seeds, self._seed), daemon=True)
            self._process.start()
            theirs.close()
            self._done = 0
        return self._pipe, self._process

    def close(self) -> None:
        """End the process."""
        if self._pipe is not None and self._process is not None:
            self._pipe.close()
            self._process.join(timeout=5)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
        self._pipe = self._process = None


def _work(pipe: Connection, seeds: Sequence[Seed], seed: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_BYTES, _ADDRESS_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=scratch(), ignore_cleanup_errors=True) as name:
        home = Home(Path(name) / "home")
        home.ensure()
        while True:
            try:
                number, build, is_seed = pipe.recv()
            except EOFError:
                return
            tried = as_is(seeds[number]) if is_seed else mutant(seeds, seed, number)
            result = trial(home, Path(name), tried, salvage=number % 2 == 1, build=build)
            pipe.send((result, _peak_bytes()))


def _peak_bytes() -> int:
    """Most memory of this process: ru_maxrss would begin with that of the process that started it."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def scratch() -> str | None:
    """A folder in memory where there is one: a mutant's files live for a fraction of a second."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 (a folder of its own is made in it)
