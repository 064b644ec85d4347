"""run_facts: what a run is."""

from __future__ import annotations

from pipeline.duck import rows
from tests.support.builders import DECODE, GEMM
from tests.support.tables import Row, Scene, build_all, build_scenes, few_rules

PREFILL = "execute_context_1(64)_generation_0(0)"


def _scene(trace_id: str, rank: int | None, *labels: str, **facts: object) -> Scene:
    scene = Scene(trace_id, rank, facts=facts)
    for number, label in enumerate(labels):
        scene.step(100 * number, 10, label).launch(100 * number + 1, (GEMM, 100 * number + 50, 10))
    return scene


def test_steps_are_those_of_the_rank_with_most() -> None:
    """Ranks run the same passes, so steps are not added over ranks."""
    with build_scenes(
        _scene("t", 0, PREFILL, DECODE, DECODE), _scene("u", 1, DECODE), wanted=["run_facts"]
    ) as con:
        assert rows(con, "SELECT traces, ranks, decode_steps, prefill_steps, engine FROM run_facts") == [
            (2, 2, 2, 1, "vllm")
        ]


def test_missing_ranks_show() -> None:
    """ranks_expected is the job's size, ranks what is there; a trace without rank counts as a trace."""
    with build_scenes(
        _scene("t", 0, world_size=8, gpu_name="H200"), _scene("u", None), wanted=["run_facts"]
    ) as con:
        assert rows(con, "SELECT traces, ranks, ranks_expected, gpu_name FROM run_facts") == [
            (2, 1, 8, "H200")
        ]


def test_sources_have_rows_of_their_own() -> None:
    """A torch trace and an nsys report of one run are two rows."""
    nsys = Scene("n", 0, "nsys").launch(1, (GEMM, 0, 1))
    with build_scenes(_scene("t", 0, DECODE), nsys, wanted=["run_facts"]) as con:
        assert rows(con, "SELECT source, decode_steps, engine FROM run_facts ORDER BY source") == [
            ("kineto", 1, "vllm"),
            ("nsys", 0, None),
        ]


def test_a_run_of_latency_tables_alone_is_a_run() -> None:
    """It has no trace, rank or step; beside traces a table adds no row."""
    line: dict[str, list[Row]] = {"raw.microbench": [{"op": "all_reduce", "us": 1.0, "line": 2}]}
    columns = "SELECT source, traces, ranks, decode_steps, gpu_name FROM run_facts"
    with build_all(line, wanted=["run_facts"]) as con:
        assert rows(con, columns) == [("microbench", 0, 0, 0, None)]
    with build_all(_scene("t", 0, DECODE).tables() | line, few_rules(), wanted=["run_facts"]) as con:
        assert rows(con, columns) == [("kineto", 1, 1, 1, None)]


def test_the_row_says_what_built_it() -> None:
    """Build, rules, models and inputs are named by their hashes."""
    with build_scenes(_scene("t", 0, DECODE), wanted=["run_facts"]) as con:
        found = rows(
            con,
            (
                "SELECT f.build_id, f.inputs_sha, f.rules_sha = b.rules_sha, f.models_sha = b.models_sha "
                "FROM "
                "run_facts AS f, build_info AS b"
            ),
        )
    assert found == [("build", "inputs", True, True)]
