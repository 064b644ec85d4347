"""One side of a comparison: its complete steps as numbers per step, ranks averaged, and its calls as
integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb

from pipeline import duck
from pipeline.errors import UsageError

PHASES = ("decode", "verify", "mixed", "prefill", "draft", "unknown", "dummy")
"""In which order a phase is chosen where none is asked for."""
# No aggregate windows here: DuckDB 2.0.1 may turn one into a self-join that forgets which run's folder was
# asked for.
_STEPS = """
CREATE OR REPLACE TEMP TABLE side_step AS
WITH step AS (
    SELECT trace_id, device, step, coalesce(match_id::VARCHAR, trace_id || ' ' || device || ' ' || step) AS unit, match_id, start_ns,
        CASE WHEN next_phase = phase THEN wall_ns END AS wall_ns
    FROM steps WHERE run_id = $run AND source = $source AND phase = $phase AND is_complete
),
size AS (SELECT unit, count(*) AS ranks FROM step GROUP BY unit)
SELECT step.*, size.ranks FROM step JOIN size USING (unit)
"""
_WORK = """
SELECT s.unit, b.rollup, b.category, sum(b.busy_ns) / any_value(s.ranks) / 1e6, sum(b.exposed_ns) / any_value(s.ranks) / 1e6
FROM side_step AS s JOIN step_breakdown AS b ON s.trace_id = b.trace_id AND s.device = b.device AND s.step = b.step
WHERE b.run_id = $run GROUP BY ALL ORDER BY ALL
"""
_SPLIT = """
WITH kind AS (SELECT trace_id, activity_id, rollup FROM activity WHERE run_id = $run AND source = $source AND category IN
    ('allreduce', 'all_to_all', 'collective', 'p2p'))
SELECT s.unit, kind.rollup, sum(c.floor_ns) / any_value(s.ranks) / 1e6, sum(c.wait_ns) / any_value(s.ranks) / 1e6,
    count(*) FILTER (WHERE c.refusal IS NOT NULL), min(c.refusal)
FROM side_step AS s JOIN collectives AS c ON s.trace_id = c.trace_id AND s.device = c.device AND s.step = c.step
JOIN kind ON c.trace_id = kind.trace_id AND c.activity_id = kind.activity_id
WHERE c.run_id = $run GROUP BY ALL ORDER BY ALL
"""


@dataclass(frozen=True)
class WaitingTime:
    """Floor and waiting of one rollup's collectives, ms of each step; `refusal`: why they cannot be told
    apart (then there are no numbers)."""

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
    found = duck.rows(
        con,
        (
            "SELECT source, phase, count(*) FROM steps WHERE run_id = ? AND is_complete AND phase <> 'empty' "
            "GROUP BY ALL"
        ),
        [run_id],
    )
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
    arguments = {"run": run_id, "source": source, "phase": phase}
    con.execute(_STEPS, arguments)
    most = duck.scalar(con, "SELECT max(ranks) FROM side_step")
    whole, units = duck.rows(
        con,
        "SELECT count(DISTINCT unit) FILTER (WHERE ranks = ?), count(DISTINCT unit) FROM side_step",
        [most],
    )[0]
    left_out = units - whole if whole * 2 >= units else 0
    if left_out:
        con.execute("DELETE FROM side_step WHERE ranks < ?", [most])
    ordered = duck.rows(
        con,
        "SELECT unit, CASE WHEN count(wall_ns) = count(*) THEN avg(wall_ns) / 1e6 END, any_value(match_id), "
        "max(ranks) "
        "FROM side_step GROUP BY unit ORDER BY min(start_ns), unit",
    )
    place = {row[0]: number for number, row in enumerate(ordered)}
    busy, exposed, by_category = _work(con, arguments, place)
    calls = duck.rows(
        con,
        (
            "SELECT rollup, calls_min, calls_mode, calls_max FROM run_breakdown WHERE run_id = $run AND "
            "source "
            "= "
            "$source AND phase = $phase"
        ),
        arguments,
    )
    return Sample(
        run_id,
        source,
        phase,
        len(ordered),
        left_out,
        max(row[3] for row in ordered),
        [row[1] for row in ordered if row[1] is not None],
        busy,
        exposed,
        by_category,
        {row[0]: (row[1], row[2], row[3]) for row in calls},
        _waiting(con, {"run": run_id, "source": source}, place, busy),
        sorted({row[2] for row in ordered if row[2] is not None}),
    )


_Series = dict[str, list[float]]


def _work(
    con: duckdb.DuckDBPyConnection, arguments: dict[str, Any], place: dict[str, int]
) -> tuple[_Series, _Series, dict[tuple[str, str], list[float]]]:
    busy: _Series = {}
    exposed: _Series = {}
    by_category: dict[tuple[str, str], list[float]] = {}
    for unit, rollup, category, ms, exposed_ms in duck.rows(con, _WORK, {"run": arguments["run"]}):
        at = place[unit]
        busy.setdefault(rollup, [0.0] * len(place))[at] += ms
        exposed.setdefault(rollup, [0.0] * len(place))[at] += exposed_ms
        by_category.setdefault((rollup, category), [0.0] * len(place))[at] += ms
    return busy, exposed, by_category


def _waiting(
    con: duckdb.DuckDBPyConnection, arguments: dict[str, Any], place: dict[str, int], busy: _Series
) -> dict[str, WaitingTime]:
    """Floor and waiting of each rollup that communicates; none is told where a single call was not
    compared."""
    rows = duck.rows(con, _SPLIT, arguments)
    found: dict[str, WaitingTime] = {}
    for rollup in sorted({row[1] for row in rows} & busy.keys()):
        mine = [row for row in rows if row[1] == rollup]
        refusals = sorted({row[5] for row in mine if row[4]})
        if refusals:
            found[rollup] = WaitingTime(refusal=", ".join(refusals))
            continue
        floor, wait = [0.0] * len(place), [0.0] * len(place)
        for unit, _, floor_ms, wait_ms, _, _ in mine:
            floor[place[unit]], wait[place[unit]] = floor_ms, wait_ms
        found[rollup] = WaitingTime(floor, wait)
    return found
