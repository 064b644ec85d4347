"""Fixtures: a home of one's own, and the shared real traces where they are."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from pipeline.cli import app
from pipeline.lake.home import Home
from tests.support.builders import ingest_into
from tests.support.homes import Called, pair
from tests.support.paths import SHARED_TRACES

os.environ.pop("COLUMNS", None)  # a width given from outside (pytest-xdist sets one) would fold tables

# CI looks at the same examples every time; everybody else looks at new ones.
settings.register_profile(
    "default",
    derandomize="CI" in os.environ,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("default")


def pytest_configure(config: pytest.Config) -> None:
    """Give the whole suite, with what it starts and kills, one temporary folder, and remove that at the end.

    Its name must not begin like a session's folder: another stepledger would remove it while it is empty.
    """
    if not hasattr(config, "workerinput"):  # workers of pytest-xdist inherit it
        folder = tempfile.mkdtemp(prefix="tests-of-stepledger-")
        Path(folder).chmod(0o711)  # tests that give up their rights find what they made in it
        os.environ["TMPDIR"], tempfile.tempdir = folder, None
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


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
            app.main()
        return Called(int(left.value.code or 0), *capfd.readouterr())

    return run


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """The shared folder of real traces; tests that need it are skipped, visibly, where it is missing."""
    if not SHARED_TRACES.is_dir():
        pytest.skip("the shared traces are not on this machine")
    return SHARED_TRACES


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


@pytest.fixture
def without_gx(monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` without the seconds that Great Expectations takes: it passes on what SQL found."""
    monkeypatch.setattr("pipeline.quality.expectations.judge", lambda _con, results: results)
