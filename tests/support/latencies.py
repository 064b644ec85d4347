"""Latency tables as text, and their rows as the reader writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline import duck
from pipeline.errors import TraceError
from pipeline.sources.job import ReadJob
from pipeline.sources.latency.reader import read_microbench

RANKS = "".join(
    f"#  Rank  {rank} Group  0 Pid   689{rank} on   node device  {rank} [0x04] NVIDIA H100\n"
    for rank in range(8)
)
NEW = (
    "# nThread 1 nGpus 8 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 "
    "validation: 1 graph: 1\n#\n# Using devices\n"
    f"{RANKS}#\n#                                        out-of-place                       in-place\n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   "
    "busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  "
    "(GB/s)\n"
    "       14336          7168  bfloat16     sum      -1    37.05    0.39    0.68      0    36.77    0.39   "
    " 0.68    N/A\n"
    "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0.68\n"
)
OLD = (
    "# nThread 1 nGpus 2 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20 validation: 1\n"
    "#   Rank  0 Pid  12345 on   node device  0 [0x06] Tesla V100\n#   Rank  1 Pid  12345 on   node device  "
    "1 [0x07] Tesla V100\n"
    "#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error\n"
    "          64             8   float    28.99    0.01    0.00  0e+00    28.84    0.01    0.00  0e+00\n"
)
OLDEST = (
    "# nThread 1 nGpus 2 minBytes 8 maxBytes 8\n"
    "#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      "
    "res\n"
    "           8             2   float     sum    0.037   0.00   0.00    0e+00    0.045   0.00   0.00    "
    "0e+00\n"
)


def read(folder: Path, text: str | bytes, name: str = "table.csv") -> list[dict[str, Any]]:
    """The rows that the reader writes of a file."""
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    for place in ("out", "work"):
        (folder / place).mkdir(exist_ok=True)
    read_microbench(
        ReadJob(path, name, "f", path.stat().st_size, "s", "run", folder / "out", folder / "work")
    )
    with duck.working(folder / "work", threads=1, memory_limit="256MB") as con:
        return duck.dicts(
            con,
            (
                f"FROM read_parquet({duck.files(folder / 'out', 'microbench.parquet')}) ORDER BY line, "
                "is_in_place"
            ),
        )


def refused(folder: Path, text: str | bytes, name: str = "table.csv") -> TraceError:
    """The error that reading this raises."""
    with pytest.raises(TraceError) as caught:
        read(folder, text, name)
    assert not (folder / "out" / "microbench.parquet").exists()
    return caught.value
