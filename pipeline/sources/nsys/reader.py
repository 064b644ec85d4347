"""Read one nsys report: refuse what cannot be analyzed, find its processes, land the raw tables."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

import duckdb

from pipeline import duck
from pipeline.errors import TraceError, UnfinishedFile
from pipeline.sources.issues import IssueBook
from pipeline.sources.job import ReadJob
from pipeline.sources.nsys import tables
from pipeline.sources.nsys.columns import GPU_TABLES, REQUIRED
from pipeline.sources.nsys.database import is_locked
from pipeline.sources.nsys.export import Export, damaged
from pipeline.sources.nsys.report import report_beside

_MEMORY_LIMIT = "128MB"
"""Above it DuckDB sorts on disk, at nearly no cost. Together with the libraries a read takes under 350 MB."""
NODE_ADVICE = "Record again with `nsys profile --cuda-graph-trace=node`."


def read_nsys(job: ReadJob) -> None:
    """Write the raw tables of an nsys export into `job.out`; one trace per process with GPU work.

    Raises UnfinishedFile while another program writes the file, TraceError for an export that is empty,
    interrupted, stale or damaged, that lacks a required table, or whose graphs were recorded without times.
    """
    _refuse_unfinished(job.path, job.place)
    with duck.working(job.work / "spill", threads=job.threads, memory_limit=_MEMORY_LIMIT) as con:
        export = Export(con, job)
        export.open()
        try:
            if export.has("CUPTI_ACTIVITY_KIND_KERNEL"):
                _refuse_incomplete(export, job.file_name)
            _refuse_hidden_graphs(con, job.file_name)
            _refuse_incomplete(export, job.file_name)
            tables.land(con, job, export, IssueBook())
        except duckdb.Error as error:
            raise damaged(job.file_name, error) from error


def _refuse_unfinished(path: Path, place: Path) -> None:
    """`place`: the file in the folder that it was dropped in, with its neighbors."""
    if path.is_file() and path.stat().st_size == 0:
        raise TraceError(
            path.name,
            where="the file",
            found="an empty file",
            wanted="an nsys export",
            advice=(
                "A filter that matches no table (--tables) writes an empty file and reports success: "
                "export again without it."
            ),
        )
    if path.is_file() and is_locked(path):
        raise UnfinishedFile(
            path.name,
            where="the file",
            found="a lock by a program that writes it",
            wanted="a finished export",
            advice="Wait until that program ends.",
        )
    log = place.with_name(f"{path.name}-wal")
    if path.is_file() and _size_bytes(log):
        raise TraceError(
            path.name,
            where="beside the file",
            found=f"{log.name}, which holds rows that are not in the file",
            wanted="one finished file",
            advice=(
                f"Merge them in that folder: sqlite3 {path.name} 'PRAGMA wal_checkpoint(TRUNCATE)', or "
                "export the report again."
            ),
        )
    journal = place.with_name(f"{path.name}-journal")
    if path.is_file() and os.path.lexists(journal):
        raise TraceError(
            path.name,
            where="beside the file",
            found=f"{journal.name}, which an interrupted export leaves",
            wanted="a finished export",
            advice="Delete both and export the report again.",
        )
    report = report_beside(place)
    if report is not None and _changed_ns(report) > path.stat().st_mtime_ns:
        raise TraceError(
            path.name,
            where="beside the file",
            found=f"{report.name}, which is newer than this export of it",
            wanted="a fresh export",
            advice=(
                f"nsys export --type=sqlite --force-overwrite=true {report.name} (if the files were "
                f"copied: touch {path.name})"
            ),
        )


def _size_bytes(path: Path) -> int:
    """The size of a regular file; 0 if there is none."""
    with suppress(OSError):
        found = path.lstat()
        return found.st_size if stat.S_ISREG(found.st_mode) else 0
    return 0


def _changed_ns(path: Path) -> int:
    with suppress(OSError):
        return path.lstat().st_mtime_ns
    return 0


def _refuse_incomplete(export: Export, file: str) -> None:
    needed = (
        "StringIds(id, value) and CUPTI_ACTIVITY_KIND_KERNEL(start, end, deviceId, streamId, "
        "correlationId, shortName or demangledName)"
    )
    if (
        export.has("CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
        and export.has("StringIds")
        and not export.has("CUPTI_ACTIVITY_KIND_KERNEL")
    ):
        return
    for table, columns in REQUIRED.items():
        if not export.has(table, *columns):
            missing = (
                f"no {table}"
                if not export.has(table)
                else f"{table} without {sorted(set(columns) - export.columns[table])}"
            )
            raise TraceError(
                file,
                where="its tables",
                found=missing,
                wanted=needed,
                advice=(
                    "If the report has GPU work, export it without --tables; if not, record with `nsys "
                    "profile --trace=cuda,nvtx`."
                ),
            )
    if not export.columns["CUPTI_ACTIVITY_KIND_KERNEL"] & {"shortName", "demangledName"}:
        raise TraceError(
            file,
            where="CUPTI_ACTIVITY_KIND_KERNEL",
            found="no column that names kernels",
            wanted=needed,
            advice="Export the report again.",
        )


def _refuse_hidden_graphs(con: duckdb.DuckDBPyConnection, file: str) -> None:
    """Graph replays without a kernel or a GRAPH_TRACE row: their time is not in the file."""
    con.execute(
        """
        CREATE TEMP TABLE replay AS
        SELECT DISTINCT process_key("globalTid") AS process, "correlationId" AS correlation
        FROM nsys."CUPTI_ACTIVITY_KIND_RUNTIME"
        WHERE "correlationId" IS NOT NULL
            AND "nameId" IN (SELECT id FROM nsys."StringIds" WHERE value ILIKE '%GraphLaunch%')
        """
    )
    launches = duck.scalar(con, "SELECT count(*) FROM replay")
    # Only equalities, which are hashed. A row without a process, on either side, may belong to any process.
    recorded = launches and any(
        duck.rows(
            con,
            f"""
            SELECT 1 FROM nsys."{table}"
            WHERE (process_key("globalPid"), "correlationId")
                    IN (SELECT (process, correlation) FROM replay WHERE process IS NOT NULL)
                OR "globalPid" IS NULL AND "correlationId" IN (SELECT correlation FROM replay)
                OR "correlationId" IN (SELECT correlation FROM replay WHERE process IS NULL)
            LIMIT 1
            """,
        )
        for table in GPU_TABLES.values()
    )
    if launches and not recorded:
        raise TraceError(
            file,
            where="CUDA graphs",
            found=f"{launches} graph launches, but none of their kernels",
            wanted="the kernels inside the graphs (replays were recorded as a whole, without their time)",
            advice=NODE_ADVICE,
        )
