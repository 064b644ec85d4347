"""The meaning of the numbers, for random work, against a count of single nanoseconds in plain Python."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.contracts import contracts
from pipeline.duck import dicts, rows, working
from pipeline.models.engine import models, prepare, run_model
from tests.support.builders import ALL_REDUCE, GEMM, read_raw, write_trace
from tests.support.builders import annotation as annotation_event
from tests.support.builders import kernel as kernel_event
from tests.support.builders import launch as launch_event
from tests.support.builders import memcpy as memcpy_event
from tests.support.tables import Scene, build_scenes, few_rules

COPY = "Memcpy HtoD (Pinned -> Device)"
OWNER = {GEMM: 1, "Kernel": 1, ALL_REDUCE: 2, COPY: 3}
BEFORE, UNRECORDED = "before the first step", "no launch record"


@dataclass(frozen=True)
class Work:
    """One activity as drawn: a name, where and when it ran, and what launched it (a step's number, or
    none)."""

    name: str
    device: int
    stream: int
    start_ns: int
    dur_ns: int
    by: int | str


@st.composite
def works(draw: st.DrawFn) -> list[Work]:
    """Work of up to three steps on up to two devices, close enough for overlaps, ties, overhang and copies
    that run ahead."""
    one = st.builds(
        Work,
        st.sampled_from(sorted(OWNER)),
        st.integers(0, 1),
        st.integers(0, 2),
        st.integers(0, 60),
        st.one_of(st.just(0), st.integers(1, 25)),
        st.sampled_from([0, 0, 1, 1, 2, BEFORE, UNRECORDED]),
    )
    return draw(st.lists(one, min_size=1, max_size=14))


def scene_of(work: list[Work], number: int) -> Scene:
    """The trace that tells this work: every step's launches stand inside its annotation.

    No two steps are alike by their text, so that none is a peer by which records of another could be missed.
    """
    scene = Scene(f"t{number}", number)
    for step in range(3):
        requests = 3 * number + step + 1
        scene.step(1000 * (step + 1), 900, f"execute_context_0(0)_generation_{requests}({requests})")
    for i, w in enumerate(work):
        kernel = (w.name, w.start_ns, w.dur_ns)
        if w.by == UNRECORDED:
            scene.unlaunched(kernel, device=w.device, stream=w.stream)
        else:
            begin = 500 if isinstance(w.by, str) else 1000 * (w.by + 1)
            scene.launch(begin + i, kernel, device=w.device, stream=w.stream)
    return scene


runs = st.lists(works(), min_size=2, max_size=6)
few = settings(max_examples=5)


@dataclass(frozen=True)
class Line:
    """One device's time line, counted nanosecond by nanosecond."""

    activities: tuple[dict[str, Any], ...]
    owner: dict[int, dict[str, Any]]
    """The activity that owns each instant; an instant without one is idle."""

    @property
    def exposed(self) -> dict[int, int]:
        """Exposed time by activity_id."""
        counted = dict.fromkeys((a["activity_id"] for a in self.activities), 0)
        for activity in self.owner.values():
            counted[activity["activity_id"]] += 1
        return counted


def _ends(activity: dict[str, Any]) -> int:
    return int(activity["start_ns"] + activity["dur_ns"])


_BOOKED = "SELECT * FROM activity ORDER BY trace_id, device, activity_id"
_EXPOSED = (
    "SELECT stg_activity.*, exposed_ns FROM stg_activity INNER JOIN int_exposed USING (trace_id, "
    "activity_id) "
    "ORDER BY stg_activity.trace_id, stg_activity.device, activity_id"
)


def lines(con: duckdb.DuckDBPyConnection, query: str = _BOOKED) -> Iterator[tuple[str, int, Line]]:
    """Each device of each trace by the definition: compute before communication before copies, then start,
    then id."""
    by_device = defaultdict(list)
    for activity in dicts(con, query):
        by_device[activity["trace_id"], activity["device"]].append(activity)
    for (trace_id, device), activities in by_device.items():
        owner = {}
        for at in range(min(a["start_ns"] for a in activities), max(map(_ends, activities))):
            running = [a for a in activities if a["start_ns"] <= at < _ends(a)]
            if running:
                owner[at] = min(running, key=lambda a: (OWNER[a["name"]], a["start_ns"], a["activity_id"]))
        yield trace_id, device, Line(tuple(activities), owner)


