"""Runs that analyses look at."""

from __future__ import annotations

import pytest

from pipeline.lake.home import Home
from tests.support.served import serve


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with runs `x` (batch 1), `two` and `four` (other batches), and `bare` (nothing given, no
    table)."""
    folder = tmp_path_factory.mktemp("served")
    home = Home(folder / "home")
    home.ensure()
    serve(folder, home, "x")
    serve(folder, home, "two", tokens=2)
    serve(folder, home, "four", tokens=4, table=None)
    unsaid = dict.fromkeys(
        ("layers", "dense_layers", "hidden_size", "experts", "experts_per_token", "dtype", "link")
    )
    serve(folder, home, "bare", table=None, facts=unsaid)
    return home
