"""Old runs in few files: a question over thousands of runs opens one file a table instead of one a run.

A generation (lake/compact/gen=G) holds the marts and check results of many runs, one file a table, clustered by run. The
manifest says which run is served from which generation. A run that is built again has a folder again, and its folder wins.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import orjson

from pipeline import duck, models
from pipeline.atomic import commit_folder, write_file
from pipeline.contracts import contracts
from pipeline.damage import BUILT, damage_of, is_damaged, unreadable_file
from pipeline.dropped import mode_of, same_mode
from pipeline.duck import literal
from pipeline.errors import ModelError
from pipeline.home import TEMPLATE, Home

MANIFEST = "manifest.json"


@dataclass
class Manifest:
    """`holds`: runs in each generation's files. `serves`: run to the generation it is read from. `builds`: run to the build
    compacted there. `made_at`: Unix time of each generation."""

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
        """Serve a run from here no longer."""
        self.serves.pop(run_id, None)
        self.builds.pop(run_id, None)

    def hidden(self) -> list[tuple[str, str]]:
        """(generation, run) of rows that are there but served from elsewhere, or forgotten."""
        return [(gen, run) for gen, runs in sorted(self.holds.items()) for run in runs if self.serves.get(run) != gen]


def settle(home: Home) -> Manifest:
    """Let folders of newer builds win over generations, and remove generations that serve nobody from the manifest."""
    found = Manifest.load(home)
    before = orjson.dumps(found.__dict__)
    for run_id in [*found.serves]:
        if not home.raw_run(run_id).is_dir() or _build_in(home.mart_run(run_id)) not in {None, found.builds[run_id]}:
            found.drop(run_id)
    for gen in [g for g in found.holds if g not in found.serves.values()]:
        del found.holds[gen], found.made_at[gen]
        if (folder := home.compact / f"gen={gen}").is_dir():
            os.utime(folder)  # the grace time counts from here: sessions that read it may be open
    if orjson.dumps(found.__dict__) != before:
        found.save(home)
    return found


def compact_runs(home: Home, run_ids: list[str]) -> str:
    """Copy the marts and check results of these runs into a new generation and serve them from there. Returns its name.

    Their folders stay for readers that have them open; `remove_compacted` takes them away. Raises ModelError.
    """
    gen = uuid.uuid4().hex[:12]
    staged = home.staging / uuid.uuid4().hex
    (staged / "out").mkdir(parents=True)
    try:
        with duck.working(staged / "spill", threads=1, memory_limit="1GB") as con:
            con.execute("SET preserve_insertion_order = true")  # run by run, so that row groups hold few runs
            for layer in BUILT:
                for table, contract in contracts(layer).items():
                    folders = [(home.mart_run(r) if layer == "marts" else home.quality_lake_run(r)) for r in run_ids]
                    files = [duck.literal(duck.plain(f / f"{table}.parquet")) for f in folders if (f / f"{table}.parquet").is_file()]
                    scan = f"read_parquet([{', '.join(files)}], union_by_name = true, hive_partitioning = false)"
                    source = scan if files else f"({contract.empty_query()})"
                    con.execute(
                        f"COPY (SELECT {contract.select_list()} FROM {source}) TO {literal(staged / 'out' / f'{table}.parquet')} "
                        "(FORMAT parquet, COMPRESSION zstd)"
                    )
        builds = {r: _build_in(home.mart_run(r)) for r in run_ids}
        same_mode(staged / "out", mode_of(*map(home.raw_run, run_ids)))
        commit_folder(staged / "out", home.compact / f"gen={gen}")
    except duckdb.Error as error:
        damage = next((found for run_id in run_ids if (found := unreadable_file(home, run_id, BUILT))), None)
        raise ModelError(f"the marts of {len(run_ids)} runs cannot be compacted: {damage or error}") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    manifest = settle(home)
    manifest.holds[gen], manifest.made_at[gen] = run_ids, time.time()
    for run_id, build in builds.items():
        manifest.serves[run_id], manifest.builds[run_id] = gen, str(build)
    manifest.save(home)
    return gen


def compactable(home: Home, older_than_s: float) -> list[str]:
    """Runs that have been built, and not again, for so many seconds, and still have a folder of their own, by this version and whole."""
    manifest = Manifest.load(home)
    of_this_version = {str(facts["run_id"]) for facts in built_facts(home) if facts.get("contract_version") == models.CONTRACT_VERSION}
    found = []
    for run_id in home.run_ids():
        facts = home.mart_run(run_id) / "run_facts.parquet"
        is_checked = (home.quality_lake_run(run_id) / "quality.parquet").is_file()
        is_due = is_checked and facts.is_file() and time.time() - facts.stat().st_mtime >= older_than_s and run_id not in manifest.serves
        if is_due and run_id in of_this_version and damage_of(home, run_id, layers=BUILT) is None:
            found.append(run_id)
    return found


def remove_compacted(home: Home, grace_s: float) -> None:
    """Remove the folders of runs that have been served from a generation for the grace time, and generations that serve nobody."""
    manifest = settle(home)
    for run_id, gen in manifest.serves.items():
        if time.time() - manifest.made_at[gen] >= grace_s:
            for folder in (home.mart_run(run_id), home.quality_lake_run(run_id)):
                if folder.is_dir():
                    folder.rename(home.staging / f"old-{uuid.uuid4().hex}")
    for folder in home.compact.glob("gen=*"):
        gen = folder.name.removeprefix("gen=")
        if gen not in {*manifest.holds, TEMPLATE} and time.time() - folder.stat().st_ctime >= grace_s:
            folder.rename(home.staging / f"old-{uuid.uuid4().hex}")


def relation(home: Home, table: str, folders: str, left_out: Collection[str], pinned: Iterable[str]) -> str:
    """What a view reads: the folders of runs, but for those served from a generation, and the generations.

    `left_out`: runs that are not read at all. `pinned`: runs that stay served from their generation although a folder may
    appear (they are about to be built).
    """
    manifest = Manifest.load(home)
    with_folder = {r for r in manifest.serves if home.mart_run(r).is_dir() or home.quality_lake_run(r).is_dir()}
    not_here = sorted({*left_out} | with_folder | {*pinned} & manifest.serves.keys())
    own = f"FROM {folders}" + (f" WHERE run_id NOT IN ({', '.join(map(literal, not_here))})" if not_here else "")
    read = sorted({gen for run_id, gen in manifest.serves.items() if run_id not in left_out})
    if not read:
        return own
    hidden = [(gen, run) for gen, run in manifest.hidden() if gen in read] + [(g, r) for r, g in manifest.serves.items() if r in left_out]
    files = templated(home.compact.resolve(), f"gen={TEMPLATE}", "*", table)
    generations = (
        f"SELECT * EXCLUDE (gen) FROM read_parquet({files}, hive_types = {{'gen': VARCHAR}}) WHERE gen IN ({', '.join(map(literal, read))})"
        + (f" AND (gen, run_id) NOT IN ({', '.join(f'({literal(gen)}, {literal(run)})' for gen, run in hidden)})" if hidden else "")
    )
    return f"{own} UNION ALL BY NAME {generations}"


def templated(root: Path, template: str, pattern: str, table: str) -> str:
    """A SQL list of a table's files, that of its template first.

    DuckDB takes the columns of the first file for those of all: it then opens no other before a row is wanted from it, so a
    damaged file does no harm to a statement that leaves its run out.
    """
    return f"[{duck.files(root, f'{template}/{table}.parquet')}, {duck.files(root, f'{pattern}/{table}.parquet')}]"


def built_facts(home: Home) -> list[dict[str, Any]]:
    """run_facts of every run as it is served, by any version that wrote it; columns that an old one lacks are missing or NULL.

    A run whose facts cannot be read has none.
    """
    return _served(home, home.marts, "run_facts", "*")


def checked_builds(home: Home) -> set[tuple[str, str]]:
    """(run_id, build_id) of every result of a check; a run whose results cannot be read has none."""
    return {(str(row["run_id"]), str(row["build_id"])) for row in _served(home, home.quality_lake, "quality", "DISTINCT run_id, build_id")}


def _served(home: Home, folders: Path, table: str, columns: str) -> list[dict[str, Any]]:
    """Rows of a small table of all runs, from the folder or the generation that each is served from."""
    manifest = Manifest.load(home)
    found: list[dict[str, Any]] = []
    with duckdb.connect() as con:
        for root, pattern, also in ((folders, f"run_id=*/{table}.parquet", ""), (home.compact, f"gen=*/{table}.parquet", ", gen")):
            if next(root.glob(pattern), None) is not None:
                selected = f"SELECT {columns}{also if columns != '*' else ''}"
                try:
                    found += _rows(con, selected, duck.files(root.resolve(), pattern))
                except duckdb.Error:
                    found += _rows_of_each(con, selected, sorted(root.resolve().glob(pattern)))
    return [
        fact
        for fact in found
        if (manifest.serves.get(str(fact["run_id"])) == fact["gen"] if "gen" in fact else str(fact["run_id"]) not in manifest.serves)
    ]


def _rows(con: duckdb.DuckDBPyConnection, selected: str, files: str) -> list[dict[str, Any]]:
    return duck.dicts(con, f"{selected} FROM read_parquet({files}, union_by_name = true, hive_partitioning = true, hive_types_autocast = 0)")


def _rows_of_each(con: duckdb.DuckDBPyConnection, selected: str, files: list[Path]) -> list[dict[str, Any]]:
    """Rows of those files that can be read."""
    found: list[dict[str, Any]] = []
    for file in files:
        with suppress(duckdb.Error):
            found += _rows(con, selected, duck.files(file.parent, file.name))
    return found


def _build_in(folder: Path) -> str | None:
    """The build that a run's folder holds; None if there is none, or it cannot be read."""
    file = folder / "run_facts.parquet"
    if is_damaged(file):
        return None
    with duckdb.connect() as con, suppress(duckdb.Error):
        return str(duck.scalar(con, f"SELECT min(build_id) FROM read_parquet({duck.files(folder, file.name)}, hive_partitioning = false)"))
    return None
