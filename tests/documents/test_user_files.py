"""The files that schemas/README.md shows to users: each is accepted as it is printed."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from pipeline.lake.run_config import read_run_toml
from pipeline.models.check_rules import check_rules
from tests.support.pages import fences
from tests.support.paths import ROOT

BLOCKS = [
    fence.body
    for fence in fences((ROOT / "schemas" / "README.md").read_text(encoding="utf-8"))
    if fence.language == "toml"
]
RULES = [block for block in BLOCKS if block.startswith("[[")]
FACTS = [block for block in BLOCKS if not block.startswith("[[")]


def test_rules_markers_and_facts_are_shown() -> None:
    """The page has an example of each kind of file."""
    assert [next(iter(tomllib.loads(block))) for block in RULES] == ["rule", "marker"]
    assert len(FACTS) == 1


@pytest.mark.parametrize("block", RULES)
def test_a_file_of_rules_or_markers_has_no_problems(tmp_path: Path, block: str) -> None:
    """`rules --check` finds nothing wrong with it, its example included."""
    file = tmp_path / "file.toml"
    file.write_text(block, encoding="utf-8")
    assert check_rules(file).problems == ()


@pytest.mark.parametrize("block", FACTS)
def test_facts_are_accepted(tmp_path: Path, block: str) -> None:
    """Each key and value of the run.toml is known."""
    file = tmp_path / "run.toml"
    file.write_text(block, encoding="utf-8")
    assert read_run_toml(file) == tomllib.loads(block)
