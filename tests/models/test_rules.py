"""Kernel rules: what claims which name, whose rules come first, and what is wrong with a rules file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import duckdb
import pytest

from pipeline.duck import literal
from pipeline.errors import UsageError
from pipeline.lake.home import Home
from pipeline.lake.query import run_query
from pipeline.models.explain import explain_name, rule_rows
from pipeline.models.rules import Rule, categories, load_rules, rollups, rule_problems
from pipeline.resources import resource
from tests.support.builders import ALL_REDUCE, GEMM, StepBuilder, header, ingest_into, write_trace
from tests.support.known_answer import ACTIVATION, MLA, NORM
from tests.support.tables import evaluate

RULES = load_rules()
BY_ID = {rule.id: rule for rule in RULES.rules}


Asked = tuple[str, str | None]
OTHER_OP = "aten::nothing_of_the_kind"


def _claims(asked: Iterable[Asked]) -> dict[Asked, str | None]:
    """The first of our rules that claims each (name, operator): all in one query, as in a build."""
    pairs = list(dict.fromkeys(asked))
    listed = ", ".join(f"{{'name': {literal(name)}, 'op': {literal(op)}::VARCHAR}}" for name, op in pairs)
    found = evaluate(
        f"(SELECT list(first_rule(asked.name, asked.op) ORDER BY place) FROM unnest([{listed}]) WITH "
        "ORDINALITY AS u (asked, place))"
    )
    return dict(zip(pairs, found, strict=True))


@cache
def _known_claims() -> dict[Asked, str | None]:
    """The claims on all examples, without operator, with their own and with another, and on both spellings of
    PAIRS."""
    examples = [(r.example, op) for r in RULES.rules if r.example for op in (None, r.example_op, OTHER_OP)]
    return _claims([*examples, *((name, None) for _, *spellings in PAIRS for name in spellings)])


def claimed_by(name: str, op: str | None = None) -> str | None:
    """The first of our rules that claims this name."""
    known = _known_claims()
    return known[name, op] if (name, op) in known else _claims([(name, op)])[name, op]


def filed(name: str, op: str | None = None) -> tuple[str, str | None]:
    """Category and subcategory of this name; unclassified if no rule claims it."""
    rule_id = claimed_by(name, op)
    return (BY_ID[rule_id].category, BY_ID[rule_id].subcategory) if rule_id else ("unclassified", None)


# --- our own rules
# ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [r for r in RULES.rules if not r.is_positional], ids=lambda r: r.id)
def test_every_example_is_claimed_first_by_its_own_rule(rule: Rule) -> None:
    """No rule further up takes the name away, with the example's operator where one is given."""
    assert rule.example is not None
    assert claimed_by(rule.example, rule.example_op) == rule.id


@pytest.mark.parametrize("rule", [r for r in RULES.rules if r.op], ids=lambda r: r.id)
def test_a_rule_with_an_operator_claims_nothing_without_it(rule: Rule) -> None:
    """Under CUDA graphs no operator is known, so such a rule stays silent, as it does for another
    operator."""
    assert rule.example is not None
    assert claimed_by(rule.example) != rule.id
    assert claimed_by(rule.example, OTHER_OP) != rule.id


REDUCE_4 = "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float> >(at::native::ReduceOp<float>)"
FILL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, std::array<char*, "
    "1ul> >(int)"
)


@pytest.mark.parametrize(
    ("name", "before", "after", "rule"),
    [
        (REDUCE_4, "moe_gemm", None, "moe_sum_after_experts"),
        (REDUCE_4.replace("<128, 4", "<(int)128, (int)4"), "moe_gemm", "allreduce", "moe_sum_after_experts"),
        (REDUCE_4, "gemm", "moe_gemm", None),
        (REDUCE_4, None, None, None),
        (REDUCE_4.replace("<128, 4", "<512, 1"), "moe_gemm", None, None),
        (FILL, None, "moe_gemm", "moe_zero_fill"),
        ("Memset (Device)", "routing", "moe_gemm", "moe_zero_fill"),
        ("[CUDA memset]", None, "moe_gemm", "moe_zero_fill"),
        (FILL, "moe_gemm", "gemm", None),
        ("Memcpy DtoD (Device -> Device)", None, "moe_gemm", None),
    ],
)
def test_rules_by_place_ask_for_the_neighbor(
    name: str, before: str | None, after: str | None, rule: str | None
) -> None:
    """A plain reduction is a sum over experts only after an expert GEMM, a fill the experts' only before
    one."""
    assert evaluate("neighbor_rule(?, ?, ?)", name, before, after) == rule


