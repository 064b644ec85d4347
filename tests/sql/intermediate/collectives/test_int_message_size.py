"""int_message_size: operation, algorithm and bytes of each collective."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.tables import Row, run_model

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
COLUMNS = "op, kind, algorithm, in_bytes, out_bytes, size_bytes, size_source"


def sizes(
    category: str,
    subcategory: str | None,
    *,
    name: str = "k",
    size: int | None = None,
    argument: Row | None = None,
    ranks: int | None = 8,
    **config: Any,
) -> list[tuple[Any, ...]]:
    """What the model says of one kernel; `size` are elements known from tokens."""
    key: dict[str, Any] = {"trace_id": "t", "activity_id": 0}
    tables = {
        "int_collective": [key | {"category": category, "subcategory": subcategory, "is_half": False}],
        "int_activity": [key | {"name": name}],
        "int_communicator": [key | {"group_size": ranks}],
        "int_message": [key | {"msg_nelems": size, "msg_source": "graph_tokens x hidden_size"}]
        if size
        else [],
        "raw.gpu_activity": [key | dict(argument)] if argument else [],
        "run_config": [config] if config else [],
    }
    return run_model("int_message_size", tables, COLUMNS)


def test_arguments_tell_both_sides() -> None:
    """An all-gather of 100 elements puts in 200 bytes and takes out eight times that; its size is the
    larger."""
    argument = {"in_msg_nelems": 100, "out_msg_nelems": 800, "dtype": "BFloat16"}
    assert sizes("collective", "all_gather", argument=argument) == [
        ("all_gather", "all_gather", "convention", 200, 1600, 1600, "arguments")
    ]


def test_in_a_graph_tokens_and_the_kernels_name_tell() -> None:
    """NCCL's reducing kernels have the type in their name; elements come from the padded tokens."""
    source = "graph_tokens x hidden_size, type in the kernel's name"
    assert sizes("allreduce", "nccl", name=NCCL, size=7168) == [
        ("all_reduce", "nccl", "convention", 14336, 14336, 14336, source)
    ]


def test_else_the_type_said_of_the_run() -> None:
    """Other kernels' names prove no type of message."""
    found = sizes(
        "allreduce",
        "custom",
        name="void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(x)",
        size=10,
        dtype="float32",
    )
    assert found == [
        ("all_reduce", "custom", "one_shot", 40, 40, 40, "graph_tokens x hidden_size, type of run_config")
    ]


def test_without_elements_or_type_there_are_no_bytes() -> None:
    """Nothing is guessed."""
    assert sizes("allreduce", "nccl", name=NCCL) == [
        ("all_reduce", "nccl", "convention", None, None, None, None)
    ]
    assert sizes("allreduce", "custom", size=10) == [
        ("all_reduce", "custom", "unknown", None, None, None, None)
    ]


@pytest.mark.parametrize(
    ("argument", "size"),
    [
        ({"in_msg_nelems": 10, "dtype": "Float8_e4m3fn"}, 10),
        ({"in_msg_nelems": 10, "dtype": "Half"}, 20),
        ({"in_msg_nelems": 10, "dtype": "Float"}, 40),
        ({"in_msg_nelems": 10, "dtype": "Long"}, 80),
        ({"in_msg_nelems": 10, "dtype": "Quaternion"}, None),
    ],
)
def test_bytes_of_an_element(argument: Row, size: int | None) -> None:
    """Torch's names of types; one that is not known gives no bytes."""
    assert [row[3] for row in sizes("allreduce", "nccl", argument=argument)] == [size]


@pytest.mark.parametrize(
    ("subcategory", "ranks", "out"),
    [
        ("all_gather", 8, 640),
        ("reduce_scatter", 8, 10),
        ("reduce_scatter", 7, None),
        ("all_gather", None, None),
        ("broadcast", None, 80),
    ],
)
def test_the_other_side_follows_from_the_ranks(subcategory: str, ranks: int | None, out: int | None) -> None:
    """Where the arguments give one side only; not where ranks are unknown or do not divide it."""
    argument = {"in_msg_nelems": 40, "dtype": "Half"}
    assert [(row[3], row[4]) for row in sizes("collective", subcategory, argument=argument, ranks=ranks)] == [
        (80, out)
    ]


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("cross_device_reduce_2stage", "two_shot"),
        ("allreduce_fusion_kernel_oneshot_lamport", "one_shot"),
        ("multimem_all_reduce", "unknown"),
        (NCCL, "convention"),
    ],
)
def test_only_names_that_prove_it_tell_the_algorithm(name: str, algorithm: str) -> None:
    """RING_LL in NCCL's name stands for every algorithm."""
    assert [row[2] for row in sizes("allreduce", None, name=name)] == [algorithm]


@pytest.mark.parametrize(
    ("category", "subcategory"),
    [("all_to_all", "notify"), ("collective", "barrier"), ("collective", "generic")],
)
def test_what_moves_no_message_has_no_row(category: str, subcategory: str) -> None:
    """Barriers, notices and kernels that hide their operation."""
    assert sizes(category, subcategory) == []


def test_exchanges_and_sends_have_rows() -> None:
    """Dispatch and combine kernels are all-to-alls; a send is one whatever its kind."""
    assert [sizes(*kind)[0][:2] for kind in (("all_to_all", "dispatch"), ("p2p", "nccl"))] == [
        ("all_to_all", "dispatch"),
        ("send_recv", "nccl"),
    ]
