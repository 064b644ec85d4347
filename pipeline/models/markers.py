"""Step markers: annotations that mark a forward pass, as data in step_markers.toml (ours, and the home's) and
as SQL."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.duck import literal
from pipeline.errors import UsageError
from pipeline.models.entries import (
    Entry,
    Patterns,
    field_problems,
    read_entries,
    read_text,
    repeated_ids,
)
from pipeline.resources import resource

FILE = "step_markers.toml"
KINDS = ("marker", "scope", "draft")
PHASES = ("prefill", "decode", "mixed", "verify", "draft", "dummy", "unknown")
PHASE_RULES = ("counts", "new_cached")
"""Phases that are computed from a marker's counts."""
PARTS = ("before", "verify", "after")
COUNTS = (
    "graph_tokens",
    "context_requests",
    "scheduled_context_tokens",
    "generation_requests",
    "generation_tokens",
    "kv_tokens",
)
_USERS = {"engine": "custom", "level": 0, "confidence": 1.0}
"""Defaults of a user's marker. Level 0: it wins over the engines' markers of the same trace."""
_TYPES: dict[str, type] = {
    "id": str,
    "engine": str,
    "level": int,
    "pattern": str,
    "phase": str,
    "part": str,
    "confidence": float,
    "example": str,
    "note": str,
    **dict.fromkeys(COUNTS, int),
}
_PATTERN_TYPES: dict[str, type] = {"id": str, "engine": str, "pattern": str, "example": str, "note": str}


@dataclass(frozen=True)
class Marker:
    """One kind of annotation; `counts`: (name, capture group of the pattern that holds it)."""

    id: str
    engine: str
    level: int
    pattern: str
    phase: str
    part: str | None
    confidence: float
    counts: tuple[tuple[str, int], ...]
    example: str | None
    origin: str


@dataclass(frozen=True)
class Markers:
    """The markers in force, in the order in which they are tried, and the patterns of scopes and drafts."""

    markers: tuple[Marker, ...]
    scopes: tuple[str, ...]
    drafts: tuple[str, ...]
    text: str
    """The user's file: marts are built again when it changes."""

    def macros(self) -> str:
        """SQL that creates parse_step_marker, is_step_scope and is_step_draft."""
        bodies = {
            "parse_step_marker": _parse_step_marker(self.markers),
            "is_step_scope": _matches_any(self.scopes),
            "is_step_draft": _matches_any(self.drafts),
        }
        return "\n".join(
            f"CREATE OR REPLACE TEMP MACRO {macro}(name) AS {body};" for macro, body in bodies.items()
        )


@cache
def own_markers() -> Markers:
    """schemas/step_markers.toml."""
    text = own_text()
    entries, _ = read_entries(text, KINDS)
    return Markers(
        tuple(_marker(entry, "built-in") for entry in entries if entry.kind == "marker"),
        _patterns(entries, "scope"),
        _patterns(entries, "draft"),
        "",
    )


def own_text() -> str:
    """The text of schemas/step_markers.toml."""
    return (resource("schemas") / FILE).read_text(encoding="utf-8")


def load_markers(user_file: Path | None = None) -> Markers:
    """The markers in force: the user's before ours, one of the same id instead of ours.

    Raises UsageError if the user's file is not what it should be.
    """
    own = own_markers()
    if user_file is None or not user_file.is_file():
        return own
    text = read_text(user_file)
    if problems := marker_problems(text):
        raise UsageError(f"{user_file.name}: {problems[0]}")
    return with_users(text)


def with_users(text: str) -> Markers:
    """The markers in force with a user's file, which is right."""
    own = own_markers()
    entries, _ = read_entries(text, KINDS)
    users = tuple(_marker(entry, "home") for entry in entries if entry.kind == "marker")
    replaced = {marker.id for marker in users}
    return Markers(
        (*users, *(marker for marker in own.markers if marker.id not in replaced)),
        (*_patterns(entries, "scope"), *own.scopes),
        (*_patterns(entries, "draft"), *own.drafts),
        text,
    )


