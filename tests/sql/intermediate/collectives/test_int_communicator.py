"""int_communicator: the communicator of each collective."""

from __future__ import annotations

from typing import Any

from tests.support.tables import run_model

Found = tuple[Any, ...]


def communicator(
    argument: dict[str, Any] | None = None,
    groups: dict[str, str] | None = None,
    config: dict[str, Any] | None = None,
    **call: Any,
) -> Found:
    """(members, communicator, size, source) of one call of rank 0; `groups`: members by purpose."""
    made = {"activity_id": 1, "category": "allreduce", "subcategory": "nccl"} | call
    rows = [
        {
            "recording": "r",
            "rank": 0,
            "purpose": purpose,
            "members": members,
            "group_size": members.count(",") + 1,
            "group_source": "groups",
        }
        for purpose, members in (groups or {}).items()
    ]
    tables: dict[str, list[dict[str, Any]]] = {
        "int_collective": [made], "int_recording": [{"recording": "r", "rank": 0}], "int_rank_group": rows,
        "raw.gpu_activity": [{"activity_id": 1} | argument] if argument else [],
        "run_config": [config] if config else [],
    }  # fmt: skip
    return run_model("int_communicator", tables, "members, communicator, group_size, group_source")[0]


BOTH = {"tp": "0,1", "ep": "0,1,2,3"}


def test_arguments_say_it() -> None:
    """The ranks and the group's name, as torch records them, before any given group."""
    argument = {"process_group_ranks": "[0, 1]", "process_group": "3", "group_size": 2}
    assert communicator(argument, BOTH) == ("0,1", "0,1 3", 2, "arguments")


def test_all_reduces_and_logits_are_of_the_tensor_parallel_group() -> None:
    """Without arguments the purpose decides."""
    assert communicator(groups=BOTH)[0] == "0,1"
    assert (
        communicator(groups=BOTH, category="collective", subcategory="all_gather", role="logits")[0] == "0,1"
    )


def test_dispatch_and_combine_are_of_the_expert_group() -> None:
    """By role, or by being an all-to-all."""
    assert (
        communicator(groups=BOTH, category="collective", subcategory="all_gather", role="dispatch")[0]
        == "0,1,2,3"
    )
    assert communicator(groups=BOTH, category="all_to_all", subcategory="nccl")[0] == "0,1,2,3"


def test_a_gather_of_unknown_purpose_is_not_guessed() -> None:
    """Where groups differ, an all-gather may be of any; sequence parallelism says which."""
    gather: dict[str, Any] = {"category": "collective", "subcategory": "all_gather"}
    assert communicator(groups=BOTH, **gather) == (None, None, None, None)
    assert communicator(groups=BOTH, config={"sequence_parallel": True}, **gather)[0] == "0,1"


def test_one_group_for_all_purposes_is_it() -> None:
    """Then the purpose does not matter."""
    assert communicator(groups={"any": "0,1"}, category="collective", subcategory="all_gather") == (
        "0,1",
        "0,1",
        2,
        "groups",
    )


def test_a_group_of_one_is_no_group() -> None:
    """tp 1 makes no all-reduce: one that is there is of another group, which is not known."""
    assert communicator(groups={"tp": "0", "ep": "0,1"}) == (None, None, None, None)
