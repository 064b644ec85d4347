"""Reader of latency tables measured beside traces: CSV with a header, and the text output of nccl-tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any

from pipeline.errors import TraceError
from pipeline.sources.job import ReadJob
from pipeline.sources.names import as_text

SNIFF_BYTES = 1 << 16
"""How much of a text file is looked at for nccl-tests' table, which may stand behind a launcher's messages."""
LARGEST_FILE = 64 * 10**6
_LARGEST_COUNT = 2**63 - 1

_COLUMN_LINE = re.compile(rb"^(?:\[[^\]]*\]<std\w+>:)?\s*#\s*(?:size|bytes)\s+(?:count|N)\s+type\b", re.MULTILINE)

_OPS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "allgatherintotensor": "all_gather", "allgatherbase": "all_gather",
    "reducescatter": "reduce_scatter", "reducescattertensor": "reduce_scatter", "reducescatterbase": "reduce_scatter",
    "alltoall": "all_to_all", "alltoallsingle": "all_to_all", "alltoallv": "all_to_all", "broadcast": "broadcast", "bcast": "broadcast",
    "reduce": "reduce", "sendrecv": "send_recv", "sendrecvring": "send_recv", "gather": "gather", "scatter": "scatter", "gemm": "gemm",
    "moegemm": "moe_gemm", "moe": "moe_gemm", "attention": "attention",
}  # fmt: skip
_TWO_SIZES = frozenset({"all_gather", "reduce_scatter", "gather", "scatter"})
"""Operations whose input and output differ in size: bytes say nothing there until it is known whose."""
COMPUTE = frozenset({"gemm", "moe_gemm", "attention"})
"""Kinds of compute, measured by tokens."""


def operation(name: str) -> str | None:
    """The operation that a name means, whatever its spelling: `all_reduce`, `AllReduce`, `alltoall_perf`; None for no known one."""
    return _OPS.get(re.sub(r"[^a-z]", "", name.lower()).removesuffix("perf"))


def has_two_sizes(op: str) -> bool:
    """Do input and output of a rank differ in size?"""
    return op in _TWO_SIZES


def is_table(name: str, start: bytes) -> bool:
    """Is this text a latency table? By its suffix, or by the line of nccl-tests that names the columns. JSON and gzip never are."""
    if start.startswith(b"\x1f\x8b") or (start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in {b"{", b"["} and not _COLUMN_LINE.search(start)):
        return False
    return name.lower().endswith((".csv", ".tsv")) or bool(_COLUMN_LINE.search(start))


@dataclass(frozen=True)
class Problems:
    """Says what is wrong with a line of a file."""

    file: str

    def at(self, line: int, found: str, wanted: str, advice: str = "") -> TraceError:
        """The error of one line."""
        return TraceError(self.file, where=f"line {line}", found=found, wanted=wanted, advice=advice)

    def number(self, line: int, column: str, text: str) -> float:
        """A number of microseconds or GB/s, 0 or more."""
        try:
            value = float(text) if text.isascii() and "_" not in text else -1.0
        except ValueError:
            value = -1.0
        if not (isfinite(value) and value >= 0):
            raise self.at(line, f"{column} = {text!r}", "a number, 0 or more")
        return value

    def latency(self, line: int, column: str, text: str) -> float:
        """A latency: a number of microseconds above 0."""
        value = self.number(line, column, text)
        if value == 0:
            raise self.at(line, f"{column} = {text!r}", "a number of microseconds above 0")
        return value

    def count(self, line: int, column: str, text: str, largest: int = _LARGEST_COUNT) -> int:
        """A whole number of bytes or tokens."""
        if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= largest):
            raise self.at(line, f"{column} = {text!r}", f"a whole number up to {largest}")
        return int(text)


def read_microbench(job: ReadJob) -> None:
    """Write raw.microbench of one table; the tables of traces have no row. Raises TraceError as rows_of."""
    if job.file_bytes > min(LARGEST_FILE, job.max_bytes):
        raise too_large(job.file_name, job.file_bytes)
    content = job.path.read_bytes()
    job.on_read(len(content))
    _write(job, [{"bench_id": job.file_id, "run_name": job.run_name, **row} for row in rows_of(content, job.file_name)])


def too_large(file_name: str, size: int) -> TraceError:
    """The error of a text that no latency table fills."""
    return TraceError(file_name, where="the file", found=f"{size} bytes of text", wanted=f"a latency table of at most {LARGEST_FILE} bytes")


def rows_of(content: bytes, file_name: str) -> list[dict[str, Any]]:
    """Rows of raw.microbench in a table's bytes, without what the run adds. Raises TraceError, with the line, for what is no table
    or a line that is not whole."""
    problems = Problems(file_name)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise problems.at(line, "bytes that are no UTF-8", "text", "Save the table as UTF-8.") from error
    is_nccl = bool(_COLUMN_LINE.search(content))
    if is_nccl:
        from pipeline.sources.nccl_tests import lines_of
    else:
        from pipeline.sources.latency_csv import lines_of
    rows = [{"file_name": file_name, "format": "nccl_tests" if is_nccl else "csv", **row} for row in lines_of(text, problems)]
    if not rows:
        raise TraceError(file_name, where="the table", found="no line of numbers", wanted="at least one measured latency")
    return rows


def _write(job: ReadJob, rows: list[dict[str, Any]]) -> None:
    import pyarrow as pa

    from pipeline import duck
    from pipeline.contracts import contracts
    from pipeline.duck import literal

    contract = contracts("raw")["microbench"]
    columns = {c.name: [row.get(c.name) for row in rows] for c in contract.columns}
    arrow_types: dict[str, pa.DataType] = {
        "VARCHAR": pa.string(),
        "BIGINT": pa.int64(),
        "INTEGER": pa.int32(),
        "DOUBLE": pa.float64(),
        "BOOLEAN": pa.bool_(),
    }
    schema = pa.schema([(c.name, arrow_types[c.type]) for c in contract.columns])
    with duck.working(job.work, threads=1, memory_limit=job.memory_limit) as con:
        con.register("line", pa.table(columns, schema=schema))
        con.execute(
            f"COPY (SELECT {contract.select_list()} FROM line ORDER BY line, is_in_place) "
            f"TO {literal(job.out / 'microbench.parquet')} (FORMAT parquet, COMPRESSION zstd)"
        )
        for other, shape in contracts("raw").items():
            if other != contract.table:
                con.execute(f"COPY ({shape.empty_query()}) TO {literal(job.out / f'{other}.parquet')} (FORMAT parquet)")


def mode_of(text: str) -> str | None:
    """eager or graph; None for neither."""
    folded = re.sub(r"[^a-z]", "", text.lower())
    return {"eager": "eager", "nograph": "eager", "graph": "graph", "cudagraph": "graph", "cudagraphs": "graph", "graphed": "graph"}.get(folded)


def clean(text: str) -> str:
    """A cell as text that every file can hold."""
    return as_text(text.strip())


Rows = Iterator[dict[str, Any]]
