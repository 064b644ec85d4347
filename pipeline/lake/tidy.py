"""Clean up after earlier processes: unfinished work, replaced builds, and runs to forget."""

from __future__ import annotations

import time

from pipeline.lake.atomic import RETIRED, SCRATCH, is_abandoned, remove, remove_asides, retire, write_file
from pipeline.lake.compact import remove_compacted
from pipeline.lake.home import Home
from pipeline.lake.versions import refuse_newer

GRACE_SECONDS = 600
"""How long a replaced build stays on disk, for readers that have opened it."""
_FORGET = "forget-"
"""Begins the name of a mark in staging: the run named after it is to be removed from the lake."""


def tidy(home: Home) -> None:
    """Finish or remove what earlier processes left: unfinished work at once, replaced builds after the grace
    time.

    Raises UsageError for a home of a newer version, before anything is changed.
    """
    refuse_newer(home)
    _finish_forgetting(home)
    for path in home.staging.iterdir():
        if path.name.startswith(SCRATCH):
            is_over = is_abandoned(path)
        else:
            is_over = not path.name.startswith(RETIRED) or time.time() - path.stat().st_ctime > GRACE_SECONDS
        if is_over:
            remove(path)
    for path in home.root.glob(".stepledger.duckdb.*"):
        path.unlink(missing_ok=True)
    for folder in (home.quarantine, home.compact):
        remove_asides(folder)
    remove_compacted(home, GRACE_SECONDS)


def forget(home: Home, run_id: str) -> None:
    """Remove a run from the lake, with its facts and its pages; originals in the archive stay.

    A mark is written first, so that the next writer finishes a removal that was interrupted. Raises
    UsageError as `tidy` does.
    """
    refuse_newer(home)
    write_file(home.staging / f"{_FORGET}{run_id}", b"")
    _finish_forgetting(home)


def _finish_forgetting(home: Home) -> None:
    for mark in home.staging.glob(f"{_FORGET}*"):
        run_id = mark.name.removeprefix(_FORGET)
        for folder in (
            home.raw_run(run_id),
            home.mart_run(run_id),
            home.quality_lake_run(run_id),
            home.config_run(run_id),
            home.quality_run(run_id),
        ):
            if folder.is_dir():
                retire(folder, home.staging)
        mark.unlink()
