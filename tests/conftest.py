"""Fixtures: a home of one's own, and the shared real traces where they are."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from pipeline import cli
from pipeline.home import Home
from tests.builders import ingest_into
from tests.homes import Called, pair

_SHARED = Path(os.environ.get("STEPLEDGER_SHARED_TRACES", Path(__file__).resolve().parents[2] / "shared" / "traces"))

os.environ.pop("COLUMNS", None)  # a width given from outside (pytest-xdist sets one) would fold tables

# CI looks at the same examples every time; everybody else looks at new ones.
settings.register_profile(
    "default", derandomize="CI" in os.environ, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("default")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A fresh home."""
    made = Home(tmp_path / "home")
    made.ensure()
    return made


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Called]:
    """Call the command in this process."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(*arguments: str | Path) -> Called:
        monkeypatch.setattr(sys, "argv", ["stepledger", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            cli.main()
        return Called(int(left.value.code or 0), *capfd.readouterr())

    return run


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """The shared folder of real traces; tests that need it are skipped, visibly, where it is missing."""
    if not _SHARED.is_dir():
        pytest.skip("the shared traces are not on this machine")
    return _SHARED


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with two runs of two ranks, `a` and `2026`, for tests that only read."""
    folder = tmp_path_factory.mktemp("built")
    made = Home(folder / "home")
    made.ensure()
    for seed, run in enumerate(("a", "2026")):
        outcome = ingest_into(made, *pair(folder / run, seed=seed), run=run)
        assert outcome.built == [run]
    return made
