"""A home with the demo traces, for pages that quote it."""

from __future__ import annotations

import pytest

from pipeline.lake.home import Home
from tests.tools.docs import demo_folder


@pytest.fixture(scope="session")
def demo_home() -> Home:
    """The home from which the generated parts are made."""
    return Home(demo_folder() / "warehouse")
