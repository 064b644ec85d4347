"""int_layer: the layer of each kernel, from the order of kernels alone."""

from __future__ import annotations

from tests.support.sequence import DENSE, HEAD, MOE, Sequence, joined, run_model


def _layers(sequence: Sequence) -> list[tuple[int | None, bool]]:
    """(layer, is_after_layers) of each kernel by its number; none if the step has no layers."""
    return run_model("int_layer", sequence.tables(), "layer, is_after_layers", "step, activity_id")


def _words(words: str, layer: int | None, *, behind: bool = False) -> list[tuple[int | None, bool]]:
    return [(layer, behind)] * len(words.split())


def test_blocks_are_numbered_from_the_first_norm_on() -> None:
    """Each block's kernels, from its first norm to the all-reduce after its MLP, have its number."""
    assert _layers(Sequence().run(f"{DENSE} {DENSE} {DENSE}")) == _words(DENSE, 0) + _words(
        DENSE, 1
    ) + _words(DENSE, 2)


def test_dense_and_expert_layers_count_alike() -> None:
    """A model of one dense and two mixture-of-experts layers has three."""
    assert _layers(Sequence().run(f"{DENSE} {MOE} {MOE}")) == _words(DENSE, 0) + _words(MOE, 1) + _words(
        MOE, 2
    )


def test_what_runs_before_the_first_norm_has_no_layer() -> None:
    """Embedding and its all-reduce belong to no layer, and are not after the layers either."""
    assert _layers(Sequence().run(f"embed allreduce {DENSE} {DENSE}"))[:3] == [
        (None, False),
        (None, False),
        (0, False),
    ]


def test_the_final_norm_and_the_head_stand_behind_the_layers() -> None:
    """From the norm after the last block on, nothing belongs to a layer."""
    found = _layers(Sequence().run(f"{DENSE} {DENSE} {HEAD}"))
    assert found == _words(DENSE, 0) + _words(DENSE, 1) + _words(HEAD, None, behind=True)


def test_norms_inside_attention_begin_no_layer() -> None:
    """Norms of q and k before attention, and one right after it, are inside their block."""
    block = "norm gemm norm norm rope attention norm gemm norm gemm activation gemm"
    assert _layers(Sequence().run(f"{block} {block}")) == _words(block, 0) + _words(block, 1)


def test_two_norms_between_blocks_begin_one_layer() -> None:
    """Of a norm after the MLP and the next block's own norm only the first begins a layer."""
    block = "norm gemm attention gemm norm norm gemm activation gemm norm"
    found = _layers(Sequence().run(f"{block} {block}"))
    assert max(layer for layer, _ in found if layer is not None) == 1


def test_two_attention_kernels_of_a_mixed_step_are_one_layer() -> None:
    """Prefill and decode tokens of one step are attended by two kernels; the layer stays one."""
    block = "norm gemm attention attention combine gemm norm gemm activation gemm"
    assert _layers(Sequence().run(f"{block} {block}")) == _words(block, 0) + _words(block, 1)


def test_an_activation_between_expert_gemms_is_one_mlp() -> None:
    """Shared expert, router, experts and their sum are one layer's MLP."""
    block = "norm gemm attention gemm norm gemm activation gemm gemm topk expert activation expert sum"
    assert _layers(Sequence().run(f"{block} {block}")) == _words(block, 0) + _words(block, 1)


def test_a_block_without_attention_proves_nothing() -> None:
    """A block in the middle that lacks its attention (lost, or another architecture) leaves the step without
    layers."""
    assert _layers(Sequence().run(f"{DENSE} norm gemm activation gemm {DENSE}")) == []


def test_combine_and_indexer_kernels_are_no_attention_of_their_own() -> None:
    """A block that has only the combine or the indexer of an attention proves nothing."""
    for word in ("combine", "indexer"):
        assert _layers(Sequence().run(f"{DENSE} norm gemm {word} norm gemm activation gemm {DENSE}")) == [], (
            word
        )


def test_fewer_than_two_blocks_are_none() -> None:
    """One block does not repeat, so it is not called a layer."""
    assert _layers(Sequence().run(f"{DENSE} {HEAD}")) == []


