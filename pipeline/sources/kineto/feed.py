"""The bytes of traceEvents in a buffer of bounded size, and where to split them between events."""

from __future__ import annotations

import re
from collections.abc import Iterator

import orjson

from pipeline.errors import UnfinishedFile
from pipeline.sources.kineto.events import OLD_KEYS

_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_END = re.compile(rb"\}\s*(?=\])")
_BACKWARD_TRIES = 2_000
_END_TRIES = 64


class Feed:
    """A growing buffer over the blocks of a file; `offset` is the file position of buffer[0].

    `salvage`: the end of a truncated compressed file sets `is_truncated` and does not raise UnfinishedFile.
    """

    def __init__(self, blocks: Iterator[bytes], *, salvage: bool = False) -> None:
        self._blocks, self._salvage = blocks, salvage
        self.buffer = b""
        self.offset = 0
        self.is_at_end = False
        self.is_truncated = False

    def fill(self, size: int) -> None:
        """Read until the buffer has `size` bytes or the file ends."""
        parts, have = [self.buffer], len(self.buffer)
        while have < size and not self.is_at_end:
            block = self._next()
            if block is None:
                self.is_at_end = True
            else:
                parts.append(block)
                have += len(block)
        if len(parts) > 1:
            self.buffer = b"".join(parts)
            for old, new in OLD_KEYS:
                if old in self.buffer:
                    self.buffer = self.buffer.replace(old, new)

    def _next(self) -> bytes | None:
        try:
            return next(self._blocks, None)
        except UnfinishedFile:
            if not self._salvage:
                raise
            self.is_truncated = True
            return None

    def drop(self, count: int) -> None:
        """Remove the first `count` bytes."""
        self.buffer = self.buffer[count:]
        self.offset += count


def find_array_end(buf: bytes, *, is_bare: bool) -> int | None:
    """Probable position of the events' `]` in the last buffer of a file: the first one with a valid tail."""
    if buf.lstrip()[:1] == b"]":
        return len(buf) - len(buf.lstrip())
    for tries, match in enumerate(_END.finditer(buf)):
        if tries == _END_TRIES:
            return None
        rest = buf[match.end() + 1 :].strip(b"\0 \t\r\n")
        if is_bare:
            if not rest:
                return match.end()
            continue
        if rest[:1] not in (b",", b"}"):
            continue
        try:
            orjson.loads(b'{"events":[]' + rest)
        except orjson.JSONDecodeError:
            continue
        return match.end()
    return None


def split(buf: bytes, limit: int, stretch_bytes: int, *, is_last: bool) -> tuple[list[tuple[int, int]], int]:
    """Split buf[:limit] at likely event boundaries into stretches of about `stretch_bytes`.

    Returns (start, end) of each, and the position where the next stretch starts. A boundary is a guess, and
    parsing the stretch proves it. `is_last`: the last stretch ends at `limit`; otherwise the bytes after the
    last boundary are not part of a stretch.
    """
    spans, pos = [], 0
    while limit - pos > stretch_bytes * (1.25 if is_last else 1):
        between = _boundary(buf, pos, pos + stretch_bytes, limit)
        if between is None:
            break
        spans.append((pos, between.start() + 1))
        pos = between.end()
    if is_last:
        if buf[pos:limit].strip():
            spans.append((pos, limit))
        pos = limit
    elif not spans and (between := _last_boundary(buf, limit)):
        spans, pos = [(0, between.start() + 1)], between.end()
    return spans, pos


def _boundary(buf: bytes, start: int, target: int, limit: int) -> re.Match[bytes] | None:
    at = target
    for _ in range(_BACKWARD_TRIES):
        at = buf.rfind(b"},", start, at)
        if at < 0:
            break
        if match := _BETWEEN.match(buf, at, limit):
            return match
    return _BETWEEN.search(buf, target, limit)


def _last_boundary(buf: bytes, limit: int) -> re.Match[bytes] | None:
    at = limit
    for _ in range(_BACKWARD_TRIES):
        at = buf.rfind(b"},", 0, at)
        if at < 0:
            return None
        if match := _BETWEEN.match(buf, at, limit):
            return match
    return None