def test_our_rules_pass_the_check_of_a_users_file() -> None:
    """No unknown field, category or id, and every pattern is RE2."""
    assert rule_problems((resource("schemas") / "kernel_rules.toml").read_text(encoding="utf-8")) == []


def test_every_rule_has_a_subcategory() -> None:
    """It is never NULL: models compare it."""
    with duckdb.connect() as con:
        RULES.install(con)
        unnamed = "SELECT rule_id FROM kernel_rule WHERE subcategory IS NULL"
        assert con.execute(unnamed).fetchall() == [("unclassified",)]


def test_every_rule_files_under_a_known_category() -> None:
    """Category and neighbors are categories of schemas/categories.toml."""
    used = {c for r in RULES.rules for c in (r.category, r.after, r.before) if c}
    assert used <= categories().keys()


def test_every_category_has_a_row_of_the_table_and_an_owner() -> None:
    """Rollups are those listed, and owner is 1 compute, 2 communication or 3 copies."""
    assert {c["rollup"] for c in categories().values()} == set(rollups())
    assert {c["owner"] for c in categories().values()} == {1, 2, 3}
    assert {name for name, c in categories().items() if c["owner"] == 2} == {
        "allreduce",
        "all_to_all",
        "collective",
        "p2p",
    }


def test_unclassified_and_opaque_are_rows_of_their_own() -> None:
    """Neither is folded into anything, and no rule files anything there."""
    assert (categories()["unclassified"]["rollup"], categories()["opaque"]["rollup"]) == (
        "Unclassified",
        "Opaque",
    )
    assert not {"unclassified", "opaque"} & {r.category for r in RULES.rules}


# --- traps, by name
# --------------------------------------------------------------------------------------------------


def test_marlin_in_the_moe_namespace_is_an_expert_gemm() -> None:
    """The same template in namespace marlin is a dense GEMM."""
    arguments = "Marlin<1125899906909960l, 128, 1, 8, 4, true, 4, 2, false>(int4 const*, int4 const*)"
    assert filed(f"void marlin_moe_wna16::{arguments}") == ("moe_gemm", "marlin")
    assert filed(f"void marlin::{arguments}") == ("gemm", "marlin")


def test_all_reduce_in_a_pointwise_name_is_a_neighbor() -> None:
    """triton_poi_fused_add_all_reduce_mul_1 adds and multiplies; it communicates nothing."""
    assert filed("triton_poi_fused_add_all_reduce_mul_1") == ("elementwise", "inductor")


@pytest.mark.parametrize(
    "name",
    [
        "triton_red_fused_fused_add_rms_norm_moe_forward_shared_0",
        "triton_red_fused_fused_add_rms_norm_machete_mm_0",
        "triton_red_fused_fused_add_rms_norm_min_latency_fused_qkv_a_proj_2",
        "triton_per_fused_all_reduce_rms_norm_3",
    ],
)
def test_a_compiled_reduction_with_a_norm_is_a_norm(name: str) -> None:
    """GEMMs, experts and collectives in the list are neighbors that feed it or use it."""
    assert filed(name)[0] == "norm"


@pytest.mark.parametrize(
    ("name", "category", "subcategory"),
    [
        ("triton_poi_fused_3", "elementwise", "inductor_unknown"),
        ("triton_red_fused_4", "elementwise", "inductor_unknown"),
        ("triton_poi_fused_mul_silu_slice_0", "activation", "inductor"),
        ("triton_tem_fused_addmm_0", "gemm", "triton"),
        ("triton_red_fused_mm_slice_t_view_8", "elementwise", "inductor"),
        (
            "triton_poi_fused_add_copy_index_select_mul_slice_split_stack_sub_unsqueeze_view_5",
            "rope",
            "inductor",
        ),
        ("triton_poi_fused__to_copy_1", "cast", "inductor"),
    ],
)
def test_compiled_kernels_are_filed_by_their_kind(name: str, category: str, subcategory: str) -> None:
    """Only templates are GEMMs, pointwise with silu is an activation, and a list without operators stays
    unknown."""
    assert filed(name) == (category, subcategory)


