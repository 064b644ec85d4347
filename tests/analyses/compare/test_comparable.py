"""The verdict on comparability, fact by fact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline.analyses.compare.comparable import (
    CARE,
    REFUSED,
    Fact,
    facts,
    in_words,
    is_other_work,
    verdict_report,
)
from pipeline.analyses.compare.sample import Sample
from pipeline.analyses.compare.workload import Workload

SIDE = Sample("a", "kineto", "decode", 8, 0, 2, [10.0] * 8, {}, {}, {}, {})
ONE = (1.0, 1.0, 1.0, 1.0)
WORK = Workload(
    config={"layers": 61, "experts": 384, "tp": 8, "model": "k"},
    gpu="H200",
    world=8,
    ranks=8,
    requests=ONE,
    prompt_tokens=None,
    graph_tokens=ONE,
    context=1000.0,
    layers=61,
    expert_layers=60,
    kernels=1783,
    inflation=1.2,
)


def judged(side: Sample = SIDE, **changed: Any) -> list[Fact]:
    """Facts compared with a side with something changed."""
    return facts(SIDE, side, WORK, replace(WORK, **changed))


def fact(found: list[Fact], name: str) -> Fact:
    """One of them."""
    return next(one for one in found if one.name == name)


def test_the_same_in_everything_is_the_same_work() -> None:
    """Every fact of the question is there, and the same."""
    found = judged()
    assert in_words(found) == "the same work"
    names = {one.name for one in found}
    assert {
        "GPU",
        "world size",
        "source",
        "phase",
        "global batch",
        "graph tokens",
        "context",
        "model: as given",
        "inflation",
    } <= names
    assert {one.verdict for one in found} == {"same"}
    assert not is_other_work(found)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("world size", {"world": 4}),
        ("global batch", {"requests": (16.0, 16.0, 16.0, 16.0)}),
        ("global batch", {"requests": (1.0, 1.0, 1.0, 1.03)}),
        ("graph tokens", {"graph_tokens": (16.0, 16.0, 16.0, 16.0)}),
        ("context", {"context": 2000.0}),
        ("model: experts", {"config": WORK.config | {"experts": 64}}),
        ("layout: tp", {"config": WORK.config | {"tp": 4}}),
        ("layers seen", {"layers": 60}),
        ("expert layers seen", {"expert_layers": 58}),
    ],
)
def test_what_changes_the_work_is_refused(name: str, changed: dict[str, Any]) -> None:
    """With both values in the verdict."""
    found = judged(**changed)
    one = fact(found, name)
    assert (one.verdict, one.means) == ("differs", REFUSED)
    assert is_other_work(found)
    assert in_words(found) == f"different work: {name} {one.before} vs {one.after}"


@pytest.mark.parametrize(
    ("name", "side"), [("source", replace(SIDE, source="nsys")), ("phase", replace(SIDE, phase="verify"))]
)
def test_another_instrument_or_phase_is_refused(name: str, side: Sample) -> None:
    """Sources are not mixed; verifying is not decoding."""
    assert fact(judged(side), name).means == REFUSED


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("GPU", {"gpu": "B200"}),
        ("ranks recorded", {"ranks": 1}),
        ("graph tokens", {"graph_tokens": None}),
        ("kernels of a step", {"kernels": 1720}),
        ("inflation", {"inflation": 1.4}),
    ],
)
def test_other_differences_are_to_be_read_with_care(name: str, changed: dict[str, Any]) -> None:
    """Named, and not refused."""
    found = judged(**changed)
    assert fact(found, name).verdict == "differs"
    assert not is_other_work(found)
    assert in_words(found).startswith(f"no known difference in work; read with care: {name} ")


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("GPU", {"gpu": None}),
        ("global batch", {"requests": None}),
        ("context", {"context": None}),
        ("inflation", {"inflation": None}),
        ("model: experts", {"config": {"layers": 61, "tp": 8, "model": "k"}}),
    ],
)
def test_what_nothing_tells_is_not_taken_for_the_same(name: str, changed: dict[str, Any]) -> None:
    """Named in the verdict."""
    found = judged(**changed)
    assert fact(found, name).verdict == "unknown"
    assert in_words(found) == f"no known difference in work. Unknown: {name}"


@pytest.mark.parametrize(
    "changed", [{"context": 1040.0}, {"inflation": 1.25}, {"requests": (1.0, 1.0, 1.0, 1.01)}]
)
def test_small_differences_of_measured_facts_are_the_same(changed: dict[str, Any]) -> None:
    """5 % of context and inflation, 2 % of the mean batch."""
    assert in_words(judged(**changed)) == "the same work"


def test_prompt_tokens_count_where_there_are_prompts() -> None:
    """512 tokens of prefill and 1024."""
    one, other = ((n, n, n, n) for n in (512.0, 1024.0))
    found = facts(SIDE, SIDE, replace(WORK, prompt_tokens=one), replace(WORK, prompt_tokens=other))
    assert fact(found, "prompt tokens").means == REFUSED
    assert all(one.name != "prompt tokens" for one in judged())


def test_no_graph_on_either_side_is_the_same() -> None:
    """Eager runs."""
    work = replace(WORK, graph_tokens=None)
    assert fact(facts(SIDE, SIDE, work, work), "graph tokens") == Fact(
        "graph tokens", "no graph", "no graph", "same"
    )


def test_nothing_said_of_the_model_says_what_to_say() -> None:
    """A difference may then be the model's."""
    found = facts(SIDE, SIDE, replace(WORK, config={}), replace(WORK, config={}))
    assert fact(found, "model facts").verdict == "unknown"
    assert "stepledger describe" in fact(found, "model facts").means


def test_the_report_holds_every_fact_with_its_meaning() -> None:
    """The verdict in its title; a difference with what it means."""
    report = verdict_report(judged(gpu="B200"))
    assert report.title == "Comparable? no known difference in work; read with care: GPU H200 vs B200"
    assert ["GPU", "H200", "B200", "differs", CARE] in report.rows
