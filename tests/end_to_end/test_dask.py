"""Real clusters on loopback: schedulers and workers, each a process, killed, frozen, missing, or wrong."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pipeline import __version__
from pipeline.errors import HomeError, WorkerDied
from pipeline.ingest import cluster
from pipeline.ingest.executors import Dask, Done
from pipeline.lake.home import Home
from tests.support.homes import HANG_S, drop, environment, mart_rows, pair
from tests.support.paths import ROOT

distributed = pytest.importorskip("distributed", reason="the extra stepledger[dask] is not installed")

OTHER_VERSION = """
import distributed.versions as versions
known = versions.get_package_info
versions.get_package_info = lambda packages: known(packages) | {{{package!r}: "1.2.3"}}
"""
NO_STEPLEDGER = """
import sys
sys.modules["pipeline"] = None
"""
COMMAND = """
from pipeline.ingest import cluster
cluster.CONNECT_SECONDS, cluster.HANG_SECONDS, cluster._VERSIONS_SECONDS = {connect_s}, {patience_s}, 60.0
from pipeline.cli.app import main
main()
"""


def _environment() -> dict[str, str]:
    return environment() | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def _until(is_so: Callable[[], bool], *alive: subprocess.Popen[Any]) -> None:
    """Wait until it is so, as long as these processes are alive."""
    deadline = time.monotonic() + HANG_S
    while not is_so():
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in alive)
        time.sleep(0.05)


@dataclass
class Cluster:
    """A scheduler, and the workers of one test."""

    folder: Path
    scheduler: subprocess.Popen[Any]
    address: str
    workers: list[subprocess.Popen[Any]] = field(default_factory=list)

    def count(self) -> int:
        """Workers that the scheduler knows."""

        async def ask() -> int:
            async with distributed.rpc(self.address) as scheduler:
                return int((await scheduler.identity(n_workers=0))["n_workers"])

        return asyncio.run(ask())

    def add(self, *before: str, prefix: tuple[str, ...] = (), cwd: Path = ROOT, threads: int = 1) -> None:
        """Start workers, and wait until the scheduler knows them; `before` is Python that each runs first."""
        for first in before:
            folder = self.folder / f"worker-{time.monotonic_ns()}"
            options = (
                f"--nthreads {threads} --no-dashboard --no-nanny --memory-limit 0 --local-directory".split()
            )
            arguments = [self.address, *options, str(folder)]
            code = f"{first}\nfrom distributed.cli.dask_worker import main\nmain({arguments!r})"
            self.workers.append(_spawn([*prefix, sys.executable, "-c", code], cwd))
        _until(lambda: self.count() == len(self.workers), self.scheduler, *self.workers)


def _spawn(arguments: list[str], cwd: Path = ROOT, **variables: str) -> subprocess.Popen[Any]:
    null = subprocess.DEVNULL
    return subprocess.Popen(arguments, stdout=null, stderr=null, env=_environment() | variables, cwd=cwd)


def _kill(*processes: subprocess.Popen[Any]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()


@contextmanager
def scheduling(folder: Path, *, before: str = "", port: int = 0, failures: int = 3) -> Iterator[Cluster]:
    """A scheduler of our own."""
    info = folder / f"scheduler-{time.monotonic_ns()}.json"
    options = f"--host 127.0.0.1 --port {port} --no-dashboard --no-jupyter --scheduler-file".split()
    code = f"{before}\nfrom distributed.cli.dask_scheduler import main\nmain({[*options, str(info)]!r})"
    scheduler = _spawn(
        [sys.executable, "-c", code], DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES=str(failures)
    )
    made = Cluster(folder, scheduler, "")
    try:
        _until(lambda: info.is_file() and info.read_text().strip().endswith("}"), scheduler)
        made.address = json.loads(info.read_text())["address"]
        yield made
    finally:
        _kill(*made.workers, scheduler)


@pytest.fixture(scope="module")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    before = NO_STEPLEDGER + OTHER_VERSION.format(package="toolz")
    with scheduling(tmp_path_factory.mktemp("cluster"), before=before) as made:
        yield made


@pytest.fixture
def shared(_shared: Cluster) -> Iterator[Cluster]:
    """The scheduler that tests share, without workers; that it has another toolz and no stepledger is
    fine."""
    yield _shared
    _kill(*_shared.workers)
    _shared.workers.clear()
    _until(lambda: _shared.count() == 0, _shared.scheduler)


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[Cluster]:
    """A scheduler that gives work up as soon as one worker was killed with it."""
    with scheduling(tmp_path, failures=0) as made:
        yield made


@pytest.fixture
def filled(tmp_path: Path) -> Home:
    """A home with two ranks in its inbox."""
    home = Home(tmp_path / "home")
    home.ensure()
    for path in pair(tmp_path / "traces"):
        drop(home, path, f"serve/{path.name}")
    return home


def _command(
    home: Path, *options: str, cwd: Path = ROOT, connect_s: float = 60.0, patience_s: float = 60.0
) -> subprocess.Popen[str]:
    """`stepledger run`. A cluster that works is waited for as long as a loaded machine needs; one that does
    not, is not."""
    code = COMMAND.format(connect_s=connect_s, patience_s=patience_s)
    arguments = [sys.executable, "-c", code, "--home", str(home), "run", *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(arguments, stdout=pipe, stderr=pipe, text=True, env=_environment(), cwd=cwd)


def _refused(home: Home, command: subprocess.Popen[str]) -> str:
    """The one line that a command ended with: exit code 2, all files in the inbox, the home free."""
    _, stderr = command.communicate(timeout=HANG_S)
    assert command.returncode == 2, stderr
    assert stderr.count("\n") == 1, stderr
    assert len(list(home.inbox.rglob("*.json"))) == 2
    assert not [path for path in (*home.archive.rglob("*"), *home.quarantine.rglob("*")) if path.is_file()]
    assert home.at_work() == []
    return stderr


def _assert_local_run_works(home: Home) -> None:
    command = _command(home.root, "--workers", "1")
    _, stderr = command.communicate(timeout=HANG_S)
    assert command.returncode == 0, stderr
    assert home.run_ids() == ["serve"]
    assert not list(home.inbox.rglob("*.json"))


def _slow(marker: Path) -> str:
    """What makes a worker never end a landing, and say that it has begun one."""
    return (
        "import pathlib, time, pipeline.ingest.tasks\n"
        "def slow(landing):\n"
        f"    pathlib.Path({str(marker)!r}).touch()\n"
        "    time.sleep(600)\n"
        "pipeline.ingest.tasks.land_file = slow\n"
    )


def wait_for_worker_and(number: int) -> tuple[int, int]:
    """Take a while, so that a worker can be killed while it works; says who did it."""
    time.sleep(1.0)
    return number, os.getpid()


def die_of_zero(number: int) -> int:
    """Work that kills its worker, if it is 0; the rest takes long enough to be killed with it."""
    if number == 0:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.5)
    return number


def touch_and_sleep(marker: Path) -> None:
    """Work that does not end."""
    marker.touch()
    time.sleep(HANG_S)


def unsendable(number: int) -> object:
    """A result that cannot be sent back."""
    return threading.Lock() if number else 0


def plain(number: int) -> int:
    """Work without errors."""
    return number


@contextmanager
def dask(address: str) -> Iterator[Dask]:
    """The executor, closed at the end."""
    made = Dask(address)
    try:
        yield made
    finally:
        made.close()


def test_a_killed_workers_work_is_done_by_another(shared: Cluster) -> None:
    """Two workers, one killed while it works: every piece of work is done, by the other."""
    shared.add("", "")
    first, second = shared.workers
    found: list[Done[int, tuple[int, int]]] = []
    with dask(shared.address) as made:
        assert made.workers == 2
        for done in made.run(wait_for_worker_and, list(range(6))):
            if not found:
                first.send_signal(signal.SIGKILL)
            found.append(done)
    assert sorted(done.item for done in found) == list(range(6))
    assert all(done.error is None for done in found)
    assert {done.value[1] for done in found[-2:] if done.value} == {second.pid}


def test_a_cluster_fills_a_lake_as_one_process_does(shared: Cluster, filled: Home, tmp_path: Path) -> None:
    """The same inbox gives the same tables; a relative --home means the same to workers in other folders."""
    alone = Home(tmp_path / "alone")
    shutil.copytree(filled.root, alone.root)
    shared.add("", threads=2)
    for home, options in ((filled, ["--scheduler", shared.address]), (alone, ["--workers", "1"])):
        command = _command(home.root.relative_to(tmp_path), *options, cwd=tmp_path)
        _, stderr = command.communicate(timeout=HANG_S)
        assert command.returncode == 0, stderr
        assert all(line.startswith("read: ") for line in stderr.splitlines()), stderr
    assert mart_rows(filled) == mart_rows(alone)


def test_a_worker_in_another_mount_namespace_takes_no_work(shared: Cluster, filled: Home) -> None:
    """It has an empty folder at the home's path: the files stay in the inbox, for a run without it."""
    empty = ("unshare", "-m", "sh", "-c", f'mount -t tmpfs tmpfs "{filled.root}" && exec "$@"', "sh")
    if subprocess.run([*empty, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("a mount namespace can be made by an administrator of Linux only")
    shared.add("", prefix=empty)
    err = _refused(filled, _command(filled.root, "--scheduler", shared.address))
    assert f"worker {socket.gethostname()} does not see the home at {filled.root}" in err
    _assert_local_run_works(filled)


@pytest.mark.parametrize("elsewhere", ["nothing", "another home"])
def test_a_worker_with_another_home_takes_no_work(
    shared: Cluster,
    filled: Home,
    tmp_path: Path,
    elsewhere: str,
) -> None:
    """/proc/self/cwd leads each process elsewhere: here to no home, or to one that another process writes."""
    there = tmp_path / "there"
    there.mkdir()
    with ExitStack() as stack:
        if elsewhere == "another home":
            stack.enter_context(Home(there / "home").writing(print))
        shared.add("", cwd=there)
        command = _command(Path("/proc/self/cwd/home"), "--scheduler", shared.address, cwd=tmp_path)
        err = _refused(filled, command)
    assert f"worker {socket.gethostname()} does not see the home at /proc/self/cwd/home" in err
    assert not list((there / "home" / "lake" / "raw").glob("*"))


def test_a_worker_of_another_version_takes_no_work(shared: Cluster, filled: Home) -> None:
    """Both versions are named."""
    shared.add("import pipeline\npipeline.__version__ = '9.8.7'")
    err = _refused(filled, _command(filled.root, "--scheduler", shared.address))
    assert "has stepledger 9.8.7" in err
    assert f"this command has {__version__}" in err


def test_a_worker_without_stepledger_is_not_the_files_fault(shared: Cluster, filled: Home) -> None:
    """A package that the worker cannot import is an error of the cluster: nothing is quarantined."""
    shared.add(NO_STEPLEDGER)
    err = _refused(filled, _command(filled.root, "--scheduler", shared.address))
    assert "ModuleNotFoundError" in err
    assert f"stepledger {__version__}" in err


def test_work_that_kills_its_workers_is_at_fault_and_its_neighbors_are_not(fragile: Cluster) -> None:
    """Workers have two threads: what dies with the guilty work is done again, and only the guilty fails."""
    fragile.add("", "", "", threads=2)
    with dask(fragile.address) as made:
        found = {done.item: done for done in made.run(die_of_zero, list(range(4)))}
    assert {item: done.value for item, done in found.items() if done.error is None} == {1: 1, 2: 2, 3: 3}
    assert isinstance(found[0].error, WorkerDied)


def test_workers_killed_at_once_are_not_its_fault(fragile: Cluster, filled: Home, tmp_path: Path) -> None:
    """Although the scheduler gives the work up as work that kills workers: the files stay in the inbox."""
    markers = [tmp_path / "begun-0", tmp_path / "begun-1"]
    fragile.add(*map(_slow, markers))
    command = _command(filled.root, "--scheduler", fragile.address, patience_s=10.0)
    _until(lambda: all(marker.exists() for marker in markers), command)
    _kill(*fragile.workers)
    assert f"all workers of the Dask cluster at {fragile.address} are gone" in _refused(filled, command)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_scheduler_that_is_gone_ends_the_run(tmp_path: Path, filled: Home, how: signal.Signals) -> None:
    """Killed, or alive and silent: the run ends, and leaves the files to the next."""
    marker = tmp_path / "begun"
    with scheduling(tmp_path) as made:
        made.add(_slow(marker))
        command = _command(filled.root, "--scheduler", made.address, patience_s=15.0)
        _until(marker.exists, command)
        assert filled.at_work() == [("writer", "a writer is running")]
        made.scheduler.send_signal(how)
        err = _refused(filled, command)
        assert f"the Dask scheduler at {made.address}" in err
    if how == signal.SIGKILL:
        _assert_local_run_works(filled)


def test_an_interrupt_leaves_the_cluster_quietly(shared: Cluster, filled: Home, tmp_path: Path) -> None:
    """Ctrl-C while workers work: exit 130 and not a word, the files in the inbox and the home free."""
    marker = tmp_path / "begun"
    shared.add(_slow(marker))
    command = _command(filled.root, "--scheduler", shared.address)
    _until(marker.exists, command)
    command.send_signal(signal.SIGINT)
    _, stderr = command.communicate(timeout=HANG_S)
    assert (command.returncode, stderr) == (130, "")
    assert len(list(filled.inbox.rglob("*.json"))) == 2
    assert filled.at_work() == []


def test_a_cluster_without_workers_ends_the_run(shared: Cluster, filled: Home) -> None:
    """After a while of waiting for a first one."""
    err = _refused(filled, _command(filled.root, "--scheduler", shared.address, patience_s=4.0))
    assert f"no worker joined the Dask cluster at {shared.address}" in err


class _Talker(socketserver.BaseRequestHandler):
    """A service that speaks first, and not Dask's language."""

    def handle(self) -> None:
        self.request.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
        self.request.recv(1)


@pytest.fixture(scope="module")
def addresses() -> Iterator[dict[str, str]]:
    """Addresses where no scheduler is."""
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        socket.socket() as closed,
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as web,
        socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Talker) as talker,
    ):
        closed.bind(("127.0.0.1", 0))
        for server in (web, talker):
            threading.Thread(target=server.serve_forever, daemon=True).start()
        found = {
            "closed port": closed,
            "silent": silent,
            "web": web.socket,
            "talker": talker.socket,
        }
        yield {name: f"tcp://127.0.0.1:{one.getsockname()[1]}" for name, one in found.items()} | {
            "unknown host": "tcp://no-such-host.invalid:8786",
            "no address": "gopher://127.0.0.1:70",
        }
        for server in (web, talker):
            server.shutdown()


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("closed port", "no Dask scheduler answers at ADDRESS: Connection refused."),
        ("unknown host", "no Dask scheduler answers at ADDRESS: "),
        ("silent", "no Dask scheduler answers at ADDRESS: no answer in time."),
        ("web", "no Dask scheduler answers at ADDRESS: no answer in time."),
        ("talker", "what answers at ADDRESS is not a Dask scheduler that distributed"),
        ("no address", "ADDRESS is not an address of a Dask scheduler: "),
    ],
)
def test_an_address_without_scheduler_is_refused(
    addresses: dict[str, str],
    filled: Home,
    what: str,
    text: str,
) -> None:
    """One line names the address and what is there instead, without objects of Python."""
    err = _refused(filled, _command(filled.root, "--scheduler", addresses[what], connect_s=2.0))
    assert err.startswith("stepledger: error: " + text.replace("ADDRESS", addresses[what]))
    assert "0x" not in err