def _step_terms(line: Line) -> dict[int, dict[str, int | None]]:
    """Every term of every step of a device, each by its own definition."""
    own = defaultdict(list)
    for activity in line.activities:
        if activity["step"] is not None:
            own[activity["step"]].append(activity)
    starts = {
        s: min([a["start_ns"] for a in acts if a["kind"] == "kernel"] or [a["start_ns"] for a in acts])
        for s, acts in own.items()
    }
    order = sorted(own, key=lambda s: (starts[s], s))
    following = dict(pairwise(order))
    terms: dict[int, dict[str, int | None]] = {}
    for step in order:
        start, end = starts[step], max(map(_ends, own[step]))
        mine = [at for at, activity in line.owner.items() if activity["step"] == step]
        found: dict[str, int | None] = {
            "start_ns": start, "end_ns": end, "span_ns": end - start,
            "busy_ns": sum(a["dur_ns"] for a in own[step]), "exposed_ns": len(mine),
            "wall_ns": None, "exposed_outside_ns": None, "borrowed_ns": None, "gap_after_ns": None,
            "idle_inside_ns": _idle(line, start, end),
        }  # fmt: skip
        if step in following:
            after = starts[following[step]]
            found |= {
                "wall_ns": after - start,
                "exposed_outside_ns": sum(not start <= at < after for at in mine),
                "borrowed_ns": sum(
                    at in line.owner and line.owner[at]["step"] != step for at in range(start, after)
                ),
                "idle_inside_ns": _idle(line, start, min(end, after)),
                "gap_after_ns": _idle(line, end, after),
            }
        terms[step] = found
    return terms


def _idle(line: Line, from_ns: int, to_ns: int) -> int:
    return sum(at not in line.owner for at in range(from_ns, to_ns))


def _built(run: list[list[Work]], *wanted: str) -> duckdb.DuckDBPyConnection:
    return build_scenes(*(scene_of(work, number) for number, work in enumerate(run)), wanted=wanted)


@given(runs)
@settings(max_examples=15)
def test_exposed_time_is_what_each_activity_owns(run: list[list[Work]]) -> None:
    """exposed_ns of every activity is the number of instants at which it owns its device."""
    with _built(run, "int_exposed") as con:
        for _, _, line in lines(con, _EXPOSED):
            assert {a["activity_id"]: a["exposed_ns"] for a in line.activities} == line.exposed


@given(runs)
@few
def test_the_time_line_closes(run: list[list[Work]]) -> None:
    """sum(exposed) is the union of all work, and exposed + idle = end - start on every device."""
    with _built(run, "timeline") as con:
        found = rows(
            con,
            (
                "SELECT trace_id, device, exposed_ns, idle_ns, unknown_ns, end_ns - start_ns FROM timeline "
                "ORDER "
                "BY ALL"
            ),
        )
        wanted = []
        for trace_id, device, line in lines(con):
            length = max(map(_ends, line.activities)) - min(a["start_ns"] for a in line.activities)
            wanted.append((trace_id, device, len(line.owner), length - len(line.owner), 0, length))
        assert found == sorted(wanted)


@given(runs)
@settings(max_examples=8)
def test_every_term_of_a_step_is_what_it_says(run: list[list[Work]]) -> None:
    """Start, span, wall, exposed, outside, borrowed, idle and gap of each step, each counted by its own
    definition."""
    with _built(run, "activity") as con:
        for trace_id, device, line in lines(con):
            for step, wanted in _step_terms(line).items():
                found = dicts(
                    con,
                    "SELECT * FROM steps WHERE trace_id = ? AND device = ? AND step = ?",
                    [trace_id, device, step],
                )
                assert [{name: row[name] for name in wanted} for row in found] == [wanted]


@given(runs)
@few
def test_the_terms_of_every_step_add_up_to_its_wall(run: list[list[Work]]) -> None:
    """wall = exposed - exposed_outside + borrowed + idle_inside + gap_after, and no term is negative."""
    terms = "exposed_ns - exposed_outside_ns + borrowed_ns + idle_inside_ns + gap_after_ns"
    with _built(run, "steps") as con:
        assert (
            rows(con, f"SELECT * FROM steps WHERE wall_ns IS NOT NULL AND wall_ns IS DISTINCT FROM {terms}")
            == []
        )
        least = "least(wall_ns, exposed_outside_ns, borrowed_ns, idle_inside_ns, gap_after_ns, exposed_ns)"
        assert rows(con, f"SELECT * FROM steps WHERE {least} < 0") == []


