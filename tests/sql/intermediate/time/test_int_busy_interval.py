"""int_busy_interval: stretches without a gap."""

from __future__ import annotations

from tests.support.tables import Row, run_model


def _islands(*spans: tuple[int, int, int], level: int = 3, device: int = 0) -> list[tuple[int, int, int]]:
    """Islands (start, end, covered before) of (owner, start, end) activities up to a level."""
    rows: list[Row] = [
        {"activity_id": i, "owner": o, "start_ns": a, "end_ns": b} for i, (o, a, b) in enumerate(spans)
    ]
    found = run_model(
        "int_busy_interval", {"int_owner_segment": rows}, "level, device, start_ns, end_ns, covered_ns"
    )
    return [(a, b, c) for at, on, a, b, c in found if (at, on) == (level, device)]


def test_activities_that_overlap_or_touch_are_one_island() -> None:
    """A stretch ends where nothing runs and nothing begins at that instant."""
    assert _islands((1, 0, 10), (1, 5, 15), (1, 15, 20)) == [(0, 20, 0)]


def test_a_gap_parts_islands_and_covered_time_adds_up() -> None:
    """Each island says how much time was covered before it."""
    assert _islands((1, 0, 10), (1, 20, 25), (1, 30, 31)) == [(0, 10, 0), (20, 25, 10), (30, 31, 15)]


def test_a_long_activity_bridges_short_ones() -> None:
    """The running end is the latest of all before, not that of the neighbor."""
    assert _islands((1, 0, 100), (1, 10, 20), (1, 50, 110)) == [(0, 110, 0)]


def test_a_level_holds_its_class_and_those_above() -> None:
    """Level 1 is compute, level 2 adds communication, level 3 copies."""
    spans = ((1, 0, 10), (2, 20, 30), (3, 40, 50))
    assert [len(_islands(*spans, level=level)) for level in (1, 2, 3)] == [1, 2, 3]


def test_activities_without_length_make_no_island() -> None:
    """Nothing is covered by an activity without duration."""
    assert _islands((1, 5, 5), (1, 10, 20)) == [(10, 20, 0)]
