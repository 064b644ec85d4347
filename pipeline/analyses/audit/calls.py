"""Collectives of complete steps as the audit counts them: by pipeline stage, shape of step, position and
operation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import duckdb

from pipeline.analyses import sql

Column = Literal["part", "layer", "operation", "kind"]


def prepare(
    con: duckdb.DuckDBPyConnection,
    run_id: str,
    source: str,
    stages: Mapping[str, int],
    *,
    exchanges: bool,
    unplaced: Iterable[tuple[int, str, int | None]],
) -> None:
    """Make the tables that the other functions read: complete steps and their collectives.

    `exchanges`: does the layout send tokens to their experts? `unplaced`: shapes of step whose positions are
    not proven.
    """
    listed = [{"trace_id": trace, "stage": stage} for trace, stage in stages.items()]
    sql.temp_table(con, "audit_step", "audit/steps", run_id=run_id, source=source, stages=listed)
    shapes = [
        {"stage": stage, "phase": phase, "graph_tokens": tokens}
        for stage, phase, tokens in sorted(unplaced, key=repr)
    ]
    sql.temp_table(con, "audit_call", "audit/calls", run_id=run_id, exchanges=exchanges, unplaced=shapes)


@dataclass(frozen=True)
class Count:
    """Calls per step of something: fewest, most frequent, most."""

    steps: int
    least: int
    mode: int
    most: int
    us_per_call: float | None
    kinds: tuple[str, ...]


def spread(con: duckdb.DuckDBPyConnection, *by: Column) -> dict[tuple[Any, ...], Count]:
    """Calls per step by stage, phase, tokens of the graph and the columns `by`, operation among them; a step
    without such a call counts as 0."""
    assert "operation" in by  # noqa: S101 (calls of different operations are never added up)
    found = {}
    for row in sql.dicts(
        con, "audit/spread", by_part="part" in by, by_layer="layer" in by, by_kind="kind" in by
    ):
        missing = row["steps"] - row["present"]
        us = row["us_per_call"]
        found[tuple(row[name] for name in ("stage", "phase", "graph_tokens", *by))] = Count(
            row["steps"],
            0 if missing else row["calls_min"],
            0 if missing >= row["often"] else row["calls_mode"],
            row["calls_max"],
            us and round(us, 3),
            tuple(kind for kind in row["kinds"] if kind),
        )
    return found


@dataclass(frozen=True)
class Expectation:
    """How many calls one position of one shape of step should hold; `high` None: or more."""

    stage: int
    phase: str
    graph_tokens: int | None
    part: str
    layer: int | None
    operation: str
    low: int
    high: int | None


def deviating(con: duckdb.DuckDBPyConnection, expectations: list[Expectation]) -> list[dict[str, Any]]:
    """The rows of audit/deviations.sql: positions at which steps hold other numbers of calls."""
    return sql.dicts(con, "audit/deviations", expected=[asdict(one) for one in expectations])


def evidence(con: duckdb.DuckDBPyConnection, run_id: str, source: str) -> dict[str, bool]:
    """What the trace shows of the layout, for facts that are not given."""
    return sql.one(con, "audit/evidence", run_id=run_id, source=source)
