"""warehouse/README.md: the only file of the default home that the repository holds."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.ingest.ingest import drain
from pipeline.lake.home import Home
from pipeline.progress import Progress
from tests.support.homes import damage, drop, rank_trace
from tests.support.paths import ROOT

PAGE = ROOT / "warehouse" / "README.md"


def _is_ignored(root: Path, file: str) -> bool:
    done = subprocess.run(["git", "check-ignore", "--quiet", file], cwd=root, check=False)
    assert done.returncode in {0, 1}
    return done.returncode == 0


def test_git_tracks_the_page_and_nothing_else_of_the_home(tmp_path: Path) -> None:
    """A home in the checkout never ends up in a commit; its page does."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    shutil.copy(ROOT / ".gitignore", tmp_path)
    assert not _is_ignored(tmp_path, "warehouse/README.md")
    assert _is_ignored(tmp_path, "warehouse/stepledger.duckdb")
    assert _is_ignored(tmp_path, "warehouse/inbox/run/trace.json")


def test_a_home_leaves_the_page_alone(tmp_path: Path) -> None:
    """Traces that are read, and files that are quarantined, change nothing about the page beside them."""
    home = Home(tmp_path / "warehouse")
    home.root.mkdir()
    page = Path(shutil.copy(PAGE, home.root))
    made = rank_trace(tmp_path / "serve-rank-0.json", ranks=1)
    drop(home, made, "run/serve-rank-0.json")
    damage(made, "garbage")
    drop(home, made, "bad/serve-rank-0.json")
    outcome = drain(home, Progress(quiet=True))
    assert outcome.built == ["run"]
    assert outcome.codes
    assert page.read_bytes() == PAGE.read_bytes()
