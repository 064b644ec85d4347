"""Writes a vLLM-like Kineto trace of a wanted size: deterministic, in bounded memory, in the layout of a real
capture.

Two flavours. `graph`: decode steps replayed from CUDA graphs with Python stacks recorded; per step 1783
kernels with their flows, 5000 Python frames, and few operators and calls (the mix of a captured worker of
tensor parallel 2). `eager`: no graphs and no stacks; per step 918 kernels, 5900 operators, 2800 calls and
their flows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

BASE_NS = 1_790_857_026_000_000_000
START_NS = 5_111_701_276_371_856
"""Times are relative to the base, as large as a machine that is up for months writes them."""
PID, STREAM = 1817, 17

_ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, "
    "std::array<char*, 1ul> >(int, at::native::FillFunctor<int>, std::array<char*, 1ul>)"
)
_INDEX = (
    "void at::native::index_elementwise_kernel<128, 4, "
    "at::native::gpu_index_kernel<at::native::index_kernel_impl<at::native::OpaqueType<4> "
    ">(at::TensorIteratorBase&, c10::ArrayRef<long>, c10::ArrayRef<long>)::{lambda(char*, char const*, "
    "long)#1}>(at::TensorIteratorBase&, c10::ArrayRef<long>, "
    "c10::ArrayRef<long>)::{lambda(int)#1}>(long)"
)
_ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_MARLIN_MOE = (
    "void marlin_moe_wna16::Marlin<1125899906909960l, 128, 1, 8, 4, true, 4, 8, false>(int4 "
    "const*, int4 const*, int4*, int4*, int4 const*, float const*)"
)
LAYER = (
    ("triton_red_fused_min_latency_fused_qkv_a_proj_rms_norm_1", 2_177),
    ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", 6_112),
    (("void cublasLt::splitKreduce_kernel<32, 16, int, __nv_bfloat16, __nv_bfloat16, float, "
     "__nv_bfloat16>(cublasLt::cublasSplitKParams<float>)"), 2_400),
    ("triton_poi_fused_cat_view_2", 1_536),
    (("void vllm::rotary_embedding_kernel<c10::BFloat16, false>(long const*, c10::BFloat16*, c10::BFloat16*, "
     "c10::BFloat16 const*, int)"), 1_920),
    (("void vllm::concat_and_cache_mla_kernel<__nv_bfloat16, __nv_bfloat16, "
     "(vllm::Fp8KVCacheDataType)0>(__nv_bfloat16 const*)"), 1_664),
    (_ELEMENTWISE, 768),
    (("void flash::flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576, 64, 64, 8, "
     "cutlass::bfloat16_t, 512>, true>(Flash_fwd_mla_params)"), 14_048),
    (("void flash::flash_fwd_splitkv_mla_combine_kernel<cutlass::bfloat16_t, float, long, 512, "
     "32>(Flash_fwd_mla_params)"), 3_040),
    ("nvjet_sm90_tst_64x8_64x16_2x1_v_bz_splitK_TNT", 5_024),
    (_ALL_REDUCE, 7_200),
    ("triton_red_fused_add_rms_norm_0", 2_496),
    ("nvjet_sm90_tst_32x64_64x16_1x2_h_bz_TNN", 4_160),
    (("void vllm::moe::grouped_topk_fused_kernel<float, float, int, (vllm::moe::ScoringFunc)1>(float*, "
     "float*, int*, float const*)"), 5_280),
    (("void vllm::moe::moe_align_block_size_kernel<int>(int const*, int*, int*, int*, int, int, int, "
      "unsigned long)"), 4_832),
    (("void vllm::moe::count_and_sort_expert_tokens_kernel<int>(int const*, int*, int*, "
      "unsigned long)"), 2_080),
    (_MARLIN_MOE, 21_312),
    (("void vllm::act_and_mul_kernel<c10::BFloat16, &(c10::BFloat16 "
     "vllm::silu_kernel<c10::BFloat16>(c10::BFloat16 const&)), true>(c10::BFloat16*)"), 1_888),
    (_MARLIN_MOE, 17_760),
    (("void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16, "
     "at::native::func_wrapper_t<c10::BFloat16, at::native::sum_functor> > "
     ">(at::native::ReduceOp<c10::BFloat16>)"), 3_264),
    (_ALL_REDUCE, 7_360),
    (_INDEX, 2_048),
)  # fmt: skip
"""One layer's kernels by name and ns; a step repeats them."""

