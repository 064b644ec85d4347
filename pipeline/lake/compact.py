"""Old runs in few files: a question over thousands of runs opens one file a table instead of one a run.

A generation (lake/compact/gen=G) holds the marts and check results of many runs, one file a table, clustered
by run. The manifest says which run is served from which generation. A run that is built again has a folder
again, and its folder wins.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterable
from pathlib import Path

import duckdb

from pipeline import duck
from pipeline.contracts import CONTRACT_VERSION, contracts
from pipeline.duck import literal
from pipeline.errors import ModelError
from pipeline.lake.atomic import commit_folder, retire, staging_folder
from pipeline.lake.builds import built_facts
from pipeline.lake.damage import BUILT, damage_of, unreadable_file
from pipeline.lake.dropped import mode_of, same_mode
from pipeline.lake.home import TEMPLATE, Home
from pipeline.lake.manifest import Manifest, build_in, settle
from pipeline.text import counted


def compact_runs(home: Home, run_ids: list[str]) -> str:
    """Copy the marts and check results of these runs into a new generation and serve them from there. Returns
    its name.

    Their folders stay for readers that have them open; `remove_compacted` removes them. Raises ModelError.
    """
    gen = uuid.uuid4().hex[:12]
    try:
        with (
            staging_folder(home.staging) as spill,
            staging_folder(home.staging) as out,
            duck.working(spill, threads=1, memory_limit="1GB") as con,
        ):
            con.execute("SET preserve_insertion_order = true")  # run by run, so that row groups hold few runs
            for layer in BUILT:
                for table, contract in contracts(layer).items():
                    folders = [
                        (home.mart_run(r) if layer == "marts" else home.quality_lake_run(r)) for r in run_ids
                    ]
                    files = [
                        duck.literal(duck.plain(f / f"{table}.parquet"))
                        for f in folders
                        if (f / f"{table}.parquet").is_file()
                    ]
                    scan = (
                        f"read_parquet([{', '.join(files)}], union_by_name = true, hive_partitioning = false)"
                    )
                    source = scan if files else f"({contract.empty_query()})"
                    con.execute(
                        f"COPY (SELECT {contract.select_list()} FROM {source}) TO "
                        f"{literal(out / f'{table}.parquet')} "
                        "(FORMAT parquet, COMPRESSION zstd)"
                    )
            builds = {r: build_in(home.mart_run(r)) for r in run_ids}
            same_mode(out, mode_of(*map(home.raw_run, run_ids)))
            commit_folder(out, home.compact / f"gen={gen}")
    except duckdb.Error as error:
        damage = next((found for run_id in run_ids if (found := unreadable_file(home, run_id, BUILT))), None)
        raise ModelError(
            f"the marts of {counted(len(run_ids), 'run')} cannot be compacted: {damage or error}"
        ) from error
    manifest = settle(home)
    manifest.holds[gen], manifest.made_at[gen] = run_ids, time.time()
    for run_id, build in builds.items():
        manifest.serves[run_id], manifest.builds[run_id] = gen, str(build)
    manifest.save(home)
    return gen


def compactable(home: Home, older_than_s: float) -> list[str]:
    """Runs that have been built, and not again, for so many seconds, and still have a folder of their own, by
    this version and whole."""
    manifest = Manifest.load(home)
    of_this_version = {
        str(facts["run_id"])
        for facts in built_facts(home)
        if facts.get("contract_version") == CONTRACT_VERSION
    }
    found = []
    for run_id in home.run_ids():
        facts = home.mart_run(run_id) / "run_facts.parquet"
        is_checked = (home.quality_lake_run(run_id) / "quality.parquet").is_file()
        is_due = (
            is_checked
            and facts.is_file()
            and time.time() - facts.stat().st_mtime >= older_than_s
            and run_id not in manifest.serves
        )
        if is_due and run_id in of_this_version and damage_of(home, run_id, layers=BUILT) is None:
            found.append(run_id)
    return found


def remove_compacted(home: Home, grace_s: float) -> None:
    """Remove the folders of runs that have been served from a generation for the grace time, and generations
    that serve no run."""
    manifest = settle(home)
    for run_id, gen in manifest.serves.items():
        if time.time() - manifest.made_at[gen] >= grace_s:
            for folder in (home.mart_run(run_id), home.quality_lake_run(run_id)):
                if folder.is_dir():
                    retire(folder, home.staging)
    for folder in home.compact.glob("gen=*"):
        gen = folder.name.removeprefix("gen=")
        if gen not in {*manifest.holds, TEMPLATE} and time.time() - folder.stat().st_ctime >= grace_s:
            retire(folder, home.staging)


def relation(home: Home, table: str, folders: str, left_out: Collection[str], pinned: Iterable[str]) -> str:
    """What a view reads: the folders of runs, but for those served from a generation, and the generations.

    `left_out`: runs that are not read at all. `pinned`: runs that stay served from their generation although
    a folder may appear (they are about to be built).
    """
    manifest = Manifest.load(home)
    with_folder = {
        r for r in manifest.serves if home.mart_run(r).is_dir() or home.quality_lake_run(r).is_dir()
    }
    not_here = sorted({*left_out} | with_folder | {*pinned} & manifest.serves.keys())
    own = f"FROM {folders}" + (
        f" WHERE run_id NOT IN ({', '.join(map(literal, not_here))})" if not_here else ""
    )
    read = sorted({gen for run_id, gen in manifest.serves.items() if run_id not in left_out})
    if not read:
        return own
    hidden = [(gen, run) for gen, run in manifest.hidden() if gen in read] + [
        (g, r) for r, g in manifest.serves.items() if r in left_out
    ]
    files = templated(home.compact.resolve(), f"gen={TEMPLATE}", "*", table)
    generations = (
        f"SELECT * EXCLUDE (gen) FROM read_parquet({files}, hive_types = {{'gen': VARCHAR}}) WHERE gen IN "
        f"({', '.join(map(literal, read))})"
    ) + (
        (
            " AND (gen, run_id) NOT IN "
            f"({', '.join(f'({literal(gen)}, {literal(run)})' for gen, run in hidden)})"
        )
        if hidden
        else ""
    )
    return f"{own} UNION ALL BY NAME {generations}"


def templated(root: Path, template: str, pattern: str, table: str) -> str:
    """A SQL list of a table's files, that of its template first.

    DuckDB takes the columns of the first file for those of all: it then opens no other before a row is wanted
    from it, so a damaged file does no harm to a statement that leaves its run out.
    """
    return (
        f"[{duck.files(root, f'{template}/{table}.parquet')}, "
        f"{duck.files(root, f'{pattern}/{table}.parquet')}]"
    )
