"""collectives: floor and waiting of each collective on each rank, exactly as planted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from pipeline.duck import rows
from tests.support.builders import ALL_REDUCE, build_from
from tests.support.planted_ranks import BROADCAST, FLOOR_NS, FUSED, SEND_RECEIVE, TWO_LAYERS, Planted
from tests.support.tables import Row, run_model


@pytest.fixture(scope="module")
def con(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """Two ranks, clocks 5 ms apart: rank 1 late by 10 us and by 300 us, rank 0 by 1.5 us and, at the first
    call of a step, by 40 us."""
    planted = Planted(
        slow={(1, 1, 2): 10_000, (0, 1, 3): 1_500},
        stalled={(1, 2, 1): 300_000, (0, 2, 0): 40_000},
        clock={1: 5_000_000},
    )
    with build_from(tmp_path_factory.mktemp("planted"), *planted.events()) as made:
        yield made


def test_waits_are_those_planted_and_nothing_else(con: duckdb.DuckDBPyConnection) -> None:
    """Every call that is not listed waited 0 ns; the last rank is known, though its clock is ahead."""
    found = rows(
        con,
        (
            "SELECT rank, step, call, wait_ns, last_rank, is_first, is_jitter FROM collectives WHERE wait_ns "
            "<> "
            "0 ORDER BY step, call"
        ),
    )
    assert found == [
        (0, 1, 2, 10_000, 1, False, False),
        (1, 1, 3, 1_500, 0, False, True),
        (1, 2, 0, 40_000, 0, True, False),
        (0, 2, 1, 300_000, 1, False, False),
    ]


def test_the_floor_is_what_a_call_takes_on_the_last_rank(con: duckdb.DuckDBPyConnection) -> None:
    """On every call of every rank; here the shortest over ranks is the same."""
    assert rows(con, "SELECT DISTINCT floor_ns, min_over_ranks_ns FROM collectives") == [(FLOOR_NS, FLOOR_NS)]


def test_starts_are_aligned_by_the_clocks(con: duckdb.DuckDBPyConnection) -> None:
    """The offset is what was planted, to the nanosecond, and both ranks' aligned ends agree."""
    assert rows(con, "SELECT rank, offset_ns, residual_ns FROM rank_clock ORDER BY rank") == [
        (0, 0, 0),
        (1, 5_000_000, 0),
    ]
    assert rows(
        con, "SELECT count(DISTINCT aligned_start_ns + dur_ns), count(DISTINCT (step, call)) FROM collectives"
    ) == [(18, 18)]


def test_positions_are_in_words(con: duckdb.DuckDBPyConnection) -> None:
    """Before the first layer, in each layer, after the last."""
    assert [row[0] for row in rows(con,
        "SELECT DISTINCT position, place FROM collectives ORDER BY place")] == [
        "before the first layer", "layer 0 after attention", "layer 0 after MLP", "layer 1 after attention",
        "layer 1 after MLP",
        "after the last layer",
    ]  # fmt: skip


def test_broadcasts_and_messages_are_refused_and_the_rest_is_compared(tmp_path: Path) -> None:
    """A rank may leave a broadcast before another enters; all-reduces around it keep their answer."""
    names = (BROADCAST, *TWO_LAYERS, SEND_RECEIVE)
    with build_from(tmp_path, *Planted(names=names, slow={(1, 1, 2): 10_000}).events()) as con:
        found = rows(
            con,
            (
                "SELECT category, subcategory, refusal, sum(wait_ns)::BIGINT FROM collectives GROUP BY ALL "
                "ORDER "
                "BY ALL"
            ),
        )
    assert found == [
        ("allreduce", "nccl", None, 10_000),
        ("collective", "all_gather", None, 0),
        ("collective", "broadcast", "kind", None),
        ("p2p", "send_recv", "kind", None),
    ]


def test_a_step_with_a_missing_call_is_refused_and_names_it(tmp_path: Path) -> None:
    """Rank 1 lacks the second layer's last all-reduce in step 1: that step is refused from there, the others
    are answered."""
    lacking = list(TWO_LAYERS)
    del lacking[len(lacking) - 5]
    assert lacking.count(ALL_REDUCE) == TWO_LAYERS.count(ALL_REDUCE) - 1
    with build_from(tmp_path, *Planted(names_of={(1, 1): tuple(lacking)}).events()) as con:
        found = rows(
            con, "SELECT match_id, refusal, refused_call, count(*) FROM collectives GROUP BY ALL ORDER BY ALL"
        )
        at = rows(con, "SELECT DISTINCT position FROM collectives WHERE call = refused_call AND rank = 0")
    assert found == [(0, None, None, 12), (1, "counts_differ", 4, 11), (2, None, None, 12)]
    assert at == [("layer 1 after MLP",)]


