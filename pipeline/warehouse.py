"""The warehouse: marts of each run in the lake, and a database file of views over the lake for people's SQL."""

from __future__ import annotations

import hashlib
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import duckdb

from pipeline import duck, models, session
from pipeline.atomic import SCRATCH, exchange_folder, is_abandoned, remove, remove_asides, write_file
from pipeline.compact import Manifest, built_facts, checked_builds, remove_compacted, settle
from pipeline.contracts import Layer
from pipeline.damage import BUILT, Damage, damage_of, damaged_runs, incomplete_runs, unreadable_file, unreadable_runs
from pipeline.dropped import mode_of, same_mode
from pipeline.duck import literal
from pipeline.errors import ModelError, UsageError, home_trouble
from pipeline.home import Home
from pipeline.rules import RuleSet
from pipeline.settings import Settings
from pipeline.text import printable
from pipeline.versions import checked, of_version, refuse_newer, troubled_runs, version_of
from pipeline.views import home_of, left_out_of, make_views, write_templates

GRACE_SECONDS = 600
"""How long a replaced build stays on disk, for readers that have opened it."""
_FORGET = "forget-"
"""Begins the name of a mark in staging: the run behind it is to be taken out of the lake."""
SPILL_LIMIT = "16GB"
"""Most that a reading session spills: an endless sort must not fill the disk."""
_TRIES = 20
_NAMED = 10
"""Most runs that one answer names as left out."""
_T = TypeVar("_T")
_INPUTS: tuple[Layer, ...] = ("raw", "config")
"""Layers that marts are built from."""
_LEFT_OUT: ContextVar[Mapping[str, str]] = ContextVar("left_out", default=MappingProxyType({}))
"""Runs that sessions leave out beside those of the database, and why: what `stable` found while it read."""


def tidy(home: Home) -> None:
    """Finish or remove what earlier processes left: unfinished work at once, replaced builds after the grace time.

    Raises UsageError for a home of a newer version, as whoever writes must before anything is changed.
    """
    refuse_newer(home)
    _finish_forgetting(home)
    for path in home.staging.iterdir():
        if path.name.startswith(SCRATCH):
            is_over = is_abandoned(path)
        else:
            is_over = not path.name.startswith("old-") or time.time() - path.stat().st_ctime > GRACE_SECONDS
        if is_over:
            remove(path)
    for path in home.root.glob(".stepledger.duckdb.*"):
        path.unlink(missing_ok=True)
    for folder in (home.quarantine, home.compact):
        remove_asides(folder)
    remove_compacted(home, GRACE_SECONDS)


def forget(home: Home, run_id: str) -> None:
    """Take a run out of the lake, with what was said of it and its pages; originals in the archive stay.

    A mark is written first, so that a forgetting that was stopped is finished by whoever writes next. Raises UsageError as `tidy` does.
    """
    refuse_newer(home)
    write_file(home.staging / f"{_FORGET}{run_id}", b"")
    _finish_forgetting(home)


def _finish_forgetting(home: Home) -> None:
    for mark in home.staging.glob(f"{_FORGET}*"):
        run_id = mark.name.removeprefix(_FORGET)
        for folder in (home.raw_run(run_id), home.mart_run(run_id), home.quality_lake_run(run_id), home.config_run(run_id), home.quality_run(run_id)):
            if folder.is_dir():
                folder.rename(home.staging / f"old-{uuid.uuid4().hex}")
        mark.unlink()


def inputs_sha(home: Home, run_id: str) -> str:
    """Hash of the files that a run holds now, and of what was said of it."""
    files = sorted(p.name for p in home.raw_run(run_id).glob("file_id=*"))
    config = home.config_run(run_id) / "run_config.parquet"
    if config.is_file():
        with suppress(OSError):  # then it is not what the run was built with, and building says what is wrong
            files.append(hashlib.sha256(config.read_bytes()).hexdigest())
    return hashlib.sha256("\n".join(files).encode()).hexdigest()[:16]


def build_run(home: Home, run_id: str, rules: RuleSet, settings: Settings) -> str:
    """(Re)build the marts of one run and put them in place in one step. Returns the build's id.

    Raises ModelError, with the name of the file where a raw table cannot be read; UsageError for a run that a newer version built.
    """
    _refuse_damaged_inputs(damage_of(home, run_id, layers=_INPUTS))
    if (version := version_of(home, run_id)) > models.CONTRACT_VERSION:
        raise UsageError(f"{of_version(version)}: upgrade stepledger")
    staging = home.staging / uuid.uuid4().hex
    out, spill = staging / "out", (settings.spill or staging) / f"spill-{uuid.uuid4().hex}"
    out.mkdir(parents=True)
    spill.mkdir(parents=True)
    build_id = uuid.uuid4().hex[:12]
    try:
        models.build_marts(
            home.raw_run(run_id),
            run_id,
            out,
            rules,
            build_id,
            inputs_sha(home, run_id),
            home.config_run(run_id) / "run_config.parquet",
            spill=spill,
            threads=settings.threads,
            memory_limit=settings.memory_limit,
        )
        same_mode(out, mode_of(home.raw_run(run_id)))
        exchange_folder(out, home.mart_run(run_id), home.staging)
    except (ModelError, duckdb.Error, OSError) as error:
        if home_trouble(error) is not None:
            raise
        _refuse_damaged_inputs(unreadable_file(home, run_id, _INPUTS), error)
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"its tables cannot be read or written: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        shutil.rmtree(spill, ignore_errors=True)
    return build_id


