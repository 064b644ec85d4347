"""The exact scan: finds events one by one where a stretch of the file does not parse as a whole.

Slow and careful; only stretches that the fast path gives up on come here. A broken event costs itself only: the scan
goes on at the next place that looks like the start of an event.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

_KEY = rb'"(?:ph|cat|name|pid|tid|ts|dur|id|args|s|bp)"\s*:'
_NEXT = re.compile(rb"\}\s*,\s*(?=\{\s*" + _KEY + rb")")
_CLOSE = re.compile(rb"\}\s*(?=\])")
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|"|[{}\[\]]', re.DOTALL)
_SPACE = re.compile(rb"[\s,]*")
_NEST_LIMIT = 1 << 20


@dataclass(frozen=True)
class Event:
    """One element of traceEvents. `value` is None where its bytes are no JSON; `repaired` if bytes were replaced."""

    start: int
    end: int
    value: Any
    is_broken: bool = False
    is_repaired: bool = False


class NanValue(float):
    """NaN or Infinity in the file: valid to Python, not JSON; a field that holds it counts as bad."""


def _constant(_text: str) -> NanValue:
    return NanValue("nan")


def parse(raw: bytes) -> tuple[bool, bool, Any]:
    """(is it JSON, was text repaired, value); numbers are exact, the last of duplicate keys wins."""
    try:
        text, repaired = raw.decode("utf-8"), False
    except UnicodeDecodeError:
        text, repaired = raw.decode("utf-8", "replace"), True
    try:
        return True, repaired, json.loads(text, parse_float=Decimal, parse_constant=_constant)
    except (ValueError, RecursionError):
        pass
    try:
        return True, True, json.loads(text, parse_float=Decimal, parse_constant=_constant, strict=False)
    except (ValueError, RecursionError):
        return False, False, None


def scan(buf: bytes, start: int, *, at_end: bool) -> Iterator[Event | int]:
    """Yield the events of `buf` from `start`, which is where an event (or the array's end) is due.

    Ends by yielding an int: the position where it stopped. If buf[position] is `]`, the array of events ends there;
    otherwise the rest is the beginning of an event whose end is not in `buf` (`at_end`: there is no more to come).
    """
    pos = start
    while True:
        space = _SPACE.match(buf, pos)
        pos = space.end() if space else pos
        if pos >= len(buf) or buf[pos : pos + 1] == b"]":
            yield pos
            return
        event = _event(buf, pos, at_end=at_end)
        if event is None:
            yield pos
            return
        yield event
        pos = event.end


def _event(buf: bytes, pos: int, *, at_end: bool) -> Event | None:
    if buf[pos : pos + 1] != b"{":
        return _scalar(buf, pos)
    separator = _NEXT.search(buf, pos)
    candidates = [separator.start() + 1] if separator else []
    if not separator or _CLOSE.search(buf, pos, separator.start()):
        balanced = _balanced(buf, pos, min(len(buf), (separator.start() if separator else len(buf)) + _NEST_LIMIT))
        candidates = [c for c in (balanced, *candidates) if c]
    for end in candidates:
        ok, repaired, value = parse(buf[pos:end])
        if ok:
            return Event(pos, end, value, is_repaired=repaired)
    nested = _balanced(buf, pos, min(len(buf), pos + _NEST_LIMIT))
    if nested:
        ok, repaired, value = parse(buf[pos:nested])
        if ok:
            return Event(pos, nested, value, is_repaired=repaired)
    if separator:
        return Event(pos, separator.start() + 1, None, is_broken=True)
    close = _CLOSE.search(buf, pos)
    if close and at_end:
        return Event(pos, close.start() + 1, None, is_broken=True)
    return None


def _scalar(buf: bytes, pos: int) -> Event | None:
    """An element that is not an object: up to the next event or the array's end."""
    match = re.compile(rb"(?=,\s*\{)|(?=\s*\]\s*[,}])").search(buf, pos)
    if not match:
        return None
    return Event(pos, max(match.start(), pos + 1), parse(buf[pos : match.start()])[2])


def _balanced(buf: bytes, pos: int, limit: int) -> int | None:
    """The position after the bracket that closes the one at `pos`, or None."""
    depth = 0
    for token in _TOKEN.finditer(buf, pos, limit):
        char = token.group()
        if char in (b"{", b"["):
            depth += 1
        elif char in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return token.end()
        elif char == b'"':
            return None
    return None
