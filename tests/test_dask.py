"""A real cluster on loopback: a scheduler and two workers, each a process, one of which is killed in the middle of its work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.home import Home
from pipeline.schedule import Dask, Done
from tests.homes import drop, environment, mart_rows, pair

pytest.importorskip("distributed", reason="the extra stepledger[dask] is not installed")

ROOT = Path(__file__).parent.parent


@dataclass
class Cluster:
    """A scheduler's address, and its workers."""

    address: str
    workers: list[subprocess.Popen[bytes]]


def _spawn(arguments: list[str]) -> subprocess.Popen[bytes]:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment() | {"PYTHONPATH": paths}, cwd=ROOT
    )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A scheduler and two workers of one thread."""
    told = tmp_path / "scheduler.json"
    scheduler = _spawn(
        [
            "-m",
            "distributed.cli.dask_scheduler",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--no-dashboard",
            "--no-jupyter",
            "--scheduler-file",
            str(told),
        ]
    )
    workers: list[subprocess.Popen[bytes]] = []
    try:
        deadline = time.monotonic() + 60
        while not told.is_file() or not told.read_text().strip().endswith("}"):
            assert time.monotonic() < deadline
            assert scheduler.poll() is None
            time.sleep(0.1)
        for number in range(2):
            folder = str(tmp_path / f"worker-{number}")
            workers.append(
                _spawn(
                    ["-m", "distributed.cli.dask_worker", "--scheduler-file", str(told), "--nthreads", "1", "--no-dashboard", "--no-nanny",
                     "--local-directory", folder]
                )
            )  # fmt: skip
        yield Cluster(json.loads(told.read_text())["address"], workers)
    finally:
        for process in (*workers, scheduler):
            process.kill()
            process.wait()


def wait_for_worker_and(number: int) -> tuple[int, int]:
    """Take a while, so that a worker can be killed while it works; says who did it."""
    time.sleep(1.0)
    return number, os.getpid()


def test_a_killed_workers_work_is_done_by_another(cluster: Cluster) -> None:
    """Two workers, one killed while it works: every piece of work is done, by the other."""
    made = Dask(cluster.address)
    try:
        deadline = time.monotonic() + 60
        while made.workers < 2 and time.monotonic() < deadline:
            time.sleep(0.2)
            made.close()
            made = Dask(cluster.address)
        found: list[Done[int, tuple[int, int]]] = []
        for done in made.run(wait_for_worker_and, list(range(8))):
            if not found:
                cluster.workers[0].send_signal(signal.SIGKILL)
            found.append(done)
    finally:
        made.close()
    assert sorted(done.item for done in found) == list(range(8))
    assert all(done.error is None for done in found)
    assert {done.value[1] for done in found[-2:] if done.value} == {cluster.workers[1].pid}


def test_a_cluster_fills_a_lake_as_one_process_does(cluster: Cluster, tmp_path: Path) -> None:
    """The same inbox worked off by a cluster and by this process gives the same tables."""
    homes = []
    for name, options in (("cluster", ["--scheduler", cluster.address]), ("alone", ["--workers", "1"])):
        home = Home(tmp_path / name)
        home.ensure()
        for path in pair(tmp_path / "traces"):
            drop(home, path, f"serve/{path.name}")
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, "-m", "pipeline", "--home", str(home.root), "run", *options],
            capture_output=True, text=True, timeout=300, check=False, env=environment() | {"PYTHONPATH": paths}, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        homes.append(home)
    assert mart_rows(homes[0]) == mart_rows(homes[1])