def test_a_scheduler_of_another_version_ends_the_run(tmp_path: Path, filled: Home) -> None:
    """Both versions of the package are named."""
    with scheduling(tmp_path, before=OTHER_VERSION.format(package="distributed")) as made:
        err = _refused(filled, _command(filled.root, "--scheduler", made.address))
    assert f"the scheduler at {made.address} has distributed 1.2.3" in err
    assert f"this command has distributed {distributed.__version__}" in err


def test_a_worker_of_another_distributed_ends_the_run(shared: Cluster, filled: Home) -> None:
    """Both versions of the package are named."""
    shared.add(OTHER_VERSION.format(package="distributed"))
    err = _refused(filled, _command(filled.root, "--scheduler", shared.address))
    assert "has distributed 1.2.3" in err
    assert f"this command has distributed {distributed.__version__}" in err


def test_a_result_that_cannot_be_sent_is_a_cluster_error(shared: Cluster) -> None:
    """No WorkerDied: that would be the file's fault."""
    shared.add("")
    with dask(shared.address) as made:
        found = {done.item: done for done in made.run(unsendable, [0, 1])}
    assert found[0].error is None
    assert isinstance(found[1].error, HomeError)


def test_a_canceled_task_is_a_cluster_error(shared: Cluster, tmp_path: Path) -> None:
    """No WorkerDied: that would be the file's fault."""
    shared.add("")
    marker = tmp_path / "begun"

    def cancel_all(dask_scheduler: Any) -> None:
        for key, task in list(dask_scheduler.tasks.items()):
            for client in list(task.who_wants or ()):
                dask_scheduler.stimulus_cancel([key], client.client_key, force=True, reason="a test", msg="")

    def cancel() -> None:
        _until(marker.exists)
        with distributed.Client(shared.address, set_as_default=False) as other:
            other.run_on_scheduler(cancel_all)

    thread = threading.Thread(target=cancel)
    thread.start()
    with dask(shared.address) as made:
        (done,) = made.run(touch_and_sleep, [marker])
    thread.join(HANG_S)
    assert isinstance(done.error, HomeError)
    assert "a test" in str(done.error)


def test_an_executor_outlives_its_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`watch` goes on when a scheduler is back at the same address; meanwhile each item has its error."""
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 10.0)
    with ExitStack() as stack:
        with scheduling(tmp_path) as first:
            first.add("")
            made = stack.enter_context(dask(first.address))
            assert [done.value for done in made.run(plain, [1])] == [1]
        assert [type(done.error) for done in made.run(plain, [1, 2])] == [HomeError, HomeError]
        port = int(first.address.rpartition(":")[2])
        second = stack.enter_context(scheduling(tmp_path, port=port))
        second.add("")
        assert [done.value for done in made.run(plain, [3])] == [3]
