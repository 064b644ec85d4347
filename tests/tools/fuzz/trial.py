"""One mutant through the function that lands files, and what must hold afterwards whatever the outcome."""

from __future__ import annotations

import json
import shutil
import sqlite3
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet

from pipeline.errors import SideFile, TraceError, UnfinishedFile
from pipeline.ingest.land import land
from pipeline.lake.home import Home
from pipeline.lake.settings import Settings
from pipeline.models.build import build_run
from pipeline.models.rules import load_rules
from pipeline.quality.verdicts import check_run, verdict
from pipeline.sources.issues import issue_codes
from pipeline.sources.nsys.columns import COUNTED, GPU_TABLES, TABLES
from tests.tools.fuzz.mutate import Mutant

GOOD = ("landed", "refused", "unfinished", "side file")
"""What a reader may make of a damaged file; everything else is a finding."""
MAX_BYTES = 100 << 20
"""What a mutant, which has kilobytes, may decode to."""
NEVER = frozenset(
    {
        "booked_once",
        "conservation_events",
        "conservation_gpu_time",
        "shares_sum_to_one",
        "step_identity",
        "timeline_closes",
    }
)
"""Checks that no file may fail: they ask about our own arithmetic."""
_EVENT_TABLES = ("gpu_activity", "launch", "cpu_op", "annotation")
_EVENT_ROWS = {*GPU_TABLES.values(), "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"}
_GPU_SKIPS = {"no_timestamp", "zero_timestamp", "no_duration", "negative_duration", "duplicate_event"}
_GPU = {"kernel", "concurrent_kernel", "gpu_memcpy", "memcpy", "gpu_memset", "memset"}


@dataclass(frozen=True)
class Result:
    """What became of a mutant; `detail` says where a finding was made; the verdict, if the run was built."""

    outcome: str
    detail: str = ""
    verdict: str | None = None


class Broken(AssertionError):
    """Something that must hold does not."""


def trial(home: Home, folder: Path, mutant: Mutant, *, salvage: bool, build: bool) -> Result:
    """Land a mutant into an empty home, look at what is there, and empty the home again."""
    work = folder / "mutant"
    work.mkdir()
    try:
        result = _landed(home, mutant.write(work), salvage=salvage, build=build)
        if debris := [p.name for p in home.staging.iterdir() if not p.name.startswith("old-")]:
            return Result("debris", f"left in staging: {debris}")
        if result.outcome != "landed" and (left := list(home.raw.rglob("*.parquet"))):
            return Result("debris", f"left in the lake: {[p.name for p in left]}")
    except Broken as error:
        return Result("broken books", str(error))
    except Exception as error:  # any other exception is what is looked for
        return Result(type(error).__name__, _where(error))
    else:
        return result
    finally:
        for path in (work, home.root):
            shutil.rmtree(path)
        home.ensure()


def _landed(home: Home, path: Path, *, salvage: bool, build: bool) -> Result:
    try:
        done = land(
            home,
            path,
            "fuzz",
            lambda _bytes: None,
            threads=1,
            memory_limit="256MB",
            salvage=salvage,
            max_bytes=MAX_BYTES,
        )
    except TraceError as error:
        str(error).encode()  # a message about a file has to be printable
        return Result("unfinished" if isinstance(error, UnfinishedFile) else "refused")
    except SideFile:
        return Result("side file")
    read = _hold_books(home.raw_run(done.run_id) / f"file_id={done.file_id}")
    expected = _counted(path)
    if expected is not None and expected != read:
        raise Broken(f"(events, GPU events) in the file {expected}, read {read}")
    if not build:
        return Result("landed")
    build_run(home, done.run_id, load_rules(), Settings(workers=1))
    results = check_run(home, done.run_id, with_docs=False)
    if failed := [f"{r.check}: {r.sample}" for r in results if not r.is_passed and r.check in NEVER]:
        raise Broken("; ".join(failed))
    return Result("landed", verdict=verdict(results))


