"""gap_summary: idle time by phase, place, size class and what followed."""

from __future__ import annotations

from typing import Any

from tests.support.tables import run_model

GAP: dict[str, Any] = {
    "phase": "decode",
    "place": "inside_replay",
    "size_class": "under 1 us",
    "category_after": "gemm",
    "dur_ns": 500,
    "is_host_late": False,
}
COLUMNS = "trace_id, device, phase, place, size_class, category_after, gaps, dur_ns, gaps_host_late"


def _summed(*gaps: dict[str, Any], columns: str = COLUMNS) -> list[tuple[object, ...]]:
    return run_model("gap_summary", {"gaps": [gap | {"start_ns": n} for n, gap in enumerate(gaps)]}, columns)


def test_gaps_of_a_kind_are_counted_and_summed() -> None:
    """How many, how much, and how many of them with a late host; a NULL is not late."""
    late, unknown = GAP | {"is_host_late": True}, GAP | {"is_host_late": None, "dur_ns": 700}
    assert _summed(GAP, late, unknown) == [
        ("t", 0, "decode", "inside_replay", "under 1 us", "gemm", 3, 1_700, 1)
    ]


def test_kinds_are_kept_apart() -> None:
    """Phase, place, size class, what followed, device and trace each make a row of their own."""
    others: list[dict[str, Any]] = [
        {"phase": "prefill"},
        {"place": "between_steps"},
        {"size_class": "1 to 10 us"},
        {"category_after": "attention"},
        {"device": 1},
        {"trace_id": "u"},
    ]
    assert _summed(GAP, *(GAP | other for other in others), columns="gaps") == [(1,)] * 7


def test_steps_are_summed_over() -> None:
    """Gaps of all steps of a phase are in one row."""
    assert _summed(GAP | {"step": 0}, GAP | {"step": 1}, columns="gaps, dur_ns") == [(2, 1_000)]


def test_the_total_is_that_of_the_gaps() -> None:
    """No gap is lost or counted twice."""
    gaps = [GAP | {"dur_ns": 3**n, "category_after": "norm" if n % 2 else "gemm"} for n in range(8)]
    assert sum(int(str(dur)) for (dur,) in _summed(*gaps, columns="dur_ns")) == sum(3**n for n in range(8))