def marker_problems(text: str) -> list[str]:
    """Everything that is wrong with a user's file of markers."""
    entries, problems = read_entries(text, KINDS)
    patterns = Patterns()
    for entry in entries:
        problems += _entry_problems(entry, patterns)
    if repeated := repeated_ids(entry for entry in entries if entry.kind == "marker"):
        problems.append(f"marker ids repeat: {repeated}")
    return problems


def _entry_problems(entry: Entry, patterns: Patterns) -> list[str]:
    fields, where = entry.fields, entry.where
    if entry.kind != "marker":
        return [
            *field_problems(entry, _PATTERN_TYPES, ("pattern",)),
            *patterns.problem(fields.get("pattern"), f"{where}: pattern"),
        ]
    problems = field_problems(entry, _TYPES, ("id", "pattern", "phase"))
    refused = patterns.problem(fields.get("pattern"), f"{where}: pattern")
    problems += refused
    for name, known in (("phase", (*PHASE_RULES, *PHASES)), ("part", PARTS)):
        value = fields.get(name)
        if isinstance(value, str) and value not in known:
            problems.append(f"{where}: {name} {value!r} is none of {', '.join(known)}")
    confidence = fields.get("confidence", 1)
    if isinstance(confidence, (int, float)) and not 0 < confidence <= 1:
        problems.append(f"{where}: confidence {confidence} is not above 0 and at most 1")
    if fields.get("phase") in PHASE_RULES and not {"context_requests", "generation_requests"} & fields.keys():
        problems.append(f"{where}: phase {fields['phase']!r} needs context_requests or generation_requests")
    pattern = fields.get("pattern")
    if isinstance(pattern, str) and not refused:
        problems += [
            f"{where}: {name} = {fields[name]}: the pattern has no such capture group (1 to 9)"
            for name in COUNTS
            if isinstance(fields.get(name), int) and not patterns.has_group(pattern, fields[name])
        ]
    return problems


def _marker(entry: Entry, origin: str) -> Marker:
    fields: dict[str, Any] = _USERS | dict(entry.fields)
    return Marker(
        id=fields["id"],
        engine=fields["engine"],
        level=fields["level"],
        pattern=fields["pattern"],
        phase=fields["phase"],
        part=fields.get("part"),
        confidence=fields["confidence"],
        counts=tuple((name, fields[name]) for name in COUNTS if name in fields),
        example=fields.get("example"),
        origin=origin,
    )


def _patterns(entries: Iterable[Entry], kind: str) -> tuple[str, ...]:
    return tuple(entry.fields["pattern"] for entry in entries if entry.kind == kind)


def _matches_any(patterns: Iterable[str]) -> str:
    return " OR ".join(f"regexp_matches(name, {literal(pattern)})" for pattern in patterns)


def _parse_step_marker(markers: Iterable[Marker]) -> str:
    """One CASE over constant patterns: DuckDB compiles each once and stops at the first that matches."""
    whens = []
    for marker in markers:
        pattern, groups = literal(marker.pattern), dict(marker.counts)
        counts = ", ".join(
            f"{name}: "
            + (
                f"try_cast(nullif(regexp_extract(name, {pattern}, {groups[name]}), '') AS BIGINT)"
                if name in groups
                else "NULL::BIGINT"
            )
            for name in COUNTS
        )
        facts = (
            f"marker_id: {literal(marker.id)}, engine: {literal(marker.engine)}, level: {marker.level}, "
            f"confidence: {marker.confidence}::DOUBLE, phase_rule: {literal(marker.phase)}, "
            f"part: {literal(marker.part)}::VARCHAR"
        )
        whens.append(f"WHEN regexp_matches(name, {pattern}) THEN {{{facts}, {counts}}}")
    return f"CASE {' '.join(whens)} END"
