"""Reading a trace in a test: bytes in, raw tables out, and the books that must balance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import duckdb

from pipeline.contracts import contracts
from pipeline.sources.issues import issue_codes
from tests.builders import header, raw_rows, read_raw, trace_json

GPU_KINDS = ("kernel", "memcpy", "memset")
BROKEN = b'{"ph": "X", "cat": "python_function", "name": "torch/a.py(3): {"x": 1}", "ts": 1, "dur": 1}'
"""An event with unescaped quotes: the stretch around it goes through the exact scan."""

Issues = dict[tuple[str, str], tuple[int, int | None]]


@dataclass(frozen=True)
class Raw:
    """The raw tables of one trace that was read."""

    folder: Path
    issues: Issues = field(default_factory=dict)

    def rows(self, table: str, columns: str = "*", order: str = "ALL") -> list[tuple[Any, ...]]:
        """Rows of a raw table."""
        return raw_rows(self.folder, table, columns, order)

    def column(self, table: str, column: str) -> list[Any]:
        """The values of one column, in order."""
        return [row[0] for row in self.rows(table, column)]

    def trace(self, *columns: str) -> tuple[Any, ...]:
        """Columns of the one row of raw.trace."""
        (row,) = self.rows("trace", ", ".join(columns))
        return row

    def all_tables(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every row of every table, without the time of reading."""
        return {table: self.rows(table, "* EXCLUDE (ingested_at)" if table == "trace" else "*") for table in contracts("raw")}


def lines(*events: bytes, head: bytes = b'{"baseTimeNanoseconds": 1000000000000000000, "traceEvents": [', tail: bytes = b"]}") -> bytes:
    """A trace of events that are given as text."""
    return head + b",\n".join(events) + tail


def kernel_text(name: str = "k", more: str = "", *, ts: str = "5000.001", dur: str = "2.500", args: str = '"device": 0, "stream": 7') -> bytes:
    """A kernel as text, so that a test can spell numbers as it likes; `more` are further keys."""
    more = f"{more}, " if more else ""
    return f'{{"ph": "X", "cat": "kernel", "name": "{name}", "ts": {ts}, "dur": {dur}, {more}"pid": 0, "tid": 7, "args": {{{args}}}}}'.encode()


def read_bytes(folder: Path, data: bytes, name: str = "t.json", **options: Any) -> Raw:
    """Read `data` as a file of that name, in a fresh folder below `folder`; hold what landed to contracts and books."""
    own = Path(mkdtemp(dir=folder))
    (own / name).write_bytes(data)
    return read_file(own / name, own, **options)


def read_events(folder: Path, events: Iterable[Any], head: dict[str, Any] | None = None, name: str = "t.json", **options: Any) -> Raw:
    """Read a trace of these events."""
    return read_bytes(folder, trace_json(events, header() if head is None else head), name, **options)


def read_file(path: Path, folder: Path, **options: Any) -> Raw:
    """Read a file into `folder`; hold what landed to contracts and books."""
    read_raw(path, folder, **options)
    found: Issues = {}
    for code, event_class, count, dur_ns in raw_rows(folder, "issue", "code, event_class, sum(count)::BIGINT, sum(dur_ns)::BIGINT", "ALL"):
        found[code, event_class] = (count, dur_ns)
    raw = Raw(folder, found)
    assert_contracts(raw)
    assert_books_balance(raw)
    return raw


def assert_contracts(raw: Raw) -> None:
    """Every raw table is there and is what its contract says."""
    (out,) = (raw.folder / "run").iterdir()
    with duckdb.connect() as con:
        for table, contract in contracts("raw").items():
            contract.check(con, f"read_parquet('{out / table}.parquet', hive_partitioning = false)")


def assert_books_balance(raw: Raw) -> None:
    """Events in the file = landed + skipped by name, and so for GPU events, in count and in time."""
    skipped = skipped_events(raw)
    for trace_id, read, kept, gpu_read, gpu_ns in raw.rows("trace", "trace_id, events_read, events_kept, gpu_events_read, gpu_ns_read"):
        mine = f"trace_id = '{trace_id}'"
        landed = {t: _one(raw, t, f"count(*) FILTER ({mine})") for t in ("gpu_activity", "launch", "cpu_op", "annotation")}
        assert kept == sum(landed.values())
        assert read == kept + sum(n for t, _, n, _ in skipped if t == trace_id)
        left = [(n, ns) for t, cls, n, ns in skipped if t == trace_id and cls in GPU_KINDS]
        assert gpu_read == landed["gpu_activity"] + sum(n for n, _ in left)
        booked = (_one(raw, "gpu_activity", f"sum(dur_ns) FILTER ({mine})") or 0) + sum(ns or 0 for _, ns in left)
        is_rounded = any(code == "sub_ns_time" for code, _ in raw.issues)
        assert abs(gpu_ns - booked) <= (Decimal(gpu_read) / 2 if is_rounded else 0)


def skipped_events(raw: Raw) -> list[tuple[str, str, int, int | None]]:
    """(trace_id, event class, count, ns) of everything that was left out by name."""
    codes = [code for code, entry in issue_codes().items() if entry.get("skip")]
    unread_gpu = ("unreadable_gpu_event",)
    rows = raw.rows("issue", "trace_id, code, event_class, count, dur_ns")
    return [(t, "" if code in unread_gpu else cls, n, ns) for t, code, cls, n, ns in rows if code in codes]


def _one(raw: Raw, table: str, expression: str) -> Any:
    return raw.rows(table, f"({expression})::BIGINT")[0][0]
