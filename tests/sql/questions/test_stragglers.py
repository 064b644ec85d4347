"""The questions of waiting and stragglers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pipeline.analyses import sql
from tests.support.questions import ask, marts
from tests.support.tables import Result, Row


def call(number: int, **fields: Any) -> Row:
    """A collective of step 0 that takes 10 us, 7 of them its floor."""
    return {
        "activity_id": number,
        "step": 0,
        "phase": "decode",
        "rank": 0,
        "category": "allreduce",
        "dur_ns": 10_000,
        "floor_ns": 7_000,
        "wait_ns": 3_000,
        "min_over_ranks_ns": 7_000,
        "is_first": False,
        "is_jitter": False,
    } | fields


def over_calls(question: str, calls: Iterable[Row], steps: Iterable[Row] = (), **parameters: Any) -> Result:
    """The rows of a question that reads the calls of a run."""
    with marts({"collectives": calls, "step_waiting": steps}) as con:
        sql.temp_table(con, "straggler_call", "stragglers/calls", run_id="run")
        return sql.rows(con, question, **parameters)


def test_operations_have_names() -> None:
    """By category, else by subcategory."""
    calls = [
        call(0),
        call(1, category="all_to_all"),
        call(2, category="collective", subcategory="all_gather"),
    ]
    found = ask("stragglers/calls", {"collectives": [*calls, call(3, run_id="other")]}, run_id="run")
    assert [row[-1] for row in found] == ["all-reduce", "all-to-all", "all-gather"]


def test_time_is_split_into_waiting_and_floor() -> None:
    """First collectives and jitter stand apart; the parts add up; refused calls and incomplete steps are left
    out."""
    calls = [
        call(0, is_first=True),
        call(1, is_jitter=True),
        call(2),
        call(3, refusal="no_match"),
        call(4, step=1),
        call(5, flag="fused"),
    ]
    steps: list[Row] = [{"step": 0}, {"step": 1, "is_complete": False}]
    ((*_, steps_of, count, ms, wait, floor, first, jitter, least, share, flagged),) = over_calls(
        "stragglers/waiting", calls, steps, run_id="run"
    )
    assert (steps_of, count, flagged) == (1, 4, 1)
    assert (ms, wait, floor, first, jitter, least) == (0.04, 0.006, 0.028, 0.003, 0.003, 0.028)
    assert share == 0.3


def test_the_late_rank_is_counted_once_a_step() -> None:
    """Every rank has the row of a step; a cause that is not known is so called."""
    steps: list[Row] = [
        {
            "trace_id": trace,
            "step": n,
            "match_id": n,
            "phase": "decode",
            "straggler_rank": 1,
            "caused_ns": 2_000_000,
            "late_category": cause,
        }
        for trace in ("t", "u")
        for n, cause in ((0, "idle"), (1, None))
    ]
    assert ask("stragglers/late", {"step_waiting": steps}, run_id="run") == [
        ("kineto", "decode", 1, "idle", 1, 2.0, 0.0),
        ("kineto", "decode", 1, "unknown", 1, 2.0, 0.0),
    ]


def test_clocks_are_in_us() -> None:
    """One row per rank and group."""
    clocks = [
        {
            "rank": 1,
            "members": "0,1",
            "offset_ns": 3000,
            "residual_ns": 500,
            "residual_p99_ns": 900,
            "calls": 8,
        }
    ]
    assert ask("stragglers/clocks", {"rank_clock": clocks}, run_id="run") == [
        ("kineto", 1, "0,1", 3.0, 0.5, 0.9, 8)
    ]


def test_the_limit_of_jitter_follows_the_worst_clock() -> None:
    """2 us plus the largest residual; the fewest calls."""
    clocks = [{"rank": r, "residual_ns": ns, "calls": n} for r, ns, n in ((0, 100, 9), (1, 500, 12))]
    assert ask("stragglers/limits", {"rank_clock": clocks}, run_id="run") == [(2.5, 9)]


def test_refused_calls_name_where_the_ranks_part() -> None:
    """The position of the first call that differs, in the first step."""
    calls = [
        call(0, refusal="order_differs", refused_call=1, call=0, position="p0", match_id=4),
        call(1, refusal="order_differs", refused_call=1, call=1, position="p1", match_id=4),
        call(2, refusal="no_step", dur_ns=1_000_000),
        call(3),
    ]
    assert over_calls("stragglers/refused", calls) == [
        ("kineto", "all-reduce", "no_step", 1, 1.0, None),
        ("kineto", "all-reduce", "order_differs", 2, 0.02, "step 0, call 1, p1"),
    ]


def test_groups_and_flags_are_of_compared_calls() -> None:
    """Refused ones do not count."""
    calls = [
        call(0, group_source="run_config", flag="fused"),
        call(1, group_source="run_config"),
        call(2, group_source="arguments", flag="fused", refusal="no_match"),
    ]
    assert over_calls("stragglers/group_sources", calls) == [("run_config",)]
    assert over_calls("stragglers/flags", calls) == [("fused", 1)]
