"""An error of the file system or of DuckDB at any point: the watcher goes on and loses nothing (`make soak`:
at a hundred points)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tools.crash import contents, debris, filled, finish, points
from tests.tools.faults import KINDS, difference

SPREAD = 12
"""Points that are tried here, spread over the whole work; each kind of error at several."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any]]:
    """How many points the work has, and what it makes."""
    folder = tmp_path_factory.mktemp("undisturbed")
    home = filled(folder / "home")
    total = points(home.root, folder / "count")
    finish(home)
    assert debris(home) == []
    return total, contents(home)


@pytest.mark.parametrize("part", range(SPREAD))
def test_after_an_error_the_watcher_makes_what_an_undisturbed_one_makes(
    undisturbed: tuple[int, dict[str, Any]], tmp_path: Path, part: int
) -> None:
    """No hang, nothing escapes the watcher, the lock is free afterwards, and everything is made in the
    end."""
    total, expected = undisturbed
    at = 1 + part * (total - 1) // (SPREAD - 1)
    assert difference(tmp_path / "home", at, KINDS[part % len(KINDS)], expected) is None