def test_top_k_is_routing_sampling_or_the_indexers() -> None:
    """The engine's own kernels tell by name, torch's by operator; without one torch's top-k is sampling."""
    torch = (
        "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, "
        "false>(at::cuda::detail::TensorInfo<float const, unsigned int>)"
    )
    assert filed("void vllm::moe::topkGatingSoftmax<8, 256, 4, 16, 32>(float const*)")[0] == "routing"
    assert filed("void vllm::topKPerRowDecode<1024, true>(float const*, int const*)") == (
        "attention",
        "indexer",
    )
    assert filed(torch) == ("sampling", "topk")
    assert filed(torch, "vllm::moe_forward") == ("routing", "topk")
    assert filed(torch, "vllm::sparse_attn_indexer") == ("attention", "indexer")


def test_nothing_is_read_from_ring_ll() -> None:
    """Newer NCCL runs every algorithm through that one symbol; the collective is in the name before it."""
    suffix = "RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    assert filed(f"ncclDevKernel_AllReduce_Sum_bf16_{suffix}") == filed(
        f"ncclDevKernel_AllReduce_Sum_bf16_TREE_LL{suffix[7:]}"
    )
    assert filed(f"ncclDevKernel_AllGather_{suffix}") == ("collective", "all_gather")
    assert filed(f"ncclDevKernel_ReduceScatter_Sum_bf16_{suffix}") == ("collective", "reduce_scatter")


def test_cross_device_reduce_is_the_custom_all_reduce() -> None:
    """Its name says reduce, but it is an all-reduce of the engine's own."""
    name = (
        "void vllm::cross_device_reduce_{}<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals, "
        "vllm::Signal*, __nv_bfloat16*, int, int)"
    )
    assert filed(name.format("1stage")) == filed(name.format("2stage")) == ("allreduce", "custom")


def test_an_all_reduce_fused_with_a_norm_is_communication() -> None:
    """It is flagged as two jobs in one kernel, and pattern 0 of the same template is a plain all-reduce."""
    name = (
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport"
        "<(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern){}, __nv_bfloat16, 8, true>(x)"
    )
    assert filed(name.format(1)) == ("allreduce", "fused_norm")
    assert BY_ID[claimed_by(name.format(1)) or ""].is_fused
    assert filed(name.format(0)) == ("allreduce", "flashinfer")


def test_split_k_reduction_goes_with_its_gemm() -> None:
    """It is no collective and no reduction of its own."""
    assert filed(
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, "
        "__nv_bfloat16>(cublasLt::cublasSplitKParams<float>)"
    ) == ("gemm", "splitk")


def test_attention_combine_is_attention() -> None:
    """Merging the splits of a KV cache is no expert-parallel combine."""
    assert filed(
        "void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<cute::C<8> >, 5> >(x)"
    ) == ("attention", "combine")
    assert filed("void vllm::merge_attn_states_kernel<__nv_bfloat16, 128u>(__nv_bfloat16*)") == (
        "attention",
        "combine",
    )


def test_bare_dispatch_and_combine_are_everyday_words() -> None:
    """Only in the namespace of an expert-parallel library are they an all-to-all."""
    assert filed("void my::dispatch<8>(int)") == filed("void combine(int)") == ("unclassified", None)
    assert filed("void deep_ep::intranode::dispatch<8, 768>(int4*)") == ("all_to_all", "dispatch")
    assert filed("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(__nv_bfloat16*)") == (
        "all_to_all",
        "combine",
    )


def test_nccl_send_and_receive_is_an_all_to_all_only_by_operator() -> None:
    """Without one, point to point is all that is certain."""
    name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    assert [filed(name, op)[0] for op in (None, "c10d::alltoall_base_", "c10d::send")] == [
        "p2p",
        "all_to_all",
        "p2p",
    ]


def test_rccl_generic_is_what_the_operator_says() -> None:
    """Without one it is a collective of unknown kind, not an all-reduce."""
    name = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"
    assert [filed(name, op) for op in (None, "vllm::all_reduce", "vllm::all_gather")] == [
        ("collective", "generic"),
        ("allreduce", "nccl"),
        ("collective", "all_gather"),
    ]


def test_a_bmm_by_name_is_a_gemm_of_its_kind() -> None:
    """cuBLAS names do not tell a batched GEMM; the operator does."""
    assert filed("nvjet_sm90_tst_128x8_64x12_2x1_v_bz_NNT") == ("gemm", "cublas")
    assert filed("nvjet_sm90_tst_128x8_64x12_2x1_v_bz_NNT", "aten::bmm") == ("gemm", "bmm")


