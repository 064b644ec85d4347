"""Latency tables as curves: which points of a table count, and the latency between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Any

import duckdb

from pipeline.analyses import sql
from pipeline.errors import UsageError
from pipeline.lake.reading import find_run
from pipeline.sources.latency.cells import has_two_sizes
from pipeline.sources.latency.reader import LARGEST_FILE, rows_of, too_large


@dataclass(frozen=True)
class Curve:
    """Latency in us against size (bytes that a rank puts in, or tokens of compute), ascending; each size
    once."""

    op: str
    points: tuple[tuple[float, float], ...]
    what: str
    are_ranks_known: bool = True

    def covers(self, size: float) -> bool:
        """Is the size within the measured range?"""
        return bool(self.points) and self.points[0][0] <= size <= self.points[-1][0]

    def at(self, size: float, *, extrapolate: bool = False) -> float | None:
        """Latency at a size, us: on a straight line between neighbors in logarithms of both. None outside
        the measured range.

        With `extrapolate`: below it the shortest message's latency, above it the longest's in proportion to
        bytes.
        """
        if not self.covers(size):
            if not extrapolate or not self.points or size <= 0:
                return None
            return (
                self.points[0][1]
                if size < self.points[0][0]
                else self.points[-1][1] * size / self.points[-1][0]
            )
        before = max(p for p in self.points if p[0] <= size)
        after = min(p for p in self.points if p[0] >= size)
        if before[0] == after[0]:
            return before[1]
        part = log(size / before[0]) / log(after[0] / before[0])
        return exp(log(before[1]) + part * log(after[1] / before[1]))


class LatencyTable:
    """The measured latencies of one table (or of all tables of a run)."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], name: str) -> None:
        self.name = name
        self.rows = [dict(row) for row in rows]
        if not self.rows:
            raise UsageError(
                f"{name} holds no measured latency: drop a table beside its traces (a CSV with op, "
                "bytes, us, or nccl-tests' output), or name one"
            )

    def curve(self, op: str, ranks: int | None = None) -> Curve | None:
        """The curve of an operation: of these ranks (or where the table gives none), graph before eager, out
        of place only, and one clock only: the table's wall time where it has one, since a what-if adds calls.
        None if there is none."""
        rows = [
            row
            for row in self.rows
            if row["op"] == op
            and (ranks is None or row.get("ranks") in {None, ranks})
            and not row.get("is_in_place")
        ]
        sized = [(row, size) for row in rows if (size := _size(row)) is not None and size > 0]
        if not sized:
            return None
        clock = "wall" if any(row.get("measured") != "kernel" for row, _ in sized) else "kernel"
        modes = [row.get("mode") for row, _ in sized if (row.get("measured") or "wall") == clock]
        mode = next(m for m in ("graph", "eager", None) if m in modes)
        by_size: dict[float, list[float]] = {}
        for row, size in sized:
            if (row.get("measured") or "wall") == clock and row.get("mode") == mode:
                by_size.setdefault(size, []).append(float(row["us"]))
        points = tuple((size, sum(us) / len(us)) for size, us in sorted(by_size.items()))
        return Curve(
            op,
            points,
            f"{op}, {mode or 'mode not given'}, {clock} time",
            all(row.get("ranks") for row, _ in sized),
        )

    def need(self, op: str, ranks: int | None) -> Curve:
        """The same; UsageError where the table has none."""
        found = self.curve(op, ranks)
        if found is None:
            of_other = sorted({row["ranks"] for row in self.rows if row["op"] == op and row.get("ranks")})
            known = f"; it has those of {', '.join(map(str, of_other))} ranks" if of_other else ""
            raise UsageError(
                f"{self.name} has no {op} of {ranks} ranks whose bytes are known{known}. Measure it "
                "(nccl-tests, or a CSV with op, input_bytes, us)."
            )
        return found


def _size(row: Mapping[str, Any]) -> float | None:
    """Bytes that a rank puts in, or tokens of compute; None where it is unknown whose bytes they are."""
    size, whose, op, ranks = row.get("bytes"), row.get("bytes_of"), row["op"], row.get("ranks")
    if size is None:
        return row.get("tokens")
    if not has_two_sizes(op) or whose in {"input", "per_rank"}:
        return float(size)
    if whose != "output" or not ranks:
        return None
    return float(size / ranks) if op == "all_gather" else float(size * ranks)


def table_of(con: duckdb.DuckDBPyConnection, run_id: str, table: str | None) -> LatencyTable:
    """The latency table to use: a file, the tables of another run, or (None) those of the run itself. Raises
    UsageError if there is none."""
    if table is not None and Path(table).is_file():
        path = Path(table)
        if path.stat().st_size > LARGEST_FILE:
            raise too_large(path.name, path.stat().st_size)
        return LatencyTable(rows_of(path.read_bytes(), path.name), path.name)
    owner = run_id if table is None else find_run(con, table)
    rows = sql.dicts(con, "latency/measured", run_id=owner)
    return LatencyTable(rows, f"run {owner}")
