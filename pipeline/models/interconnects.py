"""schemas/interconnects.toml: what links and memories can carry, each figure with its source."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from typing import Any

import duckdb

from pipeline.duck import literal
from pipeline.resources import resource


@dataclass(frozen=True)
class Limit:
    """GB/s (10^9 bytes) of one link of one GPU in one direction, or of one GPU's memory; `hop_us`: one step
    of a ring."""

    name: str
    gbps: float
    source: str
    hop_us: float | None = None


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads((resource("schemas") / "interconnects.toml").read_text(encoding="utf-8"))


@cache
def interconnects() -> dict[str, Limit]:
    """All links by name."""
    return {e["name"]: Limit(e["name"], e["gbps"], e["source"], e.get("hop_us")) for e in _data()["link"]}


def memory_of(gpu_name: str | None) -> Limit | None:
    """The memory of a GPU by its name; None for one that is not in the list."""
    entries = _data()["memory"] if gpu_name else []
    return next(
        (
            Limit(e["gpu"], e["gbps"], e["source"])
            for e in entries
            if e["gpu"].lower() in str(gpu_name).lower()
        ),
        None,
    )


def install(con: duckdb.DuckDBPyConnection) -> None:
    """Create the table link_info, which models join with run_config.link."""
    base_us = _data()["latency"]["base_us"]
    values = ", ".join(
        f"({literal(x.name)}, {x.gbps}::DOUBLE, {literal(x.hop_us)}::DOUBLE, {base_us}::DOUBLE)"
        for x in interconnects().values()
    )
    con.execute(f"CREATE TABLE link_info AS FROM (VALUES {values}) AS link (link, gbps, hop_us, base_us)")
