"""The b-trees of an sqlite file, page by page, before sqlite itself follows their pointers.

sqlite trusts pointers: a page that is its own grandchild, or a child of every page of the level above, makes
counting rows endless, and a chain of 100,000 pages overflows the stack of `quick_check`. Here each page
belongs to one tree at most, and no tree is deeper than sqlite's own cursors reach.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

MAGIC = b"SQLite format 3\0"
DEEPEST = 20
"""Depth limit of sqlite's cursors; the tree of the largest file has fewer levels."""
_INTERIOR, _LEAF = frozenset({2, 5}), frozenset({10, 13})
_HEAD_BYTES = 12


class Pages:
    """The pages of one file, each of which may be visited once."""

    def __init__(self, file: Path) -> None:
        self._source = file.open("rb", buffering=0)
        head = self._source.read(100)
        self.page_bytes = int.from_bytes(head[16:18], "big")
        self.page_bytes = 1 << 16 if self.page_bytes == 1 else self.page_bytes
        size = os.fstat(self._source.fileno()).st_size
        if not head.startswith(MAGIC) or self.page_bytes < 512 or self.page_bytes & (self.page_bytes - 1):
            self._source.close()
            raise sqlite3.DatabaseError("file is not a database")
        self._seen = bytearray(size // self.page_bytes + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._source.close()

    def rows_of_tree(self, root: int) -> int:
        """Visit a tree; returns the cells of its leaves. Raises DatabaseError for a misplaced page."""
        rows = 0
        levels = [iter((root,))]
        while levels:
            page = next(levels[-1], None)
            if page is None:
                levels.pop()
                continue
            if not 0 < page < len(self._seen) or self._seen[page]:
                raise sqlite3.DatabaseError(
                    f"damaged pages: page {page} is not in the file, or is used twice"
                )
            self._seen[page] = 1
            kind, cells = self._head(page)
            if kind in _LEAF:
                rows += cells
            elif kind not in _INTERIOR:
                raise sqlite3.DatabaseError(f"damaged pages: page {page} is not a page of a table or index")
            elif len(levels) == DEEPEST:
                raise sqlite3.DatabaseError(f"damaged pages: a tree of more than {DEEPEST} levels")
            else:
                levels.append(self._children(page, cells))
        return rows

    def _read(self, page: int, at: int, size: int) -> bytes:
        self._source.seek((page - 1) * self.page_bytes + at)
        return self._source.read(size)

    def _head(self, page: int) -> tuple[int, int]:
        """The kind of a page and its number of cells; the first page begins with the file's header."""
        head = self._read(page, 100 if page == 1 else 0, _HEAD_BYTES)
        return head[0], int.from_bytes(head[3:5], "big")

    def _children(self, page: int, cells: int) -> Iterator[int]:
        data = self._read(page, 0, self.page_bytes)
        head = 100 if page == 1 else 0
        pointers = head + _HEAD_BYTES
        for at in range(pointers, pointers + 2 * cells, 2):
            cell = int.from_bytes(data[at : at + 2], "big")
            yield int.from_bytes(data[cell : cell + 4], "big")
        yield int.from_bytes(data[head + 8 : head + 12], "big")
