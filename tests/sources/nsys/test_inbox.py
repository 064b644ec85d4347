"""nsys reports through the inbox and the warehouse: a folder is one file, and two sources of one run stay
apart."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from pipeline import duck
from pipeline.ingest.ingest import drain
from pipeline.lake.home import Home
from pipeline.lake.reading import opened
from pipeline.progress import Progress
from tests.support.builders import ingest_into
from tests.support.homes import pair, settled
from tests.support.nsys_builders import tables_of, two_ranks, write


def _settle(path: Path) -> Path:
    for inside in path.rglob("*"):
        settled(inside)
    return settled(path)


def _names(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


@pytest.mark.parametrize("form", ["parquetdir", "arrowdir"])
def test_a_folder_with_string_ids_is_one_report_and_archived_as_one(home: Home, form: str) -> None:
    """It is not a run of several files: one file_id, one run named after it, and the whole folder in the
    archive."""
    folder = _settle(write(home.inbox, tables_of(two_ranks()), form, "serve"))
    files = _names(folder)
    outcome = drain(home, Progress(quiet=True))
    assert (outcome.runs, outcome.built, outcome.codes) == (["serve"], ["serve"], [])
    assert list(home.inbox.iterdir()) == []
    assert _names(home.archive / "serve" / folder.name) == files
    with opened(home) as con:
        assert duck.rows(con, "SELECT DISTINCT file_name, world_size FROM raw.trace") == [(folder.name, 2)]


def test_a_report_folder_inside_a_run_folder_belongs_to_that_run(home: Home) -> None:
    """Two nodes' reports dropped as one folder are one run of two files."""
    for name, pids in (("node0", (101, 102)), ("node1", (201, 202))):
        report = two_ranks()
        report.processes = [type(p)(pid, p.name) for p, pid in zip(report.processes, pids, strict=True)]
        write(home.inbox / "serving", tables_of(report), "parquetdir", name)
    _settle(home.inbox / "serving")
    outcome = drain(home, Progress(quiet=True))
    assert outcome.built == ["serving"]
    with opened(home) as con:
        assert duck.rows(con, "SELECT run_id, source, traces, ranks FROM runs") == [("serving", "nsys", 4, 2)]


def test_the_same_folder_again_changes_nothing(home: Home, tmp_path: Path) -> None:
    """Its files' names and bytes are its identity: read once, then known, and no mart is rebuilt."""
    folder = write(tmp_path, tables_of(two_ranks()), "parquetdir")
    first, again = (ingest_into(home, folder) for _ in range(2))
    assert (first.built, again.built, again.codes) == (["run"], [], [])
    with opened(home) as con:
        assert duck.rows(con, "SELECT count(*) FROM raw.gpu_activity") == [(24,)]


def test_a_torch_trace_and_an_nsys_report_of_the_same_ranks_stay_apart(home: Home, tmp_path: Path) -> None:
    """One run may hold both: every number is of one source, none is a sum or a mean of the two."""
    report = write(tmp_path, tables_of(two_ranks()))
    alone = {"kineto": pair(tmp_path / "torch"), "nsys": [report]}
    for source, paths in alone.items():
        ingest_into(home, *paths, run=source)
    outcome = ingest_into(home, *alone["kineto"], report, run="both")
    assert outcome.codes == []
    columns = {
        "runs": "source, traces, ranks, decode_steps, prefill_steps, engine",
        "steps": "* EXCLUDE (run_id)",
        "run_breakdown": "* EXCLUDE (run_id)",
        "kernel_breakdown": "* EXCLUDE (run_id)",
        "timeline": "* EXCLUDE (run_id)",
    }
    with opened(home) as con:
        for mart, wanted in columns.items():
            both = duck.rows(con, f"SELECT {wanted} FROM {mart} WHERE run_id = 'both' ORDER BY ALL")
            each = duck.rows(con, f"SELECT {wanted} FROM {mart} WHERE run_id = source ORDER BY ALL")
            assert both == each, mart
        assert duck.rows(con, ("SELECT source, ranks, decode_steps FROM runs WHERE run_id = 'both' ORDER BY "
                              "source")) == [
            ("kineto", 2, 3), ("nsys", 2, 2)
        ]  # fmt: skip


@pytest.mark.parametrize("is_stale", [True, False], ids=["stale", "fresh"])
def test_a_report_and_its_export_dropped_together_are_read_once(
    home: Home, monkeypatch: pytest.MonkeyPatch, is_stale: bool
) -> None:
    """A fresh export is read and the report archived beside it; a stale one is refused although the report is
    handled too."""
    monkeypatch.setenv("PATH", str(home.root))
    export = write(home.inbox, tables_of(two_ranks()), "sqlite", "serve")
    report = home.inbox / "serve.nsys-rep"
    report.write_bytes(b"only nsys knows")
    then = time.time() - 100
    os.utime(export, (then, then))
    os.utime(report, (then + 50, then + 50) if is_stale else (then - 50, then - 50))
    outcome = drain(home, Progress(quiet=True))
    assert outcome.built == ([] if is_stale else ["serve"])
    where = home.quarantine if is_stale else home.archive
    assert {p.name for p in (where / "serve").iterdir() if p.suffix != ".json"} == {
        "serve.sqlite",
        "serve.nsys-rep",
    }
