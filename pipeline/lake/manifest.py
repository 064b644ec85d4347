"""Which run is served from which generation of compacted files."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import orjson

from pipeline import duck
from pipeline.lake.atomic import write_file
from pipeline.lake.damage import is_damaged
from pipeline.lake.home import Home

MANIFEST = "manifest.json"


@dataclass
class Manifest:
    """`holds`: runs in each generation's files. `serves`: run to the generation it is read from. `builds`:
    run to the build compacted there. `made_at`: Unix time of each generation."""

    holds: dict[str, list[str]] = field(default_factory=dict)
    serves: dict[str, str] = field(default_factory=dict)
    builds: dict[str, str] = field(default_factory=dict)
    made_at: dict[str, float] = field(default_factory=dict)

    @classmethod
    def load(cls, home: Home) -> Manifest:
        """The home's manifest; empty where nothing was compacted."""
        file = home.compact / MANIFEST
        return cls(**orjson.loads(file.read_bytes())) if file.is_file() else cls()

    def save(self, home: Home) -> None:
        """Put it in place in one step."""
        write_file(home.compact / MANIFEST, orjson.dumps(self.__dict__, option=orjson.OPT_INDENT_2))

    def drop(self, run_id: str) -> None:
        """Stop serving a run from here."""
        self.serves.pop(run_id, None)
        self.builds.pop(run_id, None)

    def hidden(self) -> list[tuple[str, str]]:
        """(generation, run) of rows that are there but served from elsewhere, or forgotten."""
        return [
            (gen, run)
            for gen, runs in sorted(self.holds.items())
            for run in runs
            if self.serves.get(run) != gen
        ]


def settle(home: Home) -> Manifest:
    """Let folders of newer builds win over generations, and remove generations that serve no run from the
    manifest."""
    found = Manifest.load(home)
    before = orjson.dumps(found.__dict__)
    for run_id in [*found.serves]:
        if not home.raw_run(run_id).is_dir() or build_in(home.mart_run(run_id)) not in {
            None,
            found.builds[run_id],
        }:
            found.drop(run_id)
    for gen in [g for g in found.holds if g not in found.serves.values()]:
        del found.holds[gen], found.made_at[gen]
        if (folder := home.compact / f"gen={gen}").is_dir():
            os.utime(folder)  # the grace time counts from here: sessions that read it may be open
    if orjson.dumps(found.__dict__) != before:
        found.save(home)
    return found


def build_in(folder: Path) -> str | None:
    """The build that a run's folder holds; None if there is none, or it cannot be read."""
    file = folder / "run_facts.parquet"
    if is_damaged(file):
        return None
    scan = f"read_parquet({duck.files(folder, file.name)}, hive_partitioning = false)"
    with duck.in_memory() as con, suppress(duckdb.Error):
        return str(duck.scalar(con, f"SELECT min(build_id) FROM {scan}"))
    return None
