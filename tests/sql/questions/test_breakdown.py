"""The questions of `show`."""

from __future__ import annotations

from typing import Any

from tests.support.questions import DECODE, RUN, ask
from tests.support.tables import Row

COMMUNICATION = ["AllReduce", "Other collectives"]


def step(number: int, **fields: Any) -> Row:
    """A complete decode step that another follows."""
    wall = {"wall_ns": 100, "idle_inside_ns": 5, "gap_after_ns": 5, "borrowed_ns": 0, "exposed_outside_ns": 0}
    return {"step": number, "phase": "decode", "next_phase": "decode", "rank": 0} | wall | fields


def work(number: int, rollup: str, busy_ns: int, exposed_ns: int, **fields: Any) -> Row:
    """Booked time of one kind in a step."""
    return {
        "step": number,
        "phase": "decode",
        "category": "gemm",
        "rollup": rollup,
        "calls": 1,
        "busy_ns": busy_ns,
        "exposed_ns": exposed_ns,
    } | fields


def test_steps_are_counted_by_phase() -> None:
    """Once per trace and step, however many devices; steps without a label are unmarked."""
    steps = [
        step(0, label="decode"),
        step(0, device=1),
        step(1),
        step(0, phase="prefill", trace_id="u", step=7),
    ]
    assert sorted(ask("breakdown/phases", {"steps": steps}, **RUN)) == [
        ("decode", 2, 1, 2),
        ("prefill", 1, 1, 1),
    ]


def test_steps_left_out_have_reasons() -> None:
    """Complete steps are not among them."""
    steps = [step(0), *(step(n, is_complete=False, incomplete_reason="lost") for n in (1, 2))]
    assert ask("breakdown/left_out", {"steps": steps}, **RUN) == [("decode", "lost", 2)]


def test_activities_of_no_step_are_added_up_by_reason() -> None:
    """Another source's are not."""
    activities: list[Row] = [
        {"no_step_reason": "no_marker", "dur_ns": 5},
        {"no_step_reason": "no_marker", "dur_ns": 6},
        {"no_step_reason": "no_marker", "dur_ns": 7, "source": "nsys"},
        {"step": 1, "dur_ns": 8},
    ]
    assert ask("breakdown/no_step", {"activity": activities}, **RUN) == [("no_marker", 2, 11)]


def test_methods_are_added_up_over_traces() -> None:
    """Confidence is the lowest of the phase that is shown."""
    methods: list[Row] = [
        {
            "trace_id": trace,
            "method": "annotation",
            "steps": 3,
            "is_used": True,
            "is_agreed": True,
            "compared_with": 3,
        }
        for trace in ("t", "u")
    ]
    steps = [step(0, confidence=0.8), step(1, confidence=0.9), step(2, phase="prefill", confidence=0.1)]
    found = ask("breakdown/methods", {"step_methods": methods, "steps": steps}, **DECODE)
    assert found == [("annotation", True, True, 6, 6, 0.8)]


def test_the_parts_of_a_ranks_wall_add_up() -> None:
    """compute + communication + other + idle + gap = wall; copies and borrowed time are `other`."""
    steps = [step(0, borrowed_ns=4, exposed_outside_ns=2, launch_lag_p50_ns=9, gap_cause="host_late")]
    booked = [
        work(0, "GEMM", 60, 50),
        work(0, "AllReduce", 40, 30, category="allreduce"),
        work(0, "Everything else", 8, 8, category="memcpy"),
    ]
    ((*_, compute, talk, other, idle, gap, lag, late),) = ask(
        "breakdown/ranks", {"steps": steps, "step_breakdown": booked}, **DECODE, communication=COMMUNICATION
    )
    assert (compute, talk, other, idle, gap, lag, late) == (50, 30, 10, 5, 5, 9, 1)
    assert compute + talk + other + idle + gap == 100


def test_only_steps_that_one_of_their_phase_follows_have_a_wall() -> None:
    """The last step, incomplete ones and those before another phase are left out."""
    steps = [step(0), step(1, next_phase="prefill"), step(2, wall_ns=None), step(3, is_complete=False)]
    booked = [work(n, "GEMM", 60, 50) for n in range(4)]
    (found,) = ask("breakdown/ranks", {"steps": steps, "step_breakdown": booked}, **DECODE, communication=[])
    assert found[3] == 1


def test_subtotals_are_medians_of_means_over_ranks() -> None:
    """Matched steps of two ranks are one; the lowest and highest rank stand beside."""
    steps = [step(n, trace_id=trace, match_id=n) for trace in ("t", "u") for n in (0, 1)]
    booked = [
        work(n, rollup, ns * 1_000_000, 500_000, trace_id=trace)
        for trace, ns in (("t", 1), ("u", 3))
        for n in (0, 1)
        for rollup in ("GEMM", "AllReduce")
    ]
    tables: dict[str, list[Row]] = {"steps": steps, "step_breakdown": booked}
    assert ask("breakdown/subtotals", tables, **DECODE, communication=COMMUNICATION) == [
        ("Communication", 2.0, 2.0, 0.5, 1.0, 3.0),
        ("All GPU time", 4.0, 4.0, 1.0, 2.0, 6.0),
    ]


def test_unmatched_steps_of_two_devices_are_two_steps() -> None:
    """Their numbers are equal by accident: the median is over four steps, not over two pairs."""
    times = {(0, 0): 1, (0, 1): 1, (1, 0): 1, (1, 1): 9}
    steps = [step(n, device=device) for device, n in times]
    booked = [work(n, "GEMM", ms * 1_000_000, 0, device=device) for (device, n), ms in times.items()]
    tables: dict[str, list[Row]] = {"steps": steps, "step_breakdown": booked}
    ((_, p50, mean, *_),) = ask("breakdown/subtotals", tables, **DECODE, communication=[])
    assert (p50, mean) == (1.0, 3.0)


def test_a_capture_without_steps_has_its_rows() -> None:
    """All activities by row, the largest first."""
    activities: list[Row] = [
        {"rollup": "GEMM", "dur_ns": 5, "exposed_ns": 4},
        {"rollup": "AllReduce", "dur_ns": 9, "exposed_ns": 1},
        {"rollup": "GEMM", "dur_ns": 5, "exposed_ns": 4, "step": 1},
    ]
    assert ask("breakdown/capture", {"activity": activities}, **RUN) == [
        ("GEMM", 2, 10, 8),
        ("AllReduce", 1, 9, 1),
    ]


def test_five_unclassified_names_are_listed() -> None:
    """Phases of one name are added up, the longest first."""
    kernels: list[Row] = [
        {"short_name": f"k{n}", "category": "unclassified", "calls": 1, "ms_total": float(n), "phase": phase}
        for n in range(7)
        for phase in ("decode", "prefill")
    ]
    kernels.append({"short_name": "gemm", "category": "gemm", "calls": 1, "ms_total": 99.0})
    found = ask("breakdown/unclassified", {"kernel_breakdown": kernels}, **RUN)
    assert found == [(f"k{n}", 2, 2.0 * n) for n in (6, 5, 4, 3, 2)]


def test_sources_of_a_run_are_in_order() -> None:
    """Other runs are not among them."""
    runs = [{"source": "nsys"}, {"source": "kineto"}, {"run_id": "other"}]
    assert [row[1] for row in ask("breakdown/sources", {"runs": runs}, run_id="run")] == ["kineto", "nsys"]
