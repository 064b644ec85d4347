"""How times of an nsys export become time since the epoch."""

from __future__ import annotations

import re
from dataclasses import dataclass

import duckdb

from pipeline.duck import scalar
from pipeline.sources import units

_ABSOLUTE_NS = 10**18
FARTHEST_NS = units.FARTHEST_NS // 2
"""Limit of a time in the session: adding the session's start to it must not exceed units.FARTHEST_NS."""


@dataclass(frozen=True)
class Clock:
    """How times become time since the epoch: `offset` is added to each; `base_ns` is the session's start."""

    offset: int
    base_ns: int | None
    is_absolute: bool
    session_end_ns: int | None

    def placed(self, column: str) -> str:
        """SQL: a session time as time since the epoch; NULL if it is not a valid time."""
        return (
            f"CASE WHEN {column} BETWEEN {-FARTHEST_NS} AND {FARTHEST_NS} THEN {column} + {self.offset} END"
        )


def read_clock(con: duckdb.DuckDBPyConnection, facts: dict[str, str | None]) -> Clock:
    """A normalized export already holds UTC: adding the session's start again would double it.

    A shift that the export was made with is subtracted.
    """
    epoch = scalar(
        con,
        """
        SELECT min("utcEpochNs") FROM nsys."TARGET_INFO_SESSION_START_TIME"
        WHERE "utcEpochNs" BETWEEN 1 AND $1
        """,
        [FARTHEST_NS],
    )
    duration = scalar(con, 'SELECT max(duration) FROM nsys."ANALYSIS_DETAILS" WHERE duration > 0')
    shift = facts.get("EXPORT_PARAM_TIME_SHIFT") or "0"
    shift_ns = int(shift) if re.fullmatch(r"-?[0-9]{1,18}", shift) else 0
    latest = scalar(con, 'SELECT max("start") FROM nsys.gpu WHERE reason IS NULL') or 0
    is_normal = facts.get("EXPORT_PARAM_TIME_NORMALIZE") == "true" or latest >= _ABSOLUTE_NS
    end = None if duration is None or (is_normal and epoch is None) else (epoch or 0) + duration
    if is_normal:
        return Clock(-shift_ns, None, is_absolute=True, session_end_ns=end)
    return Clock((epoch or 0) - shift_ns, epoch, is_absolute=epoch is not None, session_end_ns=end)
