"""The READMEs as tests read them: pages, headings, links, fenced blocks and code."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

_IGNORED = {".venv", ".git", ".pytest_cache", ".hypothesis", "build", "dist", "node_modules"}
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<body>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE
)
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\[]+)\]\((?P<target>[^()\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)


@dataclass(frozen=True)
class Fence:
    """A fenced block: its language, its text without the indent, and the prose before it."""

    language: str
    body: str
    before: str


@dataclass(frozen=True)
class Link:
    """A link of a page: its text, and the file and heading that it leads to."""

    page: Path
    text: str
    target: str

    @property
    def file(self) -> Path:
        """The file or folder that the link leads to."""
        path = self.target.partition("#")[0]
        return (self.page.parent / path).resolve() if path else self.page

    @property
    def anchor(self) -> str:
        """The heading that the link leads to, or nothing."""
        return self.target.partition("#")[2]


def pages() -> list[Path]:
    """Every page of the repository."""
    found = []
    for folder, inner, files in os.walk(ROOT):
        here = Path(folder)
        inner[:] = [name for name in inner if name not in _IGNORED and here != ROOT / "warehouse"]
        found += [here / name for name in files if name.endswith(".md")]
    return sorted(found)


def fences(text: str) -> list[Fence]:
    """The fenced blocks of a page, in order."""
    found, end = [], 0
    for match in _FENCE.finditer(text):
        indent = match["indent"]
        lines = (line.removeprefix(indent) for line in match["body"].splitlines(keepends=True))
        found.append(Fence(match["language"], "".join(lines), text[end : match.start()]))
        end = match.end()
    return found


def prose(text: str) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", text)


def links(page: Path) -> Iterator[Link]:
    """The links of a page that lead into the repository."""
    for match in _LINK.finditer(prose(page.read_text(encoding="utf-8"))):
        if "://" not in match["target"]:
            yield Link(page, match["text"], match["target"])


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    found: dict[str, int] = {}
    for heading in _HEADING.findall(prose(page.read_text(encoding="utf-8"))):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {f"{slug}-{number}" if number else slug for slug, n in found.items() for number in range(n + 1)}
