"""int_role: what a GEMM is for, where its place proves it."""

from __future__ import annotations

import pytest

from tests.support.sequence import DENSE, HEAD, MOE, Sequence, run_model


def _roles(*blocks: str) -> list[tuple[str, str | None]]:
    """(word, role) of the GEMMs and expert GEMMs of the second of two equal layers, or of what stands behind
    them."""
    made = Sequence()
    for block in blocks:
        made.run(block)
    return _of(made, len(made.kernels) - len(blocks[-1].split()))


def _of(made: Sequence, first: int = 0) -> list[tuple[str, str | None]]:
    found: dict[int, str] = dict(
        run_model("int_role", made.tables() | {"int_layer": made.layer_rows()}, "activity_id, role")
    )
    wanted = {"gemm", "splitk", "expert"}
    return [
        (k["name"], found.get(k["activity_id"]))
        for k in made.kernels
        if k["activity_id"] >= first and k["name"] in wanted
    ]


def _exchanges(block: str) -> list[tuple[str, str | None]]:
    """(word, role) of the collectives and exchanges of the second of two equal layers."""
    made = Sequence().run(block).run(block)
    found: dict[int, str] = dict(
        run_model("int_role", made.tables() | {"int_layer": made.layer_rows()}, "activity_id, role")
    )
    wanted = {"gather", "scatter", "exchange", "ep_dispatch", "ep_combine"}
    behind = made.kernels[len(block.split()) :]
    return [(k["name"], found.get(k["activity_id"])) for k in behind if k["name"] in wanted]


def _second(block: str) -> list[tuple[str, str | None]]:
    return _roles(block, block)


def test_a_dense_layer() -> None:
    """The input projection is unproven, the GEMM after attention is o_proj, those after the norm are the
    dense MLP."""
    assert _second(DENSE) == [
        ("gemm", None),
        ("gemm", "o_proj"),
        ("gemm", "dense_mlp"),
        ("gemm", "dense_mlp"),
    ]


def test_an_expert_layer() -> None:
    """The GEMM right before the routing top-k is the router, expert GEMMs are experts."""
    assert _second(MOE) == [
        ("gemm", None),
        ("gemm", "o_proj"),
        ("gemm", "router"),
        ("expert", "experts"),
        ("expert", "experts"),
    ]


def test_shared_experts_are_the_other_gemms_of_an_expert_layer() -> None:
    """After the norm of a layer with experts, what is not the router is the shared expert."""
    block = "norm gemm attention gemm norm gemm activation gemm gemm topk expert activation expert sum"
    assert _second(block)[2:] == [
        ("gemm", "shared"),
        ("gemm", "shared"),
        ("gemm", "router"),
        ("expert", "experts"),
        ("expert", "experts"),
    ]


def test_a_gemm_before_the_sum_over_experts_is_no_router() -> None:
    """Only the top-k tells the router; another routing kernel after a GEMM of the shared expert does not."""
    block = "norm gemm attention gemm norm gemm topk expert activation expert gemm sum"
    assert _second(block)[2:] == [
        ("gemm", "router"),
        ("expert", "experts"),
        ("expert", "experts"),
        ("gemm", "shared"),
    ]


def test_a_shared_expert_on_its_own_stream_is_told_from_the_router() -> None:
    """The router is the GEMM before the top-k on the stream of the top-k, though another GEMM runs between
    them."""
    made = Sequence()
    for _ in range(2):
        made.run("norm gemm attention gemm norm gemm").run("gemm activation gemm", stream=20).run(
            "topk expert activation expert sum"
        )
    assert _of(made, 14)[2:5] == [("gemm", "router"), ("gemm", "shared"), ("gemm", "shared")]


def test_a_split_k_reduce_goes_with_its_gemm() -> None:
    """The reduce has the role of the GEMM before it: router, o_proj and dense_mlp alike."""
    block = "norm gemm attention gemm splitk norm gemm splitk topk expert activation expert sum"
    assert _second(block)[1:5] == [
        ("gemm", "o_proj"),
        ("splitk", "o_proj"),
        ("gemm", "router"),
        ("splitk", "router"),
    ]
    block = "norm gemm splitk attention gemm norm gemm splitk activation gemm"
    assert _second(block) == [
        ("gemm", None), ("splitk", None), ("gemm", "o_proj"), ("gemm", "dense_mlp"), ("splitk", "dense_mlp"),
        ("gemm", "dense_mlp"),
    ]  # fmt: skip


