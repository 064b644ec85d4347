"""stg_launch: one launch call per correlation."""

from __future__ import annotations

import itertools

from tests.support.tables import Row, run_model


def _call(start_ns: int, name: str = "cudaLaunchKernel", **fields: object) -> Row:
    return {"correlation": 5, "name": name, "start_ns": start_ns, "dur_ns": 1} | fields


def test_of_repeated_ids_the_earliest_call_is_taken_whole() -> None:
    """Name and thread come from the same, earliest call, even where that call has no thread."""
    calls = [_call(20, "late", tid=2), _call(10, "early", tid=None)]
    assert run_model("stg_launch", {"raw.launch": calls}, "correlation, start_ns, name, tid") == [
        (5, 10, "early", None)
    ]


def test_calls_at_the_same_time_are_told_apart_whatever_their_order() -> None:
    """Two calls with one id and one start give the same row in any order of the file."""
    calls = [
        _call(10, "cudaLaunchKernel", tid=2),
        _call(10, "cuLaunchKernel", tid=1),
        _call(10, "cuLaunchKernel", tid=3),
    ]
    found = {
        tuple(run_model("stg_launch", {"raw.launch": order}, "name, tid"))
        for order in itertools.permutations(calls)
    }
    assert found == {(("cuLaunchKernel", 1),)}


def test_correlation_0_and_none_are_no_launch() -> None:
    """Calls without an id link to nothing and are left out."""
    assert (
        run_model(
            "stg_launch", {"raw.launch": [_call(1, correlation=0), _call(2, correlation=None)]}, "correlation"
        )
        == []
    )


def test_the_same_id_in_another_trace_is_another_call() -> None:
    """Correlation ids count per trace."""
    calls = [_call(10), _call(20, trace_id="u")]
    assert run_model("stg_launch", {"raw.launch": calls}, "trace_id, start_ns") == [("t", 10), ("u", 20)]