def test_a_step_without_norms_has_no_layers() -> None:
    """Nothing begins a block, so nothing is numbered."""
    assert _layers(Sequence().run("attention gemm activation gemm attention gemm activation gemm")) == []


def test_kernels_on_a_second_stream_belong_to_the_layer_they_run_in() -> None:
    """A shared expert beside the routed ones, on its own stream, has the layer of the kernels around it."""
    made = Sequence()
    for _ in range(2):
        made.run("norm gemm attention gemm norm gemm topk").run("gemm activation gemm", stream=20).run(
            "expert activation expert sum"
        )
    assert _layers(made) == [(layer, False) for layer in (0, 1) for _ in range(14)]


def test_order_in_time_decides_not_order_of_rows() -> None:
    """Kernels of equal start go by activity id; others by start, wherever their rows stand."""
    made = Sequence().run(f"{DENSE} {MOE} {HEAD}")
    expected = run_model("int_layer", made.tables(), "*")
    made.kernels.reverse()
    assert run_model("int_layer", made.tables(), "*") == expected


def test_steps_devices_and_traces_are_numbered_on_their_own() -> None:
    """Every step starts at layer 0, on every device and in every trace; a step without blocks does not
    disturb the others."""
    first = Sequence().run(f"{DENSE} {DENSE}", 0).run("gemm sample", 1).run(f"{DENSE} {DENSE} {DENSE}", 2)
    second = Sequence(trace_id="u", device=1).run(f"{DENSE} {DENSE}", 0)
    found = run_model("int_layer", joined(first, second), "DISTINCT trace_id, device, step, layers")
    assert found == [("t", 0, 0, 2), ("t", 0, 2, 3), ("u", 1, 0, 2)]


def test_kernels_of_no_step_have_no_layer() -> None:
    """What belongs to no step is not numbered, however regular it is."""
    assert _layers(Sequence().run(f"{DENSE} {DENSE}", None)) == []


def test_a_draft_behind_sampling_is_no_layer_of_the_model() -> None:
    """Speculative decoding: the draft model's block runs after the target's sampling and is not counted."""
    found = _layers(Sequence().run(f"{DENSE} {DENSE} {HEAD} embed {DENSE} {HEAD}"))
    assert found[: 2 * len(DENSE.split())] == _words(DENSE, 0) + _words(DENSE, 1)
    assert set(found[2 * len(DENSE.split()) :]) == {(None, True)}


def test_sixty_one_layers_are_found() -> None:
    """One dense and sixty mixture-of-experts layers, the model of the shared captures."""
    found = _layers(Sequence().run(" ".join([DENSE, *[MOE] * 60, HEAD])))
    assert {layer for layer, behind in found if not behind} == set(range(61))


def test_a_norm_fused_into_the_all_reduce_ends_its_block() -> None:
    """The fused kernel reduces the block's sum, so it is the block's; the next begins after it, the head
    after the last."""
    block = "gemm attention gemm fused gemm activation gemm fused"
    found = _layers(Sequence().run(f"embed allreduce norm {block} {block} gemm sample"))
    first = [(None, False), (None, False), (0, False)]
    assert found == first + _words(block, 0) + _words(block, 1) + [(None, True), (None, True)]


def test_an_embedding_reduced_with_the_first_norm_stands_before_the_layers() -> None:
    """The fused kernel before the first block reduces the embedding, not a layer."""
    block = "gemm attention gemm fused gemm activation gemm fused"
    found = _layers(Sequence().run(f"embed fused {block} {block} gemm sample"))
    assert found == [
        (None, False),
        (None, False),
        *_words(block, 0),
        *_words(block, 1),
        (None, True),
        (None, True),
    ]


def test_kernels_of_drafts_have_no_layer() -> None:
    """A draft model that runs before the verifying pass does not add to its layers."""
    made = Sequence().run(DENSE).run(f"{DENSE} {DENSE}")
    drafts = [{"trace_id": "t", "activity_id": i} for i in range(len(DENSE.split()))]
    found = run_model(
        "int_layer", made.tables() | {"int_draft": drafts}, "layer, is_after_layers", "step, activity_id"
    )
    assert found == _words(DENSE, 0) + _words(DENSE, 1)
