"""A home with the demo traces, for pages that quote it."""

from __future__ import annotations

import pytest

from pipeline.ingest.demo import demo_items
from pipeline.ingest.ingest import ingest
from pipeline.lake.home import Home
from pipeline.progress import Progress


@pytest.fixture(scope="session")
def demo_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with the demo traces."""
    home = Home(tmp_path_factory.mktemp("demo") / "home")
    ingest(home, demo_items(), Progress(quiet=True))
    return home