def test_fused_kernels_are_answered_and_flagged(tmp_path: Path) -> None:
    """Their start is not their arrival, so the split is uncertain; it still adds up."""
    names = tuple(FUSED if name == ALL_REDUCE else name for name in TWO_LAYERS)
    with build_from(tmp_path, *Planted(names=names, slow={(0, 0, 2): 9_000}).events()) as con:
        found = rows(
            con,
            (
                "SELECT subcategory, flag, sum(wait_ns)::BIGINT, sum(floor_ns + wait_ns - dur_ns)::BIGINT "
                "FROM "
                "collectives GROUP BY ALL ORDER BY ALL"
            ),
        )
    assert found == [("all_gather", None, 0, 0), ("fused_norm", "fused", 9_000, 0)]


def test_programmatic_launch_is_flagged() -> None:
    """A kernel that started before the one before it had ended did not arrive then."""
    place: Row = {
        "activity_id": 1,
        "step": 0,
        "category": "allreduce",
        "part": "unknown",
        "is_early": True,
        "is_fused": False,
        "place": 0,
        "dur_ns": 5,
    }
    tables: dict[str, list[Row]] = {
        "int_collective": [place],
        "int_matched_call": [{"activity_id": 1, "refusal": "one_rank"}],
        "stg_trace": [{"rank": 0}],
    }
    assert run_model("collectives", tables, "flag, refusal, position, wait_ns, is_first") == [
        ("programmatic_launch", "one_rank", "unknown", None, None),
    ]  # fmt: skip


def test_of_equal_arrivals_the_shorter_call_is_the_floor() -> None:
    """So that no rank has a negative wait."""
    made: list[Row] = [
        {
            "trace_id": f"t{rank}", "activity_id": 1, "rank": rank, "recording": "r", "match_id": 0,
            "members": "0,1", "communicator": "0,1",
            "call": 0, "start_ns": 100, "dur_ns": 50 + rank, "end_ns": 150 + rank,
        }
        for rank in (0, 1)
    ]  # fmt: skip
    place: list[Row] = [
        {k: row[k] for k in ("trace_id", "activity_id", "start_ns", "dur_ns")}
        | {"part": "unknown", "place": 1}
        for row in made
    ]
    clock: list[Row] = [
        {"trace_id": row["trace_id"], "members": "0,1", "offset_ns": 0, "residual_ns": 0} for row in made
    ]
    tables: dict[str, list[Row]] = {
        "int_collective": place, "int_matched_call": made, "rank_clock": clock,
        "stg_trace": [{"trace_id": "t0"}, {"trace_id": "t1"}],
    }  # fmt: skip
    assert run_model("collectives", tables, "floor_ns, wait_ns, last_rank, is_jitter", "wait_ns") == [
        (50, 0, 0, True),
        (50, 1, 0, True),
    ]


@pytest.mark.parametrize(("wait_ns", "is_jitter"), [(2_099, True), (2_100, False)])
def test_jitter_is_a_wait_under_two_us_and_the_residual(wait_ns: int, is_jitter: bool) -> None:
    """With clocks uncertain by 100 ns, 2.1 us is the first wait that counts."""
    rank: dict[str, Any] = {
        "activity_id": 1,
        "recording": "r",
        "match_id": 0,
        "members": "0,1",
        "communicator": "0,1",
        "call": 0,
    }
    first: Row = rank | {
        "trace_id": "t0",
        "rank": 0,
        "start_ns": 0,
        "dur_ns": 50 + wait_ns,
        "end_ns": 50 + wait_ns,
    }
    last: Row = rank | {
        "trace_id": "t1",
        "rank": 1,
        "start_ns": wait_ns,
        "dur_ns": 50,
        "end_ns": 50 + wait_ns,
    }
    place: list[Row] = [
        {k: row[k] for k in ("trace_id", "activity_id", "start_ns", "dur_ns")}
        | {"part": "unknown", "place": 1}
        for row in (first, last)
    ]
    clock: list[Row] = [
        {"trace_id": f"t{n}", "members": "0,1", "offset_ns": 0, "residual_ns": 100 * n} for n in (0, 1)
    ]
    tables: dict[str, list[Row]] = {
        "int_collective": place, "int_matched_call": [first, last], "rank_clock": clock,
        "stg_trace": [{"trace_id": "t0"}, {"trace_id": "t1"}],
    }  # fmt: skip
    assert run_model("collectives", tables, "wait_ns, is_jitter", "wait_ns DESC")[0] == (wait_ns, is_jitter)
