"""int_owner_segment: each activity's own stretch within its owner class."""

from __future__ import annotations

import pytest

from tests.support.tables import Row, run_model

COMPUTE, COMMUNICATION, COPY = "nvjet", "nccl_all_reduce", "memcpy_htod"


def _activities(*spans: tuple[int, int], rule: str = COMPUTE) -> list[Row]:
    return [{"activity_id": i, "start_ns": a, "end_ns": b, "rule_id": rule} for i, (a, b) in enumerate(spans)]


def _own(rows: list[Row]) -> list[tuple[int, int]]:
    return [
        (a, b)
        for _, a, b in run_model("int_owner_segment", {"int_activity": rows}, "activity_id, own_ns, end_ns")
    ]


@pytest.mark.parametrize(
    ("rule", "owner"),
    [
        (COMPUTE, 1),
        ("unclassified", 1),
        ("opaque_graph", 1),
        (COMMUNICATION, 2),
        ("allreduce_residual_norm", 2),
        (COPY, 3),
        ("memset", 3),
    ],
)
def test_the_owner_class_follows_from_the_category(rule: str, owner: int) -> None:
    """Compute (also unknown and opaque work) before communication (also fused with a norm) before copies."""
    assert run_model("int_owner_segment", {"int_activity": _activities((0, 1), rule=rule)}, "owner") == [
        (owner,)
    ]


def test_what_started_first_keeps_its_time() -> None:
    """The later of two that overlap owns only what is left after the earlier."""
    assert _own(_activities((0, 10), (5, 15))) == [(0, 10), (10, 15)]


def test_what_is_covered_as_a_whole_owns_nothing() -> None:
    """An activity inside an earlier one has an empty stretch at its own end, also after a shorter
    neighbor."""
    assert _own(_activities((0, 100), (5, 15), (20, 30))) == [(0, 100), (15, 15), (30, 30)]


def test_ties_go_to_the_lower_id() -> None:
    """Of two with the same start the lower activity_id owns, whichever is longer."""
    assert _own(_activities((0, 5), (0, 20), (0, 7))) == [(0, 5), (5, 20), (7, 7)]


def test_other_classes_and_devices_do_not_cover() -> None:
    """Only activities of the same class on the same device take time away here."""
    rows = [
        *_activities((0, 10)),
        {"activity_id": 1, "start_ns": 5, "end_ns": 15, "rule_id": COMMUNICATION},
        {"activity_id": 2, "start_ns": 5, "end_ns": 15, "rule_id": COMPUTE, "device": 1},
    ]
    assert _own(rows) == [(0, 10), (5, 15), (5, 15)]
