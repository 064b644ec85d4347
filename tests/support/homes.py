"""A small pair of ranks and what tests do with a home: fill it, copy it, hash it, call the command on it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import orjson

from pipeline import duck
from pipeline.contracts import contracts
from pipeline.lake.database import write_database
from pipeline.lake.home import Home
from pipeline.lake.reading import opened
from pipeline.sources.names import as_text
from tests.support.builders import ALL_REDUCE, DECODE, GEMM, MARLIN_MOE, StepBuilder, header, write_trace

PREFILL = "execute_context_1(512)_generation_0(0)"
HANG_S = 1800
"""Seconds after which a process counts as hung: a guard only, so that a slow, loaded machine passes."""
STRANGE = "mystery_kernel_of_nobody"


def rank_trace(path: Path, rank: int = 0, *, ranks: int = 2, steps: int = 3, seed: int = 0) -> Path:
    """One rank: a prefill step, then decode steps; rank and seed change durations, so that no two files are
    equal."""
    made = StepBuilder()
    made.step([(GEMM, 400_000), (ALL_REDUCE, 200_000)], PREFILL)
    for number in range(steps):
        waits = 30_000 + 4_000 * rank + 1_000 * number + 10 * seed
        made.step(
            [
                (GEMM, 20_000),
                (ALL_REDUCE, waits),
                (MARLIN_MOE, 25_000),
                (STRANGE, 1_500),
                (ALL_REDUCE, waits + 500),
            ],
            DECODE,
        )
    return write_trace(path, made.events, header(rank, ranks))


def pair(folder: Path, *, seed: int = 0) -> list[Path]:
    """Two ranks of one run, uncompressed, so that their ids are the same on every machine."""
    return [rank_trace(folder / f"serve-rank-{rank}.json", rank, seed=seed) for rank in range(2)]


def settled(path: Path) -> Path:
    """Make a file look as if it had not been written to for a while."""
    then = time.time() - 60
    os.utime(path, (then, then))
    return path


def drop(home: Home, path: Path, place: str) -> Path:
    """Put a finished file into the inbox."""
    target = home.inbox / place
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, target)
    return settled(target)


def reason_in(home: Home, run: str) -> dict[str, str]:
    """The reason of the one file of a run that was quarantined."""
    found = [orjson.loads(note.read_bytes()) for note in home.reasons.iterdir()]
    (reason,) = (one for one in found if one["file"].split("/")[0] == as_text(run))
    return dict(reason)


def copied(source: Home, root: Path) -> Home:
    """A copy of a home, with its own database."""
    shutil.copytree(source.root, root)
    made = Home(root)
    write_database(made)
    return made


def fingerprint(root: Path) -> dict[str, str]:
    """Every path under a folder, files with the hash of their bytes; lock files hold nothing but the last
    writer's token."""
    paths = (p for p in sorted(root.rglob("*")) if p.name not in {".lock", ".watch.lock"})
    return {
        p.relative_to(root).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        if p.is_file()
        else "folder"
        for p in paths
    }


def mart_rows(home: Home) -> dict[str, list[tuple[object, ...]]]:
    """All rows of all marts but the id of the build, for comparison."""
    found = {}
    with opened(home) as con:
        for table in contracts("marts"):
            columns = "* EXCLUDE (build_id)" if table == "run_facts" else "*"
            found[table] = duck.rows(con, f"SELECT {columns} FROM {table} ORDER BY ALL")
    return found


def damage(file: Path, kind: str) -> None:
    """Do to a file what disks and people do: leave nothing of it, half of it, other bytes, or no file at
    all."""
    data = file.read_bytes()
    file.unlink()
    if kind != "missing":
        file.write_bytes(
            {"empty": b"", "half": data[: len(data) // 2], "garbage": bytes(reversed(data))}[kind]
        )


class Called(NamedTuple):
    """What a command called in this process did."""

    code: int
    out: str
    err: str


def command(*arguments: str | Path, columns: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
        env=environment(columns),
    )


def environment(columns: int | None = None) -> dict[str, str]:
    """The environment without what would change how a command behaves."""
    kept = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "STEPLEDGER_HOME", "FORCE_COLOR"}}
    return kept | ({"COLUMNS": str(columns)} if columns else {}) | {"NO_COLOR": "1"}
