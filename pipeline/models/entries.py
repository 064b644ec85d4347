"""Entries of a TOML file of rules or markers: [[kind]] tables, each with its place, and what is wrong with
them."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from pipeline import duck
from pipeline.errors import UsageError

_PLAIN_KEYS = {"version"}
_MOST_GROUPS = 9
"""The highest capture group that DuckDB's regexp_extract takes."""


@dataclass(frozen=True)
class Entry:
    """One [[kind]] table of a file. `line`: of its header; None where the text does not show it."""

    kind: str
    number: int
    line: int | None
    fields: Mapping[str, Any]

    @property
    def where(self) -> str:
        """Where the entry is, as messages name it."""
        line = "" if self.line is None else f"line {self.line}, "
        return f"{line}{self.kind} {self.number} ({self.fields.get('id', 'without id')})"


def read_text(file: Path) -> str:
    """The text of a user's file. Raises UsageError where it is not UTF-8, or cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{file.name}: not UTF-8 text: {error}") from error
    except OSError as error:
        raise UsageError(f"{file.name}: cannot be read: {error.strerror}") from error


def read_entries(text: str, kinds: Iterable[str]) -> tuple[list[Entry], list[str]]:
    """The entries of a file by kind, and what is wrong with the file as a whole."""
    kinds = tuple(kinds)
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return [], [f"not valid TOML: {error}"]
    known = ", ".join(f"[[{kind}]]" for kind in kinds)
    problems = []
    if unknown := sorted(found.keys() - {*kinds} - _PLAIN_KEYS):
        problems.append(f"unknown keys {unknown}; a file of this kind holds {known} tables")
    entries: list[Entry] = []
    for kind in kinds:
        tables = found.get(kind, [])
        if not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
            problems.append(f"{kind}s are written as [[{kind}]] tables")
            continue
        lines: list[int | None] = [*_header_lines(text, kind)]
        if len(lines) != len(tables):  # a header inside a text of several lines, or tables written inline
            lines = [None] * len(tables)
        entries += [
            Entry(kind, number, line, one)
            for number, (line, one) in enumerate(zip(lines, tables, strict=True), start=1)
        ]
    return entries, problems


def _header_lines(text: str, kind: str) -> list[int]:
    header = re.compile(rf"\s*\[\[\s*{kind}\s*\]\]")
    return [number for number, line in enumerate(text.splitlines(), start=1) if header.match(line)]


def field_problems(entry: Entry, types: Mapping[str, type], required: Iterable[str]) -> list[str]:
    """What is wrong with an entry's fields: unknown, missing, or of another type."""
    fields = entry.fields
    problems = []
    if unknown := sorted(fields.keys() - types.keys()):
        problems.append(f"{entry.where}: unknown fields {unknown}; known are {sorted(types)}")
    if missing := sorted({*required} - fields.keys()):
        problems.append(f"{entry.where}: {missing} missing")
    by_type: dict[type, list[str]] = {}
    for name, value in sorted(fields.items()):
        wanted = types.get(name)
        if wanted is not None and not _is_a(value, wanted):
            by_type.setdefault(wanted, []).append(name)
    words = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
    return problems + [f"{entry.where}: {names} must be {words[wanted]}" for wanted, names in by_type.items()]


def _is_a(value: object, wanted: type) -> bool:
    if wanted is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, wanted) and not (wanted is int and isinstance(value, bool))


def repeated_ids(entries: Iterable[Entry]) -> list[str]:
    """The ids that several entries of one kind have."""
    ids = Counter(entry.fields["id"] for entry in entries if isinstance(entry.fields.get("id"), str))
    return sorted(one for one, times in ids.items() if times > 1)


class Patterns:
    """Tries regular expressions in DuckDB, whose dialect (RE2) is not Python's."""

    def __init__(self) -> None:
        self._con = duck.in_memory()

    def problem(self, pattern: object, where: str) -> list[str]:
        """Why RE2 refuses a pattern; nothing for a good one, or for a value whose type is wrong."""
        if not isinstance(pattern, str):
            return []
        try:
            self._con.execute("SELECT regexp_matches('', ?)", [pattern]).fetchall()
        except duckdb.Error as error:
            return [f"{where}: not a regular expression (RE2): {error}"]
        return []

    def has_group(self, pattern: str, number: int) -> bool:
        """Does the pattern have a capture group of this number, within what DuckDB extracts?"""
        if not 0 < number <= _MOST_GROUPS:
            return False
        names = [f"g{group}" for group in range(1, number + 1)]
        try:  # more names than groups are an error; a number beyond the groups is none
            self._con.execute(f"SELECT regexp_extract('', ?, {names})", [pattern]).fetchall()
        except duckdb.Error:
            return False
        return True
