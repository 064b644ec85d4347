"""Links between pages: each leads to a file, a heading or a function that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import Link, anchors, links, pages
from tests.support.paths import ROOT

LINKS = [link for page in pages() for link in links(page)]
NAMED = [link for link in LINKS if link.file.suffix == ".py" and re.fullmatch(r"`[A-Za-z_]\w*`", link.text)]


def _id(link: Link) -> str:
    return f"{link.page.relative_to(ROOT).as_posix()}-{link.text}-{link.target}"


def test_every_room_with_a_page_is_linked_from_the_first_page() -> None:
    """A newcomer finds every README from the one at the top."""
    readmes = {page for page in pages() if page.name == "README.md"}
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in readmes - seen:
            seen.add(page)
            waiting += [link.file for link in links(page)]
    assert readmes - seen == set()


@pytest.mark.parametrize("link", LINKS, ids=_id)
def test_a_link_leads_somewhere(link: Link) -> None:
    """The file is in the repository, and the page has the heading."""
    assert link.file.is_relative_to(ROOT)
    assert link.file.exists()
    if link.anchor:
        assert link.anchor in anchors(link.file)


@pytest.mark.parametrize("link", NAMED, ids=_id)
def test_a_function_that_a_page_names_is_in_the_file_that_it_links(link: Link) -> None:
    """The path of an event names functions: each is defined where its link leads."""
    name = link.text.strip("`")
    assert re.search(rf"^(?:def|class) {name}\b", link.file.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_path_of_an_event_names_functions() -> None:
    """The tests above have something to check."""
    assert len(NAMED) > 10
