"""Waiting by rank, stragglers, clocks and refusals, as printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.analyses.report import Report
from pipeline.analyses.stragglers import CLOCKS, LATE, REFUSED, WAITING, ranks
from pipeline.errors import UsageError
from pipeline.ingest.demo import DEMO_TRACES
from pipeline.lake.home import Home
from pipeline.lake.reading import reading
from pipeline.lake.run_config import describe
from tests.support.builders import ALL_REDUCE, ingest_into
from tests.support.planted_ranks import BROADCAST, FUSED, TWO_LAYERS, Planted


def answers(home: Home, run: str = "x") -> list[Report]:
    """The four reports."""
    with reading(home) as con:
        return ranks(con, run)


def table(report: Report, columns: tuple[str, ...], *wanted: str) -> list[tuple[Any, ...]]:
    """Some columns of a report."""
    return [tuple(row[columns.index(name)] for name in wanted) for row in report.rows]


@pytest.fixture(scope="module")
def launch_bound(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Rank 1 has nothing to run for 200 us before each collective but the first; its clock is 3 ms ahead."""
    folder = tmp_path_factory.mktemp("bound")
    home = Home(folder / "home")
    stalled = {(1, step, call): 200_000 for step in range(3) for call in range(1, 6)} | {(1, 1, 0): 60_000}
    ingest_into(
        home, *Planted(stalled=stalled, slow={(1, 2, 2): 700}, clock={1: 3_000_000}).write(folder), run="x"
    )
    return home


def test_the_partner_of_a_launch_bound_rank_is_waiting(launch_bound: Home) -> None:
    """Rank 0's all-reduces are waiting but for their floor; rank 1's are floor alone."""
    waiting, *_ = answers(launch_bound)
    found = table(
        waiting,
        WAITING,
        "what",
        "rank",
        "steps",
        "calls",
        "ms",
        "wait_ms",
        "floor_ms",
        "first_wait_ms",
        "jitter_ms",
    )
    assert found == [
        ("all-gather", 0, 3, 3, 0.207, 0.2, 0.007, 0.0, 0.0),
        ("all-gather", 1, 3, 3, 0.007, 0.0, 0.007, 0.0, 0.0),
        ("all-reduce", 0, 3, 15, 0.855, 0.8, 0.035, 0.02, 0.0),
        ("all-reduce", 1, 3, 15, 0.035, 0.0, 0.035, 0.0, 0.0),
    ]
    assert table(waiting, WAITING, "wait_share")[2:] == [(0.9591,), (0.0,)]


def test_all_reduces_that_are_mostly_waiting_are_said_in_words(launch_bound: Home) -> None:
    """Rank 0's time is not the network's; rank 1 has no such note."""
    waiting, *_ = answers(launch_bound)
    shares = [note for note in waiting.notes if "is waiting for other ranks" in note]
    assert shares == ["decode: 95.9% of rank 0's 0.855 ms of all-reduce per step is waiting for other ranks"]


def test_what_made_a_rank_late_is_named(launch_bound: Home) -> None:
    """Its device had nothing to run, and the report explains it."""
    _, late, *_ = answers(launch_bound)
    assert table(late, LATE, "straggler_rank", "made_late_by", "steps", "wait_caused_ms") == [
        (1, "idle", 3, 3.001)
    ]
    assert any("launch-bound" in note and "waiting" in note for note in late.notes)


def test_clocks_are_printed_with_what_they_leave(launch_bound: Home) -> None:
    """Offset and residual of each rank."""
    _, _, clocks, _ = answers(launch_bound)
    assert table(clocks, CLOCKS, "rank", "offset_us", "residual_us", "calls") == [
        (0, 0.0, 0.0, 18),
        (1, 3000.0, 0.0, 18),
    ]


def test_assumptions_are_part_of_the_answer(launch_bound: Home) -> None:
    """What the floor is, from when on a wait is one, and how the groups are known."""
    waiting, _, _, refused = answers(launch_bound)
    notes = " ".join(waiting.notes)
    assert "jitter: waits under 2.00 us" in notes
    assert "groups known from: only two ranks" in notes
    assert list(refused.notes) == ["nothing: every collective was compared"]