FRAMES = (
    "vllm/v1/worker/gpu_model_runner.py(2483): execute_model",
    "torch/nn/modules/module.py(1771): _call_impl",
    "<built-in method append of list object at 0x7f1c5c1f3a80>",
    "torch/_ops.py(1243): __call__",
    "nn.Module: DeepseekV2DecoderLayer_17",
    "vllm/model_executor/layers/fused_moe/layer.py(1744): forward_impl",
    "<built-in function isinstance>",
    "zmq/sugar/socket.py(638): send",
    "threading.py(1073): _bootstrap_inner",
)
OPS = (
    "aten::empty",
    "aten::to",
    "aten::linear",
    "aten::mm",
    "_C::rms_norm",
    "_moe_C::moe_wna16_marlin_gemm",
    "aten::copy_",
    "vllm::all_reduce",
)


@dataclass(frozen=True)
class Mix:
    """Events of one step."""

    kernels: int
    frames: int
    operators: int
    calls: int
    started_flows: int
    gpu_annotations: int
    copies: int
    is_graph: bool


FLAVOURS = {
    "graph": Mix(
        kernels=1783,
        frames=5000,
        operators=224,
        calls=70,
        started_flows=37,
        gpu_annotations=121,
        copies=12,
        is_graph=True,
    ),
    "eager": Mix(
        kernels=918,
        frames=0,
        operators=5948,
        calls=2860,
        started_flows=1102,
        gpu_annotations=1,
        copies=6,
        is_graph=False,
    ),
}

_HEAD = """
  {
    "schemaVersion": 1,
    "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320, "computeMajor": 9, "computeMinor": 0
    }
    ],
    "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},
    "cuda_runtime_version": 13000,
    "displayTimeUnit": "ms",
    "baseTimeNanoseconds": %d,
  "traceEvents": [
"""
_TAIL = """
  ],
  "traceName": "generated.json"
}
"""


def generate(path: Path, size: int, flavour: str = "graph") -> int:
    """Write whole steps to `path` until it has at least `size` bytes; returns the number of steps."""
    mix, steps, written = FLAVOURS[flavour], 0, 0
    with path.open("w", encoding="utf-8", newline="\n") as out:
        written += out.write(_HEAD % BASE_NS)
        for separator, step in zip(_separators(), _steps(mix), strict=False):
            written += out.write(separator + ",\n".join(step))
            steps += 1
            if written >= size:
                break
        out.write(_TAIL)
    return steps


def _separators() -> Iterator[str]:
    yield ""
    while True:
        yield ",\n"


def _steps(mix: Mix) -> Iterator[list[str]]:
    now, number = START_NS, 0
    while True:
        length = 40_000_000
        yield list(_step(mix, now, length, number))
        now, number = now + length, number + 1


def _step(mix: Mix, begin: int, length: int, number: int) -> Iterator[str]:
    """Events of one step: the CPU side first, then the GPU side, as Kineto writes them."""
    label, ids = "execute_context_0(0)_generation_1(1)", number * 1_000_000
    cpu = length // 2
    yield _complete(
        "user_annotation",
        label,
        PID,
        PID,
        begin,
        cpu,
        f'"External id": {ids},"Record function id": 0, "Ev Idx": 0',
    )
    for at, name, n in _spread(OPS, mix.operators, begin, cpu):
        yield _complete(
            "cpu_op",
            name,
            PID,
            PID,
            at,
            900,
            f'"External id": {ids + n},"Record function id": 0, "Ev Idx": {n}',
        )
    for at, name, n in _spread(FRAMES, mix.frames, begin, cpu):
        yield _complete(
            "python_function",
            name,
            PID,
            PID,
            at,
            1_268,
            f'"Python parent id": {n}, "Python id": {n + 1}, "Ev Idx": {n + 3616}',
        )
    yield from _gpu(mix, begin, length, ids)
    yield _complete(
        "gpu_user_annotation",
        label,
        0,
        STREAM,
        begin + 1_000_000,
        length - 2_000_000,
        f'"External id": {ids}',
    )
    for at, name, n in _spread(
        ("nccl:all_reduce",), mix.gpu_annotations - 1, begin + 1_000_000, length - 2_000_000
    ):
        yield _complete("gpu_user_annotation", name, 0, STREAM, at, 7_200, f'"External id": {ids + n}')
    call = _launch_name(mix)
    for at, name, n in _spread(call, mix.calls, begin + 1_000, cpu):
        yield _complete(
            "cuda_runtime",
            name,
            PID,
            PID,
            at,
            4_203,
            f'"External id": {ids + n},      "cbid": 211, "correlation": {ids + n}',
        )
        if n < mix.started_flows:
            yield _flow("s", ids + n, PID, PID, at)