def _refuse_damaged_inputs(damage: Damage | None, cause: Exception | None = None) -> None:
    if damage is not None:
        raise ModelError(str(damage)) from cause


def stale_runs(home: Home, rules: RuleSet) -> list[str]:
    """Runs whose marts are missing or damaged, or were built from other files, by other models or rules, or to an older contract.

    Raises UsageError for a home of a newer version.
    """
    refuse_newer(home)
    built: dict[str, set[tuple[Any, ...]]] = {}
    for facts in built_facts(home):
        made_by = tuple(facts.get(name) for name in ("inputs_sha", "models_sha", "rules_sha", "contract_version"))
        built.setdefault(str(facts["run_id"]), set()).add(made_by)
    newer = {run_id for run_id, made in built.items() if any((version or 0) > models.CONTRACT_VERSION for *_, version in made)}
    made_now = models.models_sha(), rules.sha, models.CONTRACT_VERSION
    damaged = damaged_runs(home, Manifest.load(home).serves, BUILT)
    return [
        run_id
        for run_id in home.run_ids()
        if run_id not in newer and (run_id in damaged or built.get(run_id) != {(inputs_sha(home, run_id), *made_now)})
    ]


def unchecked_runs(home: Home) -> list[str]:
    """Runs whose present build has no results of checks: whoever built it was stopped in between, or a check failed to run."""
    checked = checked_builds(home)
    known = {*home.run_ids()}
    ours = [facts for facts in built_facts(home) if (facts.get("contract_version") or 0) <= models.CONTRACT_VERSION]
    found = {str(f["run_id"]) for f in ours if (str(f["run_id"]), str(f["build_id"])) not in checked}
    return sorted(found & known)


def write_database(home: Home, pinned: Iterable[str] = ()) -> None:
    """Write the database of views aside and move it into place; readers that have the old one open keep it.

    `pinned`: runs served from a generation that are about to be built: they are served from there until the next call.
    Runs whose files cannot be read as they are, are left out.
    """
    write_templates(home)
    settle(home)
    left_out = _to_leave_out(home)
    try:
        _write_views(home, left_out, pinned)
    except duckdb.Error as error:
        _write_views(home, left_out | _trouble_of(home, error, left_out), pinned)


def _write_views(home: Home, left_out: dict[str, str], pinned: Iterable[str]) -> None:
    aside = home.root / f".stepledger.duckdb.{uuid.uuid4().hex}"
    try:
        with duck.database(aside, read_only=False) as con:
            make_views(con, home, left_out, pinned)
        aside.replace(home.database)
    finally:
        aside.unlink(missing_ok=True)


def _to_leave_out(home: Home) -> dict[str, str]:
    """Runs to leave out of the views. All files are looked at only where something was wrong before, or another version wrote."""
    try:
        with checked(home) as con:
            is_calm = not left_out_of(con)
    except UsageError:
        is_calm = False
    missing = {run_id: str(damage) for run_id, damage in incomplete_runs(home, Manifest.load(home).serves).items()}
    return missing if is_calm else troubled_runs(home)


def opened(home: Home) -> duckdb.DuckDBPyConnection:
    """The database of views, read-only. Raises UsageError where there is none yet, or it is another version's or another place's."""
    con = checked(home)
    found = _LEFT_OUT.get()
    if not found or found.keys() <= (recorded := left_out_of(con)).keys():
        return con
    con.close()
    with ExitStack() as opening:
        con = opening.enter_context(duck.database(Path(":memory:"), read_only=False))
        con.execute(f"SET memory_limit = {literal(duck.READ_MEMORY)}")
        con.execute(f"ATTACH ':memory:' AS {home.database.stem}; USE {home.database.stem}")  # the name that the file's would have
        make_views(con, home, {**recorded, **found})
        opening.pop_all()
    return con


@contextmanager
def reading(home: Home) -> Iterator[duckdb.DuckDBPyConnection]:
    """A read-only session that sees the lake only: no other file, no extension, no changed setting.

    It spills into a folder of the system's, so that it writes nothing into the home, which may be somebody else's.
    """
    with session.folder() as spill, opened(home) as con:
        lake = home.raw.parent.resolve()
        con.execute(f"SET temp_directory = {literal(spill)}")
        con.execute(f"SET max_temp_directory_size = {literal(SPILL_LIMIT)}")
        con.execute(f"SET allowed_directories = [{literal(f'{lake}/')}, {duck.files(lake, '')}]")  # files by name, and views' patterns
        con.execute("SET enable_external_access = false")
        con.execute("SET lock_configuration = true")
        yield con


