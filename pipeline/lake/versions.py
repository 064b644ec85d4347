"""Homes and runs of other versions, and homes that were moved: what each command refuses before it reads or
changes anything."""

from __future__ import annotations

from contextlib import suppress

import duckdb

from pipeline import __version__, duck
from pipeline.contracts import CONTRACT_VERSION
from pipeline.errors import UsageError
from pipeline.lake.builds import built_facts
from pipeline.lake.damage import BUILT, damaged_runs, is_damaged
from pipeline.lake.home import Home
from pipeline.lake.manifest import Manifest
from pipeline.lake.views import Writer, written_by


def checked(home: Home) -> duckdb.DuckDBPyConnection:
    """The database of views, read-only. Raises UsageError where there is none yet, or another version or
    another place wrote it."""
    if not home.database.is_file():
        refuse_newer(home)
        raise UsageError(
            f"{home.root}: no warehouse yet. Drop traces into {home.inbox} and run `stepledger run`, or try "
            "`stepledger demo`."
        )
    con = _connected(home)
    try:
        writer = written_by(con)
        _refuse_version(home, writer.stepledger_version, writer.contract_version or 0)
        _refuse_old_views(home, writer)
    except BaseException:
        con.close()
        raise
    return con


def refuse_newer(home: Home) -> None:
    """Raise UsageError for a home that a newer version wrote, by its database or else by its tables."""
    writer: Writer | None = None
    if home.database.is_file():
        with suppress(UsageError), _connected(home) as con:
            writer = written_by(con)
    if writer is not None:
        _refuse_version(home, writer.stepledger_version, writer.contract_version or 0)
    else:
        _refuse_version(home, "", _newest(home))


def refuse_unreadable(home: Home) -> None:
    """Raise UsageError as `checked` does; a home without a database is fine."""
    if home.database.is_file():
        checked(home).close()
    else:
        refuse_newer(home)


def troubled_runs(home: Home) -> dict[str, str]:
    """Every run whose files cannot be read as they are, with the reason and what to do."""
    damaged = damaged_runs(home, Manifest.load(home).serves)
    why = {run_id: str(damage) for run_id, damage in damaged.items()}
    for facts in built_facts(home):
        run_id, version = str(facts["run_id"]), facts.get("contract_version")
        if version != CONTRACT_VERSION and (run_id not in damaged or damaged[run_id].layer in BUILT):
            is_newer = (version or 0) > CONTRACT_VERSION
            why[run_id] = (
                f"{of_version(version)}: "
                f"{'upgrade stepledger' if is_newer else f'run `stepledger build {run_id}`'}"
            )
    return dict(sorted(why.items()))


def of_version(version: int | None) -> str:
    """The problem of a run whose tables have this version."""
    return f"its tables have version {version or 'unknown'}, this stepledger needs version {CONTRACT_VERSION}"


def version_of(home: Home, run_id: str) -> int:
    """The version of the tables in the folder of a run; 0 where there is none, or it cannot be read."""
    file = home.mart_run(run_id) / "run_facts.parquet"
    if is_damaged(file):
        return 0
    scan = f"read_parquet({duck.files(file.parent, file.name)}, hive_partitioning = false)"
    with duck.in_memory() as con, suppress(duckdb.Error):
        return int(duck.scalar(con, f"SELECT max(contract_version) FROM {scan}") or 0)
    return 0


def _connected(home: Home) -> duckdb.DuckDBPyConnection:
    try:
        return duck.database(home.database, read_only=True)
    except duckdb.Error as error:
        raise UsageError(f"{home.database} cannot be opened: run `stepledger build`. ({error})") from error


def _refuse_version(home: Home, stepledger: str, tables: int) -> None:
    if tables > CONTRACT_VERSION:
        by = f"stepledger {stepledger}".strip()
        raise UsageError(
            f"{home.root}: written by {by} (tables of version {tables}), newer than this one "
            f"({__version__}): "
            "upgrade stepledger, or choose another home"
        )


def _refuse_old_views(home: Home, writer: Writer) -> None:
    if writer.contract_version != CONTRACT_VERSION:
        tables = writer.contract_version or _newest(home) or "unknown"
        raise UsageError(
            f"{home.root}: written by stepledger {writer.stepledger_version} (tables of version {tables}): "
            "run `stepledger build`"
        )
    if writer.lake != str(home.raw.parent.resolve()):
        raise UsageError(
            f"{home.root}: its views do not find their files (was the home moved?): run `stepledger build`"
        )


def _newest(home: Home) -> int:
    """The newest version of any run's tables; 0 where there is none."""
    return max((int(facts.get("contract_version") or 0) for facts in built_facts(home)), default=0)
