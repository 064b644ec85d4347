"""int_lead_work: what each rank did before each of its collectives."""

from __future__ import annotations

from tests.support.sequence import Sequence
from tests.support.tables import Row, run_model


def lead(sequence: Sequence, refusal: str | None = None, **exposed: int) -> list[tuple[object, ...]]:
    """(place, category, ns) of the step; `exposed`: exposed time of kernels by name, else their duration."""
    calls = [row for row in sequence.kernels if row["rule_id"].startswith("nccl")]
    tables: dict[str, list[Row]] = sequence.tables() | {
        "int_exposed": [{k: row[k] for k in ("trace_id",
            "activity_id")} | {"exposed_ns": exposed.get(row["name"], 10)} for row in sequence.kernels],
        "int_collective": [
            {k: row[k] for k in ("trace_id", "activity_id", "start_ns", "end_ns")} | {"step": 0,
                "place": place, "is_half": False}
            for place, row in enumerate(calls)
        ],
        "int_matched_call": [{"trace_id": "t", "step": 0, "refusal": refusal}],
    }  # fmt: skip
    return run_model("int_lead_work", tables, "place, category, work_ns")


def test_work_and_idle_time_since_the_collective_before() -> None:
    """Kernels of 10 ns, 5 ns apart: three gaps around two kernels are idle time."""
    assert lead(Sequence().run("allreduce gemm norm allreduce")) == [
        (1, "gemm", 10),
        (1, "idle", 15),
        (1, "norm", 10),
    ]


def test_nothing_is_said_before_the_first_collective() -> None:
    """What came before the step is skew of the hosts."""
    assert lead(Sequence().run("gemm gemm allreduce")) == []


def test_hidden_work_makes_no_rank_late() -> None:
    """Only the exposed time counts: what ran beside other kernels did not add to the time."""
    found = lead(Sequence().run("allreduce gemm:wide gemm:hidden allreduce"), hidden=0)
    assert found == [(1, "gemm", 10), (1, "idle", 25)]


def test_steps_without_a_comparison_are_left_out() -> None:
    """No one asks what made them late."""
    assert lead(Sequence().run("allreduce gemm allreduce"), refusal="one_rank") == []
