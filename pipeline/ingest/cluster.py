"""A Dask cluster: every wait for it ends, and its own failures never count as failures of a file."""

from __future__ import annotations

import asyncio
import importlib
import logging
import pickle
import socket
import threading
import time
import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

from pipeline import __version__
from pipeline.errors import HomeError, UsageError, WorkerDied

CONNECT_SECONDS = 10.0
"""How long a scheduler may take to answer at the start."""
PATIENCE_SECONDS = 20.0
"""How long a cluster may be without a worker, and a scheduler may take to answer later requests."""
_POLL_SECONDS = 1.0
_VERSIONS_SECONDS = 5.0
"""How long workers may take to report their versions; a difference on one that is too busy shows later, as a
failure."""
_SETTLE_SECONDS = 2.0
"""When many workers are killed at once, the scheduler sees one death after the other for so long."""
_LEAVE_SECONDS = 5.0
_MUST_AGREE = ("python", "distributed", "dask", "msgpack")
_LOGGERS = ("asyncio", "dask", "distributed", "tornado")

Outcomes = SimpleQueue[tuple[int, Any] | None]
"""The number of a call and its result; None at the end."""


class Cluster:
    """A client of one scheduler. Its event loop runs in its own thread, so that each wait can be
    abandoned."""

    def __init__(self, address: str) -> None:
        """Connect, and wait for a first worker. Raises UsageError, HomeError."""
        self.address = address
        self._distributed = _quiet_distributed()
        try:
            self._host_port = self._distributed.comm.addressing.get_address_host_port(address)
        except (ValueError, TypeError) as error:
            text = f"{address} is not an address of a Dask scheduler: {_reason(error)}"
            raise UsageError(f"{text}. Write it as tcp://host:8786.") from error
        self._client: Any = None
        self._is_compared = False
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _loop, _context: None)  # it prints how old connections end
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster", daemon=True)
        self._thread.start()
        try:
            self.workers: int = asyncio.run_coroutine_threadsafe(self._connect(), self._loop).result()
        except BaseException:
            self.close()
            raise

    def run(self, calls: Sequence[bytes]) -> Iterator[tuple[int, Any]]:
        """Have workers unpickle each call, which runs it; yields its number and its result, as it is done.

        The result is WorkerDied where the workers that ran it were killed, HomeError where the cluster could
        not run it. Raises HomeError when the cluster is lost. Only bytes are sent: a worker that cannot
        import the
        function of a task dies of it, as if the file had killed it.
        """
        outcomes: Outcomes = SimpleQueue()
        work = asyncio.run_coroutine_threadsafe(self._work(calls, outcomes), self._loop)
        work.add_done_callback(lambda _: outcomes.put(None))
        try:
            while (outcome := outcomes.get()) is not None:
                yield outcome
            work.result()
        finally:
            work.cancel()

    def close(self) -> None:
        """Disconnect from the cluster."""
        if self._loop.is_closed():
            return
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(2 * _LEAVE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LEAVE_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    async def _connect(self) -> int:
        """Connect if there is no connection, and wait for a worker; returns how many there are."""
        if self._client is None or self._client.status != "running" or not self._is_compared:
            self._is_compared = False
            await self._leave()
            await self._reach_scheduler()
        deadline_s = time.monotonic() + PATIENCE_SECONDS
        while (workers := await self._count_workers()) == 0:
            if time.monotonic() >= deadline_s:
                text = f"no worker joined the Dask cluster at {self.address} in {PATIENCE_SECONDS:.0f} s"
                raise HomeError(f"{text}. Start workers and run again.")
            await asyncio.sleep(_POLL_SECONDS)
        if not self._is_compared:
            await self._compare_workers()
            self._is_compared = True
        return workers

    async def _reach_scheduler(self) -> None:
        options = {"asynchronous": True, "set_as_default": False, "timeout": CONNECT_SECONDS}
        try:
            async with asyncio.timeout(CONNECT_SECONDS + 2):  # the option ends no wait for a silent peer
                self._client = self._distributed.Client(self.address, **options)
                await self._client
                found = await self._client.scheduler.versions()
        except (OSError, ImportError) as error:
            text = f"no Dask scheduler answers at {self.address}: {_reason(await self._refusal() or error)}"
            raise UsageError(f"{text}. Start one, or correct --scheduler.") from error
        except Exception as error:
            text = f"what answers at {self.address} is not a Dask scheduler"
            known = f"that distributed {self._distributed.__version__} understands"
            raise UsageError(f"{text} {known}. Correct --scheduler.") from error
        self._compare(f"the scheduler at {self.address}", found)

    async def _refusal(self) -> OSError | None:
        """The error of a plain connection, if it fails: Dask's last attempt may have no time left to find
        it."""
        try:
            (await asyncio.to_thread(socket.create_connection, self._host_port, 2.0)).close()
        except OSError as error:
            return error
        return None

    async def _compare_workers(self) -> None:
        found: dict[str, Any] = {}
        with suppress(TimeoutError):
            async with asyncio.timeout(_VERSIONS_SECONDS):
                found = await self._client.scheduler.broadcast(msg={"op": "versions"}, on_error="ignore")
        for address, versions in found.items():
            self._compare(f"the worker at {address}", versions)

    def _compare(self, who: str, versions: dict[str, Any]) -> None:
        """Raises UsageError where messages could be misread: Client.get_versions(check=True) only warns."""
        ours, theirs = _known(self._distributed.versions.get_versions()), _known(versions)
        if wrong := [name for name in _MUST_AGREE if ours[name] != theirs[name]]:
            has, needs = (", ".join(f"{name} {known[name]}" for name in wrong) for known in (theirs, ours))
            raise UsageError(f"{who} has {has}; this command has {needs}. Install the same versions.")

    async def _count_workers(self) -> int:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return int((await self._client.scheduler.identity(n_workers=0))["n_workers"])
        except Exception as error:
            text = f"the Dask scheduler at {self.address} no longer answers: {_reason(error)}"
            raise HomeError(f"{text}. Start it and run again.") from error

    async def _work(self, calls: Sequence[bytes], outcomes: Outcomes) -> None:
        """Run all calls. Raises HomeError when the cluster is lost."""
        try:
            await self._connect()
        except UsageError as error:  # it was connected before: in the middle of work this is not wrong usage
            raise HomeError(str(error)) from error
        keys = [f"stepledger-{uuid.uuid4().hex}" for _ in calls]
        submit = partial(self._client.submit, pickle.loads, pure=False)
        futures = [submit(call, key=key) for call, key in zip(calls, keys, strict=True)]
        guard = asyncio.create_task(self._guard())
        results = asyncio.gather(*(self._follow(n, future, outcomes) for n, future in enumerate(futures)))
        both: set[asyncio.Future[Any]] = {guard, results}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            (results if results.done() else guard).result()
        finally:
            guard.cancel()
            results.cancel()
            for future in futures:  # calls that no worker has started are canceled
                future.release()

    async def _follow(self, number: int, future: Any, outcomes: Outcomes) -> None:
        outcome: Any
        try:
            try:
                outcome = await future.result()
            except self._distributed.scheduler.KilledWorker:
                # All workers killed at once look the same: it is the call's fault only if others are alive.
                await asyncio.sleep(_SETTLE_SECONDS)
                await self._client.wait_for_workers(1)
                outcome = WorkerDied("all workers that ran this were killed; give them more memory")
        except Exception as error:
            outcome = self._trouble(error)
        outcomes.put((number, outcome))

    async def _guard(self) -> None:
        """Raises HomeError when the scheduler no longer answers, or is without a worker for too long."""
        seen_s = time.monotonic()
        while True:
            if await self._count_workers():
                seen_s = time.monotonic()
            elif time.monotonic() - seen_s >= PATIENCE_SECONDS:
                text = f"all workers of the Dask cluster at {self.address} are gone"
                raise HomeError(f"{text}. Start workers and run again.")
            await asyncio.sleep(_POLL_SECONDS)

    def _trouble(self, error: Exception) -> HomeError:
        """The error of the cluster, as opposed to that of the call."""
        if getattr(error, "reason", None) == "scheduler-connection-lost":
            text = f"the connection to the Dask scheduler at {self.address} is lost"
            return HomeError(f"{text}. Start it and run again.")
        what = f"{type(error).__name__}: {_reason(error)}"
        text = f"the Dask cluster at {self.address} could not run this: {what}"
        return HomeError(f"{text}. Each of its workers needs stepledger {__version__}.")

    async def _leave(self) -> None:
        if self._client is not None:
            with suppress(Exception):  # a broken connection is closed too; its cause is reported elsewhere
                async with asyncio.timeout(_LEAVE_SECONDS):
                    await self._client.close()
            self._client.status = "closed"  # else the garbage collector tries again

    async def _end(self) -> None:
        await self._leave()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


def _quiet_distributed() -> Any:
    """The package, with its logs and warnings off: our errors tell users what they need to know. Raises
    UsageError."""
    for name in _LOGGERS:
        warnings.filterwarnings("ignore", module=rf"{name}(\.|$)")
    try:
        found = importlib.import_module("distributed")
    except ImportError as error:
        raise UsageError("a cluster needs the extra: pip install 'stepledger[dask]'") from error
    for name in (*_LOGGERS, *logging.root.manager.loggerDict):
        if name.split(".")[0] in _LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    return found


def _known(versions: dict[str, Any]) -> dict[str, str]:
    """Versions by package, of Python the first two numbers only: patch releases understand each other."""
    packages = versions.get("packages", {})
    python = ".".join(str(packages.get("python")).split(".")[:2])
    return {name: python if name == "python" else str(packages.get(name)) for name in _MUST_AGREE}


def _reason(error: BaseException) -> str:
    """The innermost cause, on one line."""
    while error.__cause__ is not None and not isinstance(error.__cause__, asyncio.CancelledError):
        error = error.__cause__  # a cancellation causes a timeout only in name
    error = getattr(error, "real_error", None) or error
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    fallback = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
    return " ".join(text.split()) or fallback