def test_refusals_are_listed_with_their_reason_and_first_position(tmp_path: Path) -> None:
    """Broadcasts by their kind; a step in which a rank lacks a call from the first position that differs."""
    lacking = list(TWO_LAYERS)
    del lacking[len(lacking) - 5]
    home = Home(tmp_path / "home")
    planted = Planted(names=(BROADCAST, *TWO_LAYERS), names_of={(1, 1): (BROADCAST, *lacking)})
    ingest_into(home, *planted.write(tmp_path), run="x")
    *_, refused = answers(home)
    found = table(refused, REFUSED, "what", "calls", "first_position")
    first = "step 1, call 4, layer 1 after MLP"
    assert found == [("all-gather", 2, first), ("all-reduce", 9, first), ("broadcast", 6, None)]
    assert [reason for (reason,) in table(refused, REFUSED, "reason")][1:] == [
        "the ranks have different numbers of calls in the step",
        (
            "the ranks do not wait for each other, or the name does not tell (broadcast, reduce, gather, "
            "send and receive)"
        ),
    ]


def test_fused_kernels_are_said_to_be_uncertain(tmp_path: Path) -> None:
    """Their start is not their arrival."""
    home = Home(tmp_path / "home")
    names = tuple(FUSED if name == ALL_REDUCE else name for name in TWO_LAYERS)
    ingest_into(home, *Planted(names=names).write(tmp_path), run="x")
    waiting, late, *_ = answers(home)
    assert any("30 flagged calls (fused with other work)" in note for note in waiting.notes)
    assert list(late.notes) == ["none: no waiting beyond jitter outside the first collective of a step"]


def test_several_possible_groups_are_refused_until_they_are_said(tmp_path: Path) -> None:
    """Four ranks in two pairs: refused with what to give; then answered within each pair, no rank waits for
    the other pair."""
    home = Home(tmp_path / "home")
    planted = Planted(ranks=4, groups=((0, 1), (2, 3)), slow={(1, 1, 2): 50_000, (2, 2, 3): 20_000})
    files = planted.write(tmp_path)
    ingest_into(home, *files, run="x")
    with pytest.raises(UsageError, match="stepledger describe RUN groups="):
        answers(home)
    describe(home, "given", {"groups": "tp:0,1;tp:2,3"})
    ingest_into(home, *files, run="given")
    waiting, late, clocks, refused = answers(home, "given")
    found = table(waiting, WAITING, "what", "rank", "wait_ms")
    assert [row for row in found if row[2]] == [
        ("all-reduce", 0, round(0.05 / 3, 3)),
        ("all-reduce", 3, round(0.02 / 3, 3)),
    ]
    assert table(late, LATE, "straggler_rank", "made_late_by") == [(1, "gemm"), (2, "gemm")]
    assert table(clocks, CLOCKS, "rank", "ranks") == [(0, "0,1"), (1, "0,1"), (2, "2,3"), (3, "2,3")]
    assert refused.rows == []


def test_the_recorded_ranks_are_compared_call_by_call(tmp_path: Path) -> None:
    """Every collective of the demo is answered, its parts add up, and the ranks' clocks agree to a
    microsecond."""
    home = Home(tmp_path / "home")
    ingest_into(home, *sorted(DEMO_TRACES.glob("*.json.gz")), run="x")
    waiting, _, clocks, refused = answers(home)
    assert refused.rows == []
    parts = table(waiting, WAITING, "ms", "wait_ms", "floor_ms", "first_wait_ms", "jitter_ms")
    assert [abs(row[0] - sum(row[1:])) < 0.003 for row in parts] == [True] * 4
    floors = table(waiting, WAITING, "what", "rank", "steps", "calls", "floor_ms")
    assert floors[2][:4] == ("all-reduce", 0, 5, 615)
    assert floors[2][4] == floors[3][4]
    assert all(abs(offset) < 1 for (offset,) in table(clocks, CLOCKS, "offset_us"))


def test_one_rank_alone_is_refused(tmp_path: Path) -> None:
    """Waiting needs another rank to wait for."""
    home = Home(tmp_path / "home")
    ingest_into(home, Planted().write(tmp_path)[0], run="x")
    with pytest.raises(UsageError, match="only one rank was recorded"):
        answers(home)
