"""The generated parts of the pages are current: `make docs` rewrites them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages import pages
from tests.support.paths import ROOT
from tests.tools.docs import PARTS, part


@pytest.mark.parametrize(
    ("page", "name"), PARTS, ids=[f"{page.relative_to(ROOT).as_posix()}-{name}" for page, name in PARTS]
)
def test_a_generated_part_is_current(page: Path, name: str) -> None:
    """The part equals what the code makes of schemas/, sql/ and the demo traces; `make docs` rewrites it."""
    assert part(page.read_text(encoding="utf-8"), name) == PARTS[page, name]()


def test_every_part_that_a_page_marks_is_generated() -> None:
    """No page has a part between marks that `make docs` does not know."""
    marked = {
        (page, line.removeprefix("<!-- ").removesuffix(" -->"))
        for page in pages()
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("<!-- ") and not line.startswith("<!-- /")
    }
    assert marked == PARTS.keys()