def stable(home: Home, read: Callable[[], _T], *, across_runs: bool = False) -> _T:
    """Run `read` so that no build is exchanged while it reads: a statement over several marts never mixes two builds.

    Where it fails because files of a run are damaged, it runs again without that run. `across_runs`: it reads runs that the user
    did not name, so runs that lack a file are left out, too, although reading them does not fail.
    """
    left_out: dict[str, str] = {}
    if across_runs:
        left_out = {run_id: str(damage) for run_id, damage in incomplete_runs(home, Manifest.load(home).serves).items()}
    for _ in range(_TRIES):
        before = builds(home)
        token = _LEFT_OUT.set(left_out)
        try:
            found = read()
        except (duckdb.Error, UsageError) as error:
            if builds(home) == before:
                left_out = left_out | _trouble_of(home, error, left_out)
            continue
        finally:
            _LEFT_OUT.reset(token)
        if builds(home) == before:
            return found
    raise UsageError("the runs are being rebuilt all the time; try again when the writer has finished")


def _trouble_of(home: Home, error: duckdb.Error | UsageError, known: Mapping[str, str]) -> dict[str, str]:
    """Runs that made reading fail, and why. Raises the error again where it is none of a file, or no run is found."""
    cause = error.__cause__ if isinstance(error, UsageError) else error
    # DuckDB has no class of its own for what it finds inside of a Parquet file.
    is_inside = type(cause) is duckdb.Error
    is_of_a_file = is_inside or isinstance(cause, (duckdb.IOException, duckdb.InvalidInputException))
    if not is_of_a_file or home_trouble(error) is not None:
        raise error
    if found := {run_id: why for run_id, why in troubled_runs(home).items() if run_id not in known}:
        return found
    if is_inside and (broken := unreadable_runs(home, Manifest.load(home).serves)).keys() - known.keys():
        return {run_id: str(damage) for run_id, damage in broken.items()}
    if isinstance(error, UsageError) and not is_inside:
        raise error
    raise UsageError(f"{home.root}: a table cannot be read; `stepledger check` names the file. ({cause})") from error


def say_left_out(left_out: Mapping[str, str]) -> None:
    """Name on stderr the runs that an answer over all runs leaves out."""
    for run_id, why in [*left_out.items()][:_NAMED]:
        sys.stderr.write(f"left out: run {run_id}: {printable(why)}\n")
    if (more := len(left_out) - _NAMED) > 0:
        sys.stderr.write(f"left out: {more} more: run `stepledger status`\n")


def builds(home: Home) -> dict[str, tuple[int, int]]:
    """What tells the present build of each run from any other."""
    found: dict[str, tuple[int, int]] = {}
    for path in home.marts.glob("run_id=*"):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        found[path.name] = (status.st_ino, status.st_mtime_ns)
    return found


def find_run(con: duckdb.DuckDBPyConnection, run: str) -> str:
    """The run_id that a user means. Raises UsageError for a run that is not there, or cannot be read as it is."""
    run_id, home = known_run(con, run), home_of(con)
    why = left_out_of(con).get(run_id) or damage_of(home, run_id, Manifest.load(home).serves.get(run_id))
    if why is not None:
        raise UsageError(f"run {run_id}: {why}")
    return run_id


def known_run(con: duckdb.DuckDBPyConnection, run: str) -> str:
    """The run_id that a user means, of a damaged run, too: exactly, ignoring case, or by the name given when it was dropped."""
    if run == Path(run).name and next(home_of(con).raw_run(run).glob("file_id=*"), None) is not None:
        return run  # without reading anything: thousands of runs may have landed
    known: list[tuple[Any, ...]] = duck.rows(
        con, "SELECT run_id, run_name FROM raw.trace UNION SELECT run_id, run_name FROM raw.microbench ORDER BY ALL"
    )
    folded = run.casefold()
    for matches in (
        {r[0] for r in known if r[1] == run},
        {r[0] for r in known if r[0].casefold() == folded},
    ):
        if len(matches) == 1:
            return str(matches.pop())
    names = ", ".join(sorted({r[0] for r in known})) or "none yet"
    raise UsageError(f"no run {run!r}; known runs: {names}")


def run_id_of(home: Home, run: str, find: Callable[[duckdb.DuckDBPyConnection, str], str] = find_run) -> str:
    """The run_id that a user means, for commands that go on without the database. Raises UsageError as `find` does."""

    def read() -> str:
        with opened(home) as con:
            return find(con, run)

    return stable(home, read)
