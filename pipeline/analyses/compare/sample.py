"""One side of a comparison: its complete steps as numbers per step, ranks averaged, and its calls as
integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import duckdb

from pipeline.analyses import sql
from pipeline.errors import UsageError

PHASES = ("decode", "verify", "mixed", "prefill", "draft", "unknown", "dummy")
"""The order in which a phase is chosen where none is given."""


@dataclass(frozen=True)
class WaitingTime:
    """Floor and waiting of one rollup's collectives, ms of each step; `refusal`: why they cannot be
    separated (then there are no numbers)."""

    floor: Sequence[float] = ()
    wait: Sequence[float] = ()
    refusal: str | None = None


@dataclass(frozen=True)
class Sample:
    """The complete steps of one phase of a run, from one source. Times in ms per step, mean over ranks, in
    the order of time.

    `left_out`: steps that are complete on some ranks only. `wall`: of steps that a step of the same phase
    follows. `calls`: fewest, usual and most in a step of a rank.
    """

    run_id: str
    source: str
    phase: str
    steps: int
    left_out: int
    ranks: int
    wall: Sequence[float]
    busy: Mapping[str, Sequence[float]]
    exposed: Mapping[str, Sequence[float]]
    by_category: Mapping[tuple[str, str], Sequence[float]]
    calls: Mapping[str, tuple[int, int, int]]
    waiting: Mapping[str, WaitingTime] = field(default_factory=dict)
    matches: Sequence[int] = ()

    @property
    def total(self) -> list[float]:
        """All GPU time of each step, ms."""
        return [sum(parts) for parts in zip(*self.busy.values(), strict=True)]

    def of(self, rollup: str) -> Sequence[float]:
        """Busy time of a rollup; nothing where the run has none of it."""
        return self.busy.get(rollup) or [0.0] * self.steps

    def exposed_of(self, rollup: str) -> Sequence[float]:
        """Exposed time of a rollup."""
        return self.exposed.get(rollup) or [0.0] * self.steps

    def share(self, rollup: str) -> float:
        """Its part of all GPU time, of means, as run_breakdown has it."""
        whole = sum(self.total)
        return sum(self.of(rollup)) / whole if whole else 0.0


def phases_of(con: duckdb.DuckDBPyConnection, run_id: str) -> dict[tuple[str, str], int]:
    """Complete steps of a run by (source, phase). Raises UsageError where there is none."""
    found = sql.rows(con, "compare/phases", run_id=run_id)
    if not found:
        raise UsageError(
            f"run {run_id} has no complete step, so nothing can be compared per step; record with the "
            "engine's step markers"
        )
    return {(source, phase): count for source, phase, count in found}


def chosen(
    known: Sequence[dict[tuple[str, str], int]], names: Sequence[str], phase: str | None
) -> list[tuple[str, str]]:
    """(source, phase) of each run: the same for all where they have one in common, else each one's best.
    Raises UsageError for a phase not there."""
    if phase is not None:
        for name, found in zip(names, known, strict=True):
            if not any(p == phase for _, p in found):
                raise UsageError(
                    f"run {name} has no complete {phase} step; it has "
                    f"{', '.join(sorted({p for _, p in found}))}"
                )
        known = [{key: count for key, count in found.items() if key[1] == phase} for found in known]
    common = set(known[0]).intersection(*known[1:])
    if common:
        best = min(common, key=lambda key: (PHASES.index(key[1]), -min(found[key] for found in known), key))
        return [best] * len(known)
    phases = {p for _, p in known[0]}.intersection(*({p for _, p in found} for found in known[1:]))
    return [
        min(
            (k for k in found if not phases or k[1] in phases),
            key=lambda k: (PHASES.index(k[1]), -found[k], k),
        )
        for found in known
    ]


def sample_of(con: duckdb.DuckDBPyConnection, run_id: str, source: str, phase: str) -> Sample:
    """Read one side. Steps that some ranks lack are left out, unless most are so (ranks that decode while
    others prefill)."""
    steps = {"run_id": run_id, "source": source, "phase": phase}
    sql.temp_table(con, "sample_step", "compare/steps", **steps)
    units = sql.rows(con, "compare/units")
    index = {row[0]: number for number, row in enumerate(units)}
    busy, exposed, by_category = _work(con, run_id, index)
    calls = sql.rows(con, "compare/calls", **steps)
    return Sample(
        run_id,
        source,
        phase,
        len(units),
        sql.scalar(con, "compare/left_out"),
        max(row[3] for row in units),
        [row[1] for row in units if row[1] is not None],
        busy,
        exposed,
        by_category,
        {row[0]: (row[1], row[2], row[3]) for row in calls},
        _waiting(con, run_id, source, index, busy),
        sorted({row[2] for row in units if row[2] is not None}),
    )


_Series = dict[str, list[float]]


def _work(
    con: duckdb.DuckDBPyConnection, run_id: str, index: dict[str, int]
) -> tuple[_Series, _Series, dict[tuple[str, str], list[float]]]:
    busy: _Series = {}
    exposed: _Series = {}
    by_category: dict[tuple[str, str], list[float]] = {}
    for unit, rollup, category, ms, exposed_ms in sql.rows(con, "compare/work", run_id=run_id):
        at = index[unit]
        busy.setdefault(rollup, [0.0] * len(index))[at] += ms
        exposed.setdefault(rollup, [0.0] * len(index))[at] += exposed_ms
        by_category.setdefault((rollup, category), [0.0] * len(index))[at] += ms
    return busy, exposed, by_category


def _waiting(
    con: duckdb.DuckDBPyConnection, run_id: str, source: str, index: dict[str, int], busy: _Series
) -> dict[str, WaitingTime]:
    """Floor and waiting of each rollup that communicates; none where a single call was not
    compared."""
    rows = sql.rows(con, "compare/waiting", run_id=run_id, source=source)
    found: dict[str, WaitingTime] = {}
    for rollup in sorted({row[1] for row in rows} & busy.keys()):
        mine = [row for row in rows if row[1] == rollup]
        refusals = sorted({row[5] for row in mine if row[4]})
        if refusals:
            found[rollup] = WaitingTime(refusal=", ".join(refusals))
            continue
        floor, wait = [0.0] * len(index), [0.0] * len(index)
        for unit, _, floor_ms, wait_ms, _, _ in mine:
            floor[index[unit]], wait[index[unit]] = floor_ms, wait_ms
        found[rollup] = WaitingTime(floor, wait)
    return found
