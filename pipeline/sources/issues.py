"""Problems of one trace, counted by code and kind of event: the rows of raw.issue.

A reader counts problems of the file in an IssueBook; `left_out` counts the rows of the relations of landing.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import duckdb

from pipeline.duck import literal, rows
from pipeline.resources import resource

EXAMPLE_CHARS = 200
CPU_SIDE = ("launch", "cpu_op", "annotation")
"""Relations of landing with events of the CPU side, which may lack a process, a start or a duration."""

Issue = tuple[str, str, str, int, int | None, str | None]
"""trace_id, code, event_class, count, dur_ns, example."""


@cache
def issue_codes() -> dict[str, dict[str, Any]]:
    """schemas/issues.toml by code."""
    data = tomllib.loads((resource("schemas") / "issues.toml").read_text(encoding="utf-8"))
    return {code: entry for code, entry in data.items() if isinstance(entry, dict)}


@dataclass
class _Tally:
    count: int = 0
    dur_ns: int | None = None
    example: str | None = None


@dataclass
class IssueBook:
    """Counts issues while a file is read; one row per code and event class."""

    tallies: dict[tuple[str, str], _Tally] = field(default_factory=dict)

    def add(
        self,
        code: str,
        event_class: str,
        count: int = 1,
        dur_ns: int | None = None,
        example: str | None = None,
    ) -> None:
        """Add `count` to the issue `code`; a code that is not in issues.toml is a bug (KeyError)."""
        issue_codes()[code]
        tally = self.tallies.setdefault((code, event_class), _Tally())
        tally.count += count
        if dur_ns is not None:
            tally.dur_ns = (tally.dur_ns or 0) + dur_ns
        if tally.example is None and example is not None:
            tally.example = (
                example[:EXAMPLE_CHARS].encode("utf-8", "replace").decode()
            )  # half of a surrogate pair is not valid text

    def rows(self) -> list[tuple[str, str, str, int, int | None, str | None]]:
        """(code, event_class, severity, count, dur_ns, example), in a fixed order."""
        return [
            (code, cls, issue_codes()[code]["severity"], t.count, t.dur_ns, t.example)
            for (code, cls), t in sorted(self.tallies.items())
        ]

    def of_trace(self, trace_id: str) -> list[Issue]:
        """The rows as issues of one trace."""
        return [
            (trace_id, code, event_class, count, dur_ns, example)
            for code, event_class, _, count, dur_ns, example in self.rows()
        ]


def relations(con: duckdb.DuckDBPyConnection) -> set[str]:
    """The relations of landing that a source gave."""
    return {
        name for (name,) in rows(con, "SELECT view_name FROM duckdb_views() WHERE schema_name = 'landing'")
    }


def columns_of(con: duckdb.DuckDBPyConnection, relation: str) -> set[str]:
    """The names of a relation's columns."""
    return {name for name, *_ in rows(con, f"DESCRIBE FROM {relation}")}


def left_out(con: duckdb.DuckDBPyConnection, first: str) -> list[Issue]:
    """Rows of landing's relations that do not land, durations set to NULL, and the source's own issues.

    Rows of no trace are counted with the trace `first`.
    """
    given = relations(con)
    example = f"left(min(name), {EXAMPLE_CHARS})"
    found: list[Issue] = rows(
        con,
        f"""
        SELECT trace_id, reason, kind, count(*), try_cast(sum(dur_ns) AS BIGINT), {example}
        FROM landing.gpu WHERE reason IS NOT NULL GROUP BY ALL
        """,
    )
    if "duplicate" in given:
        found += rows(
            con,
            f"""
            SELECT trace_id, 'duplicate_event', kind, count(*), sum(dur_ns)::BIGINT, {example}
            FROM landing.duplicate GROUP BY ALL
            """,
        )
    for table in CPU_SIDE:
        if table in given:
            found += _left_out_of(con, table, first)
    if "issue" in given:
        columns = f"trace_id, code, event_class, count, dur_ns, left(example, {EXAMPLE_CHARS})"
        found += rows(con, f"SELECT {columns} FROM landing.issue")
    return found


def _left_out_of(con: duckdb.DuckDBPyConnection, table: str, first: str) -> list[Issue]:
    """Events of processes without GPU work, events without a start, and durations that are too long."""
    columns = columns_of(con, f"landing.{table}")
    event_class = "event_class" if "event_class" in columns else literal(table)
    endless = "is_endless" if "is_endless" in columns else "false"
    text = f"left(name, {EXAMPLE_CHARS})"
    issues: list[Issue] = []
    for trace_id, kind, count, unplaced, unplaced_name, unbounded, unbounded_name in rows(
        con,
        f"""
        SELECT trace_id, {event_class}, count(*),
            count(*) FILTER (WHERE start_ns IS NULL), min({text}) FILTER (WHERE start_ns IS NULL),
            count(*) FILTER (WHERE {endless}), min({text}) FILTER (WHERE {endless})
        FROM landing.{table} WHERE trace_id IS NULL OR start_ns IS NULL OR {endless} GROUP BY ALL
        """,
    ):
        if trace_id is None:  # without an example: the names of other processes are not copied
            issues.append((first, "other_process", kind, count, None, None))
            continue
        if unplaced:
            issues.append((trace_id, "no_start", kind, unplaced, None, unplaced_name))
        if unbounded:
            issues.append((trace_id, "bad_value", kind, unbounded, None, unbounded_name))
    return issues
