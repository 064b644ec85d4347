"""The answer of an analysis: a table with its title, what it rests on, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Report:
    """One table. `notes` are its assumptions, sources and refusals: part of the answer, never left out."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str] = field(default_factory=tuple)
