"""What may lie in an inbox that others write to, end to end: a good trace goes through beside it all, and
nothing leaves the inbox."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.ingest.execution import ExecutionConfig
from pipeline.ingest.executors import Processes
from pipeline.ingest.inbox import waiting
from pipeline.ingest.ingest import drain
from pipeline.ingest.quarantine import quarantined
from pipeline.lake.home import Home
from pipeline.lake.settings import Settings
from pipeline.progress import Progress
from pipeline.sources.detect import reader_for
from tests.support.homes import HANG_S, command, drop, environment, fingerprint, rank_trace, settled

QUIET = Progress(quiet=True)
Make = Callable[[Home], None]


def _put(home: Home, place: str, data: bytes = b"x") -> Path:
    path = home.inbox / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return settled(path)


def _nest(folder: Path, name: str, depth: int) -> None:
    folder.mkdir(parents=True)
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=here)
        inner = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


def _link_to_root(home: Home) -> None:
    (home.inbox / "x").symlink_to("/")
    os.utime(home.inbox / "x", (1, 1), follow_symlinks=False)


def _file_then_folder(home: Home) -> None:
    _put(home, "run/a", b"junk")
    drain(home, QUIET)
    _put(home, "run/a/b", b"more junk")


def _same_long_name(home: Home) -> None:
    for _ in range(2):
        _put(home, f"run/{'n' * 255}", b"junk")
        drain(home, QUIET)
    _put(home, f"run/{'n' * 255}", b"junk")


def _sparse(home: Home) -> None:
    for place, start in (
        ("sparse/x.json", b""),
        ("sparse/y.json", b'{"traceEvents": ['),
        ("sparse/z.sqlite", b"SQLite format 3\0"),
    ):
        path = _put(home, place, start)
        os.truncate(path, 1 << 42)
        settled(path)


def _old_note(home: Home) -> None:
    _put(home, "run/payload", b"ssh-rsa AAAA")
    _put(
        home,
        "run/x.reason.json",
        b'{"file": "../../victim/authorized_keys", "name": "payload", "run": "r", "error": "e"}',
    )
    _put(home, "run/y.reason.json", b"not json")
    _put(home, "run/w.reason.json", b"[1]")
    _put(home, "run/z.reason.json/t.json", b"{}")


def _trouble_as_text(home: Home) -> None:
    for number, text in enumerate(
        ("Read-only file system", "Disk quota exceeded", "No space left on device")
    ):
        _put(home, f"run/server{number}.log", f"{text}: x\n".encode())
        _put(home, f"run/{text}", b"{}")
        _put(home, f"run/{text}.sqlite", b"SQLite format 3\0" + text.encode() * 9)


HOSTILE: dict[str, Make] = {
    "a link to /": _link_to_root,
    "1,100 nested folders": lambda home: _nest(home.inbox / "a", "a", 1100),
    "a path beyond PATH_MAX": lambda home: _nest(home.inbox / "b", "n" * 200, 25),
    "run.toml of 3,000 nested arrays": lambda home: void(
        _put(home, "run/run.toml", b"x = " + b"[" * 3000 + b"]" * 3000)
    ),
    "run.toml of a megabyte": lambda home: void(_put(home, "large/run.toml", b"#" * (1 << 20))),
    "run.toml that is a folder": lambda home: void(_put(home, "other/run.toml/x.json", b"{}")),
    "a folder where a file was": _file_then_folder,
    "three files of one name of 255 bytes": _same_long_name,
    "files of 4 TiB without a byte on disk": _sparse,
    "files that look like our reasons": _old_note,
    "texts of a full disk": _trouble_as_text,
    "a hidden folder of another run": lambda home: void(_put(home, ".quarantine/x.json", b"{}")),
}


def void(_value: object) -> None:
    """Nothing: what was made is looked at by the product alone."""


@pytest.fixture
def beside(home: Home, tmp_path: Path) -> Iterator[Home]:
    """A home with a good trace in its inbox; folders too deep for pytest's own cleaning are removed
    afterwards."""
    drop(home, rank_trace(tmp_path / "t-rank-0.json", ranks=1), "good/t-rank-0.json")
    yield home
    subprocess.run(["rm", "-rf", str(home.inbox)], check=True)


@pytest.mark.parametrize("what", HOSTILE)
def test_a_good_trace_goes_through_beside(beside: Home, tmp_path: Path, what: str) -> None:
    """`run`, `status`, `retry` and `run` again end with a named exit code, without a traceback; nothing is
    outside the home."""
    HOSTILE[what](beside)
    outside = {p.name for p in tmp_path.iterdir()}
    for name, codes in (
        ("run", {0, 2, 3}),
        ("status", {0}),
        ("retry", {0}),
        ("run", {0, 2, 3}),
        ("status", {0}),
    ):
        done = command("--home", beside.root, name)
        assert done.returncode in codes, (name, done.stderr)
        assert "Traceback" not in done.stderr
        assert "disk is full" not in done.stderr
    assert beside.run_ids() == ["good"]
    assert [p.name for p in (beside.archive / "good").iterdir()] == ["t-rank-0.json"]
    assert {p.name for p in tmp_path.iterdir()} == outside


def test_a_reason_among_dropped_files_is_a_file(beside: Home, tmp_path: Path) -> None:
    """It goes to the quarantine with a reason of its own and back with `retry`; nothing is moved where it
    says."""
    _old_note(beside)
    (tmp_path / "victim").mkdir()
    drain(beside, QUIET)
    assert set(quarantined(beside)) == {
        "run/payload",
        "run/x.reason.json",
        "run/y.reason.json",
        "run/w.reason.json",
        "run/z.reason.json/t.json",
    }
    assert command("--home", beside.root, "retry").returncode == 0
    assert sorted(p.name for p in (beside.inbox / "run").iterdir()) == [
        "payload",
        "w.reason.json",
        "x.reason.json",
        "y.reason.json",
        "z.reason.json",
    ]
    assert list((tmp_path / "victim").iterdir()) == []


def test_what_cannot_be_looked_at_is_named_and_left(beside: Home) -> None:
    """With what to do, by `run` and by `status`."""
    _nest(beside.inbox / "a", "a", 40)
    done = command("--home", beside.root, "run")
    assert done.returncode == 3
    assert "left in the inbox" in done.stderr
    assert "at most 32 folders" in done.stderr
    assert "at most 32 folders" in command("--home", beside.root, "status", columns=1000).stdout
    assert (beside.inbox / "a" / "a").is_dir()


def test_a_folder_exchanged_for_a_link_while_others_are_read(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between listing and reading the folder becomes a link to one that only the service may read: nothing of
    it is read or moved."""
    private = tmp_path / "private"
    private.mkdir()
    rank_trace(private / "secret.json", ranks=1)
    (private / "id_rsa").write_text("private key")
    before = fingerprint(private)
    drop(home, rank_trace(tmp_path / "t.json", ranks=1), "a/t-rank-0.json")
    for name in ("secret.json", "id_rsa"):
        _put(home, f"z/{name}")

    def exchanged(path: Path, folder: Path) -> object:
        if not (home.inbox / "z").is_symlink():
            (home.inbox / "z").rename(tmp_path / "away")
            (home.inbox / "z").symlink_to(private)
        return reader_for(path, folder)

    monkeypatch.setattr("pipeline.ingest.land.reader_for", exchanged)
    drain(home, QUIET)
    assert home.run_ids() == ["a"]
    assert fingerprint(private) == before
    assert not any("private key" in found.error for found in quarantined(home).values())


