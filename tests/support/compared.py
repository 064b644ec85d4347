"""Planted runs to compare: two ranks that replay one graph per decode step, whose kernels' times are set and
vary a little from step to step."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pipeline.lake.home import Home
from pipeline.lake.run_config import describe
from tests.support.builders import ALL_REDUCE, DECODE, GEMM, StepBuilder, header, ingest_into, write_trace
from tests.support.known_answer import ACTIVATION, ARGMAX, MLA, NORM
from tests.support.planted_ranks import EMBED

Workload = list[tuple[str, int]]
_HEAD: Workload = [(NORM, 2_000), (ARGMAX, 8_000)]
CAST = "triton_poi_fused__to_copy_1"
_LAYER: Workload = [
    (NORM, 20_000),
    (GEMM, 1_000_000),
    (MLA, 300_000),
    (GEMM, 1_000_000),
    (ALL_REDUCE, 2_327_000),
    (NORM, 20_000),
    (GEMM, 1_000_000),
    (ACTIVATION, 42_500),
    (GEMM, 1_000_000),
    (ALL_REDUCE, 2_327_000),
]
STEP: Workload = [*_LAYER, *_LAYER]
"""Two dense layers: 9.308 ms of all-reduce in 18.073 ms."""
CASTS: Workload = [(CAST, 4_010_000)] * 10
"""40.1 ms of casts."""
JITTER = 0.002


def scaled(work: Workload, name: str, factor: float) -> Workload:
    """The same with every kernel of a name slower."""
    return [(kernel, round(ns * factor) if kernel == name else ns) for kernel, ns in work]


def renamed(work: Workload, old: str, new: str) -> Workload:
    """The same with another kernel in the place of one."""
    return [(new if kernel == old else kernel, ns) for kernel, ns in work]


def plant(
    home: Home,
    folder: Path,
    run: str,
    work: Workload,
    *,
    steps: int = 8,
    seed: int = 0,
    label: str = DECODE,
    facts: Mapping[str, Any] = MappingProxyType({}),
) -> list[Path]:
    """Put a run into a home; `seed`: other variation of the same. Returns its files."""
    paths = write(folder / run, [work] * steps, seed=seed, label=label)
    put(home, paths, run, facts)
    return paths


def put(home: Home, paths: Sequence[Path], run: str, facts: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Say what is known of a run and ingest its files."""
    if facts:
        describe(home, home.run_id_for(run), dict(facts))
    ingest_into(home, *paths, run=run)


def write(
    folder: Path, steps: Sequence[Workload], *, seed: int = 0, label: str = DECODE, ranks: int = 2
) -> list[Path]:
    """The files of ranks that do the same at the same time."""
    draw = random.Random(seed)  # noqa: S311 (a fixed sequence is wanted)
    built = StepBuilder()
    for work in steps:
        varied = [(name, round(ns * (1 + draw.uniform(-JITTER, JITTER)))) for name, ns in work]
        built.step([(EMBED, 5_000), *varied, *_HEAD], label, graph=True)
    return [
        write_trace(folder / f"serve-rank-{rank}.json", _on(built.events, rank), header(rank, ranks))
        for rank in range(ranks)
    ]


def _on(events: Sequence[dict[str, Any]], rank: int) -> list[dict[str, Any]]:
    """The events on another device."""
    return [
        event | {"pid": rank, "args": event["args"] | {"device": rank}}
        if event.get("cat") == "kernel"
        else event
        for event in events
    ]
