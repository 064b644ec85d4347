"""The macros of a session: they come from data files and work where nothing can be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import duck
from pipeline.lake.database import write_database
from pipeline.lake.home import Home
from pipeline.lake.reading import reading
from pipeline.models import macros
from pipeline.models.rules import categories, communication_categories, communication_rollups, rollups
from tests.support.tables import evaluate


@pytest.mark.parametrize("category", categories())
def test_communication_is_owner_class_2(category: str) -> None:
    """The macro and the list of categories say the same of every category of categories.toml."""
    owner = categories()[category]["owner"]
    assert (
        evaluate(f"is_communication('{category}')")
        == (owner == 2)
        == (category in communication_categories())
    )


def test_communication_rollups_are_the_rows_of_communication() -> None:
    """Rows of the table that show communication, in the table's order, and no other row."""
    found = communication_rollups()
    assert found == ("AllReduce", "MoE dispatch and combine", "Other collectives")
    assert [row for row in rollups() if row in found] == [*found]


@pytest.mark.parametrize(
    ("subcategory", "is_attention"),
    [("mla", True), ("other", True), (None, True), ("combine", False), ("indexer", False)],
)
def test_attention_is_neither_combine_nor_indexer(subcategory: str | None, is_attention: bool) -> None:
    """Attention without a subcategory is attention; the answer is never NULL."""
    assert evaluate("is_attention('attention', ?)", subcategory) is is_attention
    assert evaluate("is_attention('gemm', ?)", subcategory) is False


@pytest.mark.parametrize(
    ("category", "subcategory", "is_norm"),
    [
        ("norm", "rms", True),
        ("norm", None, True),
        ("allreduce", "fused_norm", True),
        ("allreduce", "nccl", False),
        ("unclassified", None, False),
    ],
)
def test_a_fused_all_reduce_is_a_norm(category: str, subcategory: str | None, is_norm: bool) -> None:
    """A norm by category, or fused into an all-reduce; the answer is never NULL."""
    assert evaluate("is_norm(?, ?)", category, subcategory) is is_norm


@pytest.mark.parametrize(
    ("level", "at_ns", "covered_ns"),
    [(1, 5, 0), (1, 10, 0), (1, 15, 5), (1, 20, 10), (1, 25, 10), (1, 35, 15), (1, 99, 20), (2, 99, 0)],
)
def test_covered_time_counts_busy_intervals_up_to_an_instant(level: int, at_ns: int, covered_ns: int) -> None:
    """Whole intervals before the instant, part of the one that holds it, 0 before the first; by level."""
    found = evaluate(
        "(WITH busy AS (SELECT 't' AS trace_id, 0 AS device, 1 AS level, unnest([10, 30]) AS start_ns, "
        "unnest([20, 40]) AS end_ns, unnest([0, 10]) AS covered_ns), "
        f"points AS (SELECT 't' AS trace_id, 0 AS device, {level} AS level, {at_ns} AS at_ns) "
        "SELECT covered_ns FROM covered_at('points', 'busy'))"
    )
    assert found == covered_ns


def test_a_read_only_session_can_have_the_macros(tmp_path: Path) -> None:
    """Questions use them over the lake's views, in a session whose settings are locked."""
    home = Home(tmp_path)
    home.ensure()
    write_database(home)
    with reading(home) as con:
        macros.install(con)
        assert duck.scalar(con, "SELECT is_communication('allreduce') AND jitter_ns() > 0")