def test_a_folder_exchanged_again_and_again(home: Home, tmp_path: Path) -> None:
    """An attacker who never stops: after 20 rounds nothing of the private folder was read or moved."""
    private = tmp_path / "private"
    private.mkdir()
    rank_trace(private / "secret.json", ranks=1)
    before = fingerprint(private)
    stop = threading.Event()

    def attack() -> None:
        away, there = tmp_path / "away", home.inbox / "z"
        while not stop.is_set():
            try:
                there.mkdir(exist_ok=True)
                _put(home, "z/secret.json", b"junk")
                there.rename(away)
                there.symlink_to(private)
                time.sleep(0.0005)
                there.unlink()
                away.rename(there)
            except OSError:
                subprocess.run(["rm", "-rf", str(away)], check=True)
                if there.is_symlink():
                    there.unlink()

    attacker = threading.Thread(target=attack)
    attacker.start()
    try:
        for _ in range(20):
            drain(home, QUIET)
    finally:
        stop.set()
        attacker.join()
    assert fingerprint(private) == before
    assert home.run_ids() == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_file_deleted_while_it_is_read(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """What was opened is read to its end and lands; the next file goes on; in this process and in workers."""
    first = drop(home, rank_trace(tmp_path / "a.json"), "run/a-rank-0.json")
    drop(home, rank_trace(tmp_path / "b.json", 1), "run/b-rank-1.json")
    if workers == 1:

        def deleted(path: Path, folder: Path) -> object:
            first.unlink(missing_ok=True)
            return reader_for(path, folder)

        monkeypatch.setattr("pipeline.ingest.land.reader_for", deleted)
        outcome = drain(home, QUIET)
        assert len(list(home.raw_run("run").iterdir())) == 2
    else:
        items = waiting(home.inbox)
        first.unlink()
        monkeypatch.setattr("pipeline.ingest.ingest.inbox.waiting", lambda _inbox: items)
        outcome = drain(home, QUIET, ExecutionConfig(Processes(2), Settings(workers=2), worth_bytes=0))
        assert len(list(home.raw_run("run").iterdir())) == 1
    assert outcome.built == ["run"]
    assert [p.name for p in (home.archive / "run").iterdir()] == ["b-rank-1.json"]


@contextmanager
def _watching(home: Home) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", "--home", str(home.root), "watch", "--workers", "1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_watcher_outlives_it_all(beside: Home, tmp_path: Path) -> None:
    """Everything at once in one inbox: a good trace is built and SIGTERM ends the watch with 0."""
    for make in HOSTILE.values():
        make(beside)
    drop(beside, rank_trace(tmp_path / "late-rank-0.json", ranks=1, seed=1), "late/late-rank-0.json")
    with _watching(beside) as process:
        deadline = time.monotonic() + HANG_S
        while not (beside.exports / "late" / "step_breakdown.csv").exists():
            assert time.monotonic() < deadline
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0
    assert "Traceback" not in err


@pytest.mark.parametrize("command_name", ["run", "build", "watch"])
def test_a_spill_folder_that_cannot_be_made_is_reported(home: Home, command_name: str) -> None:
    """Before anything is read: a wrong setting is a usage error."""
    (home.root / "settings.toml").write_text('spill = "/proc/nope"\n')
    done = command("--home", home.root, command_name)
    assert (done.returncode, "spill: /proc/nope" in done.stderr) == (2, True)


def test_what_is_made_of_a_private_file_is_private(home: Home, tmp_path: Path) -> None:
    """Raw tables, marts, results, page, export and compacted tables; those of a file that all may read can be
    read by all."""
    for run, mode in (("private", 0o600), ("public", 0o644)):
        drop(home, rank_trace(tmp_path / f"{run}.json", ranks=1), f"{run}/t-rank-0.json").chmod(mode)
    for arguments in (("run",), ("check",), ("compact", "--older-than-days", "0")):
        done = command("--home", home.root, *arguments)
        assert done.returncode == 0, done.stderr
    for run, may_read in (("private", False), ("public", True)):
        made = [
            p
            for p in home.root.rglob("*")
            if p.is_file() and f"/{run}/" in f"{p.relative_to(home.root)}/".replace("run_id=", "")
        ]
        made = [p for p in made if "archive" not in p.parts]
        assert {p.suffix for p in made} >= {".parquet", ".csv", ".html"}
        assert {bool(p.stat().st_mode & 0o044) for p in made} == {may_read}, run
    compacted = [p for p in home.compact.glob("gen=*/*.parquet") if "_template" not in str(p)]
    assert compacted
    assert not any(p.stat().st_mode & 0o044 for p in compacted)