def test_sampled_tokens_going_to_the_host_are_a_copy() -> None:
    """A copy is a copy, whatever it carries."""
    assert filed("Memcpy DtoH (Device -> Pinned)") == ("memcpy", "dtoh")


@pytest.mark.parametrize("name", ["Kernel", "unknown", "", "my_new_kernel(float*)", "combine_kernel"])
def test_unknown_names_are_left_to_the_reader(name: str) -> None:
    """There is no catch-all: what no rule knows is unclassified, and shown so."""
    assert claimed_by(name) is None


# --- two spellings
# ---------------------------------------------------------------------------------------------------

PAIRS = [
    (
        "split_k_reduce",
        (
            "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, "
            "false, float, __nv_bfloat16, __nv_bfloat16, "
            "true, false, false, false>(cublasLt::cublasSplitKParams<float>, float const*, __nv_bfloat16 "
            "const*, float*, __nv_bfloat16*, void*, long)"
        ),
        (
            "void cublasLt::splitKreduce_kernel<(int)32, (int)16, int, float, __nv_bfloat16, float, "
            "__nv_bfloat16, (bool)0, float, __nv_bfloat16, "
            "__nv_bfloat16, (bool)1, (bool)0, (bool)0, (bool)0>(cublasLt::cublasSplitKParams<T6>, const T4 "
            "*, const T10 *, T9 *, T5 *, void *, long)"
        ),
    ),
    (
        "nccl_all_reduce",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
    ),
    (
        "nccl_all_gather",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
    ),
    (
        "marlin_moe",
        (
            "void marlin_moe_wna16::Marlin<1125899906909960l, 1125899907892224l, 1125899906909960l, "
            "1125899906909960l, 128, 1, 8, 4, true, "
            "4, 2, false>"
            "(int4 const*, int4 const*, int4*, int4*, int, bool)"
        ),
        (
            "void marlin_moe_wna16::Marlin<(long)1125899906909960, (long)1125899907892224, "
            "(long)1125899906909960, (long)1125899906909960, (int)128, "
            "(int)1, (int)8, (int)4, (bool)1, (int)4, (int)2, (bool)0>(const int4 *, const int4 *, int4 *, "
            "int4 *, int, bool)"
        ),
    ),
    (
        "mla_cache",
        (
            "void vllm::concat_and_cache_mla_kernel<__nv_bfloat16, __nv_bfloat16, "
            "(vllm::Fp8KVCacheDataType)0>(__nv_bfloat16 const*, int, float const*)"
        ),
        (
            "void vllm::concat_and_cache_mla_kernel<__nv_bfloat16, __nv_bfloat16, "
            "(vllm::Fp8KVCacheDataType)0>(const T1 *, int, const float *)"
        ),
    ),
    (
        "fa3_combine",
        (
            "void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<cute::C<8>, cute::C<128> >, "
            "5, 256, 1, false, true, "
            "cutlass::bfloat16_t, "
            "float, cutlass::arch::Sm90> >(flash::FlashAttnFwdCombine<cute::tuple<cute::C<8>, cute::C<128> "
            ">, 5, 256, 1, false, true, "
            "cutlass::bfloat16_t, float, cutlass::arch::Sm90>::Params)"
        ),
        (
            "void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<cute::C<(int)8>, "
            "cute::C<(int)128>>, (int)5, (int)256, (int)1, "
            "(bool)0, "
            "(bool)1, cutlass::bfloat16_t, float, cutlass::arch::Sm90>>(T1::Params)"
        ),
    ),
    (
        "fa3_mla",
        (
            "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::C"
            "ollectiveMainloopFwdSm90<2, "
            "cute::tuple<cute::C<1>, "
            "cute::C<1>, cute::C<1> >, cute::tuple<cute::C<64>, cute::C<64>, cute::C<64> >, 512, "
            "cutlass::bfloat16_t, float, cutlass::arch::Sm90, "
            "false, 1> > > >(flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<x> >::Params)"
        ),
        (
            "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::C"
            "ollectiveMainloopFwdSm90<(int)2, "
            "cute::tuple<cute::C<(int)1>, cute::C<(int)1>, cute::C<(int)1>>, cute::tuple<cute::C<(int)64>, "
            "cute::C<(int)64>, cute::C<(int)64>>, "
            "(int)512, "
            "cutlass::bfloat16_t, float, cutlass::arch::Sm90, (bool)0, (int)1>>>>(T1::Params)"
        ),
    ),
    (
        "fused_a_gemm",
        (
            "void fused_a_gemm_kernel<1, 2112, 7168, 16, 8, 256, 16>(__nv_bfloat16*, __nv_bfloat16 const*, "
            "__nv_bfloat16 const*, int)"
        ),
        (
            "void fused_a_gemm_kernel<(int)1, (int)2112, (int)7168, (int)16, (int)8, (int)256, "
            "(int)16>(__nv_bfloat16 *, const __nv_bfloat16 *, "
            "const __nv_bfloat16 *, int)"
        ),
    ),
    (
        "grouped_topk",
        (
            "void vllm::moe::grouped_topk_fused_small_expert_count_kernel<__nv_bfloat16, float, int, "
            "(vllm::moe::ScoringFunc)1, 128, false, 8>"
            "(__nv_bfloat16*, float*, int*, float const*, long, bool, double)"
        ),
        (
            "void vllm::moe::grouped_topk_fused_small_expert_count_kernel<__nv_bfloat16, float, int, "
            "(vllm::moe::ScoringFunc)1, (int)128, "
            "(bool)0, (int)8>"
            "(T1 *, float *, T3 *, const T2 *, long, bool, double)"
        ),
    ),
    (
        "moe_align",
        (
            "void vllm::moe::moe_align_block_size_small_batch_expert_kernel<int, 256>(int const*, int*, "
            "int*, "
            "int*, int*, int, int, unsigned long, bool)"
        ),
        (
            "void vllm::moe::moe_align_block_size_small_batch_expert_kernel<int, (int)256>(const T1 *, int "
            "*, int *, int *, int *, int, int, "
            "unsigned long, bool)"
        ),
    ),
    (
        "torch_reduce",
        (
            "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16, "
            "at::native::func_wrapper_t<c10::BFloat16, "
            "at::native::sum_functor<c10::BFloat16, float, "
            "c10::BFloat16>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, unsigned int, "
            "c10::BFloat16, 4, 8> >(at::native::ReduceOp<c10::BFloat16, float, unsigned int, c10::BFloat16, "
            "4, 8>)"
        ),
        (
            "void at::native::reduce_kernel<(int)128, (int)4, at::native::ReduceOp<c10::BFloat16, "
            "at::native::func_wrapper_t<c10::BFloat16, "
            "at::native::sum_functor<c10::BFloat16, float, c10::BFloat16>::operator ()(at::TensorIterator "
            "&)::[lambda(float, float) (instance 1)]>, "
            "unsigned int, c10::BFloat16, (int)4, (int)8>>(T3)"
        ),
    ),
    (
        "torch_fill",
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, "
            "std::array<char*, 1ul> >(int, at::native::FillFunctor<"
            "int>, "
            "std::array<char*, 1ul>)"
        ),
        (
            "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<int>, "
            "std::array<char *, (unsigned long)1>>(int, T2, T3)"
        ),
    ),
    (
        "argmax",
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, "
            "at::native::ArgMaxOps<float>, unsigned int, long, 4, 4> >"
            "(at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int, long, 4, 4>)"
        ),
        (
            "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, "
            "at::native::ArgMaxOps<float>, unsigned int, long, (int)4, "
            "(int)4>>(T3)"
        ),
    ),
    (
        "varlen_scheduler",
        (
            "void flash::prepare_varlen_num_blocks_kernel<1, false>(int, int, int, int const*, "
            "cutlass::FastDivmod, int*, bool, bool, int)"
        ),
        (
            "void flash::prepare_varlen_num_blocks_kernel<(int)1, (bool)0>(int, int, int, const int *, "
            "cutlass::FastDivmod, int *, bool, bool, int)"
        ),
    ),
    (
        "torch_add",
        (
            "void at::native::unrolled_elementwise_kernel<at::native::CUDAFunctorOnSelf_add<int>, "
            "std::array<char*, 2ul>, 4, "
            "TrivialOffsetCalculator<1, "
            "unsigned int>, at::native::memory::LoadWithoutCast>(int, "
            "at::native::CUDAFunctorOnSelf_add<int>, std::array<char*, 2ul>)"
        ),
        (
            "void at::native::unrolled_elementwise_kernel<at::native::CUDAFunctorOnSelf_add<int>, "
            "std::array<char *, (unsigned long)2>, (int)4, "
            "TrivialOffsetCalculator<(int)1, unsigned int>, at::native::memory::LoadWithoutCast>(int, T1, T2)"
        ),
    ),
    (
        "copy_direct",
        (
            "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::Ten"
            "sorIteratorBase&)::{lambda()#3}::operator()() "
            "const::{lambda()#7}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul>, 4>(int, "
            "std::array<char*, 2ul>)"
        ),
        (
            "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::Ten"
            "sorIteratorBase &)::[lambda() (instance 3)]::"
            "operator ()() const::[lambda() (instance 7)]::operator ()() const::[lambda(float) (instance "
            "1)], "
            "std::array<char *, (unsigned long)2>, (int)4>(int, T2)"
        ),
    ),
]
"""Rule, Kineto's name and nsys's name of kernels of one model, recorded both ways (long parameter lists
cut)."""


