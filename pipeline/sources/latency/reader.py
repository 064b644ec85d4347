"""Reader of latency tables measured beside traces: CSV with a header, and the text output of nccl-tests."""

from __future__ import annotations

import re
from typing import Any

from pipeline.errors import TraceError
from pipeline.sources.job import ReadJob
from pipeline.sources.latency import latency_csv, nccl_tests
from pipeline.sources.latency.cells import Problems

SNIFF_BYTES = 1 << 16
"""Bytes of a file that are searched for a table of nccl-tests, which may follow a launcher's messages."""
LARGEST_FILE = 64 * 10**6

_COLUMN_LINE = re.compile(
    rb"^(?:\[[^\]]*\]<std\w+>:)?\s*#\s*(?:size|bytes)\s+(?:count|N)\s+type\b", re.MULTILINE
)


def is_table(name: str, start: bytes) -> bool:
    """Is this a latency table, by its suffix or the column names of nccl-tests? JSON and gzip are not."""
    if start.startswith(b"\x1f\x8b") or (
        start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in {b"{", b"["} and not _COLUMN_LINE.search(start)
    ):
        return False
    return name.lower().endswith((".csv", ".tsv")) or bool(_COLUMN_LINE.search(start))


def read_microbench(job: ReadJob) -> None:
    """Write raw.microbench of one table; the other raw tables have no rows. Raises TraceError as rows_of."""
    if job.file_bytes > min(LARGEST_FILE, job.max_bytes):
        raise too_large(job.file_name, job.file_bytes)
    content = job.path.read_bytes()
    job.on_read(len(content))
    _write(
        job,
        [
            {"bench_id": job.file_id, "run_name": job.run_name, **row}
            for row in rows_of(content, job.file_name)
        ],
    )


def too_large(file_name: str, size: int) -> TraceError:
    """The refusal of a text that is too large for a latency table."""
    return TraceError(
        file_name,
        where="the file",
        found=f"{size} bytes of text",
        wanted=f"a latency table of at most {LARGEST_FILE} bytes",
    )


def rows_of(content: bytes, file_name: str) -> list[dict[str, Any]]:
    """Rows of raw.microbench in a table's bytes, without the columns of the run.

    Raises TraceError, with the line, for text that is not a table and for an incomplete line.
    """
    problems = Problems(file_name)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise problems.at(line, "bytes that are not UTF-8", "text", "Save the table as UTF-8.") from error
    is_nccl = bool(_COLUMN_LINE.search(content))
    lines_of = nccl_tests.lines_of if is_nccl else latency_csv.lines_of
    rows = [
        {"file_name": file_name, "format": "nccl_tests" if is_nccl else "csv", **row}
        for row in lines_of(text, problems)
    ]
    if not rows:
        raise TraceError(
            file_name, where="the table", found="no line of numbers", wanted="at least one measured latency"
        )
    return rows


def _write(job: ReadJob, rows: list[dict[str, Any]]) -> None:
    import pyarrow as pa

    from pipeline import duck
    from pipeline.contracts import contracts
    from pipeline.sources import landing

    columns = contracts("raw")["microbench"].columns
    arrow_types: dict[str, pa.DataType] = {
        "VARCHAR": pa.string(),
        "BIGINT": pa.int64(),
        "INTEGER": pa.int32(),
        "DOUBLE": pa.float64(),
        "BOOLEAN": pa.bool_(),
    }
    schema = pa.schema([(c.name, arrow_types[c.type]) for c in columns])
    values = {c.name: [row.get(c.name) for row in rows] for c in columns}
    with duck.working(job.work, threads=1, memory_limit=job.memory_limit) as con:
        con.register("line", pa.table(values, schema=schema))
        landing.write(con, job, "microbench", "FROM line ORDER BY line, is_in_place")
        landing.write_missing(con, job)