def _launch_name(mix: Mix) -> tuple[str, ...]:
    return (
        ("cudaGraphLaunch", "cudaEventQuery", "cudaLaunchKernel")
        if mix.is_graph
        else ("cudaLaunchKernel", "cuLaunchKernelEx")
    )


def _gpu(mix: Mix, begin: int, length: int, ids: int) -> Iterator[str]:
    """Kernels and copies with the flow that ends at each."""
    at = begin + 1_500_000
    for n, (name, ns) in enumerate(islice(cycle(LAYER), mix.kernels)):
        dur = ns + n * 37 % 64 * 32
        link = ids if mix.is_graph else ids + n
        first = "      " if mix.is_graph else f'"External id": {ids + n},      '
        yield _complete("kernel", name, 0, STREAM, at, dur, f"{first}{_launch_args(n, link)}")
        yield _flow("f", link, 0, STREAM, at)
        at += dur + 640
    if at > begin + length:
        raise AssertionError("the kernels of a step do not fit into it")
    for n in range(mix.copies):
        args = (
            f'"External id": {ids + n},      "device": 0, "context": 1,      "stream": 21, '
            '"correlation": '
            f'{ids + n},      "bytes": 1024, "memory bandwidth (GB/s)": 1.0666666666666667'
        )
        yield _complete(
            "gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 0, 21, begin + 1_000_000 + n * 2_000, 960, args
        )
        yield _flow("f", ids + n, 0, 21, begin + 1_000_000 + n * 2_000)


def _launch_args(n: int, correlation: int) -> str:
    return (
        f'"queued": 0, "device": 0, "context": 1,      "stream": {STREAM}, "correlation": {correlation},     '
        f' "registers per thread": {16 + n % 96},'
        f'      "shared memory": {n % 7 * 1024},      "blocks per SM": 0.007576,      "warps per SM": '
        f'0.030303,      "grid": [{1 + n % 132}, 1, 1],'
        '      "block": [128, 1, 1],      "est. achieved occupancy %": 0'
    )


def _spread(names: tuple[str, ...], count: int, begin: int, length: int) -> Iterator[tuple[int, str, int]]:
    """`count` events at even distances: (start, name, number)."""
    for n, name in enumerate(islice(cycle(names), count)):
        yield begin + length * n // count, name, n


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def _complete(cat: str, name: str, pid: int, tid: int, start: int, dur: int, args: str) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},\n    "ts": '
        f'{_us(start)}, "dur": {_us(dur)},\n'
        f'    "args": {{\n      {args}\n    }}\n  }}'
    )


def _flow(phase: str, link: int, pid: int, tid: int, at: int) -> str:
    end = ', "bp": "e"' if phase == "f" else ""
    return (
        f'  {{\n    "ph": "{phase}", "id": {link}, "pid": {pid}, "tid": {tid}, "ts": {_us(at)},\n    '
        f'"cat": "ac2g", "name": "ac2g"{end}\n  }}'
    )


def main(write: Callable[[str], None] = print) -> None:
    """`python -m tests.benchmarks.generate FILE MEGABYTES [--flavour eager]`."""
    parser = argparse.ArgumentParser(description="Write a generated trace.")
    parser.add_argument("file", type=Path)
    parser.add_argument("megabytes", type=float)
    parser.add_argument("--flavour", choices=sorted(FLAVOURS), default="graph")
    given = parser.parse_args()
    steps = generate(given.file, int(given.megabytes * 1_000_000), given.flavour)
    write(f"{given.file}: {steps} steps, {given.file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
