"""The work of a run's steps."""

from __future__ import annotations

import pytest

from pipeline.analyses.compare.sample import sample_of
from pipeline.analyses.compare.workload import Workload, workload_of
from pipeline.lake.home import Home
from pipeline.lake.reading import reading
from tests.support.builders import StepBuilder, header, write_trace
from tests.support.compared import STEP, put, write
from tests.support.compared import Workload as Kernels
from tests.support.served import serve

FOUR = "execute_context_0(0)_generation_4(4)"
TWO = "execute_context_0(0)_generation_2(2)"
PROMPT = "execute_context_1(512)_generation_0(0)"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Runs `described`, `bare` (nothing given), `shrinks` (its batch shrinks), `prompts` (prefill)."""
    folder = tmp_path_factory.mktemp("workload")
    home = Home(folder / "home")
    home.ensure()
    facts = {"layers": 2, "tp": 2, "measured_tpot_ms": 9.05, "context_tokens": 300}
    put(home, write(folder / "described", [STEP] * 6, label=FOUR), "described", facts)
    put(home, write(folder / "bare", [STEP] * 6), "bare")
    built = StepBuilder()
    small: Kernels = [(name, ns // 100) for name, ns in STEP]
    for label in (FOUR, FOUR, TWO, TWO, TWO):
        built.step(small, label, graph=True)
    put(home, [write_trace(folder / "s" / "serve-rank-0.json", built.events, header(0, 1))], "shrinks")
    put(home, write(folder / "prompts", [STEP] * 3, label=PROMPT), "prompts")
    serve(folder, home, "padded", tokens=16)
    return home


def work(home: Home, run: str, phase: str = "decode") -> Workload:
    """What it did."""
    with reading(home) as con:
        return workload_of(con, sample_of(con, run, "kineto", phase))


def test_requests_are_counted_over_the_steps(home: Home) -> None:
    """Fewest, median, most and mean."""
    assert work(home, "described").requests == (4.0, 4.0, 4.0, 4.0)
    assert work(home, "shrinks").requests == (2.0, 2.0, 4.0, 2.8)


def test_prompts_have_tokens_and_decode_has_none(home: Home) -> None:
    """512 tokens of one request."""
    found = work(home, "prompts", "prefill")
    assert (found.requests, found.prompt_tokens) == ((1.0,) * 4, (512.0,) * 4)
    assert work(home, "described").prompt_tokens == (0.0,) * 4


def test_graph_tokens_are_the_padded_size(home: Home) -> None:
    """From the grid of the KV write."""
    assert work(home, "padded").graph_tokens == (16.0,) * 4


def test_hardware_and_model_are_read_from_trace_and_description(home: Home) -> None:
    """GPU, ranks, layers proven, given facts."""
    found = work(home, "described")
    assert (found.gpu, found.world, found.ranks, found.layers, found.expert_layers) == (
        "NVIDIA H200",
        2,
        2,
        2,
        None,
    )
    assert (found.config["tp"], found.context) == (2, 300)
    assert found.kernels == len(STEP) + 3


def test_inflation_is_wall_over_the_measured_time(home: Home) -> None:
    """18.16 ms against 9.05 measured; unknown where nothing was measured."""
    assert work(home, "described").inflation == pytest.approx(2.0, abs=0.02)
    assert work(home, "bare").inflation is None


def test_what_nothing_tells_is_none(home: Home) -> None:
    """No context in vLLM's markers, and none given."""
    assert work(home, "bare").context is None


def test_the_graph_size_is_unknown_without_a_kv_write(home: Home) -> None:
    """Not taken from the batch."""
    assert work(home, "bare").graph_tokens is None