def _hold_books(landed: Path) -> tuple[int, int]:
    """Events read are rows and skips, trace by trace; GPU time too, to the rounding. Returns (events, GPU
    events) read."""
    tables = {
        t: pyarrow.parquet.read_table(landed / f"{t}.parquet").to_pylist()
        for t in (*_EVENT_TABLES, "trace", "issue")
    }
    skips = {code for code, entry in issue_codes().items() if entry.get("skip")}
    for trace in tables["trace"]:
        own = {t: [r for r in rows if r["trace_id"] == trace["trace_id"]] for t, rows in tables.items()}
        skipped = [r for r in own["issue"] if r["code"] in skips]
        kept = sum(len(own[t]) for t in _EVENT_TABLES)
        if kept != trace["events_kept"] or trace["events_read"] != kept + sum(r["count"] for r in skipped):
            issues = {(r["code"], r["event_class"]): r["count"] for r in skipped}
            raise Broken(
                f"{trace['events_read']} events read, {trace['events_kept']} recorded as kept, {kept} rows, "
                f"skipped {issues}"
            )
        on_gpu = [r for r in skipped if r["code"] in _GPU_SKIPS]
        booked = sum(r["dur_ns"] for r in own["gpu_activity"]) + sum(r["dur_ns"] or 0 for r in on_gpu)
        rounded = sum(r["count"] for r in own["issue"] if r["code"] == "sub_ns_time")
        rounded = (
            rounded if abs(trace["gpu_ns_read"]) < 1 << 62 else abs(trace["gpu_ns_read"])
        )  # a sum that no column of raw.issue can hold
        if (
            trace["gpu_events_read"] != len(own["gpu_activity"]) + sum(r["count"] for r in on_gpu)
            or abs(trace["gpu_ns_read"] - booked) > rounded
        ):
            raise Broken(
                f"GPU events {trace['gpu_events_read']} and ns {trace['gpu_ns_read']} read, {booked} ns "
                "booked and left out"
            )
    return sum(t["events_read"] for t in tables["trace"]), sum(t["gpu_events_read"] for t in tables["trace"])


def _counted(path: Path) -> tuple[int, int] | None:
    """(events, GPU events) counted directly, if that is possible: valid JSON without repeated keys, or a
    complete database."""
    if path.suffix == ".sqlite":
        return _counted_rows(path)
    if path.suffix != ".json" or not path.is_file():
        return None
    try:
        found = json.loads(path.read_bytes(), object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return None
    events = found.get("traceEvents") if isinstance(found, dict) else found
    if not isinstance(events, list):
        return None
    return len(events), sum(_is_gpu(e) for e in events)


def _counted_rows(path: Path) -> tuple[int, int] | None:
    """Rows of the event tables of a database without damage; tables of which no column is known hold nothing
    to read."""
    con = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    try:
        if con.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
            return None
        names = {
            name.lower() for (name,) in con.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        tables = {t for t in TABLES.keys() | COUNTED.keys() if t.lower() in names}
        columns = {t: {row[1].lower() for row in con.execute(f'PRAGMA table_info("{t}")')} for t in tables}
        known = {t for t in tables & TABLES.keys() if columns[t] & {c.lower() for c in TABLES[t]}}
        rows = {
            t: con.execute(f'SELECT count(*) FROM "{t}"').fetchone()[0]
            for t in (known & _EVENT_ROWS) | (tables & COUNTED.keys())
        }
    except (sqlite3.Error, UnicodeDecodeError):
        return None
    finally:
        con.close()
    return sum(rows.values()), sum(rows.get(t, 0) for t in GPU_TABLES.values())


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a repeated key")
    return dict(pairs)


def _is_gpu(value: Any) -> bool:
    return isinstance(value, dict) and value.get("ph") == "X" and str(value.get("cat")).lower() in _GPU


def _where(error: BaseException) -> str:
    """The message and the innermost place in our own code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f"{Path(f.filename).name}:{f.name}:{f.lineno}" for f in frames if "/pipeline/" in f.filename]
    return f"{(own or ['?'])[-1]}: {str(error)[:300]}"
