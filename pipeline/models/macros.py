"""The SQL macros that models, checks and questions share: sql/macros.sql, thresholds, and classes of
categories."""

from __future__ import annotations

import duckdb

from pipeline.duck import literal
from pipeline.models.rules import communication_categories
from pipeline.resources import resource
from pipeline.thresholds import threshold_macros


def macros() -> str:
    """SQL that creates all of them. They are temporary, so that a read-only session can have them too."""
    communication = ", ".join(map(literal, communication_categories()))
    return "\n".join(
        (
            threshold_macros(),
            f"CREATE OR REPLACE TEMP MACRO is_communication(category) AS category IN ({communication});",
            (resource("sql") / "macros.sql").read_text(encoding="utf-8"),
        )
    )


def install(con: duckdb.DuckDBPyConnection) -> None:
    """Create the macros in a session."""
    con.execute(macros())