def test_mla_absorbs_on_both_sides_of_attention() -> None:
    """Beside MLA the GEMM between the KV write and attention, and the first of two after it, are the
    absorbed products."""
    block = "norm gemm gemm cache gemm mla combine gemm gemm allreduce norm gemm activation gemm"
    assert _second(block)[:5] == [
        ("gemm", None),
        ("gemm", None),
        ("gemm", "mla_absorb"),
        ("gemm", "mla_absorb"),
        ("gemm", "o_proj"),
    ]


def test_without_mla_nothing_is_absorbed() -> None:
    """The same order around another attention proves only the last GEMM before the norm."""
    block = "norm gemm gemm cache gemm attention combine gemm gemm allreduce norm gemm activation gemm"
    assert _second(block)[:5] == [
        ("gemm", None),
        ("gemm", None),
        ("gemm", None),
        ("gemm", None),
        ("gemm", "o_proj"),
    ]


def test_one_gemm_behind_mla_is_o_proj() -> None:
    """With a single GEMM between attention and the norm there is no absorbed product there."""
    assert _second("norm gemm cache mla gemm norm gemm activation gemm")[1] == ("gemm", "o_proj")


def test_without_a_kv_write_the_gemm_before_mla_is_unproven() -> None:
    """Nothing says where the projections end, so the GEMM before attention has no role."""
    assert _second("norm gemm gemm mla gemm norm gemm activation gemm")[:2] == [
        ("gemm", None),
        ("gemm", None),
    ]


def test_without_a_norm_behind_attention_nothing_is_o_proj() -> None:
    """Attention and MLP are indistinguishable in a block with one norm, so its GEMMs have no role."""
    assert {role for _, role in _second("norm gemm attention gemm gemm activation gemm")} == {None}


def test_without_a_router_no_gemm_is_called_shared() -> None:
    """Where a cast is between the gate and the top-k, the gate is not recognized, so no GEMM can be proven
    to be the other one."""
    found = _second("norm gemm attention gemm norm gemm cast topk expert activation expert sum")
    assert found == [
        ("gemm", None),
        ("gemm", "o_proj"),
        ("gemm", None),
        ("expert", "experts"),
        ("expert", "experts"),
    ]


def test_the_gemm_behind_the_layers_is_the_head() -> None:
    """Between the last layer and the first sampling kernel a GEMM is lm_head, its split-K reduce too."""
    assert _roles(DENSE, DENSE, "norm gemm splitk sample gemm") == [
        ("gemm", "lm_head"),
        ("splitk", "lm_head"),
        ("gemm", None),
    ]


def test_without_sampling_there_is_no_head() -> None:
    """A GEMM after the layers of a step that samples nothing (a pipeline stage, a chunked prefill) is
    unproven."""
    assert _roles(DENSE, DENSE, "norm gemm") == [("gemm", None)]


@pytest.mark.parametrize(
    "words",
    ["gemm gemm gemm", "norm gemm attention gemm norm gemm activation gemm", "gemm topk expert expert"],
)
def test_outside_layers_a_name_proves_nothing(words: str) -> None:
    """The same names in a step without repeating layers have no role: an nvjet name alone proves nothing."""
    assert {role for _, role in _of(Sequence().run(words))} == {None}


def test_steps_do_not_see_each_other() -> None:
    """A GEMM at the end of one step and the top-k at the start of the next are no router and its routing."""
    made = Sequence().run(f"{DENSE} {DENSE} norm gemm", 0).run(f"topk {DENSE} {DENSE}", 1)
    assert _of(made, 24)[0] == ("gemm", None)


def test_a_role_is_given_once() -> None:
    """Every activity has at most one row, whatever proves its role."""
    made = Sequence().run(f"{DENSE} {MOE} {MOE} {HEAD}").run(f"{DENSE} {MOE} {MOE} {HEAD}", 1)
    tables = made.tables() | {"int_layer": made.layer_rows()}
    assert run_model("int_role", tables, "count(*) = count(DISTINCT (trace_id, activity_id))") == [(True,)]


