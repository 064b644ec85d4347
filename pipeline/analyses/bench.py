"""Latency tables beside a run's traces: the same operation and size, each measured by its own clock."""

from __future__ import annotations

from typing import Any

import duckdb

from pipeline.analyses import sql
from pipeline.analyses.latency import LatencyTable, table_of
from pipeline.analyses.report import Report
from pipeline.errors import UsageError

_COLUMNS = (
    "phase", "op", "kind", "in_bytes", "mode", "table_clock", "table_us", "trace_us_p50", "trace_floor_us",
    "ratio", "floor_ratio", "wait_share", "calls",
)  # fmt: skip


def bench_reports(con: duckdb.DuckDBPyConnection, run_id: str, table: str | None = None) -> list[Report]:
    """One table per source. `table`: a file, or another run that holds a latency table; else the run's own
    tables (mart bench_vs_trace).

    Raises UsageError where there is no table, or nothing of the same operation and size.
    """
    name = f"run {run_id}"
    if table is None:
        found = sql.dicts(con, "bench/own_tables", run_id=run_id)
        if not found:
            table_of(con, run_id, None)  # raises where there is no table at all
    else:
        latencies = table_of(con, run_id, table)
        name, found = latencies.name, beside(sql.dicts(con, "bench/messages", run_id=run_id), latencies)
    if not found:
        raise UsageError(
            f"run {run_id}: none of its collectives matches an operation and size of {name}; sizes in "
            "graphs need hidden_size (`stepledger describe`)"
        )
    return [
        _report(run_id, name, source, [row for row in found if row["source"] == source])
        for source in sorted({r["source"] for r in found})
    ]


def beside(traced: list[dict[str, Any]], latencies: LatencyTable) -> list[dict[str, Any]]:
    """Rows of the mart `bandwidth` beside those of a table: the rule of the mart bench_vs_trace, for a table
    from elsewhere."""
    made = []
    for trace in traced:
        for row in latencies.rows:
            if row["op"] != trace["op"] or (
                row.get("ranks") and trace["ranks"] and row["ranks"] != trace["ranks"]
            ):
                continue
            whose = row.get("bytes_of")
            size = (
                trace["out_bytes"]
                if whose == "output"
                else trace["in_bytes"]
                if whose or trace["in_bytes"] == trace["out_bytes"]
                else None
            )
            if size is None or row.get("bytes") != size:
                continue
            made.append(
                {
                    **{
                        name: trace[name]
                        for name in (
                            "source",
                            "phase",
                            "op",
                            "kind",
                            "in_bytes",
                            "wait_share",
                            "calls",
                            "floor_source",
                        )
                    },
                    "mode": row.get("mode"),
                    "table_clock": row["measured"],
                    "table_us": row["us"],
                    "table_ranks": row.get("ranks"),
                    "is_same_clock": row["measured"] == "kernel",
                    "trace_us_p50": trace["us_p50"],
                    "trace_floor_us": trace["floor_us"],
                    "ratio": round(trace["us_p50"] / row["us"], 6),
                    "floor_ratio": round(trace["floor_us"] / row["us"], 6),
                }
            )
    return made


def _report(run_id: str, name: str, source: str, rows: list[dict[str, Any]]) -> Report:
    notes = [
        "trace: kernel durations over complete steps, p50 with waiting and the floor without ("
        + _list(rows, "floor_source")
        + ")"
    ]
    if not all(row["is_same_clock"] for row in rows):
        notes.append(
            "DIFFERENT CLOCKS: a table's wall time includes launches and the time between calls, a "
            "kernel's duration does not; a ratio of the two does not tell which is faster"
        )
    if any(row["table_ranks"] is None for row in rows):
        notes.append("the table does not give the number of ranks: assuming that of the trace")
    return Report(
        f"Run {run_id} ({source}) beside {name}",
        _COLUMNS,
        [[row[column] for column in _COLUMNS] for row in rows],
        notes,
    )


def _list(rows: list[dict[str, Any]], column: str) -> str:
    return ", ".join(sorted({str(row[column]) for row in rows}))