@given(runs)
@few
def test_nothing_is_lost_or_booked_twice(run: list[list[Work]]) -> None:
    """Counts and summed durations of activity, timeline, step_breakdown and kernel_breakdown are those of the
    raw table."""
    with _built(run, "timeline", "step_breakdown", "kernel_breakdown") as con:
        raw = rows(con, "SELECT count(*), sum(dur_ns) FROM raw.gpu_activity")
        for query in (
            "SELECT count(*), sum(dur_ns) FROM activity",
            "SELECT sum(activities), sum(busy_ns) FROM timeline",
            "SELECT sum(calls), sum(busy_ns) FROM step_breakdown",
            "SELECT sum(calls), round(sum(ms_total) * 1e6)::BIGINT FROM kernel_breakdown",
        ):
            assert rows(con, query) == raw, query
        exposed = rows(con, "SELECT sum(exposed_ns) FROM activity")
        assert (
            rows(con, "SELECT sum(exposed_ns) FROM step_breakdown")
            == rows(con, "SELECT sum(exposed_ns) FROM timeline")
            == exposed
        )


@given(runs)
@few
def test_shares_add_up_to_one(run: list[list[Work]]) -> None:
    """Shares of a step, of a phase and of a run add up to 1 within their rounding, or are NULL where there is
    no time."""
    with _built(run, "step_breakdown", "run_breakdown", "kernel_breakdown") as con:
        for query in (
            "SELECT sum(busy_share) FROM step_breakdown GROUP BY trace_id, device, step",
            "SELECT sum(share) FROM run_breakdown GROUP BY source, phase",
            "SELECT sum(share) FROM kernel_breakdown GROUP BY source, phase",
        ):
            assert all(total is None or abs(total - 1) < 1e-6 for (total,) in rows(con, query)), query


@given(runs)
@few
def test_calls_are_whole_numbers_that_were_seen(run: list[list[Work]]) -> None:
    """calls_min, calls_mode and calls_max are integers, and each was the count of some step on some
    device."""
    with _built(run, "activity", "run_breakdown") as con:
        seen = defaultdict(set)
        for rollup, calls in rows(
            con,
            "SELECT kind.rollup, count(activity_id) FROM (SELECT DISTINCT rollup FROM activity) AS kind "
            "CROSS JOIN steps "
            "LEFT JOIN activity USING (rollup, trace_id, device, step) WHERE steps.is_complete "
            "GROUP BY kind.rollup, steps.trace_id, steps.device, steps.step",
        ):
            seen[rollup].add(calls)
        for rollup, *calls in rows(con, "SELECT rollup, calls_min, calls_mode, calls_max FROM run_breakdown"):
            assert all(type(c) is int for c in calls)
            assert (calls[0], calls[2]) == (min(seen[rollup]), max(seen[rollup]))
            assert calls[1] in seen[rollup]


def _events(work: Iterable[Work]) -> list[dict[str, Any]]:
    """The work as a profiler writes it, a thousand times slower, so that no time is negative."""
    made = [
        annotation_event("execute_context_0(0)_generation_1(1)", 1_000 * (step + 1), 900) for step in range(3)
    ]
    for i, w in enumerate(work, start=1):
        draw = memcpy_event if w.name == COPY else kernel_event
        made.append(draw(w.name, 10_000 + w.start_ns, w.dur_ns, i, device=w.device, stream=w.stream))
        if w.by != UNRECORDED:
            made.append(launch_event((500 if isinstance(w.by, str) else 1_000 * (w.by + 1)) + i, i, dur_ns=0))
    return made


def _read_and_built(folder: Path, events: list[dict[str, Any]]) -> duckdb.DuckDBPyConnection:
    run = read_raw(write_trace(folder / "r0.json", events), folder)
    con = working(folder / "spill", threads=2, memory_limit="500MB")
    prepare(con, run, "run", few_rules(), "build", "inputs")
    for model in models():
        run_model(con, model)
    return con


@given(works(), st.randoms(use_true_random=False))
@settings(max_examples=3)
def test_the_order_of_events_in_a_file_changes_nothing(work: list[Work], shuffle: random.Random) -> None:
    """The marts are the same, row by row, from a file whose events are in another order."""
    events = _events(work)
    found = []
    for _ in range(2):
        with TemporaryDirectory() as folder, _read_and_built(Path(folder), events) as con:
            found.append(
                {table: rows(con, f"SELECT * FROM {table} ORDER BY ALL") for table in contracts("marts")}
            )
        shuffle.shuffle(events)
    assert found[0] == found[1]
