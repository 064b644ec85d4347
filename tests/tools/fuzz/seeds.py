"""Small valid traces that mutations start from: our own of every form, and cuts of the shared real ones where
they are."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import nsys_builders
from tests.support.builders import (
    ALL_REDUCE,
    DECODE,
    GEMM,
    MARLIN_MOE,
    StepBuilder,
    event,
    header,
    memcpy,
    operator,
    trace_json,
)

REAL_EVENTS = 60
"""How many events of a real trace are kept: enough for every kind near its start, few enough for many mutants
a second."""
_REAL_ROWS = 40
_REAL_REPORT_BYTES = 3 << 20
_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')


@dataclass(frozen=True)
class Seed:
    """One valid trace: the text of a chrome trace, the bytes of a database, or the files of a report's
    folder."""

    name: str
    data: str | bytes | dict[str, bytes]


def own_seeds() -> list[Seed]:
    """Traces made by the tests' builders, alike on every machine."""
    texts = [Seed(f"{name}.json", text) for name, text in _own_texts()]
    with tempfile.TemporaryDirectory() as folder:
        return texts + list(_own_reports(Path(folder)))


def real_seeds(shared: Path) -> list[Seed]:
    """The first events of every real chrome trace that has some, and the first rows of the small real
    reports."""
    found = []
    for path in sorted(p for p in shared.rglob("*.json.gz") if p.stat().st_size < 1 << 20):
        text = _cut_text(gzip.decompress(path.read_bytes()).decode("utf-8", "replace"))
        if text is not None:
            found.append(Seed(f"real-{path.parent.name}.json", text))
    reports = sorted(p for p in shared.rglob("*.sqlite") if p.stat().st_size < _REAL_REPORT_BYTES)
    return found + [Seed(f"real-{path.stem}.sqlite", _small(path.read_bytes())) for path in reports]


def _steps() -> list[dict[str, Any]]:
    made = StepBuilder()
    made.step([(GEMM, 1_000), (ALL_REDUCE, 2_000), (MARLIN_MOE, 300)], DECODE)
    made.step([(GEMM, 1_000), (ALL_REDUCE, 2_000)], DECODE, graph=True)
    copy = memcpy("Memcpy HtoD (Pinned -> Device)", made.now_ns, 70, 99, bytes=64)
    shapes = operator(
        "aten::mm",
        made.now_ns - 9_000,
        800,
        7,
        Input_Dims=[[1, 7168], [7168, 16]],
        Input_type=["c10::BFloat16", ""],
    )
    return [
        *made.events,
        copy,
        shapes,
        {"ph": "M", "name": "process_name", "pid": 1000, "args": {"name": "python"}},
    ]


def _own_texts() -> Iterator[tuple[str, str]]:
    events = _steps()
    yield "head", trace_json(events).decode()
    yield "tail", trace_json(events, {"schemaVersion": 1}, header(1, 2)).decode()
    yield (
        "bare",
        json.dumps([e | {"ts": float(e.get("ts", 0)), "dur": float(e.get("dur", 0))} for e in events]),
    )
    rows = [json.dumps(e | {"pid": f"[TP0{n % 2}] {e['pid']}"}) for n, e in enumerate(events)]
    yield "merged", '{"traceEvents": [\n' + ",\n".join(rows) + '\n], "baseTimeNanoseconds": 7}'
    names = {"kernel": "Kernel", "gpu_memcpy": "Memcpy", "cpu_op": "Operator", "cuda_runtime": "Runtime"}
    old = [e | {"cat": names.get(e.get("cat", ""), e.get("cat"))} for e in events]
    absolute = [
        e | {"ts": 1_700_000_000_000_000 + int(e.get("ts", 0)), "dur": int(e.get("dur", 0))} for e in old
    ]
    yield (
        "old",
        '{"schemaVersion": 1, "traceEvents": '
        + json.dumps([*absolute, event("Trace", "PyTorch Profiler (0)", 1, 2)])
        + "}",
    )
    amd = [e if e.get("cat") != "cuda_runtime" else e | {"name": "hipLaunchKernel"} for e in events]
    head = {
        "deviceProperties": [{"id": 0, "name": "AMD Instinct MI210"}],
        "hip_runtime_version": 60342134,
        "roctracer_version": 4,
    }
    yield "amd", trace_json(amd, head).decode()


def _own_reports(folder: Path) -> Iterator[Seed]:
    for version in nsys_builders.VERSIONS:
        path = nsys_builders.write(
            folder, nsys_builders.tables_of(nsys_builders.two_ranks(), version), name=version
        )
        yield Seed(path.name, _small(path.read_bytes()))
    one = nsys_builders.Report([nsys_builders.Process(101, "VLLM::Worker_TP0")]).step(1_000_000, 1)
    path = nsys_builders.write(folder, nsys_builders.tables_of(one), name="one")
    yield Seed(path.name, _small(path.read_bytes()))
    for form in ("parquetdir", "arrowdir"):
        path = nsys_builders.write(folder, nsys_builders.tables_of(nsys_builders.two_ranks()), form)
        yield Seed(path.name, {p.name: p.read_bytes() for p in sorted(path.iterdir())})


def _small(data: bytes) -> bytes:
    """A database with few rows a table, on the smallest pages: then a flipped page is one of many."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.sqlite"
        path.write_bytes(data)
        con = sqlite3.connect(path)
        for (table,) in con.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            if table != "StringIds":
                con.execute(
                    f'DELETE FROM "{table}" WHERE rowid NOT IN (SELECT rowid FROM "{table}" LIMIT '
                    f"{_REAL_ROWS})"
                )
        used = (
            "SELECT demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL UNION SELECT shortName FROM "
            "CUPTI_ACTIVITY_KIND_KERNEL"
        )
        con.execute(f"DELETE FROM StringIds WHERE id > 500 AND id NOT IN ({used})")
        con.commit()
        con.execute("PRAGMA page_size = 512")
        con.execute("VACUUM")
        con.close()
        return path.read_bytes()


def _cut_text(text: str) -> str | None:
    """A trace with some events of every category, as they are written; None where there is no event."""
    start = _EVENTS.search(text)
    if start is None:
        return None
    decoder, at = json.JSONDecoder(strict=False), start.end()
    kept: list[str] = []
    seen: Counter[str] = Counter()
    while True:
        while text[at : at + 1] in set(" \t\r\n,"):
            at += 1
        if text[at : at + 1] != "{":
            break
        value, end = decoder.raw_decode(text, at)
        category = str(value.get("cat"))
        seen[category] += 1
        if seen[category] <= REAL_EVENTS // 6 and len(kept) < REAL_EVENTS:
            kept.append(text[at:end])
        at = end
    return text[: start.end()] + ",\n".join(kept) + text[at:] if kept else None