@pytest.mark.parametrize(("rule", "kineto", "nsys"), PAIRS, ids=[p[0] for p in PAIRS])
def test_both_spellings_of_a_kernel_get_the_same_rule(rule: str, kineto: str, nsys: str) -> None:
    """A kernel is filed alike from a torch trace and from an nsys report."""
    assert (claimed_by(kineto), claimed_by(nsys)) == (rule, rule)


@pytest.mark.parametrize(("rule", "kineto", "nsys"), PAIRS, ids=[p[0] for p in PAIRS])
def test_both_spellings_of_a_kernel_have_the_same_short_name(rule: str, kineto: str, nsys: str) -> None:
    """short_name compares the sources; it is cut from the front and the end only, so it still names the
    kernel."""
    assert evaluate("short_name(?)", kineto) == evaluate("short_name(?)", nsys)


@pytest.mark.parametrize(
    ("kineto", "nsys"),
    [
        ("Memcpy HtoD (Pinned -> Device)", "[CUDA memcpy Host-to-Device]"),
        ("Memcpy DtoH (Device -> Pinned)", "[CUDA memcpy Device-to-Host]"),
        ("Memcpy DtoD (Device -> Device)", "[CUDA memcpy Device-to-Device]"),
        ("Memcpy PtoP (Device -> Device)", "[CUDA memcpy Peer-to-Peer]"),
        ("Memset (Device)", "[CUDA memset]"),
    ],
)
def test_both_spellings_of_a_copy_get_the_same_rule(kineto: str, nsys: str) -> None:
    """Copies and fills are named by the profilers themselves, each in its own way."""
    assert claimed_by(kineto) == claimed_by(nsys) is not None


