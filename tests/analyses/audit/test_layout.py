"""How a run's layout is known: given, named, shown by the trace, or assumed in words."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.analyses.audit.expected import Layout
from pipeline.analyses.audit.layout import KnownFacts, layout_of

NOTHING = {
    "has_reduce": True,
    "has_exchange": False,
    "has_scatter": False,
    "has_two_after_moe": False,
    "has_shared": False,
}


def layout(
    config: dict[str, Any] | None = None, ranks: int = 8, named: dict[str, int] | None = None, **shown: bool
) -> tuple[Layout, str]:
    """The layout and all its notes."""
    found, notes = layout_of(KnownFacts(config or {}, ranks, named or {}), **(NOTHING | shown))
    return found, "; ".join(notes)


def test_given_facts_need_no_note() -> None:
    """All facts given: nothing is assumed."""
    given = {"tp": 2, "dp": 4, "ep": 8, "pp": 1, "sequence_parallel": False, "draft_layers": 2}
    assert layout(given, named={"tp": 8, "pp": 3, "dp": 3}) == (Layout(2, 4, 8, 1, draft_layers=2), "")


def test_names_of_files_come_next() -> None:
    """Their places give the sizes, and the notes report it."""
    found, notes = layout(named={"tp": 4, "dp": 2, "pp": 1})
    assert (found.tp, found.dp, found.pp) == (4, 2, 1)
    assert "tp 4: from the file names" in notes


def test_else_all_ranks_are_one_tensor_parallel_group() -> None:
    """Assumed, and noted."""
    found, notes = layout()
    assert found == Layout(tp=8)
    assert "tp not given, assuming 8: all 8 ranks of the job" in notes
    found, notes = layout({"dp": 2})
    assert found.tp == 4
    assert "all 8 ranks of the job / (dp 2 x pp 1)" in notes


@pytest.mark.parametrize(("has_reduce", "tp"), [(True, 2), (False, 1)])
def test_one_trace_with_all_reduces_has_partners(has_reduce: bool, tp: int) -> None:
    """A file that does not tell the size of its job: an all-reduce proves that there are others."""
    found, notes = layout(ranks=1, has_reduce=has_reduce)
    assert found.tp == tp
    assert ("assuming more than 1" in notes) == has_reduce


def test_dispatch_in_the_trace_means_expert_parallel() -> None:
    """Over all ranks, unless given otherwise."""
    assert layout({"dp": 8, "tp": 1}, has_exchange=True)[0].ep == 8
    assert layout({"dp": 8, "tp": 1})[0].ep == 1


def test_reduce_scatter_behind_attention_means_sequence_parallel() -> None:
    """Unless run_config denies it."""
    found, notes = layout(has_scatter=True)
    assert found.sequence_parallel
    assert "sequence_parallel not given, assuming on" in notes
    assert not layout({"sequence_parallel": False}, has_scatter=True)[0].sequence_parallel


def test_a_second_all_reduce_of_moe_layers_is_the_shared_experts_if_there_is_one() -> None:
    """KnownFacts in run_config, or shown by its GEMMs; else it counts as extra."""
    assert layout({"shared_experts": 1}, has_two_after_moe=True)[0].shared_apart
    assert layout(has_two_after_moe=True, has_shared=True)[0].shared_apart
    found, notes = layout({"shared_experts": 0}, has_two_after_moe=True, has_shared=True)
    assert not found.shared_apart
    assert "the second is counted as extra" in notes
    assert not layout({"shared_experts": 1})[0].shared_apart
