"""Executors: this process, worker processes of this machine, or a Dask cluster, behind one interface.

Tasks are files to land and runs to build. Every executor commits them the same way (a rename), so that the
lake is the only truth: a task that runs twice takes effect once, and one that dies half-way leaves nothing
but a folder in staging.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from pipeline.errors import HomeError, WorkerDied

A = TypeVar("A")
B = TypeVar("B")
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Done(Generic[A, B]):
    """A task and its result: a value, or the error that it ended with."""

    item: A
    value: B | None = None
    error: Exception | None = None


class Executor(Protocol):
    """Does work: `work` on each of `items`, which must be picklable, as are its results and errors; in any
    order."""

    workers: int

    def run(self, work: Callable[[A], B], items: Sequence[A]) -> Iterator[Done[A, B]]:
        """The result of each item, as it is done."""
        ...


class Serial:
    """This process, one item after another."""

    workers = 1

    def run(self, work: Callable[[A], B], items: Sequence[A]) -> Iterator[Done[A, B]]:
        """The result of each item, in their order."""
        for item in items:
            yield _done(work, item)


class Processes:
    """Worker processes on this machine. One that dies does not affect the tasks of others: its own task is
    run again, alone."""

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
                yield Done(
                    item,
                    error=WorkerDied(
                        "the process that did this was killed twice; give it more memory (--memory-limit, "
                        "--workers)"
                    ),
                )

    @staticmethod
    def _pooled(
        workers: int, work: Callable[[A], B], items: Sequence[A], died: list[A]
    ) -> Iterator[Done[A, B]]:
        # Spawned, not forked: DuckDB's threads do not survive a fork.
        pool = ProcessPoolExecutor(
            workers, multiprocessing.get_context("spawn"), initializer=_begin_worker, initargs=(os.getpid(),)
        )
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
    """Workers of a Dask cluster that see the home under the same path. A task whose worker dies is given to
    another."""

    def __init__(self, address: str) -> None:
        """Raises UsageError, HomeError where the cluster cannot be used."""
        from pipeline.ingest.cluster import Cluster

        self._cluster = Cluster(address)
        self.workers = self._cluster.workers

    def run(self, work: Callable[[A], B], items: Sequence[A]) -> Iterator[Done[A, B]]:
        """The result of each item, as it is done: HomeError for items that were not done when the cluster was
        lost."""
        waiting = dict(enumerate(items))
        suspects: dict[int, A] = {}
        try:
            for number, outcome in self._cluster.run([pickle.dumps(_Call(work, item)) for item in items]):
                # A killed worker takes the tasks of its other threads with it: which one killed it shows when
                # each runs alone.
                if isinstance(outcome, WorkerDied) and len(items) > 1:
                    suspects[number] = items[number]
                else:
                    yield _ended(waiting.pop(number), outcome)
            for number, item in suspects.items():
                for _, outcome in self._cluster.run([pickle.dumps(_Call(work, item))]):
                    yield _ended(waiting.pop(number), outcome)
        except HomeError as error:
            yield from (Done(item, error=error) for item in waiting.values())

    def close(self) -> None:
        """Leave the cluster as it is."""
        self._cluster.close()


@contextmanager
def executor(workers: int, scheduler: str | None) -> Iterator[Executor]:
    """The executor that the options request."""
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
    except Exception as error:  # every error of a task is a result; the caller decides what to do
        return Done(item, error=error)


@dataclass(frozen=True)
class _Call(Generic[A, B]):
    """Work on an item that is done by unpickling it; out comes the result, pickled."""

    work: Callable[[A], B]
    item: A

    def __reduce__(self) -> tuple[Any, ...]:
        return _pickled, (self.work, self.item)


def _pickled(work: Callable[[A], B], item: A) -> bytes:
    return pickle.dumps(_done(work, item))


def _ended(item: A, outcome: Any) -> Done[A, Any]:
    """The result of a task on a cluster, or the error of the cluster."""
    if isinstance(outcome, Exception):
        return Done(item, error=outcome)
    done: Done[A, Any] = pickle.loads(outcome)  # noqa: S301 - from our own worker
    return done


def _begin_worker(parent: int) -> None:
    """In a worker: the parent handles Ctrl-C, and when the parent dies, so does the worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libc: Any = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent or threading.current_thread() is not threading.main_thread():
        os._exit(1)


__all__ = ["Dask", "Done", "Executor", "Processes", "Serial", "WorkerDied", "executor"]