def test_a_norm_between_shows_the_low_rank_query() -> None:
    """Beside MLA: q_a, its norm, q_b, then kv_a with a norm of its own before the KV write."""
    tail = "rope cache gemm mla gemm gemm allreduce norm gemm activation gemm"
    assert _second(f"norm gemm norm gemm gemm norm {tail}")[:3] == [
        ("gemm", "q_a"),
        ("gemm", "q_b"),
        ("gemm", "kv_a"),
    ]
    assert _second(f"norm gemm norm gemm {tail}")[:2] == [("gemm", "q_a"), ("gemm", "q_b")]
    assert _second(f"norm gemm norm gemm gemm {tail}")[:3] == [
        ("gemm", "q_a"),
        ("gemm", "q_b"),
        ("gemm", None),
    ]


def test_a_full_rank_query_is_not_called_low_rank() -> None:
    """Two GEMMs without a norm between them are the query and kv_a of a model without a low-rank query:
    unproven."""
    assert _second("norm gemm gemm norm rope cache gemm mla gemm gemm norm gemm activation gemm")[:2] == [
        ("gemm", None),
        ("gemm", None),
    ]


def test_the_fused_kernel_of_the_latent_projections_tells_by_its_name() -> None:
    """Where norms are hidden in nameless fused kernels, fused_a's own name shows what the GEMM after it
    is."""
    made = Sequence()
    for _ in range(2):
        made.run("norm fused_a cast gemm rope cache gemm mla gemm gemm allreduce norm gemm activation gemm")
    found: dict[int, str] = dict(
        run_model("int_role", made.tables() | {"int_layer": made.layer_rows()}, "activity_id, role")
    )
    assert (found[1], found[3]) == ("q_a", "q_b")


EXPERTS = "gemm topk expert activation expert sum"


def test_gathering_before_the_experts_and_scattering_behind_them_is_dispatch_and_combine() -> None:
    """Data-parallel attention does not reduce; what its layer with experts gathers and scatters are the
    experts' tokens."""
    assert _exchanges(f"norm gemm attention gemm norm gather {EXPERTS} scatter") == [
        ("gather", "dispatch"),
        ("scatter", "combine"),
    ]


def test_in_sequence_parallelism_the_same_order_is_unproven() -> None:
    """Where attention ends in a reduce-scatter, the all-gather after the norm undoes it: no dispatch."""
    block = f"norm gather gemm attention gemm scatter norm gather {EXPERTS} scatter"
    assert {role for _, role in _exchanges(block)} == {None}


def test_a_layer_without_experts_dispatches_nothing() -> None:
    """Gather and scatter around a dense MLP are no dispatch and combine."""
    assert {
        role for _, role in _exchanges("norm gemm attention gemm norm gather gemm activation gemm scatter")
    } == {None}


def test_an_all_to_all_tells_by_its_place() -> None:
    """NCCL's send and receive kernels before the first and after the last expert GEMM."""
    block = f"norm gemm attention gemm norm exchange {EXPERTS} exchange"
    assert _exchanges(block) == [("exchange", "dispatch"), ("exchange", "combine")]


def test_kernels_of_an_expert_parallel_library_tell_by_their_name() -> None:
    """DeepEP's dispatch and combine are that wherever they stand, also in a step without layers."""
    made = Sequence().run("ep_dispatch expert ep_combine")
    assert run_model("int_role", made.tables(), "activity_id, role") == [(0, "dispatch"), (2, "combine")]


def test_every_kernel_of_a_draft_model_is_draft() -> None:
    """Its embedding too, and they have no other role."""
    made = Sequence().run("embed norm gemm ep_dispatch")
    drafts = [{"trace_id": "t", "activity_id": i} for i in range(4)]
    assert run_model("int_role", made.tables() | {"int_draft": drafts}, "activity_id, role") == [
        (i, "draft") for i in range(4)
    ]


def test_a_norm_fused_into_the_all_reduce_parts_attention_from_the_mlp() -> None:
    """o_proj stands before the fused kernel, the dense MLP after it."""
    block = "gemm attention gemm fused gemm activation gemm fused"
    made = Sequence().run(f"norm {block} {block}")
    found: dict[int, str] = dict(
        run_model("int_role", made.tables() | {"int_layer": made.layer_rows()}, "activity_id, role")
    )
    assert {i: role for i, role in found.items() if i > 8} == {11: "o_proj", 13: "dense_mlp", 15: "dense_mlp"}
