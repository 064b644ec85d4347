"""A trace with a known answer: eight ranks, CUDA graphs, 61 layers, and the table that stepledger was born
from.

Every kind of work has a fixed total per decode step, spread over its calls in whole nanoseconds and shuffled
per rank and step, so the pipeline must return these integers exactly: 127 NCCL all-reduces with a mean of
79.09 us, one custom all-reduce of 1,125 us, 11.17 ms of all-reduce in all.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.support.builders import ALL_REDUCE, DECODE, GEMM, MARLIN_MOE, annotation, kernel, launch

LAYERS, DENSE_LAYERS, RANKS = 61, 1, 8
NCCL_CALLS, NCCL_NS = 127, 127 * 79_090
CUSTOM_NS = 1_125_000
PREFILL = "execute_context_1(512)_generation_0(0)"

CUSTOM = (
    "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals, "
    "vllm::Signal*, __nv_bfloat16*, int, int)"
)
MLA = (
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<"
    "flash::CollectiveMainloopFwdSm90<2, "
    "cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, cute::tuple<cute::C<64>, cute::C<64>, cute::C<64> >, "
    "512> > > >(Params)"
)
COMBINE = (
    "void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<cute::C<8>, cute::C<128> >, "
    "5, "
    "256, 1, false> >(Params)"
)
NORM = "triton_red_fused_fused_add_rms_norm_0"
TOPK = (
    "void vllm::moe::grouped_topk_fused_small_expert_count_kernel<__nv_bfloat16, float, int, "
    "(vllm::moe::ScoringFunc)1, 256, true, 1>"
    "(__nv_bfloat16*, float*)"
)
ALIGN = (
    "void vllm::moe::moe_align_block_size_small_batch_expert_kernel<int, 256>(int const*, int*, int*, "
    "int*, int*, int, int)"
)
ACTIVATION = (
    "void vllm::act_and_mul_kernel<c10::BFloat16, __nv_bfloat162>(c10::BFloat16*, c10::BFloat16 const*, int)"
)
SUM = (
    "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16, "
    "at::native::func_wrapper_t<c10::BFloat16, "
    "at::native::sum_functor<c10::BFloat16, float, c10::BFloat16> >, unsigned int, c10::BFloat16, 4, 4> >()"
)
ARGMAX = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, "
    "unsigned int, long, 4, 4> >()"
)


@dataclass(frozen=True)
class Row:
    """The expected values of one rollup in a decode step."""

    calls: int
    busy_ns: int


TABLE = {
    "AllReduce": Row(NCCL_CALLS + 1, NCCL_NS + CUSTOM_NS),
    "Attention": Row(2 * LAYERS, 3_320_000),
    "GEMM": Row(6 * LAYERS - DENSE_LAYERS + 1, 2_900_000),
    "MoE GEMM": Row(2 * (LAYERS - DENSE_LAYERS), 2_400_000),
    "Routing": Row(3 * (LAYERS - DENSE_LAYERS), 990_000),
    "Everything else": Row(2 * LAYERS + (LAYERS - DENSE_LAYERS) + 1, 920_000),
}
"""The table of a decode step on every rank, in calls and nanoseconds."""


def names_of_step() -> Iterator[tuple[str, str]]:
    """(rollup, kernel name) of a decode step in order. Four all-reduces more than 2 per layer + 1 are
    planted."""
    yield "AllReduce", ALL_REDUCE
    for layer in range(LAYERS):
        yield "Everything else", NORM
        yield from (("GEMM", GEMM) for _ in range(3))
        yield "Attention", MLA
        yield "Attention", COMBINE
        yield "GEMM", GEMM
        yield "AllReduce", ALL_REDUCE
        yield "Everything else", NORM
        yield "GEMM", GEMM
        if layer >= DENSE_LAYERS:
            yield "GEMM", GEMM
            yield "Routing", TOPK
            yield "Routing", ALIGN
            yield "MoE GEMM", MARLIN_MOE
            yield "Everything else", ACTIVATION
            yield "MoE GEMM", MARLIN_MOE
            yield "Routing", SUM
        yield "AllReduce", ALL_REDUCE
        if layer in {10, 20, 30, 40}:
            yield "AllReduce", ALL_REDUCE
    yield "AllReduce", CUSTOM
    yield "GEMM", GEMM
    yield "Everything else", ARGMAX


def spread(total: int, count: int, rng: random.Random) -> list[int]:
    """`count` positive integers around their mean that sum to `total`, in an order of the generator's
    choosing."""
    mean = total // count
    parts = [mean + (number % 7 - 3) * (mean // 20) for number in range(count)]
    parts[-1] += total - sum(parts)
    rng.shuffle(parts)
    return parts


def rank_events(rank: int, decode_steps: int) -> list[dict[str, Any]]:
    """One rank's events: a prefill step launched kernel by kernel, then decode steps of one graph replay
    each."""
    rng = random.Random(rank)  # noqa: S311 (a fixed sequence is wanted)
    names = list(names_of_step())
    events: list[dict[str, Any]] = []
    host, gpu = 1_000_000, 2_000_000
    events.append(annotation(PREFILL, host, 3_000_000, external_id=1))
    for number, (_, name) in enumerate(names):
        events.append(launch(host + 1_000 + number * 2_000, number + 1, dur_ns=1_000))
        events.append(kernel(name, gpu, 9_999, number + 1, device=rank))
        gpu += 10_000
    for step in range(decode_steps):
        host += 5_000_000
        events.append(annotation(DECODE, host, 2_000_000, external_id=10 + step))
        replay = 100_000 + step
        events.append(launch(host + 10_000, replay, "cudaGraphLaunch"))
        durations = {
            rollup: spread(
                row.busy_ns - (CUSTOM_NS if rollup == "AllReduce" else 0),
                row.calls - (rollup == "AllReduce"),
                rng,
            )
            for rollup, row in TABLE.items()
        }
        gpu = max(gpu, host + 50_000)
        for rollup, name in names:
            dur = CUSTOM_NS if name == CUSTOM else durations[rollup].pop()
            events.append(kernel(name, gpu, dur, replay, device=rank))
            gpu += dur + 500
    return events


def unannotated_events(
    executed: int = 160, annotated: int = 155, all_reduces: int = 123
) -> list[dict[str, Any]]:
    """`executed` graph replays of `all_reduces` all-reduces under only `annotated` annotations: the rest runs
    unannotated behind some of them, as a data-parallel rank's dummy batches do. 160 x 123 / 155 reads as "127
    a step"."""
    events: list[dict[str, Any]] = []
    host, gpu, bare = 1_000_000, 1_050_000, executed - annotated
    every = annotated // bare
    replay = 0
    for step in range(annotated):
        events.append(annotation(DECODE, host, 100_000, external_id=step + 1))
        passes = 2 if step % every == every // 2 and bare > 0 else 1
        bare -= passes - 1
        for number in range(passes):
            replay += 1
            at = host + 10_000 + number * 200_000
            events.append(launch(at, replay, "cudaGraphLaunch"))
            gpu = max(gpu, at + 20_000)
            for _ in range(all_reduces):
                events.append(kernel(ALL_REDUCE, gpu, 3_000, replay))
                events.append(kernel(GEMM, gpu + 3_100, 1_000, replay))
                gpu += 4_200
        # Sampling is launched eagerly after the annotation's end, before any further pass.
        events.append(launch(host + 120_000, 1_000_000 + step))
        gpu = max(gpu, host + 130_000)
        events.append(kernel(ARGMAX, gpu, 8_000, 1_000_000 + step))
        gpu += 8_100
        host += 1_000_000
    return events
