"""int_message: elements of all-reduces that carry no arguments."""

from __future__ import annotations

from typing import Any

from tests.support.tables import Row, run_model

DECODE: dict[str, Any] = {
    "step": 0,
    "context_requests": 0,
    "scheduled_context_tokens": 0,
    "generation_requests": 2,
    "generation_tokens": 2,
}


def _sizes(
    begin: Row = DECODE,
    *,
    hidden: int | None = 7168,
    padded: int | None = None,
    graph: bool = False,
    **layer: object,
) -> list[tuple[object, ...]]:
    """(activity_id, msg_nelems, msg_source) of one all-reduce in a layer."""
    tables: dict[str, list[Row]] = {
        "int_layer": [
            {"step": 0, "activity_id": 5, "layer": 0, "layers": 2, "is_after_layers": False} | layer
        ],
        "int_activity": [{"activity_id": 5, "rule_id": "nccl_all_reduce", "is_graph": graph}],
        "int_step_begin": [begin],
        "int_step_tokens": [{"step": 0, "graph_tokens": padded}] if padded else [],
        "run_config": [{"hidden_size": hidden}] if hidden else [],
    }
    return run_model("int_message", tables, "activity_id, msg_nelems, msg_source")


def test_a_graph_reduces_its_padded_tokens() -> None:
    """A batch of 2 in a graph of 16 reduces 16 hidden states."""
    assert _sizes(padded=16, graph=True) == [(5, 16 * 7168, "graph_tokens x hidden_size")]


def test_the_padded_size_may_come_from_the_marker() -> None:
    """Where the KV write does not tell it, an engine's marker may."""
    assert _sizes(DECODE | {"graph_tokens": 8}, graph=True) == [(5, 8 * 7168, "graph_tokens x hidden_size")]


def test_a_graph_of_unknown_size_has_no_message() -> None:
    """Piecewise graphs pad as well, but launch the KV write outside: the batch is not their size, so none is
    given."""
    assert _sizes(graph=True) == []


def test_an_eager_all_reduce_beside_a_graph_is_not_padded() -> None:
    """The padded size is that of the graph's own all-reduces."""
    assert _sizes(padded=16) == [(5, 2 * 7168, "scheduled tokens x hidden_size")]


def test_without_a_graph_the_scheduled_tokens_are_reduced() -> None:
    """Prefill and decode tokens of a mixed step together."""
    mixed = DECODE | {"context_requests": 1, "scheduled_context_tokens": 512}
    assert _sizes(mixed) == [(5, 514 * 7168, "scheduled tokens x hidden_size")]


def test_without_a_hidden_size_nothing_is_said() -> None:
    """The hidden size is unknown: no row."""
    assert _sizes(hidden=None) == []


def test_unknown_tokens_stay_unknown() -> None:
    """A marker without token counts, or a step found without one, gives no size."""
    for begin in (
        {"step": 0, "generation_requests": 2, "context_requests": 1},
        {"step": 0, "method": "graph"},
    ):
        assert _sizes(begin) == []


def test_the_embeddings_all_reduce_is_sized_too() -> None:
    """The one before the first layer reduces hidden states as well."""
    assert _sizes(layer=None) == [(5, 2 * 7168, "scheduled tokens x hidden_size")]


def test_behind_the_layers_nothing_is_guessed() -> None:
    """What the head or a draft reduces is not known."""
    assert _sizes(layer=None, is_after_layers=True) == []


def test_other_kernels_have_no_message() -> None:
    """Only all-reduces are sized."""
    tables: dict[str, list[Row]] = {
        "int_layer": [{"step": 0, "activity_id": 5, "layer": 0, "layers": 2, "is_after_layers": False}],
        "int_activity": [{"activity_id": 5, "rule_id": "nccl_all_gather"}],
        "int_step_begin": [DECODE],
        "run_config": [{"hidden_size": 7168}],
    }
    assert run_model("int_message", tables, "activity_id") == []


def test_an_activity_has_one_row_where_steps_are_per_device() -> None:
    """Kernel order begins a step 0 on each of two devices; an all-reduce belongs to its own device's."""
    tables: dict[str, list[Row]] = {
        "int_layer": [
            {"step": 0, "activity_id": 5, "layer": 0, "layers": 2, "is_after_layers": False, "device": 1}
        ],
        "int_activity": [{"activity_id": 5, "rule_id": "nccl_all_reduce", "device": 1}],
        "int_step_begin": [DECODE | {"device": device, "method": "pattern"} for device in (0, 1)],
        "run_config": [{"hidden_size": 7168}],
    }
    assert run_model("int_message", tables, "activity_id, msg_nelems") == [(5, 2 * 7168)]


def _learned(
    *calls: tuple[int, int | None], group: str = "tp", hidden: int | None = None
) -> list[tuple[object, ...]]:
    """Sizes of a graph's all-reduce (16 padded tokens) beside eager steps of (tokens, elements in the call's
    arguments)."""
    layer: dict[str, Any] = {"layer": 0, "layers": 2, "is_after_layers": False}
    rule: dict[str, Any] = {"rule_id": "nccl_all_reduce"}
    eager = list(enumerate(calls))
    tables: dict[str, list[Row]] = {
        "int_layer": [layer | {"step": i, "activity_id": i} for i in (*range(len(calls)), 90)],
        "int_activity": [rule | {"activity_id": i, "is_graph": i == 90} for i in (*range(len(calls)), 90)],
        "raw.gpu_activity": [
            {"activity_id": i, "in_msg_nelems": nelems, "process_group": group if i else "tp"}
            for i, (_, nelems) in eager
            if nelems
        ],
        "int_step_begin": [DECODE | {"step": i, "generation_tokens": tokens} for i, (tokens, _) in eager]
        + [DECODE | {"step": 90}],
        "int_step_tokens": [{"step": 90, "graph_tokens": 16}],
        "run_config": [{"hidden_size": hidden}],
    }
    return run_model("int_message", tables, "activity_id, msg_nelems, msg_source", "activity_id")


def test_eager_calls_show_the_hidden_size_to_graphs() -> None:
    """Two eager steps of 512 and 3 tokens with 7168 elements a token: the graph's 16 tokens are 16 x 7168."""
    assert _learned((512, 512 * 7168), (3, 3 * 7168)) == [
        (90, 16 * 7168, "graph_tokens x hidden size of eager calls")
    ]


def test_what_a_person_said_stands_before_what_calls_show() -> None:
    """run_config's hidden size is used, and named, where it is given."""
    assert _learned((512, 512 * 7168), (3, 3 * 7168), hidden=7168) == [
        (90, 16 * 7168, "graph_tokens x hidden_size")
    ]


def test_eager_calls_that_disagree_show_nothing() -> None:
    """Other sizes a token, one number of tokens only, several communicators: no size is guessed."""
    assert _learned((512, 512 * 7168), (3, 3 * 2048)) == []
    assert _learned((512, 512 * 7168), (512, 512 * 7168)) == []
    assert _learned((512, 512 * 7168), (3, 3 * 7168), group="dp") == []
    assert _learned((512, 512 * 7168), (3, 3 * 7168 + 1)) == []
