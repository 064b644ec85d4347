"""The exact scan: finds events one by one where a stretch of the file does not parse as a whole.

It is slow, and used only for stretches that the fast path cannot parse. A broken event does not affect the
others: the scan continues at the next position that looks like the start of an event.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

_KEY = rb'"(?:ph|cat|name|pid|tid|ts|dur|id|args|s|bp)"\s*:'
_NEXT = re.compile(rb"\}\s*,\s*(?=\{\s*" + _KEY + rb")")
_CLOSE = re.compile(rb"\}\s*(?=\])")
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|"|[{}\[\]]', re.DOTALL)
_LOOSE = re.compile(
    r'(?P<text>"(?:[^"\\]++|\\.)*+")|,(?=\s*[}\]])|(?P<word>-?\b(?:nan|inf(?:inity)?)\b)',
    re.DOTALL | re.IGNORECASE,
)
_SPACE = re.compile(rb"[\s,]*")
_WORD = re.compile(rb"[^\s,\[\]{}\"]+")
_AFTER_OTHER = re.compile(rb",\s*\{|\s*\]\s*(?:,\s*\"|\}|\Z)")
_NEST_LIMIT = 1 << 20


@dataclass(frozen=True)
class Event:
    """One element of traceEvents. `value` is None if its bytes are not JSON (`is_broken`).

    `is_repaired`: bytes were replaced.
    """

    start: int
    end: int
    value: Any
    is_broken: bool = False
    is_repaired: bool = False


def parse(raw: bytes) -> tuple[bool, bool, Any]:
    """(is it JSON, was text repaired, value). Numbers are exact; the last of duplicate keys wins.

    As in DuckDB's reader, NaN and Infinity become text (and a bad value in a field of numbers), and a comma
    before a closing bracket is ignored.
    """
    try:
        text, repaired = raw.decode("utf-8"), False
    except UnicodeDecodeError:
        text, repaired = raw.decode("utf-8", "replace"), True
    for strict in (True, False):
        try:
            value = _loads(text, strict=strict)
        except (ValueError, RecursionError):
            continue
        return True, repaired or not strict or _has_half_pair(raw, value), value
    return False, False, None


def _decimal(text: str) -> Decimal | str:
    """A number with a fraction or exponent; text (a bad value in any field) if the exponent is too large."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return text


def _loads(text: str, *, strict: bool) -> Any:
    try:
        return json.loads(text, parse_float=_decimal, parse_constant=str, strict=strict)
    except ValueError:
        plain = _LOOSE.sub(lambda m: m["text"] or (f'"{m["word"]}"' if m["word"] else ""), text)
        return json.loads(plain, parse_float=_decimal, parse_constant=str, strict=strict)


def _has_half_pair(raw: bytes, value: Any) -> bool:
    """Does a string hold half of a surrogate pair, which is valid JSON but not valid Unicode?"""
    if b"\\ud" not in raw.lower():
        return False
    try:
        json.dumps(value, ensure_ascii=False, default=float).encode()
    except (UnicodeEncodeError, RecursionError):
        return True
    return False


def scan(buf: bytes, start: int, *, at_end: bool) -> Iterator[Event | int]:
    """Yield the events of `buf` from `start`, the position of an event or of the array's end.

    The last item is an int: the position where the scan stopped. If buf[position] is `]`, the array of events
    ends there; otherwise the rest is the beginning of an event whose end is not in `buf`. `at_end`: `buf`
    reaches to the end of the file.
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
        return _other(buf, pos, at_end=at_end)
    separator = _NEXT.search(buf, pos)
    candidates = [separator.start() + 1] if separator else []
    if not separator or _CLOSE.search(buf, pos, separator.start()):
        balanced = _balanced(
            buf, pos, min(len(buf), (separator.start() if separator else len(buf)) + _NEST_LIMIT)
        )
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
    return _broken(buf, pos, separator, may_go_on=not nested and not at_end, at_end=at_end)


def _broken(
    buf: bytes, pos: int, separator: re.Match[bytes] | None, *, may_go_on: bool, at_end: bool
) -> Event | None:
    """An event that is not JSON, up to the next one or the array's end; None if its end may be missing."""
    if may_go_on and len(buf) - pos < _NEST_LIMIT:
        return None  # the separator may be inside an event that continues after the buffer
    if separator:
        return Event(pos, separator.start() + 1, None, is_broken=True)
    close = _CLOSE.search(buf, pos)
    return Event(pos, close.start() + 1, None, is_broken=True) if close and at_end else None


def _other(buf: bytes, pos: int, *, at_end: bool) -> Event | None:
    """An element that is not an object: a list, a string or a word; anything else up to the next event."""
    if buf[pos : pos + 1] == b"[":
        end = _balanced(buf, pos, min(len(buf), pos + _NEST_LIMIT))
    else:
        match = _TOKEN.match(buf, pos) or _WORD.match(buf, pos)
        end = match.end() if match else None
    if end is not None and (end < len(buf) or at_end):
        ok, repaired, value = parse(buf[pos:end])
        if ok:
            return Event(pos, end, value, is_repaired=repaired)
    rest = _AFTER_OTHER.search(buf, pos + 1)
    if rest and (rest.end() < len(buf) or at_end):
        return Event(pos, rest.start(), None, is_broken=True)
    return Event(pos, len(buf), None, is_broken=True) if at_end else None


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
