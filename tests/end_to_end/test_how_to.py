"""The how-tos of pipeline/README.md: followed to the letter in a copy of the tree, each works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.support.builders import DECODE, StepBuilder, header, write_trace
from tests.support.homes import HANG_S
from tests.support.pages import fences
from tests.support.paths import ROOT

COPIED = ("pipeline", "sql", "schemas", "tests/support", "tests/quality")
PLACE = re.compile(r"(New file|Append to|Change) `([^`]+)`:\s*$")
CONTRACT_VERSION = re.compile(r"^CONTRACT_VERSION = (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Edit:
    """What a how-to says to do to one file."""

    what: str
    file: str
    text: str


def edits(heading: str) -> list[Edit]:
    """The edits of the how-to with this heading, in order."""
    page = (ROOT / "pipeline" / "README.md").read_text(encoding="utf-8")
    section = re.search(rf"^## {heading}\n(.*?)^## ", page, re.DOTALL | re.MULTILINE)
    assert section is not None, heading
    found = []
    for fence in fences(section[1]):
        place = PLACE.search(fence.before)
        assert place is not None, f"{heading}: a block without a file: {fence.body}"
        found.append(Edit(place[1], place[2], fence.body))
    assert found, heading
    return found


@dataclass(frozen=True)
class Tree:
    """A copy of the tree, in which how-tos are followed."""

    root: Path

    def follow(self, heading: str) -> None:
        """Do to the copy what the how-to says, each edit where it says."""
        for edit in edits(heading):
            file = self.root / edit.file
            if edit.what == "New file":
                assert not file.exists(), f"{edit.file} is there already"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(edit.text, encoding="utf-8")
                continue
            text = file.read_text(encoding="utf-8")
            if edit.what == "Append to":
                blank_lines = 2 if file.suffix == ".py" else 1
                changed = text.rstrip() + "\n" * (blank_lines + 1) + edit.text
            else:
                old, new = _sides(edit.text)
                assert text.count(old) == 1, f"{edit.file} does not hold, exactly once:\n{old}"
                changed = text.replace(old, new)
            file.write_text(changed, encoding="utf-8")

    def raise_contract_version(self) -> None:
        """The step that how-tos describe in words."""
        file = self.root / "pipeline" / "contracts.py"
        text = file.read_text(encoding="utf-8")
        assert CONTRACT_VERSION.search(text)
        raised = CONTRACT_VERSION.sub(lambda found: f"CONTRACT_VERSION = {int(found[1]) + 1}", text)
        file.write_text(raised, encoding="utf-8")

    def python(self, *arguments: str | Path) -> str:
        """Run a module of the copy, and return what it prints."""
        kept = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "STEPLEDGER_HOME"}}
        done = subprocess.run(
            [sys.executable, "-m", *map(str, arguments)],
            cwd=self.root,
            env=kept | {"PYTHONPATH": str(self.root), "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def stepledger(self, *arguments: str | Path) -> str:
        """Run a command of the copy."""
        return self.python("pipeline", "--home", "home", *arguments)

    def query(self, sql: str) -> list[dict[str, Any]]:
        """The rows of a query."""
        return list(orjson.loads(self.stepledger("query", sql, "--format", "json")))

    def ingest(self, *kernels: tuple[str, int], marker: str = DECODE) -> None:
        """Ingest a trace of three steps, each of these kernels."""
        made = StepBuilder()
        for _ in range(3):
            made.step([*kernels], marker)
        trace = write_trace(self.root / "serve-rank-0.json", made.events, header(0, 1))
        self.stepledger("ingest", trace, "--run", "tiny")


def _sides(diff: str) -> tuple[str, str]:
    """The text before and after a diff whose lines begin with a blank, a minus or a plus."""
    lines = diff.splitlines(keepends=True)
    assert all(line[:1] in " -+\n" for line in lines), diff
    old, new = (
        "".join(line[1:] if line.strip() else line for line in lines if line[:1] != left_out)
        for left_out in "+-"
    )
    return old, new


GEMM = ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", 20_000)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A copy of what the how-tos touch."""
    for name in COPIED:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("demo_traces"))
    for name in ("pyproject.toml", "tests/__init__.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    return Tree(tmp_path)


def test_a_kernel_rule_that_is_added_claims_its_kernel(tree: Tree) -> None:
    """Its kernels are of its category, and carry its id."""
    tree.follow("Add a kernel rule")
    tree.ingest(GEMM, ("void acme::ring_attention_kernel<64>(float const*)", 30_000))
    found = tree.query("SELECT DISTINCT category, rule_id FROM activity ORDER BY ALL")
    assert [tuple(row.values()) for row in found] == [
        ("attention", "acme_ring_attention"),
        ("gemm", "nvjet"),
    ]


def test_a_step_marker_that_is_added_makes_steps(tree: Tree) -> None:
    """Its annotations are steps, with the phase and the counts that its text states."""
    tree.follow("Add a step marker")
    tree.ingest(GEMM, marker="acme.forward prefill=0 decode=4 tokens=4")
    (found,) = tree.query(
        "SELECT phase, method, generation_requests, count(*) AS steps FROM steps GROUP BY ALL"
    )
    assert found == {"phase": "decode", "method": "annotation", "generation_requests": 4, "steps": 3}


def test_a_check_that_is_added_is_asked(tree: Tree) -> None:
    """Its result on the new run is among the results of the checks, with its meaning."""
    tree.follow("Add a check")
    tree.ingest(GEMM)
    (found,) = tree.query(
        "SELECT severity, failing_rows, means FROM quality WHERE \"check\" = 'launch_bound'"
    )
    assert (found["severity"], found["failing_rows"]) == ("info", 1)
    assert "the host launches late" in found["means"]


@pytest.fixture
def with_mart(tree: Tree) -> Tree:
    """A copy in which the mart of the how-to was added."""
    tree.follow("Add a mart")
    tree.raise_contract_version()
    return tree


def test_a_mart_that_is_added_is_built_and_exported(with_mart: Tree) -> None:
    """Its rows are in the database of views and in an export."""
    with_mart.ingest(GEMM)
    (found,) = with_mart.query("SELECT stream, phase, calls, busy_ns, exposed_ns FROM stream_breakdown")
    assert found == {"stream": 7, "phase": "decode", "calls": 3, "busy_ns": 60_000, "exposed_ns": 60_000}
    exported = with_mart.stepledger("export", "tiny", "--mart", "stream_breakdown", "--output", "-")
    assert exported.splitlines()[1].endswith(",7,decode,3,60000,60000")


def test_the_test_of_a_mart_that_is_added_passes(with_mart: Tree) -> None:
    """The how-to's own test runs, and passes."""
    (test,) = (edit.file for edit in edits("Add a mart") if edit.file.startswith("tests/"))
    done = with_mart.python("pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", test)
    assert "1 passed" in done


def test_a_question_that_is_added_is_a_command(tree: Tree) -> None:
    """The command answers from the new run, and its help shows the example."""
    tree.follow("Add a question")
    tree.ingest(GEMM)
    (found,) = orjson.loads(tree.stepledger("streams", "tiny", "--format", "json"))
    assert (found["stream"], found["calls"], found["busy_ms"], found["hidden_share"]) == (7, 3, 0.06, 0.0)
    assert "stepledger streams my-run" in tree.stepledger("streams", "--help")


FOLLOWED: dict[str, Callable[..., None]] = {
    "Add a kernel rule": test_a_kernel_rule_that_is_added_claims_its_kernel,
    "Add a step marker": test_a_step_marker_that_is_added_makes_steps,
    "Add a check": test_a_check_that_is_added_is_asked,
    "Add a mart": test_a_mart_that_is_added_is_built_and_exported,
    "Add a question": test_a_question_that_is_added_is_a_command,
}
BY_HAND = {"Add a fact", "Add a source"}
"""In words: they depend on what is added."""


def test_every_how_to_is_followed() -> None:
    """A new how-to needs a test that follows it."""
    page = (ROOT / "pipeline" / "README.md").read_text(encoding="utf-8")
    assert {*re.findall(r"^## (Add .+)$", page, re.MULTILINE)} == FOLLOWED.keys() | BY_HAND
