"""int_exposed: the part of the device's time line that each activity owns."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.tables import build_all, few_rules


def exposed(*spans: tuple[str, int, int], device: Sequence[int] | None = None) -> list[int]:
    """Exposed time of (name, start, end) activities through every model, in their order."""
    rows = [
        {
            "activity_id": i,
            "name": n,
            "start_ns": a,
            "dur_ns": b - a,
            "device": device[i] if device else 0,
            "stream": i,
        }
        for i, (n, a, b) in enumerate(spans)
    ]
    with build_all({"raw.gpu_activity": rows, "raw.trace": [{}]}, few_rules(), ["int_exposed"]) as con:
        return [
            r[0] for r in con.execute("SELECT exposed_ns FROM int_exposed ORDER BY activity_id").fetchall()
        ]


GEMM, REDUCE, COPY = (
    "nvjet_x",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)",
    "Memcpy HtoD (Pinned -> Device)",
)


def test_compute_owns_before_communication_before_copies() -> None:
    """Running side by side, compute owns the device, then communication, then copies."""
    assert exposed((COPY, 0, 30), (REDUCE, 0, 20), (GEMM, 0, 10)) == [10, 10, 10]


def test_hidden_communication_is_exposed_for_nothing() -> None:
    """An all-reduce that runs as a whole under a GEMM costs no time of the device."""
    assert exposed((GEMM, 0, 100), (REDUCE, 20, 60)) == [100, 0]


def test_communication_shows_on_both_sides_of_compute() -> None:
    """What sticks out before and after the GEMMs is exposed, what lies between two of them too."""
    assert exposed((REDUCE, 0, 100), (GEMM, 10, 30), (GEMM, 50, 60)) == [70, 20, 10]


def test_earlier_work_of_its_own_class_hides_nothing() -> None:
    """Each of several collectives one after another is exposed in full, and less only what compute covers of
    it."""
    assert exposed((REDUCE, 0, 10), (GEMM, 12, 18), (REDUCE, 20, 30), (GEMM, 38, 44), (REDUCE, 40, 50)) == [
        10,
        6,
        10,
        6,
        6,
    ]


def test_of_two_of_a_class_the_first_owns() -> None:
    """Overlapping kernels on two streams are booked once."""
    assert exposed((GEMM, 0, 10), (GEMM, 4, 14), (GEMM, 6, 8)) == [10, 4, 0]


def test_devices_own_their_time_lines() -> None:
    """Work on another device hides nothing here."""
    assert exposed((GEMM, 0, 10), (REDUCE, 0, 10), device=[0, 1]) == [10, 10]


def test_no_length_no_time() -> None:
    """An activity without duration has no exposed time and takes none."""
    assert exposed((REDUCE, 0, 10), (GEMM, 5, 5)) == [10, 0]