# --- the user's rules
# ------------------------------------------------------------------------------------------------

MINE = '[[rule]]\nid = "mine"\nname = "{}"\ncategory = "{}"\n'


def _write(home: Home, text: str) -> Path:
    home.user_rules.write_text(text, encoding="utf-8")
    return home.user_rules


def test_without_a_users_file_ours_are_in_force(tmp_path: Path) -> None:
    """A missing file is no error."""
    assert load_rules(tmp_path / "kernel_rules.toml").rules == RULES.rules


def test_users_rules_are_tried_first(home: Home) -> None:
    """A user's rule claims names that ours would claim too."""
    rules = load_rules(_write(home, MINE.format("^nvjet_", "attention")))
    with duckdb.connect() as con:
        rules.install(con)
        assert con.execute(
            "SELECT first_rule('nvjet_sm90', NULL), first_rule('fused_a_gemm_kernel', NULL)"
        ).fetchall() == [("mine", "fused_a_gemm")]
    assert (rules.rules[0].id, rules.rules[0].origin) == ("mine", "home")


def test_a_users_rule_replaces_ours_of_the_same_id(home: Home) -> None:
    """The id stays unique: ours is out of force, whatever it claimed."""
    rules = load_rules(
        _write(home, '[[rule]]\nid = "nvjet"\nname = "^mine_"\ncategory = "attention"\n')
    ).rules
    assert [(r.name, r.category) for r in rules if r.id == "nvjet"] == [("^mine_", "attention")]
    assert len(rules) == len(RULES.rules)


def test_users_rules_change_the_hash(home: Home) -> None:
    """Marts say which rules built them, so that an edit is seen."""
    shas = {load_rules(_write(home, MINE.format("x", category))).sha for category in ("attention", "gemm")}
    assert len(shas | {RULES.sha}) == 3


