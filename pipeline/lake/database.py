"""Write the database file of views over the lake."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

import duckdb

from pipeline import duck
from pipeline.errors import UsageError, home_trouble
from pipeline.lake.damage import incomplete_runs, unreadable_runs
from pipeline.lake.home import Home
from pipeline.lake.manifest import Manifest, settle
from pipeline.lake.versions import checked, troubled_runs
from pipeline.lake.views import left_out_of, make_views, write_templates


def write_database(home: Home, pinned: Iterable[str] = ()) -> None:
    """Write the database of views aside and move it into place; readers that have the old one open keep it.

    `pinned`: runs served from a generation that are about to be built: they are served from there until the
    next call. Runs whose files cannot be read as they are, are left out.
    """
    write_templates(home)
    settle(home)
    left_out = _to_leave_out(home)
    try:
        _write_views(home, left_out, pinned)
    except duckdb.Error as error:
        _write_views(home, left_out | failing_runs(home, error, left_out), pinned)


def _write_views(home: Home, left_out: dict[str, str], pinned: Iterable[str]) -> None:
    aside = home.root / f".stepledger.duckdb.{uuid.uuid4().hex}"
    try:
        with duck.database(aside, read_only=False) as con:
            con.execute("BEGIN")  # some 600 statements: each would be a commit of its own
            make_views(con, home, left_out, pinned)
            con.execute("COMMIT")
        aside.replace(home.database)
    finally:
        aside.unlink(missing_ok=True)


def _to_leave_out(home: Home) -> dict[str, str]:
    """Runs to leave out of the views. All files are examined only where something was wrong before, or
    another version wrote."""
    try:
        with checked(home) as con:
            is_calm = not left_out_of(con)
    except UsageError:
        is_calm = False
    missing = {
        run_id: str(damage) for run_id, damage in incomplete_runs(home, Manifest.load(home).serves).items()
    }
    return missing if is_calm else troubled_runs(home)


def failing_runs(home: Home, error: duckdb.Error | UsageError, known: Mapping[str, str]) -> dict[str, str]:
    """Runs that made reading fail, and why. Raises the error again where it is not about a file, or no run is
    found."""
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
    raise UsageError(
        f"{home.root}: a table cannot be read; `stepledger check` names the file. ({cause})"
    ) from error
