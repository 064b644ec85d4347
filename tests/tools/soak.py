"""`python -m tests.tools.soak --minutes 10` (`make soak`): a watcher, hundreds of files that come and go, and
errors in between.

Files arrive whole, in pieces, by rename and with their folders; some are renamed, deleted, dropped twice or
are no traces. Calls of the watcher fail at random for most of the time. At the end every file that stayed is
in the archive or the quarantine once, every trace that is not in the quarantine is in the lake once, memory
and file descriptors are flat, an idle minute costs next to nothing, and SIGTERM ends it.
"""

from __future__ import annotations

import argparse
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from statistics import median

from pipeline import duck
from pipeline.lake.home import Home
from pipeline.lake.reading import opened
from tests.support.homes import environment, rank_trace
from tests.tools.crash import EVENTS

ONE_IN = 100
"""Touches of the file system of which one fails, while errors are on."""
IDLE_SECONDS = 60
QUIET_SECONDS = 20
"""More than the longest time until a next try."""
MOST_IDLE_CPU = 0.001
"""Of one core."""
MOST_GROWTH = 1.25
"""Of memory and descriptors, from the second third of the time to the last."""
SETTLE_MINUTES = 30
"""A guard against a hang: how long the last files may take."""


def watch_with_errors(root: Path, mark: Path) -> None:
    """The command `watch`, whose accesses to the home fail at random while the file `mark` exists."""
    from pipeline.cli.app import main

    chance = random.Random(7)  # noqa: S311 (repeatable)
    place = f"{root}/"

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        path = arguments[0] if event in EVENTS and arguments else None
        is_ours = isinstance(path, str) and (path.startswith(place) or not path.startswith("/"))
        if is_ours and chance.randrange(ONE_IN) == 0 and os.access(mark, os.F_OK):
            number = chance.choice((errno.EIO, errno.ENOSPC, errno.EACCES, errno.EMFILE))
            raise OSError(number, os.strerror(number), path)

    from pipeline.ingest import watch

    watch.RETRY_SECONDS, watch.LONGEST_RETRY_SECONDS = 2.0, 8.0  # so that minutes hold many tries
    sys.addaudithook(hook)
    sys.argv = ["stepledger", "--home", str(root), "watch", "--workers", "1"]
    main()


_ERRORS = [os.strerror(number) for number in (errno.EIO, errno.ENOSPC, errno.EACCES, errno.EMFILE)] + [
    "its disk is full",
    "retrying in",
]