def test_rules_by_place_stand_before_rules_by_name_of_the_same_file(home: Home) -> None:
    """A user's order is kept within both."""
    text = (
        MINE.format("a", "gemm") + '[[rule]]\nid = "place"\nname = "b"\nafter = "gemm"\ncategory = "norm"\n'
    )
    rules = load_rules(_write(home, text)).rules
    assert [r.id for r in rules[:3]] == ["place", "mine", "moe_sum_after_experts"]


def test_fused_op_and_note_are_taken_from_the_file(home: Home) -> None:
    """All fields of a rule reach it."""
    rule = load_rules(
        _write(
            home,
            MINE.format("a", "gemm") + 'op = "aten::mm"\nfused = true\nnote = "why"\nsubcategory = "s"\n',
        )
    ).rules[0]
    assert (rule.op, rule.is_fused, rule.note, rule.subcategory, rule.is_positional) == (
        "aten::mm",
        True,
        "why",
        "s",
        False,
    )


def test_quotes_in_a_pattern_are_no_sql(home: Home) -> None:
    """A pattern with quotes is text, also in the SQL that it becomes."""
    rules = load_rules(
        _write(home, "[[rule]]\nid = 'it''s'\nname = \"don't\"\ncategory = 'gemm'\n".replace("it''s", "its"))
    )
    with duckdb.connect() as con:
        rules.install(con)
        assert con.execute("SELECT first_rule('i don''t know', NULL)").fetchall() == [("its",)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[rule", "not valid TOML"),
        ('rule = "nvjet"', "[[rule]]"),
        ('[[rules]]\nid = "mine"\n', "unknown keys ['rules']"),
        ('rule = ["nvjet"]', "[[rule]]"),
        (MINE.format("a", "gemm") + 'colour = "red"\n', "rule 1 (mine): unknown fields ['colour']"),
        ('[[rule]]\nid = "mine"\ncategory = "gemm"\n', "rule 1 (mine): ['name'] missing"),
        ('[[rule]]\nname = "a"\ncategory = "gemm"\n', "rule 1 (without id): ['id'] missing"),
        (MINE.format("a", "gem"), "rule 1 (mine): category 'gem' is none of"),
        (MINE.format("a", "gemm") + 'after = "moe"\n', "rule 1 (mine): after 'moe' is none of"),
        (MINE.format("a", "gemm") + 'before = "moe"\n', "rule 1 (mine): before 'moe' is none of"),
        (MINE.format("(", "gemm"), "rule 1 (mine): name: not a regular expression"),
        (MINE.format("(?=a)", "gemm"), "rule 1 (mine): name: not a regular expression"),
        (MINE.format("a", "gemm") + 'op = "["\n', "rule 1 (mine): op: not a regular expression"),
        (MINE.format("a", "gemm") + MINE.format("b", "gemm"), "rule ids repeat: ['mine']"),
        ('[[rule]]\nid = "mine"\nname = 5\ncategory = "gemm"\n', "rule 1 (mine): ['name'] must be text"),
        (
            MINE.format("a", "gemm") + 'fused = "yes"\n',
            "rule 1 (mine): ['fused'] must be true or false",
        ),
        (
            '[[rule]]\nid = "mine"\nname = "a"\ncategory = ["gemm"]\n',
            "rule 1 (mine): ['category'] must be text",
        ),
        (
            '[[rule]]\nid = "unclassified"\nname = "a"\ncategory = "gemm"\n',
            "rule 1 (unclassified): this id marks",
        ),
        (
            '[[rule]]\nid = "opaque_graph"\nname = "a"\ncategory = "gemm"\n',
            "rule 1 (opaque_graph): this id marks",
        ),
    ],
)
def test_what_is_wrong_with_a_rules_file_is_reported(home: Home, text: str, problem: str) -> None:
    """A UsageError names the file, the rule by number and id, and what is wrong."""
    with pytest.raises(UsageError) as raised:
        load_rules(_write(home, text))
    assert str(raised.value).startswith("kernel_rules.toml: ")
    assert problem in str(raised.value)


def test_a_rules_file_that_is_not_text_is_refused(home: Home) -> None:
    """Bytes that are not UTF-8 are the user's error, not a bug."""
    home.user_rules.write_bytes(b'\xff\xfe[[rule]]\nname = "\xe4"')
    with pytest.raises(UsageError, match=r"kernel_rules\.toml: not UTF-8"):
        load_rules(home.user_rules)


# --- explanations
# ----------------------------------------------------------------------------------------------------


