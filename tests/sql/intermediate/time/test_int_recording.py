"""int_recording: which devices recorded one run at one time."""

from __future__ import annotations

from typing import Any

from tests.support.tables import run_model


def recordings(*traces: dict[str, Any]) -> list[tuple[Any, ...]]:
    """(trace, recording, ranks, world size) of traces that each hold one collective."""
    named = [
        {"trace_id": f"t{number}", "sha256": f"f{number}"} | trace for number, trace in enumerate(traces)
    ]
    calls = [{"trace_id": trace["trace_id"], "activity_id": 0} for trace in named]
    return run_model(
        "int_recording",
        {"raw.trace": named, "int_collective": calls},
        "trace_id, recording, ranks, world_size",
    )


def test_ranks_that_stand_once_are_one_recording() -> None:
    """One file for each rank, as torch writes them."""
    assert recordings({"rank": 0}, {"rank": 1}) == [("t0", "kineto", 2, 2), ("t1", "kineto", 2, 2)]


def test_a_file_that_holds_all_ranks_is_a_recording_of_its_own() -> None:
    """Two nsys reports of two ranks each are not mixed."""
    found = recordings(*({"rank": rank, "sha256": file} for file in ("a", "b") for rank in (0, 1)))
    assert [row[1] for row in found] == ["kineto a", "kineto a", "kineto b", "kineto b"]
    assert {row[2] for row in found} == {2}


def test_replicas_with_one_label_are_no_recording() -> None:
    """Two files of rank 0 are indistinguishable, as are unknown ranks."""
    assert [row[1] for row in recordings({"rank": 0, "sha256": "a"}, {"rank": 0, "sha256": "a"})] == [
        None,
        None,
    ]
    assert [row[1] for row in recordings({"rank": 0}, {"rank": None})] == [None, None]


def test_the_job_may_be_larger_than_what_was_recorded() -> None:
    """The size of the job is kept beside the ranks that are there."""
    assert recordings({"rank": 0, "world_size": 8}, {"rank": 1, "world_size": 8})[0][2:] == (2, 8)


def test_sources_are_apart() -> None:
    """A torch trace and an nsys report of one rank are two recordings."""
    found = recordings({"rank": 0}, {"rank": 0, "source": "nsys"})
    assert [row[1:3] for row in found] == [("kineto", 1), ("nsys", 1)]
