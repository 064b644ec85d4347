"""Traces of several ranks that talk to each other, simulated to the nanosecond: who comes late where, by
what, and on which clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.builders import ALL_REDUCE, DECODE, GEMM, annotation, header, kernel, launch, write_trace
from tests.support.known_answer import ACTIVATION, ARGMAX, MLA, NORM

EMBED = "triton_poi_fused_embedding_0"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
REDUCE_SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
BROADCAST = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECEIVE = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
FUSED = (
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport"
    "<(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8, "
    "true>(flashinfer::AllReduceFusionParams<__nv_bfloat16>)"
)
LAYER = (NORM, GEMM, MLA, GEMM, ALL_REDUCE, NORM, GEMM, ACTIVATION, GEMM, ALL_REDUCE)
"""A dense layer under tensor parallelism."""
TWO_LAYERS = (EMBED, ALL_REDUCE, *LAYER, *LAYER, NORM, GEMM, ALL_GATHER, ARGMAX)
"""A decode step: six collectives, the first after the embedding, the last over logits."""

COMMON = {ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, FUSED}
"""Kernels in which every rank of a group waits for every other; in others each rank is on its own."""
WORK_NS, GAP_NS, FLOOR_NS = 4_000, 500, 7_000

Late = tuple[int, int, int]
"""Rank, step, and the number of the collective (of the step) to which the rank comes late."""


@dataclass
class Planted:
    """`slow`: longer compute right before a collective; `stalled`: nothing to run before it; `clock`: what a
    rank's clock is ahead."""

    ranks: int = 2
    steps: int = 3
    names: tuple[str, ...] = TWO_LAYERS
    groups: tuple[tuple[int, ...], ...] = ()
    slow: Mapping[Late, int] = field(default_factory=dict)
    stalled: Mapping[Late, int] = field(default_factory=dict)
    clock: Mapping[int, int] = field(default_factory=dict)
    args: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    names_of: Mapping[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)
    files: str = "serve-rank-{rank}.json"

    def events(self) -> list[list[dict[str, Any]]]:
        """The events of each rank."""
        made: list[list[dict[str, Any]]] = [[] for _ in range(self.ranks)]
        now = [2_000_000] * self.ranks
        for step in range(self.steps):
            now = [max(now) + 100_000] * self.ranks
            for rank in range(self.ranks):
                begin = now[rank] - 60_000 + self.clock.get(rank, 0)
                made[rank].append(annotation(DECODE, begin, 20_000, external_id=step + 1))
                made[rank].append(launch(begin + 1_000, step + 1, "cudaGraphLaunch"))
            for group in self.groups or (tuple(range(self.ranks)),):
                self._run(step, group, now, made)
        return made

    def _run(self, step: int, group: Iterable[int], now: list[int], made: list[list[dict[str, Any]]]) -> None:
        """One step of the ranks that wait for each other."""
        queues = {rank: list(self.names_of.get((rank, step), self.names)) for rank in group}
        calls = dict.fromkeys(queues, 0)
        while any(queues.values()):
            for rank, queue in queues.items():
                self._compute(rank, step, queue, calls[rank], now, made[rank])
            there = [rank for rank, queue in queues.items() if queue]
            if not there:
                return
            start = {
                rank: now[rank] + GAP_NS + self.stalled.get((rank, step, calls[rank]), 0) for rank in there
            }
            end = max(start.values()) + FLOOR_NS
            for rank in there:
                name = queues[rank].pop(0)
                self._add(made[rank], rank, step, name, start[rank], end - start[rank])
                now[rank] = end
                calls[rank] += 1

    def _compute(
        self, rank: int, step: int, queue: list[str], call: int, now: list[int], events: list[dict[str, Any]]
    ) -> None:
        """Run what a rank does on its own, up to the next collective; the last kernel of it takes longer
        where that is planted."""
        while queue and queue[0] not in COMMON:
            name = queue.pop(0)
            extra = self.slow.get((rank, step, call), 0) if queue and queue[0] in COMMON else 0
            self._add(events, rank, step, name, now[rank] + GAP_NS, WORK_NS + extra)
            now[rank] += GAP_NS + WORK_NS + extra

    def _add(
        self, events: list[dict[str, Any]], rank: int, step: int, name: str, start_ns: int, dur_ns: int
    ) -> None:
        events.append(
            kernel(
                name,
                start_ns + self.clock.get(rank, 0),
                dur_ns,
                step + 1,
                device=rank,
                **self.args.get(name, {}),
            )
        )

    def write(self, folder: Path) -> list[Path]:
        """One file for each rank."""
        return [
            write_trace(
                folder / self.files.format(rank=rank, pair=rank // 2, place=rank % 2),
                events,
                header(rank, self.ranks),
            )
            for rank, events in enumerate(self.events())
        ]
