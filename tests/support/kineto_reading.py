"""Reading a trace in a test: bytes in, raw tables out, and the books that must balance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import duckdb
import pyarrow.parquet as pq

from pipeline.contracts import contracts
from pipeline.sources.issues import issue_codes
from pipeline.sources.job import ReadJob
from pipeline.sources.kineto import read_kineto
from tests.support.builders import header, read_raw, trace_json

GPU_REASONS = {"no_timestamp", "zero_timestamp", "no_duration", "negative_duration", "duplicate_event"}
CONTRACTS = contracts("raw")
"""What a reader writes."""
LANDED = ("gpu_activity", "launch", "cpu_op", "annotation")
BROKEN = b'{"ph": "X", "cat": "python_function", "name": "torch/a.py(3): {"x": 1}", "ts": 1, "dur": 1}'
"""An event with unescaped quotes: the stretch around it goes through the exact scan."""

Row = dict[str, Any]


class Tables(dict[str, list[Row]]):
    """The rows of each raw table, read on first use."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def __missing__(self, table: str) -> list[Row]:
        self[table] = self.read(table)
        return self[table]

    def read(self, table: str, *columns: str) -> list[Row]:
        """Rows of a table, with all or the given columns."""
        rows: list[Row] = (
            pq.ParquetFile(self.out / f"{table}.parquet").read(list(columns) or None).to_pylist()
        )
        return rows


@dataclass(frozen=True)
class Raw:
    """The raw tables of one file that was read."""

    tables: Tables

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """The given columns of a table, sorted."""
        found = [tuple(row[c] for c in columns) for row in self.tables[table]]
        return sorted(found, key=lambda row: [(value is not None, value) for value in row])

    def column(self, table: str, column: str) -> list[Any]:
        """One column of a table, sorted."""
        return [row[0] for row in self.rows(table, column)]

    def trace(self, *columns: str) -> tuple[Any, ...]:
        """Columns of the one row of raw.trace."""
        (row,) = self.tables["trace"]
        return tuple(row[c] for c in columns)

    @property
    def issues(self) -> dict[tuple[str, str], tuple[int, int | None]]:
        """(count, dur_ns) by code and event class; the trace must be the only one of its file."""
        return {(r["code"], r["event_class"]): (r["count"], r["dur_ns"]) for r in self.tables["issue"]}

    @property
    def codes(self) -> set[str]:
        """The codes of all issues."""
        return {row["code"] for row in self.tables["issue"]}

    def all_rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every table with all its rows, but for the time of reading and the file's size."""
        left_out = {"ingested_at", "file_bytes", "example"}
        return {
            t: self.rows(t, *(c.name for c in contract.columns if c.name not in left_out))
            for t, contract in CONTRACTS.items()
        }


def lines(
    *events: bytes,
    head: bytes = b'{"baseTimeNanoseconds": 1000000000000000000, "traceEvents": [',
    tail: bytes = b"]}",
) -> bytes:
    """A trace of events that are given as text."""
    return head + b",\n".join(events) + tail


def kernel_text(
    name: str = "k",
    more: str = "",
    *,
    ts: str = "5000.001",
    dur: str = "2.500",
    args: str = '"device": 0, "stream": 7',
) -> bytes:
    """A kernel as text, so that a test can spell numbers as it likes; `more` are further keys."""
    more = f"{more}, " if more else ""
    return (
        f'{{"ph": "X", "cat": "kernel", "name": "{name}", "ts": {ts}, "dur": {dur}, {more}"pid": 0, '
        f'"tid": 7, "args": {{{args}}}}}'
    ).encode()


def read_bytes(folder: Path, data: bytes, name: str = "t.json", **options: Any) -> Raw:
    """Read `data` as a file of that name, in a fresh folder below `folder`; the books must balance."""
    own = Path(mkdtemp(dir=folder))
    (own / name).write_bytes(data)
    return read_file(own / name, own, **options)


def salvage_bytes(folder: Path, data: bytes, name: str = "t.json", **options: Any) -> Raw:
    """Read the complete events of `data`, a truncated file; the books must balance."""
    own = Path(mkdtemp(dir=folder))
    out, work = own / "out", own / "work"
    out.mkdir()
    work.mkdir()
    (own / name).write_bytes(data)
    read_kineto(
        ReadJob(own / name, name, "t", len(data), "0" * 64, "run", out, work, salvage=True), **options
    )
    raw = Raw(Tables(out))
    assert_books_balance(raw)
    return raw


def read_events(
    folder: Path,
    events: Iterable[Any],
    head: dict[str, Any] | None = None,
    name: str = "t.json",
    **options: Any,
) -> Raw:
    """Read a trace of these events."""
    return read_bytes(folder, trace_json(events, header() if head is None else head), name, **options)


def read_file(path: Path, folder: Path, **options: Any) -> Raw:
    """Read a file into `folder`; the books must balance."""
    (out,) = read_raw(path, folder, **options).iterdir()
    raw = Raw(Tables(out))
    assert_books_balance(raw)
    return raw


def assert_contracts_hold(raw: Raw) -> None:
    """Every raw table is there and matches its contract."""
    with duckdb.connect() as con:
        for table, contract in CONTRACTS.items():
            contract.check(
                con, f"read_parquet('{raw.tables.out / table}.parquet', hive_partitioning = false)"
            )


def assert_books_balance(raw: Raw) -> None:
    """Events in the file = landed + skipped by name; and so for GPU events, in count and in time."""
    skipped = [row for row in raw.tables["issue"] if issue_codes()[row["code"]].get("skip")]
    landed = {
        table: Counter(row["trace_id"] for row in raw.tables.read(table, "trace_id")) for table in LANDED
    }
    for trace in raw.tables["trace"]:
        mine = trace["trace_id"]
        left = [row for row in skipped if row["trace_id"] == mine]
        assert trace["events_kept"] == sum(count[mine] for count in landed.values())
        assert trace["events_read"] == trace["events_kept"] + sum(row["count"] for row in left)
        gpu_left = [row for row in left if row["code"] in GPU_REASONS]
        assert trace["gpu_events_read"] == landed["gpu_activity"][mine] + sum(
            row["count"] for row in gpu_left
        )
        booked = sum(
            row["dur_ns"]
            for row in raw.tables.read("gpu_activity", "trace_id", "dur_ns")
            if row["trace_id"] == mine
        )
        booked += sum(row["dur_ns"] or 0 for row in gpu_left)
        rounding = Decimal(trace["gpu_events_read"]) / 2 if "sub_ns_time" in raw.codes else 0
        assert abs(trace["gpu_ns_read"] - booked) <= rounding