@dataclass
class Droppings:
    """What was dropped: the bytes of every file that stayed, and of those that were deleted."""

    home: Home
    made: Path
    chance: random.Random = field(default_factory=lambda: random.Random(1))  # noqa: S311
    stayed: Counter[str] = field(default_factory=Counter)
    deleted: Counter[str] = field(default_factory=Counter)
    traces: set[str] = field(default_factory=set)
    count: int = 0

    def _bytes(self) -> tuple[str, bytes]:
        """A file that no other equals: a trace, or something else."""
        self.count += 1
        if self.chance.random() < 0.2:
            return "junk.json", b'{"traceEvents": [], "n": %d}' % self.count
        path = rank_trace(self.made / f"{self.count}.json", rank=self.count % 2, steps=2, seed=self.count)
        data = path.read_bytes()
        path.unlink()
        self.traces.add(sha256(data).hexdigest())
        return "t.json", data

    def _write(self, path: Path, data: bytes, pieces: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for start in range(0, len(data), -(-len(data) // pieces)):
                file.write(data[start : start - (-len(data) // pieces)])
                file.flush()
                if pieces > 1:
                    time.sleep(0.3)

    def act(self) -> None:
        """Drop one more file in one of the ways in which files come, or take one away."""
        name, data = self._bytes()
        digest = sha256(data).hexdigest()
        path = self.home.inbox / f"run-{self.count % 12}" / f"{self.count}-{name}"
        way = self.chance.randrange(6)
        if way == 0:
            self._write(path, data, pieces=3)
        elif way == 1:
            aside = self.made / f"folder-{self.count}"
            self._write(aside / path.name, data, pieces=1)
            aside.rename(self.home.inbox / f"folder-{self.count}")
        elif way == 2:
            self._write(path, data, pieces=1)
            self._write(path.with_name(f"again-{path.name}"), data, pieces=1)
            self.stayed[digest] += 1
        else:
            self._write(path, data, pieces=1)
        if way in {3, 4}:
            time.sleep(self.chance.random() * 8)
        try:
            if way == 3:
                path.rename(path.with_name(f"renamed-{path.name}"))
            elif way == 4:
                path.unlink()
                self.deleted[digest] += 1
                return
        except FileNotFoundError:  # it was faster
            pass
        self.stayed[digest] += 1


def kept(home: Home) -> Counter[str]:
    """Bytes of the files in the archive and the quarantine."""
    return Counter(
        sha256(p.read_bytes()).hexdigest()
        for folder in (home.archive, home.quarantine)
        for p in folder.rglob("*")
        if p.is_file()
    )


def wrong(home: Home, dropped: Droppings) -> list[str]:
    """What is not as it should be when nothing is left in the inbox."""
    found, there = [], kept(home)
    for digest, count in dropped.stayed.items():
        if there[digest] != count:
            found.append(f"{digest[:8]}: dropped {count} times, kept {there[digest]} times")
    if more := {d for d in there if d not in dropped.stayed and d not in dropped.deleted}:
        found.append(f"{len(more)} kept files that were not dropped")
    with opened(home) as con:
        landed = Counter(row[0] for row in duck.rows(con, "SELECT sha256 FROM raw.trace"))
        unbuilt = duck.scalar(
            con, "SELECT count(DISTINCT run_id) FROM raw.trace WHERE run_id NOT IN (SELECT run_id FROM runs)"
        )
    refused = {
        sha256(p.read_bytes()).hexdigest() for p in home.quarantine.rglob("*") if p.is_file()
    }  # an error while they were read
    missing = [d for d in dropped.traces if d in dropped.stayed and d not in refused and landed[d] != 1]
    if missing or unbuilt:
        found.append(f"{len(missing)} traces are not in the lake once, {unbuilt} runs are not built")
    if left := [p.name for p in home.inbox.rglob("*") if p.is_file()]:
        found.append(f"left in the inbox: {left[:5]}")
    return found


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _until_quiet(log: Path) -> None:
    """Wait until the watcher has reported nothing for a while: what failed once may still be built again."""
    size = -1
    while (now := log.stat().st_size) != size:
        size = now
        time.sleep(QUIET_SECONDS)


def sample(pid: int) -> tuple[float, int]:
    """Resident memory in MB, and open descriptors."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, len(list(Path(f"/proc/{pid}/fd").iterdir()))


def growth(values: list[float]) -> float:
    """The last third's median over the second third's."""
    third = len(values) // 3
    return median(values[2 * third :]) / median(values[third : 2 * third])


def soak(folder: Path, minutes: float) -> list[str]:
    """Run it, print the figures, and return what is wrong."""
    home, made, mark, log = Home(folder / "home"), folder / "made", folder / "errors", folder / "log"
    home.ensure()
    made.mkdir()
    mark.touch()
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.tools.soak", "--watch", str(home.root), str(mark)],
            stderr=errors,
            env=environment(),
        )
    dropped, samples = Droppings(home, made), []
    try:
        end = time.monotonic() + minutes * 60
        while time.monotonic() < end:
            dropped.act()
            samples.append(sample(process.pid))
            if process.poll() is not None:
                return [f"the watcher ended: {log.read_text()[-2000:]}"]
            if time.monotonic() > end - minutes * 60 * 0.2:
                mark.unlink(missing_ok=True)
        deadline = time.monotonic() + SETTLE_MINUTES * 60
        while (found := wrong(home, dropped)) and time.monotonic() < deadline:
            time.sleep(2)
        _until_quiet(log)
        before = cpu_seconds(process.pid)
        time.sleep(IDLE_SECONDS)
        idle = (cpu_seconds(process.pid) - before) / IDLE_SECONDS
        process.send_signal(signal.SIGTERM)
        code = process.wait(SETTLE_MINUTES * 60)
    finally:
        process.kill()
    memory, handles = ([value[number] for value in samples] for number in (0, 1))
    error_lines = sum(any(text in line for text in _ERRORS) for line in log.read_text().splitlines())
    print(
        f"{dropped.count} files ({sum(dropped.deleted.values())} deleted, {len(dropped.traces)} traces), "
        f"{error_lines} lines of errors; memory "
        f"{memory[0]:.0f} to {memory[-1]:.0f} MB, at most {max(memory):.0f}, last third {growth(memory):.2f} "
        "times the second; descriptors "
        f"{handles[0]} to {handles[-1]}, {growth([float(h) for h in handles]):.2f} times; idle CPU "
        f"{100 * idle:.3f} %; SIGTERM: exit {code}"
    )
    if idle > MOST_IDLE_CPU:
        found.append(f"idle CPU is {100 * idle:.2f} %")
    if growth(memory) > MOST_GROWTH or growth([float(h) for h in handles]) > MOST_GROWTH:
        found.append("memory or descriptors grow")
    return found if code == 0 else [*found, f"SIGTERM: exit {code}"]


def main() -> int:
    """Exit 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--watch", nargs=2, type=Path, metavar=("HOME", "MARK"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.watch:
        watch_with_errors(*chosen.watch)
        return 0
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        found = soak(folder, chosen.minutes)
    finally:
        shutil.rmtree(folder)
    for one in found:
        print(one)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
