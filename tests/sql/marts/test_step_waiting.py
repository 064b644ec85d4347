"""step_waiting: waiting of each step, and the rank that was waited for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from pipeline.duck import rows
from tests.support.builders import build_from, build_tables, read_raw
from tests.support.planted_ranks import FLOOR_NS, Planted
from tests.support.tables import run_model


@pytest.fixture(scope="module")
def con(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """Three ranks. Step 1: rank 2 computes 9 us longer, twice, rank 1 once 5 us. Step 2: rank 1 stalls 80 us,
    rank 0 comes late to the first."""
    planted = Planted(
        ranks=3,
        slow={(2, 1, 2): 9_000, (2, 1, 3): 9_000, (1, 1, 4): 5_000},
        stalled={(1, 2, 4): 80_000, (0, 2, 0): 30_000},
        clock={2: -70_000},
        files="serve_dp0_pp0_tp{rank}_rank{rank}.json",
    )
    folder = tmp_path_factory.mktemp("planted")
    run = folder
    for path in planted.write(folder / "named"):
        run = read_raw(path, folder)
    with build_tables(run, folder / "spill") as made:
        yield made


def test_time_in_collectives_is_floor_waiting_host_skew_and_jitter(con: duckdb.DuckDBPyConnection) -> None:
    """Exactly, for each rank of each step, and as planted."""
    floor = 6 * FLOOR_NS
    found = rows(
        con,
        (
            "SELECT step, rank, dur_ns, floor_ns, wait_ns, first_wait_ns, jitter_ns FROM step_waiting ORDER "
            "BY "
            "step, rank"
        ),
    )
    assert found == [
        (0, 0, floor, floor, 0, 0, 0), (0, 1, floor, floor, 0, 0, 0), (0, 2, floor, floor, 0, 0, 0),
        (1, 0, floor + 23_000, floor, 23_000, 0, 0), (1, 1, floor + 18_000, floor, 18_000, 0, 0),
        (1, 2, floor + 5_000, floor, 5_000, 0, 0),
        (2, 0, floor + 80_000, floor, 80_000, 0, 0), (2, 1, floor + 30_000, floor, 0, 30_000, 0),
        (2, 2, floor + 110_000, floor, 80_000, 30_000, 0),
    ]  # fmt: skip


def test_the_straggler_is_who_others_waited_for_longest_and_what_made_it_late(
    con: duckdb.DuckDBPyConnection,
) -> None:
    """More compute, or nothing to run; the first collective of a step is separate, and a step without waits
    has no straggler."""
    found = rows(
        con,
        (
            "SELECT DISTINCT step, straggler_rank, caused_ns, late_category, late_ns, first_last_rank FROM "
            "step_waiting ORDER BY step"
        ),
    )
    assert found == [
        (0, None, None, None, None, 0),
        (1, 2, 36_000, "gemm", 18_000, 0),
        (2, 1, 160_000, "idle", 80_000, 0),
    ]


def test_jitter_is_summed_apart(tmp_path: Path) -> None:
    """Waits that are indistinguishable from zero make no straggler."""
    with build_from(tmp_path, *Planted(slow={(1, 1, call): 900 for call in (1, 2, 3)}).events()) as con:
        found = rows(
            con,
            "SELECT rank, wait_ns, jitter_ns, straggler_rank FROM step_waiting WHERE step = 1 ORDER BY rank",
        )
    assert found == [(0, 0, 2_700, None), (1, 0, 0, None)]


def test_without_groups_all_is_refused_and_booked(tmp_path: Path) -> None:
    """Three ranks of unknown groups: their time is there, and no rank is blamed."""
    with build_from(tmp_path, *Planted(ranks=3, steps=1).events()) as con:
        found = rows(
            con, "SELECT DISTINCT calls, compared, dur_ns, refused_ns, straggler_rank FROM step_waiting"
        )
        assert rows(con, "SELECT DISTINCT refusal FROM collectives") == [("groups_unknown",)]
    assert found == [(6, 0, 0, 6 * FLOOR_NS, None)]


def waiting(
    columns: str, *, is_complete: bool = True, work: dict[str, tuple[int, int]] | None = None
) -> list[tuple[Any, ...]]:
    """The rows of ranks 0 and 1 of one step in which rank 0 waited 50 us for rank 1; `work`: what each did
    before, by category."""
    tables: dict[str, list[dict[str, Any]]] = {
        "collectives": [],
        "int_recording": [],
        "steps": [],
        "int_lead_work": [],
    }
    for rank in (0, 1):
        trace = {"trace_id": f"t{rank}"}
        call = {
            "activity_id": 1,
            "rank": rank,
            "step": 0,
            "match_id": 0,
            "communicator": "0,1",
            "group_size": 2,
            "call": 1,
            "place": 1,
        }
        wait = {
            "wait_ns": 50_000 * (1 - rank),
            "floor_ns": 7,
            "dur_ns": 7 + 50_000 * (1 - rank),
            "last_rank": 1,
            "is_first": False,
        }
        tables["collectives"].append(trace | call | wait | {"is_jitter": rank == 1})
        tables["int_recording"].append(trace | {"recording": "r"})
        tables["steps"].append(
            trace | {"step": 0, "phase": "decode", "is_complete": is_complete or rank == 0}
        )
        tables["int_lead_work"] += [
            trace | {"step": 0, "place": 1, "category": name, "work_ns": ns[rank]}
            for name, ns in (work or {}).items()
        ]
    return run_model("step_waiting", tables, columns, "rank")


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_step_enters_means_only_if_it_is_complete_on_every_rank(is_complete: bool) -> None:
    """Rank 1 alone lost records: rank 0's waiting for it is no waiting either."""
    assert waiting("is_complete", is_complete=is_complete) == [(is_complete,), (is_complete,)]


def test_the_category_with_the_largest_surplus_made_it_late() -> None:
    """Not the one that took longest, nor the one with any surplus."""
    work = {
        "attention": (90_000, 90_000),
        "gemm": (10_000, 13_000),
        "idle": (0, 47_000),
        "norm": (5_000, 2_000),
    }
    assert waiting("straggler_rank, late_category, late_ns", work=work) == [
        (1, "idle", 47_000),
        (1, "idle", 47_000),
    ]


def test_a_rank_that_did_no_more_than_others_was_late_for_no_known_reason() -> None:
    """Then no category is blamed."""
    assert waiting("straggler_rank, late_category, late_ns", work={"gemm": (10_000, 10_000)}) == [
        (1, None, None),
        (1, None, None),
    ]


def test_each_group_has_its_own_straggler(tmp_path: Path) -> None:
    """Two pairs that reduce separately: no rank is blamed for a wait in the other pair."""
    planted = Planted(
        ranks=4,
        groups=((0, 1), (2, 3)),
        slow={(1, 1, 2): 50_000, (2, 1, 3): 20_000},
        files="s_dp{pair}_pp0_tp{place}_rank{rank}.json",
    )
    run = tmp_path
    for path in planted.write(tmp_path / "named"):
        run = read_raw(path, tmp_path)
    with build_tables(run, tmp_path / "spill") as con:
        found = rows(
            con,
            "SELECT rank, straggler_rank, caused_ns, late_ns FROM step_waiting WHERE step = 1 ORDER BY rank",
        )
    assert found == [
        (0, 1, 50_000, 50_000),
        (1, 1, 50_000, 50_000),
        (2, 2, 20_000, 20_000),
        (3, 2, 20_000, 20_000),
    ]
