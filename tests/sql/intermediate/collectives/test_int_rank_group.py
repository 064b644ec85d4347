"""int_rank_group: which ranks a rank communicates with, for which purpose."""

from __future__ import annotations

from typing import Any

from tests.support.tables import run_model

Found = dict[tuple[int, str], tuple[str, int, str]]


def groups(
    ranks: int, *, world: int = 0, named: list[tuple[int, int, int]] | None = None, **given: Any
) -> Found:
    """Members, size and source by rank and purpose; `named`: data-, pipeline- and tensor-parallel rank in
    each file's name."""
    rows: list[dict[str, Any]] = [
        {"trace_id": f"t{rank}", "rank": rank, "recording": "r", "ranks": ranks, "world_size": world or ranks}
        for rank in range(ranks)
    ]
    for row, (dp, pp, tp) in zip(rows, named or [], strict=False):
        row |= {"dp_rank": dp, "pp_rank": pp, "tp_rank": tp}
    tables = {"int_recording": rows} | ({"run_config": [given]} if given else {})
    found = run_model("int_rank_group", tables, "rank, purpose, members, group_size, group_source")
    return {(rank, purpose): (members, size, source) for rank, purpose, members, size, source in found}


def test_two_ranks_leave_one_possibility() -> None:
    """No run_config is needed."""
    assert set(groups(2).values()) == {("0,1", 2, "only two ranks")}
    assert {purpose for _, purpose in groups(2)} == {"tp", "ep", "any"}


def test_more_ranks_are_not_guessed() -> None:
    """Four ranks may be one group or two: no row."""
    assert groups(4) == {}


def test_two_ranks_of_a_larger_job_are_not_guessed() -> None:
    """The others may be of their group."""
    assert groups(2, world=8) == {}


def test_sizes_said_make_groups_with_tensor_parallel_ranks_side_by_side() -> None:
    """tp 2 x dp 2: all-reduces in pairs, experts over all."""
    found = groups(4, tp=2, dp=2)
    assert (found[3, "tp"], found[3, "ep"]) == (("2,3", 2, "sizes"), ("0,1,2,3", 4, "sizes"))
    assert (3, "any") not in found


def test_sizes_that_do_not_fit_the_job_say_nothing() -> None:
    """tp 2 alone does not make a job of four ranks."""
    assert groups(4, tp=2) == {}


def test_expert_groups_with_pipeline_and_data_parallel_are_not_guessed() -> None:
    """Only where one of the two is 1 is it known which ranks share experts."""
    assert {purpose for _, purpose in groups(8, tp=2, pp=2, dp=2)} == {"tp"}
    assert groups(4, tp=2, pp=2)[2, "ep"] == ("2,3", 2, "sizes")


def test_places_in_file_names_make_groups() -> None:
    """Ranks that differ in their tensor-parallel place alone reduce together."""
    found = groups(4, named=[(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)])
    assert (found[2, "tp"], found[2, "ep"]) == (("2,3", 2, "file names"), ("0,1,2,3", 4, "file names"))


def test_missing_files_keep_the_size_of_the_job() -> None:
    """Of eight ranks two were recorded: the group is not complete."""
    assert groups(2, world=8, named=[(0, 0, 0), (0, 0, 1)])[0, "tp"] == ("0,1", 8, "file names")


def test_groups_said_come_before_all_else() -> None:
    """They hold against sizes and names, and for the purposes they name."""
    found = groups(
        4, named=[(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 0, 3)], groups="tp:0,2;tp:1,3;ep:0,1,2,3", tp=4
    )
    assert (found[2, "tp"], found[2, "ep"]) == (("0,2", 2, "groups"), ("0,1,2,3", 4, "groups"))
    assert (2, "any") not in found


def test_one_group_said_stands_for_any_purpose_only_if_it_is_the_whole_job() -> None:
    """tp:0,1 of four ranks says nothing of where experts are exchanged."""
    assert {purpose for _, purpose in groups(4, groups="tp:0,1;tp:2,3")} == {"tp"}
    assert groups(4, groups="tp:0,1,2,3")[1, "any"] == ("0,1,2,3", 4, "groups")