def _explained(home: Home, name: str, op: str | None = None) -> list[tuple[str, str]]:
    columns, found = explain_name(home, name, op)
    assert columns[:2] == ["verdict", "rule_id"]
    return [(row[0], row[1]) for row in found]


def test_the_rule_that_claims_a_name_comes_first(home: Home) -> None:
    """Then follow the rules it precedes, and those that would need an operator."""
    found = _explained(home, "nvjet_sm90_tst_64x8")
    assert found[0] == ("claims it", "nvjet")
    assert ("would need an operator like ^aten::(?:bmm|baddbmm)", "library_bmm") in found


def test_an_operator_changes_who_claims_a_name(home: Home) -> None:
    """With the operator the refining rule claims it, and beats the plain one."""
    found = _explained(home, "nvjet_sm90_tst_64x8", "aten::bmm")
    assert found[0] == ("claims it", "library_bmm")
    assert ("beaten by order", "nvjet") in found


def test_a_rule_by_place_says_what_it_asks_for(home: Home) -> None:
    """It is listed beside the rule that claims the name everywhere else."""
    found = _explained(home, REDUCE_4)
    assert found[0] == ("claims it", "torch_reduce")
    assert ("claims it only after moe_gemm on its stream", "moe_sum_after_experts") in found


def test_a_users_rule_says_that_it_is_the_users(home: Home) -> None:
    """The origin of the rule that claims the name is the home, and ours is beaten."""
    _write(home, MINE.format("^nvjet_", "attention"))
    columns, found = explain_name(home, "nvjet_sm90", None)
    first = dict(zip(columns, found[0], strict=True))
    assert (first["rule_id"], first["origin"], first["rollup"]) == ("mine", "home", "Attention")
    assert ("beaten by order", "nvjet") in [(row[0], row[1]) for row in found]


def test_a_name_that_no_rule_claims_says_what_to_do(home: Home) -> None:
    """One row says unclassified, and where to add a rule."""
    _, found = explain_name(home, "Kernel", None)
    assert [row[:2] for row in found] == [["no rule claims it", "unclassified"]]
    assert "kernel_rules.toml" in found[0][-1]


def test_rules_are_listed_in_the_order_in_which_they_are_tried(home: Home) -> None:
    """The user's first, then ours by place, then ours by name, numbered from 1."""
    _write(home, MINE.format("a", "gemm"))
    columns, found = rule_rows(home)
    assert columns[:3] == ["order", "rule_id", "origin"]
    assert [row[:3] for row in found[:3]] == [
        [1, "mine", "home"],
        [2, "moe_sum_after_experts", "built-in"],
        [3, "moe_zero_fill", "built-in"],
    ]
    assert len(found) == len(RULES.rules) + 1


@pytest.mark.parametrize(
    "name", ["FlashAttn|flash_fwd", "fused_add_rms_norm", "act_and_mul", "nvjet|gemm", "AllReduce"]
)
def test_a_users_rule_without_a_subcategory_keeps_layers_and_roles(tmp_path: Path, name: str) -> None:
    """Every field but id, name and category is optional: what models find out is the same with a rule that
    says no more than ours."""
    kernels = (NORM, GEMM, MLA, GEMM, ALL_REDUCE, NORM, GEMM, ACTIVATION, GEMM, ALL_REDUCE)
    claimed = next(kernel for kernel in kernels if re.search(name, kernel))
    category = filed(claimed)[0]
    found = {}
    for case in ("ours", "user's"):
        home = Home(tmp_path / case)
        home.ensure()
        if case == "user's":
            (home.root / "kernel_rules.toml").write_text(
                f"[[rule]]\nid = 'mine'\nname = '{name}'\ncategory = '{category}'\n"
            )
        made = StepBuilder()
        for _ in range(3):
            made.step(
                [(kernel, 1_000) for kernel in (*kernels, *kernels)],
                "execute_context_0(0)_generation_2(2)",
                lead_ns=60_000,
            )
        ingest_into(home, write_trace(tmp_path / "t.json", made.events, header(0, 1)), run="serve")
        found[case] = run_query(
            home, "SELECT activity_id, step, phase, layer, category, role FROM activity ORDER BY activity_id"
        )[1]
        assert {row[3] for row in found[case]} >= {0, 1}
        if case == "user's":
            assert "other" in {
                row[0]
                for row in run_query(
                    home, "SELECT DISTINCT subcategory FROM activity WHERE rule_id = 'mine'"
                )[1]
            }
    assert found["ours"] == found["user's"]
