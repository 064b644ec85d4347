"""Which build of each run is in place, what it was built from, and whether it has been checked."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb

from pipeline import duck
from pipeline.contracts import CONTRACT_VERSION
from pipeline.lake.home import Home
from pipeline.lake.manifest import Manifest


def inputs_sha(home: Home, run_id: str) -> str:
    """Hash of the files that a run holds now, and of its facts."""
    files = sorted(p.name for p in home.raw_run(run_id).glob("file_id=*"))
    config = home.config_run(run_id) / "run_config.parquet"
    if config.is_file():
        with suppress(OSError):  # then the hash differs from the build's, and building reports the problem
            files.append(hashlib.sha256(config.read_bytes()).hexdigest())
    return hashlib.sha256("\n".join(files).encode()).hexdigest()[:16]


def unchecked_runs(home: Home) -> list[str]:
    """Runs whose current build has no check results: the process that built it stopped in between, or a check
    failed to run."""
    checked = checked_builds(home)
    known = {*home.run_ids()}
    ours = [facts for facts in built_facts(home) if (facts.get("contract_version") or 0) <= CONTRACT_VERSION]
    found = {str(f["run_id"]) for f in ours if (str(f["run_id"]), str(f["build_id"])) not in checked}
    return sorted(found & known)


def builds(home: Home) -> dict[str, tuple[int, int]]:
    """What identifies the current build of each run."""
    found: dict[str, tuple[int, int]] = {}
    for path in home.marts.glob("run_id=*"):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        found[path.name] = (status.st_ino, status.st_mtime_ns)
    return found


def built_facts(home: Home) -> list[dict[str, Any]]:
    """run_facts of every run as it is served, by any version that wrote it; columns that an old one lacks are
    missing or NULL.

    A run whose facts cannot be read has none.
    """
    return _served(home, home.marts, "run_facts", "*")


def checked_builds(home: Home) -> set[tuple[str, str]]:
    """(run_id, build_id) of every result of a check; a run whose results cannot be read has none."""
    return {
        (str(row["run_id"]), str(row["build_id"]))
        for row in _served(home, home.quality_lake, "quality", "DISTINCT run_id, build_id")
    }


def _served(home: Home, folders: Path, table: str, columns: str) -> list[dict[str, Any]]:
    """Rows of a small table of all runs, from the folder or the generation that each is served from."""
    manifest = Manifest.load(home)
    found: list[dict[str, Any]] = []
    with duck.in_memory() as con:
        for root, pattern, also in (
            (folders, f"run_id=*/{table}.parquet", ""),
            (home.compact, f"gen=*/{table}.parquet", ", gen"),
        ):
            if next(root.glob(pattern), None) is not None:
                selected = f"SELECT {columns}{also if columns != '*' else ''}"
                try:
                    found += _rows(con, selected, duck.files(root.resolve(), pattern))
                except duckdb.Error:
                    found += _rows_of_each(con, selected, sorted(root.resolve().glob(pattern)))
    return [
        fact
        for fact in found
        if (
            manifest.serves.get(str(fact["run_id"])) == fact["gen"]
            if "gen" in fact
            else str(fact["run_id"]) not in manifest.serves
        )
    ]


def _rows(con: duckdb.DuckDBPyConnection, selected: str, files: str) -> list[dict[str, Any]]:
    return duck.dicts(
        con,
        (
            f"{selected} FROM read_parquet({files}, union_by_name = true, hive_partitioning = true, "
            "hive_types_autocast = 0)"
        ),
    )


def _rows_of_each(con: duckdb.DuckDBPyConnection, selected: str, files: list[Path]) -> list[dict[str, Any]]:
    """Rows of those files that can be read."""
    found: list[dict[str, Any]] = []
    for file in files:
        with suppress(duckdb.Error):
            found += _rows(con, selected, duck.files(file.parent, file.name))
    return found
