"""Problems of one trace, counted by code and kind of event, as rows of raw.issue."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pipeline.resources import resource

EXAMPLE_CHARS = 200


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
