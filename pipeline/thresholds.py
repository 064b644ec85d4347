"""schemas/thresholds.toml: the numbers that decide between two answers, each defined once."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache

from pipeline.resources import resource


@dataclass(frozen=True)
class Threshold:
    """One number, its unit and what it decides."""

    name: str
    value: float
    unit: str
    meaning: str


@cache
def thresholds() -> dict[str, Threshold]:
    """All thresholds by name."""
    text = (resource("schemas") / "thresholds.toml").read_text(encoding="utf-8")
    return {name: Threshold(name, **entry) for name, entry in tomllib.loads(text).items()}


def threshold(name: str) -> float:
    """The value of one threshold: an int where the file has one. Raises KeyError for an unknown name."""
    return thresholds()[name].value


def threshold_macros() -> str:
    """SQL that creates a macro without parameters for each threshold: `jitter_ns()` is its value."""
    return "\n".join(
        f"CREATE OR REPLACE TEMP MACRO {name}() AS {one.value};" for name, one in thresholds().items()
    )
