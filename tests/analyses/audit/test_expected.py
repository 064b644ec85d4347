"""What a step should hold, for each way of laying a model out over ranks."""

from __future__ import annotations

import pytest

from pipeline.analyses.audit.expected import (
    Expected,
    Layout,
    Shape,
    expected,
    position_text,
    without_positions,
)

KIMI = Shape(61, frozenset(range(1, 61)))
"""61 layers, the first of them dense."""


def calls(layout: Layout, shape: Shape = KIMI) -> dict[tuple[str, str], str]:
    """Calls in a step by part and kind."""
    return {(row.part, row.operation): row.text() for row in expected(layout, shape)}


def test_tensor_parallel_is_one_and_two_a_layer_and_a_gather() -> None:
    """123 all-reduces = 1 + 2 x 61; logits are gathered, which is no all-reduce."""
    assert calls(Layout(tp=8)) == {
        ("before_layers", "all-reduce"): "1",
        ("after_attention", "all-reduce"): "61",
        ("after_mlp", "all-reduce"): "1",
        ("after_moe", "all-reduce"): "60",
        ("after_layers", "all-gather"): "1",
    }


def test_experts_spread_over_tensor_parallel_ranks_keep_every_all_reduce() -> None:
    """Every rank has every token, so nothing is exchanged."""
    assert calls(Layout(tp=8, ep=8)) == calls(Layout(tp=8))


def test_data_parallel_attention_with_expert_parallel_exchanges_twice_a_moe_layer() -> None:
    """Dense layers nothing, no embedding reduce, no logits gather."""
    assert calls(Layout(dp=8, ep=8)) == {("moe", "dispatch"): "60", ("moe", "combine"): "60"}


def test_both_leave_the_reduce_after_experts_open() -> None:
    """With tensor parallel attention and the exchange, engines differ: none or one per MoE layer."""
    found = calls(Layout(tp=2, dp=4, ep=8))
    assert (
        found["after_attention", "all-reduce"],
        found["after_moe", "all-reduce"],
        found["moe", "combine"],
    ) == ("61", "0-60", "60")


def test_replicas_that_share_no_experts_are_as_one() -> None:
    """Data parallel alone adds nothing."""
    assert calls(Layout(tp=4, dp=2)) == calls(Layout(tp=4))


def test_a_shared_expert_reduced_apart_adds_one_a_moe_layer() -> None:
    """60 more."""
    found = calls(Layout(tp=8, shared_apart=True))
    assert (found["after_moe", "all-reduce"], found["after_mlp", "all-reduce"]) == ("120", "1")


def test_sequence_parallel_scatters_and_gathers_instead() -> None:
    """No all-reduce is left: 123 reduce-scatters and, with the one for logits, 124 all-gathers."""
    rows = expected(Layout(tp=8, sequence_parallel=True), KIMI)
    assert {row.operation for row in rows} == {"reduce-scatter", "all-gather"}
    assert {
        what: sum(row.low * row.positions for row in rows if row.operation == what)
        for what in ("reduce-scatter", "all-gather")
    } == {
        "reduce-scatter": 123,
        "all-gather": 124,
    }


def test_each_draft_pass_is_a_small_model() -> None:
    """Embedding, two per layer, logits: three passes of one layer are nine all-reduces."""
    found = calls(Layout(tp=8), Shape(61, KIMI.moe, draft_passes=3))
    assert (found["draft", "all-reduce"], found["draft", "all-gather"]) == ("9", "3")
    assert (
        calls(Layout(tp=8, draft_layers=2), Shape(61, KIMI.moe, draft_passes=3))["draft", "all-reduce"]
        == "15"
    )


@pytest.mark.parametrize(
    ("stage", "has_embedding", "has_logits", "messages"),
    [(0, True, False, "1+"), (1, False, False, "2+"), (2, False, True, "1+")],
)
def test_pipeline_stages_hold_their_part(
    stage: int, has_embedding: bool, has_logits: bool, messages: str
) -> None:
    """Embedding on the first, logits on the last, messages between."""
    rows = {
        (row.part, row.operation): row
        for row in expected(Layout(tp=2, pp=3), Shape(20, frozenset(range(20)), stage=stage))
    }
    assert ((("before_layers", "all-reduce") in rows), (("after_layers", "all-gather") in rows)) == (
        has_embedding,
        has_logits,
    )
    assert rows["any", "send/receive"].text() == messages
    assert rows["after_attention", "all-reduce"].text() == "20"


def test_one_rank_expects_nothing() -> None:
    """There is no one to talk to."""
    assert expected(Layout(), KIMI) == []


def test_every_row_has_a_reason() -> None:
    """So that a reader can object."""
    layouts = [
        Layout(tp=8),
        Layout(dp=8, ep=8),
        Layout(tp=2, dp=2, ep=4, pp=2),
        Layout(tp=2, sequence_parallel=True),
        Layout(tp=2, shared_apart=True),
    ]
    assert all(
        len(row.reason) > 10
        for layout in layouts
        for row in expected(layout, Shape(4, frozenset({2, 3}), 1, 0))
    )


def test_without_positions_rows_of_a_kind_are_one() -> None:
    """The whole step's number, and what it is made of."""
    rows = without_positions(expected(Layout(tp=8), KIMI))
    assert [(row.part, row.operation, row.text()) for row in rows] == [
        ("unknown", "all-reduce", "123"),
        ("unknown", "all-gather", "1"),
    ]
    assert rows[0].reason == "1 before the layers, 61 after attention, 1 after MLP, 60 after MoE"


def test_open_ends_stay_open_when_merged() -> None:
    """One or more and exactly one are two or more; drafts and messages stay apart."""
    rows = without_positions(expected(Layout(tp=2, pp=2), Shape(2, frozenset(), 1, stage=1)))
    assert {(row.part, row.operation): row.text() for row in rows} == {
        ("unknown", "all-reduce"): "4",
        ("unknown", "all-gather"): "1+",
        ("draft", "all-reduce"): "3",
        ("draft", "all-gather"): "1",
        ("any", "send/receive"): "1+",
    }


def test_places_in_words() -> None:
    """With a layer and without."""
    assert [
        position_text("after_moe", 3),
        position_text("after_moe", None),
        position_text("before_layers", None),
        position_text("any", None),
    ] == [
        "layer 3 after MoE",
        "after MoE, by layer",
        "before the first layer",
        "whole step",
    ]


def test_a_row_says_its_calls() -> None:
    """Per step, over its places."""
    assert Expected("moe", "x", (1, 2, 3), 2, 2, "").text() == "6"
    assert Expected("moe", "x", (1, 2, 3), 0, 1, "").text() == "0-3"
    assert Expected("moe", "x", None, 1, None, "").text() == "1+"
