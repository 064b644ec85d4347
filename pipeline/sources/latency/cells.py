"""Cells of a latency table: operations by any spelling, numbers, and what is wrong with a line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any

from pipeline.errors import TraceError
from pipeline.sources.names import as_text

Rows = Iterator[dict[str, Any]]
_LARGEST_COUNT = 2**63 - 1

_SPELLINGS = {
    "all_reduce": ("allreduce",),
    "all_gather": ("allgather", "allgatherintotensor", "allgatherbase"),
    "reduce_scatter": ("reducescatter", "reducescattertensor", "reducescatterbase"),
    "all_to_all": ("alltoall", "alltoallsingle", "alltoallv"),
    "broadcast": ("broadcast", "bcast"),
    "reduce": ("reduce",),
    "send_recv": ("sendrecv", "sendrecvring"),
    "gather": ("gather",),
    "scatter": ("scatter",),
    "gemm": ("gemm",),
    "moe_gemm": ("moegemm", "moe"),
    "attention": ("attention",),
}
_OPS = {spelling: op for op, spellings in _SPELLINGS.items() for spelling in spellings}
_TWO_SIZES = frozenset({"all_gather", "reduce_scatter", "gather", "scatter"})
"""Operations whose input and output differ in size: a number of bytes is ambiguous without its buffer."""
COMPUTE = frozenset({"gemm", "moe_gemm", "attention"})
"""Kinds of compute, measured by tokens."""


def operation(name: str) -> str | None:
    """The operation of a name in any spelling (`AllReduce`, `alltoall_perf`); None if unknown."""
    return _OPS.get(re.sub(r"[^a-z]", "", name.lower()).removesuffix("perf"))


def has_two_sizes(op: str) -> bool:
    """Do input and output of a rank differ in size?"""
    return op in _TWO_SIZES


@dataclass(frozen=True)
class Problems:
    """Makes the errors of a file's lines."""

    file: str

    def at(self, line: int, found: str, wanted: str, advice: str = "") -> TraceError:
        """The error of one line."""
        return TraceError(self.file, where=f"line {line}", found=found, wanted=wanted, advice=advice)

    def number(self, line: int, column: str, text: str) -> float:
        """A number of microseconds or GB/s, 0 or more."""
        try:
            value = float(text) if text.isascii() and "_" not in text else -1.0
        except ValueError:
            value = -1.0
        if not (isfinite(value) and value >= 0):
            raise self.at(line, f"{column} = {text!r}", "a number, 0 or more")
        return value

    def latency(self, line: int, column: str, text: str) -> float:
        """A latency: a number of microseconds above 0."""
        value = self.number(line, column, text)
        if value == 0:
            raise self.at(line, f"{column} = {text!r}", "a number of microseconds above 0")
        return value

    def count(self, line: int, column: str, text: str, largest: int = _LARGEST_COUNT) -> int:
        """A whole number of bytes or tokens."""
        if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= largest):
            raise self.at(line, f"{column} = {text!r}", f"a whole number up to {largest}")
        return int(text)


def mode_of(text: str) -> str | None:
    """eager or graph; None for neither."""
    folded = re.sub(r"[^a-z]", "", text.lower())
    return {
        "eager": "eager",
        "nograph": "eager",
        "graph": "graph",
        "cudagraph": "graph",
        "cudagraphs": "graph",
        "graphed": "graph",
    }.get(folded)


def clean(text: str) -> str:
    """A cell without surrounding blanks, as valid Unicode."""
    return as_text(text.strip())
