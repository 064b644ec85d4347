"""A bounded buffer, and where to split it between events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import UnfinishedFile
from pipeline.sources.kineto.feed import Feed, find_array_end, split


def test_fill_reads_no_more_than_it_must() -> None:
    """Only as many blocks are taken as the wanted size needs."""
    source = iter([b"aa", b"bb", b"cc"])
    feed = Feed(source)
    feed.fill(3)
    assert feed.buffer == b"aabb"
    assert not feed.is_at_end
    assert list(source) == [b"cc"]


def test_fill_says_when_the_file_ends() -> None:
    """A size that the file does not have ends at its end."""
    feed = Feed(iter([b"aa"]))
    feed.fill(10)
    assert (feed.buffer, feed.is_at_end) == (b"aa", True)


def test_drop_keeps_the_position_in_the_file() -> None:
    """Dropped bytes are counted, so that positions in the file are known."""
    feed = Feed(iter([b"abc", b"def"]))
    feed.fill(6)
    feed.drop(4)
    assert (feed.buffer, feed.offset) == (b"ef", 4)


@pytest.mark.parametrize("at", range(1, 14))
def test_old_key_is_rewritten_across_blocks(at: int) -> None:
    """torch 1.8's `external id` becomes `External id` wherever a block ends, once more was read."""
    text = b'"external id": 7'
    feed = Feed(iter([text[:at], text[at:]]))
    feed.fill(1)
    feed.fill(100)
    assert feed.buffer == b'"External id": 7'


def test_old_key_inside_a_text_stays() -> None:
    """An escaped quote in a name is no key."""
    feed = Feed(iter([rb'{"name": "a \"external id\": 7"}']))
    feed.fill(100)
    assert b'external id\\"' in feed.buffer


@pytest.mark.parametrize(
    ("text", "is_bare", "wanted"),
    [
        (b'{"a":1}]}', False, 7),
        (b'{"a":1}\n], "traceName": "x"}\n', False, 8),
        (b'{"a":[{"b":1}]}], "k": [{"c": 1}]}', False, 15),
        (b"]}", False, 0),
        (b" ]}", False, 1),
        (b'{"a":1}]', True, 7),
        (b'{"a":[{"b":1}]}\n]\n', True, 16),
        (b'{"a":1}]}\0\0', False, 7),
        (b'{"a":1}', False, None),
        (b'{"a":1}]}}', False, None),
    ],
)
def test_the_end_of_the_events_is_found(text: bytes, is_bare: bool, wanted: int | None) -> None:
    """The events end at the first bracket whose rest is a valid tail."""
    assert find_array_end(text, is_bare=is_bare) == wanted


_ARGS = st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(), max_size=3))
_EVENTS = st.lists(st.fixed_dictionaries({"name": st.text(max_size=20), "args": _ARGS}), max_size=20)


@settings(max_examples=50)
@given(_EVENTS, st.integers(5, 300), st.booleans())
def test_stretches_hold_every_event_once(events: list[object], stretch_bytes: int, is_last: bool) -> None:
    """The stretches and what is left are the buffer, but for the commas between them."""
    buf = ",\n".join(json.dumps(e) for e in events).encode()
    spans, rest = split(buf, len(buf), stretch_bytes, is_last=is_last)
    edges = [*spans, (rest, len(buf))]
    assert all(buf[end:start].strip() in (b",", b"") for (_, end), (start, _) in pairwise(edges))
    assert b"".join(buf[a:b] for a, b in edges).count(b'"name"') == len(events)
    assert not is_last or rest == len(buf)


@settings(max_examples=50)
@given(_EVENTS, st.integers(50, 300))
def test_stretches_of_flat_events_parse(events: list[object], stretch_bytes: int) -> None:
    """If no event holds a list of objects, the first guess of every boundary is right."""
    buf = ",".join(json.dumps(e) for e in events).encode()
    spans, rest = split(buf, len(buf), stretch_bytes, is_last=True)
    found = [event for a, b in spans for event in json.loads(b"[" + buf[a:b] + b"]")]
    assert (found, rest) == (events, len(buf))


def test_one_long_event_gives_no_stretch() -> None:
    """An event whose end is not in the buffer is not split."""
    assert split(b'{"name": "' + b"x" * 1000, 1010, 100, is_last=False) == ([], 0)


def _truncated() -> Iterator[bytes]:
    yield b"abc"
    raise UnfinishedFile("t.gz", where="byte 3", found="the end", wanted="more")


def test_a_truncated_file_ends_at_its_last_byte() -> None:
    """To salvage a file, its bytes are in the buffer, and the feed is marked as truncated."""
    feed = Feed(_truncated(), salvage=True)
    feed.fill(10)
    assert (feed.buffer, feed.is_at_end, feed.is_truncated) == (b"abc", True, True)


def test_a_truncated_file_is_an_error_otherwise() -> None:
    """A profiler may still be writing it."""
    with pytest.raises(UnfinishedFile):
        Feed(_truncated()).fill(10)
