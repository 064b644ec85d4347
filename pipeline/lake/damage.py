"""Damaged files of a run, found by name, size and both ends: each affects its run alone, and has a remedy."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import duckdb

from pipeline import duck
from pipeline.contracts import Layer, contracts
from pipeline.lake.home import TEMPLATE, Home

LAYERS: tuple[Layer, ...] = ("raw", "config", "marts", "quality")
"""In reading order: where a raw file is damaged, nothing can be rebuilt."""
BUILT: tuple[Layer, ...] = ("marts", "quality")
"""Layers that are built from the others, and that a generation of compacted runs holds."""
_CAME_LATER = frozenset({"microbench.parquet"})
"""Raw tables that files landed by an older version lack."""
_MAGIC = b"PAR1"
_LEAST_BYTES = 12


@dataclass(frozen=True)
class Damage:
    """The first damaged file of a run, by its path in the home."""

    run_id: str
    layer: Layer
    file: str

    def __str__(self) -> str:
        if self.layer == "raw":
            todo = (
                f"run `stepledger forget {self.run_id}` and put the originals from archive/{self.run_id} "
                "back into the inbox"
            )
        elif self.layer == "config":
            todo = f"record the run's facts again with `stepledger describe {self.run_id}`"
        else:
            todo = f"run `stepledger build {self.run_id}`"
        return f"damaged: {self.file}: {todo}"


@dataclass(frozen=True)
class _Folder:
    """A folder with files of one layer of a run, and the names that belong in it."""

    layer: Layer
    path: str
    names: tuple[str, ...]


def is_damaged(file: str | Path) -> bool:
    """Is this not a whole Parquet file, by its size, both ends and the length of its footer?"""
    try:
        handle = os.open(file, os.O_RDONLY)
    except OSError:
        return True
    try:
        size = os.fstat(handle).st_size
        if size < _LEAST_BYTES:
            return True
        end = os.pread(handle, 8, size - 8)
        has_footer = int.from_bytes(end[:4], "little") + _LEAST_BYTES <= size
        return not (has_footer and end[4:] == _MAGIC == os.pread(handle, 4, 0))
    except OSError:
        return True
    finally:
        os.close(handle)


def damage_of(
    home: Home, run_id: str, gen: str | None = None, layers: Collection[Layer] = LAYERS
) -> Damage | None:
    """The first damaged file of a run; `gen`: the generation that it is served from, if any."""
    for folder in _folders(home, run_id, gen, layers):
        for name in folder.names:
            # The folder is looked up again: the run may have been forgotten in the meantime.
            if is_damaged(f"{folder.path}/{name}") and (gen is not None or os.path.isdir(folder.path)):  # noqa: PTH112
                return _damage(home, run_id, folder, name)
    return None


def unreadable_file(home: Home, run_id: str, layers: Collection[Layer]) -> Damage | None:
    """The first file in a run's folders that DuckDB cannot read to its end. It reads whole files, so it is
    called only after a read has failed."""
    with duck.in_memory() as con:
        for folder in _folders(home, run_id, None, layers):
            for name in folder.names:
                scan = f"read_parquet({duck.files(Path(folder.path), name)}, hive_partitioning = false)"
                if not _can(con, f"SELECT max(hash(one)) FROM {scan} AS one"):
                    return _damage(home, run_id, folder, name)
    return None


def unreadable_runs(home: Home, served: Mapping[str, str]) -> dict[str, Damage]:
    """Every run with a file whose footer DuckDB cannot read although both ends are whole; called only after a
    read has failed."""
    found: dict[str, Damage] = {}
    with duck.in_memory() as con:
        for run_id in _runs(home, LAYERS, served):
            for folder in _folders(home, run_id, served.get(run_id), LAYERS):
                files = [duck.files(Path(folder.path), name) for name in folder.names]
                if not _can(con, f"SELECT count(*) FROM parquet_file_metadata([{', '.join(files)}])"):
                    bad = (
                        name
                        for name, file in zip(folder.names, files, strict=True)
                        if not _can(con, f"FROM parquet_file_metadata({file})")
                    )
                    found.setdefault(run_id, _damage(home, run_id, folder, next(bad, folder.names[0])))
    return found


def _can(con: duckdb.DuckDBPyConnection, sql: str) -> bool:
    try:
        duck.rows(con, sql)
    except duckdb.Error:
        return False
    return True


def damaged_runs(
    home: Home, served: Mapping[str, str], layers: Collection[Layer] = LAYERS
) -> dict[str, Damage]:
    """Every run with a damaged file in these layers; `served`: run to the generation that it is served
    from."""
    whole = {
        gen
        for gen in {*served.values()}
        if not any(is_damaged(f"{_gen(home, gen)}/{name}") for name in _generation())
    }
    found = {}
    for run_id in _runs(home, layers, served):
        gen = served.get(run_id)
        if damage := damage_of(
            home, run_id, gen, [layer for layer in layers if gen not in whole or layer not in BUILT]
        ):
            found[run_id] = damage
    return found


def incomplete_runs(home: Home, served: Mapping[str, str]) -> dict[str, Damage]:
    """Every run that lacks a file. Names alone are read: a missing file, unlike a damaged one, does not make
    a statement fail."""
    whole = {gen for gen in {*served.values()} if not _lacks(_gen(home, gen), _generation())}
    suspects = {run_id for run_id, gen in served.items() if gen not in whole}
    for layer in LAYERS:
        for run_id, folder in _runs_in(_root(home, layer)):
            if layer in BUILT and run_id in served:
                continue
            if any(_lacks(part, _names(layer)) for part in (_parts(folder) if layer == "raw" else [folder])):
                suspects.add(run_id)
    return {
        run_id: damage
        for run_id in sorted(suspects)
        if (damage := damage_of(home, run_id, served.get(run_id)))
    }


def _folders(home: Home, run_id: str, gen: str | None, layers: Collection[Layer]) -> Iterator[_Folder]:
    """The folders of a run that exist."""
    for layer in (layer for layer in LAYERS if layer in layers):
        folder = f"{_root(home, layer)}/run_id={run_id}"
        if layer in BUILT and gen is not None:
            yield _Folder(layer, _gen(home, gen), _names(layer))
        elif layer == "raw":
            for part in _parts(folder):
                yield _Folder(
                    layer,
                    part,
                    (*_names(layer), *(name for name in _CAME_LATER if os.path.lexists(f"{part}/{name}"))),
                )
        elif os.path.isdir(folder):  # noqa: PTH112 - called for thousands of runs
            yield _Folder(layer, folder, _names(layer))


def _damage(home: Home, run_id: str, folder: _Folder, name: str) -> Damage:
    return Damage(run_id, folder.layer, (Path(folder.path) / name).relative_to(home.root).as_posix())


def _root(home: Home, layer: Layer) -> Path:
    if layer == "raw":
        return home.raw
    return home.config if layer == "config" else home.marts if layer == "marts" else home.quality_lake


def _gen(home: Home, gen: str) -> str:
    return f"{home.compact}/gen={gen}"


@cache
def _names(layer: Layer) -> tuple[str, ...]:
    return tuple(sorted({f"{table}.parquet" for table in contracts(layer)} - _CAME_LATER))


def _generation() -> tuple[str, ...]:
    return _names("marts") + _names("quality")


def _lacks(folder: str, names: tuple[str, ...]) -> bool:
    """Is one of these names not in the folder?"""
    try:
        return not {*os.listdir(folder)}.issuperset(names)  # noqa: PTH208 - called for thousands of folders
    except OSError:
        return True


def _runs(home: Home, layers: Collection[Layer], served: Mapping[str, str]) -> list[str]:
    return sorted({run_id for layer in layers for run_id, _ in _runs_in(_root(home, layer))} | served.keys())


def _parts(folder: str) -> list[str]:
    """The folders of a run's files in the raw layer."""
    return sorted(entry.path for entry in _entries(folder) if entry.name.startswith("file_id="))


def _runs_in(root: Path) -> Iterator[tuple[str, str]]:
    """Runs that have a folder here, and the folder."""
    for entry in _entries(root):
        run_id = entry.name.removeprefix("run_id=")
        if run_id not in {entry.name, TEMPLATE}:
            yield run_id, entry.path


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    try:
        return [*os.scandir(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return []
