"""Speculative decoding: cost, and the acceptance that pays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.analyses.latency import Curve
from pipeline.analyses.report import Report
from pipeline.analyses.whatif.speculate import draft_pass_ms, guess, speculate_reports
from pipeline.errors import UsageError
from pipeline.lake.home import Home
from pipeline.lake.reading import reading
from tests.support.served import serve

CURVE = Curve("step", ((1, 10.0), (2, 12.0), (4, 20.0)), "")


def test_verifying_costs_a_step_of_as_many_tokens() -> None:
    """One draft of 3 ms and a step of 2 tokens: 1.5 plain steps, paid by an acceptance of one half."""
    found = guess(CURVE, 1, 1, 3.0, extrapolate=False)
    assert found is not None
    assert (found.verify_tokens, found.verify_ms, found.draft_ms, found.cost) == (2, 12.0, 3.0, 1.5)
    assert found.ms_per_token(0.5) == pytest.approx(10.0)


def test_beyond_the_measured_steps_there_is_no_answer() -> None:
    """Batch 2 with two drafts verifies 6 tokens."""
    assert guess(CURVE, 2, 2, 1.0, extrapolate=False) is None
    found = guess(CURVE, 2, 2, 1.0, extrapolate=True)
    assert found is not None
    assert found.verify_ms == 30.0


def test_a_draft_has_collectives_of_its_own() -> None:
    """One of 61 layers: its share of compute, and the embedding's, two, and the logits' calls."""
    assert draft_pass_ms(1, 61, 12.2, 78) == pytest.approx(0.2 + 4 * 0.078)


def test_a_run_with_others_at_larger_batches(served: Home) -> None:
    """Steps of 1, 2 and 4 tokens take the same here: drafts cost their own time alone."""
    with reading(served) as con:
        (found,) = speculate_reports(con, ["x", "two", "four"], drafts=(1, 3, 7), draft_ms=0.0)
    assert [row[-1] for row in found.rows] == [
        "always pays",
        "always pays",
        "refused: outside the measured steps",
    ]
    assert [row[1] for row in found.rows] == [2, 4, None]
    assert any("1: 0." in note and "2: 0." in note for note in found.notes)


def test_a_dear_draft_never_pays(served: Home) -> None:
    """More than k + 1 steps for k + 1 tokens."""
    with reading(served) as con:
        (found,) = speculate_reports(con, ["x", "two"], drafts=(1,), draft_ms=1000.0)
    assert (found.rows[0][-1], found.rows[0][5]) == ("never pays", None)


def test_the_drafts_cost_follows_from_its_layers(tmp_path: Path, home: Home) -> None:
    """Given as draft_layers: half of two layers' compute and four calls of 7 us."""
    serve(tmp_path, home, "drafted", facts={"draft_layers": 1})
    serve(tmp_path, home, "larger", tokens=2)
    with reading(home) as con:
        (found,) = speculate_reports(con, ["drafted", "larger"], drafts=(1,))
    assert any(
        "1 of 2 layers of compute, its own all-reduces and logits gather" in note for note in found.notes
    )
    assert found.rows[0][3] > 4 * 0.007


def report_of(home: Home, *runs: str, **options: Any) -> list[Report]:
    """The report."""
    with reading(home) as con:
        return speculate_reports(con, list(runs), **options)


def test_what_is_missing_is_a_refusal(served: Home) -> None:
    """One batch alone, a draft of unknown cost, passes beyond what was measured, and nonsense."""
    with pytest.raises(UsageError, match="only steps of 1 token were measured"):
        report_of(served, "x", draft_ms=1.0)
    with pytest.raises(UsageError, match="the cost of a draft is unknown"):
        report_of(served, "x", "two")
    with pytest.raises(
        UsageError, match="verifying takes at least 4 tokens, and steps were measured from 1 to 2"
    ):
        report_of(served, "x", "two", drafts=(3,), draft_ms=1.0)
    with pytest.raises(UsageError, match="the number of drafts is at least 1"):
        report_of(served, "x", "two", drafts=(0,))


def test_steps_of_unknown_size_are_a_refusal(tmp_path: Path, home: Home) -> None:
    """Not even extrapolation can start from nothing."""
    serve(tmp_path, home, "once", steps=1)
    with pytest.raises(UsageError, match="no run has decode steps with a wall time and known tokens"):
        report_of(home, "once", draft_ms=1.0, extrapolate=True)


def test_extrapolation_is_reported(served: Home) -> None:
    """From one batch, in proportion to tokens."""
    (found,) = report_of(served, "x", drafts=(1,), draft_ms=0.0, extrapolate=True)
    assert found.rows[0][4] == 2.0
    assert found.notes[-1].startswith("EXTRAPOLATED")
