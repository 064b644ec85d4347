"""What file and process names contain: rank, parallel coordinates, host, and the name of the run.

Patterns of the known writers: vLLM (`dp0_pp0_tp1_dcp0_ep1_rank1`, `<id>-rank-1`), SGLang (`-TP-1-DP-0`),
torch's handler (`<host>_<pid>.<ns>.pt.trace.json`), HTA (`rank-1.Apr_03_18_51_38.<pid>`), gpt-fast
(`_rank_1`), Kineto on demand (`libkineto_activities_<pid>`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipeline.text import printable

__all__ = ["NameFields", "as_text", "coordinates", "from_file_name", "printable"]

_SUFFIX = re.compile(
    r"(\.pt)?(\.trace)?\.json(\.gz|\.zst)?$|\.(sqlite|nsys-rep|gz|zst|json|csv|tsv)$", re.IGNORECASE
)
_TIME = re.compile(r"[._-](\d{10,20}(\.\d+)?)(?=$|[._-])")
_DATE_AND_PID = re.compile(r"(?:^|[._-])[A-Z][a-z]{2}(?:_\d{2}){4}(?:\.\d+)?(?=$|[._-])")
_ON_DEMAND_PID = re.compile(r"(?<=libkineto_activities)_\d+(?=$|[._-])")
_RANK = re.compile(r"(?:^|[._-])rank[-_]?(\d{1,9})(?=$|[._-])", re.IGNORECASE)
_COORDINATE = re.compile(r"(?:^|[._-])(dp|tp|pp|dcp|ep|cp|sp)[-_]?(\d{1,9})(?=$|[._-])", re.IGNORECASE)
_STAGE = re.compile(r"[._-](EXTEND|DECODE|prefill|decode)$")
_HANDLER = re.compile(r"^(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*)_(?P<pid>\d+)$")
_PROCESS_COORDINATE = re.compile(r"(?:_|\b)(DP|TP|PP|EP)(\d{1,9})(?!\d)")


@dataclass(frozen=True)
class NameFields:
    """What one name contains, else None. `run` is the name without rank and time fields; it may be ""."""

    run: str
    rank: int | None = None
    dp: int | None = None
    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    host: str | None = None


def from_file_name(file_name: str) -> NameFields:
    """The fields of a trace file's name."""
    stem = file_name
    while (shorter := _SUFFIX.sub("", stem)) != stem:
        stem = shorter
    stage = _STAGE.search(stem)
    timeless, times = _TIME.subn("", f"_{stem}")
    stem = _STAGE.sub("", timeless[1:])
    for pattern in (_DATE_AND_PID, _ON_DEMAND_PID):
        stem = pattern.sub("", stem)
    rank = _RANK.search(stem)
    coordinates = {key.lower(): int(n) for key, n in _COORDINATE.findall(stem)}
    handler = _HANDLER.match(stem)
    if handler and times and not rank and not coordinates:
        return NameFields(run="", host=handler["host"])
    while (bare := _COORDINATE.sub("", _RANK.sub("", stem))) != stem:
        stem = bare
    run = stem.strip("._-")
    if stage:
        run = f"{run}-{stage.group(1).lower()}".strip("-")
    return NameFields(
        run=run,
        rank=int(rank.group(1)) if rank else None,
        dp=coordinates.get("dp"),
        tp=coordinates.get("tp"),
        pp=coordinates.get("pp"),
        ep=coordinates.get("ep"),
    )


def as_text(name: str) -> str:
    """A name from the file system as Unicode text: invalid bytes are replaced."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def coordinates(text: str) -> dict[str, int]:
    """Parallel coordinates in a process name or merged prefix: `VLLM::Worker_TP0_EP0`,
    `TP00-DP01-PP00-EP00`."""
    return {key.lower(): int(n) for key, n in _PROCESS_COORDINATE.findall(text)}
