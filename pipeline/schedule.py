"""Who does the work: this process, worker processes of this machine, or a Dask cluster; one interface.

Work is files to land and runs to build. Whoever does it commits it the same way (a rename), so that the lake is the only
truth: work that is done twice is done once, and what dies half-way leaves nothing but a folder in staging.
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from pipeline.errors import StepledgerError, UsageError

A = TypeVar("A")
B = TypeVar("B")
_PR_SET_PDEATHSIG = 1
CONNECT_SECONDS = 20
_RETRIES = 3
"""How often a cluster gives a task whose worker died to another."""


class WorkerDied(StepledgerError):
    """The process that did a piece of work was killed, and again when it did that piece alone."""


@dataclass(frozen=True)
class Done(Generic[A, B]):
    """A piece of work and what became of it: a value, or the error that it ended with."""

    item: A
    value: B | None = None
    error: Exception | None = None


class Executor(Protocol):
    """Does work: `work` on each of `items`, which must be picklable, as are its results and errors; in any order."""

    workers: int

    def run(self, work: Callable[[A], B], items: Sequence[A]) -> Iterator[Done[A, B]]:
        """What became of each item, as it is done."""
        ...


class Serial:
    """This process, one item after another."""

    workers = 1

    def run(self, work: Callable[[A], B], items: Sequence[A]) -> Iterator[Done[A, B]]:
        """What became of each item, in their order."""
        for item in items:
            yield _done(work, item)


class Processes:
    """Worker processes on this machine. One that dies takes no other's work with it: what it held is done again, alone."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def run(self, work: Callable[[A], B], items: Sequence[A]) -> Iterator[Done[A, B]]:
        """What became of each item, as it is done."""
        if len(items) < 2:
            yield from Serial().run(work, items)
            return
        suspects: list[A] = []
        yield from self._pooled(min(self.workers, len(items)), work, items, suspects)
        for item in suspects:
            died: list[A] = []
            yield from self._pooled(1, work, [item], died)
            if died:
                yield Done(item, error=WorkerDied("the process that did this was killed, twice; give it more memory (--memory-limit, --workers)"))

    @staticmethod
    def _pooled(workers: int, work: Callable[[A], B], items: Sequence[A], died: list[A]) -> Iterator[Done[A, B]]:
        # Spawned, not forked: DuckDB's threads do not survive a fork.
        pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_begin_worker, initargs=(os.getpid(),))
        try:
            futures: dict[Future[Done[A, B]], A] = {}
            for item in items:
                try:
                    futures[pool.submit(_done, work, item)] = item
                except BrokenProcessPool:
                    died.append(item)
            for future in as_completed(futures):
                try:
                    yield future.result()
                except BrokenProcessPool:
                    died.append(futures[future])
                except Exception as error:  # a result that cannot be sent back
                    yield Done(futures[future], error=error)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.kill()
            raise
        pool.shutdown()


class Dask:
    """Workers of a Dask cluster that see the home under the same path. A task whose worker dies is given to another."""

    def __init__(self, address: str) -> None:
        try:
            self._distributed: Any = importlib.import_module("distributed")
        except ImportError as error:
            raise UsageError("a cluster needs the extra: pip install 'stepledger[dask]'") from error
        try:
            self._client = self._distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise UsageError(f"no Dask scheduler answers at {address}: {error}") from error
        self.workers = max(1, len(self._client.scheduler_info(n_workers=-1)["workers"]))

    def run(self, work: Callable[[A], B], items: Sequence[A]) -> Iterator[Done[A, B]]:
        """What became of each item, as it is done."""
        futures = {self._client.submit(_done, work, item, pure=False, retries=_RETRIES): item for item in items}
        for future in self._distributed.as_completed(list(futures), loop=self._client.loop):
            error = future.exception()
            if error is None:
                yield future.result()
            else:  # what the work itself raised is inside its result: this is the cluster's
                yield Done(futures[future], error=WorkerDied(f"the cluster lost this work: {error}"))

    def close(self) -> None:
        """Leave the cluster as it is."""
        self._client.close()


@contextmanager
def executor(workers: int, scheduler: str | None) -> Iterator[Executor]:
    """The executor that the user asked for."""
    if scheduler is not None:
        cluster = Dask(scheduler)
        try:
            yield cluster
        finally:
            cluster.close()
    else:
        yield Serial() if workers == 1 else Processes(workers)


def _done(work: Callable[[A], B], item: A) -> Done[A, B]:
    try:
        return Done(item, value=work(item))
    except Exception as error:  # every error of the work is a result; who asked for it decides
        return Done(item, error=error)


def _begin_worker(parent: int) -> None:
    """In a worker: Ctrl-C is the parent's business, and when the parent dies, so does the worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libc: Any = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent or threading.current_thread() is not threading.main_thread():
        os._exit(1)


__all__ = ["Dask", "Done", "Executor", "Processes", "Serial", "WorkerDied", "executor"]
