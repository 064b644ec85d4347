"""Captures without their annotations, then without their launches: the same decode steps are found again."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.support.builders import build_tables, read_raw, write_trace
from tests.tools.demo import Verbatim

SMALL = ("Everything else", "Cast and quantize")
"""Rows of the small kernels around sampling and input, which lie between steps; without launches no operator
proves a cast."""


class Variants:
    """One rank of a capture as it is, without annotations, and without annotations and launches."""

    def __init__(self, capture: Path, folder: Path) -> None:
        raw = next(p for p in sorted(capture.iterdir()) if p.name.endswith(".json.gz"))
        data: dict[str, Any] = json.loads(gzip.decompress(raw.read_bytes()), parse_float=Verbatim)
        events = [e for e in data.pop("traceEvents") if e.get("cat") not in {"python_function", "ac2g"}]
        bare = [e for e in events if e.get("cat") not in {"user_annotation", "gpu_user_annotation"}]
        no_launch = [e for e in bare if e.get("cat") not in {"cuda_runtime", "cuda_driver"}]
        self.as_is = self._build(events, data, folder / "as_is")
        self.bare = self._build(bare, data, folder / "bare")
        self.no_launch = self._build(no_launch, data, folder / "no_launch")

    @staticmethod
    def _build(events: list[dict[str, Any]], head: dict[str, Any], folder: Path) -> duckdb.DuckDBPyConnection:
        return build_tables(read_raw(write_trace(folder / "t.json", events, head), folder), folder / "spill")


@pytest.fixture(scope="module", params=["A_nccl_graph_b1", "C_nccl_graph_b16"])
def variants(
    request: pytest.FixtureRequest, shared_traces: Path, tmp_path_factory: pytest.TempPathFactory
) -> Variants:
    """The three variants of a graph capture."""
    capture = shared_traces / "captures" / request.param
    if not capture.is_dir():
        pytest.skip(f"{request.param} is not among the shared traces")
    return Variants(capture, tmp_path_factory.mktemp("stripped"))


def per_step(con: duckdb.DuckDBPyConnection) -> dict[int, dict[str, int]]:
    """Busy ns by rollup of each step."""
    found: dict[int, dict[str, int]] = {}
    for step, rollup, busy in con.sql(
        "SELECT step, rollup, sum(busy_ns)::BIGINT FROM step_breakdown WHERE step IS NOT NULL GROUP BY ALL"
    ).fetchall():
        found.setdefault(step, {})[rollup] = busy
    return found


def test_graph_replays_find_the_annotated_steps(variants: Variants) -> None:
    """Without annotations each graph replay is a decode step: the same count, phase decode, method graph."""
    steps = variants.as_is.sql("SELECT count(*) FROM steps").fetchall()[0][0]
    rows = variants.bare.sql(
        "SELECT method, phase, count(*), min(confidence) FROM steps GROUP BY ALL"
    ).fetchall()
    assert rows == [("graph", "decode", steps, 0.8)]


def test_kernel_order_finds_the_annotated_steps(variants: Variants) -> None:
    """Without annotations and launches the repeating kernel sequence gives the same count; only the last may
    be cut."""
    steps = variants.as_is.sql("SELECT count(*) FROM steps").fetchall()[0][0]
    rows = dict(
        variants.no_launch.sql(
            "SELECT phase, count(*) FROM steps WHERE method = 'pattern' GROUP BY ALL"
        ).fetchall()
    )
    assert sum(rows.values()) == steps
    assert rows["decode"] >= steps - 1


@pytest.mark.parametrize("variant", ["bare", "no_launch"])
def test_categories_agree_within_what_lies_between_steps(variants: Variants, variant: str) -> None:
    """Per step and rollup the times agree, but for input copies, their bookkeeping kernels and sampling,
    which run between steps."""
    annotated, found = per_step(variants.as_is), per_step(getattr(variants, variant))
    assert annotated.keys() == found.keys()
    for step, rollups in annotated.items():
        for rollup, busy in rollups.items():
            if rollup not in SMALL:
                assert found[step].get(rollup, 0) == busy, (step, rollup)
        if step < max(annotated):
            small, small_found = (sum(work.get(r, 0) for r in SMALL) for work in (rollups, found[step]))
            assert abs(small_found - small) < 60_000, step


def test_both_methods_are_compared_where_annotations_exist(variants: Variants) -> None:
    """The annotated variant also says how many steps replays and kernel order would give: the same."""
    rows = variants.as_is.sql("SELECT method, steps, is_used FROM step_methods ORDER BY method").fetchall()
    steps = variants.as_is.sql("SELECT count(*) FROM steps").fetchall()[0][0]
    assert rows == [("annotation", steps, True), ("graph", steps, False), ("pattern", steps, False)]
