"""The exact scan: what is JSON comes out as it is, what is not costs itself only."""

from __future__ import annotations

import json
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.sources.kineto.exact import Event, parse, scan

GOOD = b'{"ph": "X", "name": "good", "ts": 1}'


def _scan(text: bytes, *, at_end: bool = True) -> tuple[list[Event], int]:
    *events, stop = list(scan(text, 0, at_end=at_end))
    assert isinstance(stop, int)
    return [e for e in events if isinstance(e, Event)], stop


def _between(bad: bytes) -> list[Event]:
    """The events of an array with `bad` between two good events, which must be found."""
    events, stop = _scan(GOOD + b",\n" + bad + b",\n" + GOOD + b"\n]}")
    assert events[0].value == events[-1].value == json.loads(GOOD)
    assert stop == len(GOOD) * 2 + len(bad) + 5
    return events[1:-1]


@pytest.mark.parametrize(
    "bad",
    [
        b'{"ph": "X", "cat": "python_function", "name": "<eval>({"device": "cpu"}(12): run", "ts": 1}',
        b'{"ph": "X", "name": "a"b", "ts": 1}',
        b'{"ph": "X", "name": "odd " quote", "ts": 1, "args": {"x": [1, 2]}}',
        b'{"ph": "X", "name": "k", "ts": N/A}',
        b'{"ph": "X", "name": "k", "ts": 1,, "dur": 2}',
        b'{"ph": "X", "name": "k" "ts": 1}',
        b'{"ph": "X", "name": "C:\\users\\x", "ts": 1}',
    ],
)
def test_broken_event_costs_itself_only(bad: bytes) -> None:
    """An event that is not JSON is isolated, with its position; its neighbors are read."""
    (event,) = _between(bad)
    assert event.is_broken
    assert event.value is None
    assert (event.start, event.end) == (len(GOOD) + 2, len(GOOD) + 2 + len(bad))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b'{"ph": "X", "name": "bell \x07 tab \t"}', "bell \x07 tab \t"),
        (b'{"ph": "X", "name": "line\nbreak"}', "line\nbreak"),
        (b'{"ph": "X", "name": "latin \xe9"}', "latin \ufffd"),
    ],
)
def test_bad_text_is_repaired(text: bytes, name: str) -> None:
    """Control characters and bytes that are not UTF-8 leave a readable event, marked as repaired."""
    (event,) = _between(text)
    assert event.is_repaired
    assert event.value["name"] == name


@pytest.mark.parametrize("escaped", [rb"\ud800", rb"\udc00 x", rb"\uDBFF\u0041"])
def test_half_of_a_surrogate_pair_is_marked(escaped: bytes) -> None:
    """Half of a surrogate pair is valid JSON but cannot be stored: the event counts as repaired."""
    (event,) = _between(b'{"ph": "X", "name": "' + escaped + b'"}')
    assert event.is_repaired
    assert not event.is_broken


def test_whole_surrogate_pair_is_text() -> None:
    """A whole pair is one character and nothing to repair."""
    (event,) = _between(rb'{"ph": "X", "name": "\ud83d\ude00"}')
    assert (event.value["name"], event.is_repaired) == ("\U0001f600", False)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "nan", "-inf", "-NAN"])
def test_nan_and_infinity_become_text(word: str) -> None:
    """NaN and Infinity, in any spelling, are kept as the words that they are."""
    (event,) = _between(b'{"ph": "X", "args": {"x": ' + word.encode() + b"}}")
    assert event.value["args"] == {"x": word}


def test_comma_before_a_bracket_is_passed_over() -> None:
    """torch 1.8 could end arguments with a comma; inside a text it stays."""
    (event,) = _between(b'{"ph": "X", "name": "a,}, nan", "args": {"a": [1, ], }}')
    assert event.value == {"ph": "X", "name": "a,}, nan", "args": {"a": [1]}}


def test_trailing_comma_is_passed_over() -> None:
    """A comma before the closing bracket, or a second one between events, is not an event."""
    text = GOOD + b",\n,\n" + GOOD + b",\n]}"
    events, stop = _scan(text)
    assert [e.value["name"] for e in events] == ["good", "good"]
    assert text[stop:] == b"]}"


def test_nested_boundary_does_not_cut_an_event() -> None:
    """`},{` with keys of events inside an event's arguments belongs to that event."""
    nested = b'{"ph": "X", "args": {"list": [{"name": 1},{"name": 2}, {"ph": "X"}]}, "name": "outer"}'
    (event,) = _between(nested)
    assert event.value == json.loads(nested)


def test_nested_boundary_waits_for_the_rest() -> None:
    """An event whose end is still to come is not called broken because of a `},{` inside it."""
    events, stop = _scan(GOOD + b',{"ph": "X", "args": {"list": [{"name": 1},{"name": 2}', at_end=False)
    assert [e.value["name"] for e in events] == ["good"]
    assert stop == len(GOOD) + 1


def test_boundary_inside_a_text_does_not_cut_an_event() -> None:
    """`},{"name":` inside a text is text."""
    text = rb'{"ph": "X", "name": "odd },{\"name\": 1},{ \"ph\": x"}'
    (event,) = _between(text)
    assert event.value == json.loads(text)


def test_deep_nesting_is_read() -> None:
    """Several hundred levels of nesting are read."""
    deep = b'{"ph": "X", "args": ' + b'{"a": [' * 200 + b"1" + b"]}" * 200 + b"}"
    (event,) = _between(deep)
    assert not event.is_broken


def test_absurd_nesting_is_one_broken_event() -> None:
    """Nesting beyond what Python can walk costs that event only."""
    (event,) = _between(b'{"ph": "X", "args": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    assert event.is_broken


def test_incomplete_event_is_left() -> None:
    """While more is to come, an event without its end is left for later."""
    events, stop = _scan(GOOD + b',{"ph": "X", "name', at_end=False)
    assert len(events) == 1
    assert stop == len(GOOD) + 1


def test_broken_last_event_ends_at_the_bracket() -> None:
    """A broken event at the end of the array leaves the closing bracket."""
    text = GOOD + b',{"ph": "X", "name": "a"b"}\n]}'
    events, stop = _scan(text)
    assert [e.is_broken for e in events] == [False, True]
    assert text[stop:] == b"]}"


@pytest.mark.parametrize(
    ("text", "value"),
    [(b"5", 5), (b'"a, {"', "a, {"), (b'[1, {"a": 2}]', [1, {"a": 2}]), (b"null", None), (b"true", True)],
)
@pytest.mark.parametrize("end", [b"]", b"\n]}", b', {"ph": "M"}]'])
def test_element_that_is_no_object_is_one_element(text: bytes, value: object, end: bytes) -> None:
    """A number, text or list among the events is one element, in a bare array too."""
    events, stop = _scan(GOOD + b", " + text + end)
    assert events[1].value == value
    assert len(events) == 2 + end.count(b"ph")
    assert (GOOD + b", " + text + end)[stop : stop + 1] == b"]"


def test_brackets_beyond_all_measure_end_with_themselves() -> None:
    """The last bracket of an element that is too deep to be read is not taken for the end of the events."""
    (event,) = _between(b"[" * (1 << 20) + b"]" * (1 << 20))
    assert event.is_broken


def test_bare_word_among_events_is_broken() -> None:
    """A word that is not JSON is one broken element."""
    (event,) = _between(b"N/A")
    assert event.is_broken


def test_numbers_are_exact_and_last_duplicate_wins() -> None:
    """Fractions come as decimals with every digit; of duplicate keys the last is taken."""
    assert parse(b'{"ts": 1790857026000000.123, "a": 1, "a": 2}') == (
        True,
        False,
        {"ts": Decimal("1790857026000000.123"), "a": 2},
    )


def test_number_with_too_many_digits_is_no_json() -> None:
    """An integer of thousands of digits is refused, not computed with."""
    assert parse(b'{"ts": ' + b"9" * 10_000 + b"}")[0] is False


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=5) | st.sampled_from(["name", "ph", "args", "ts"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
_OBJECTS = st.lists(
    st.dictionaries(st.sampled_from(["name", "ph", "args", "ts", "cat", "zz", "}, {"]), _JSON, max_size=5),
    max_size=6,
)


def _lay_out(value: Any, random: Random) -> str:
    """JSON text with white space wherever JSON allows it."""

    def space() -> str:
        return random.choice(("", "", " ", "\n", "\r\n", "\t  "))

    if isinstance(value, dict):
        inner = ",".join(f"{space()}{json.dumps(k)}{space()}:{_lay_out(v, random)}" for k, v in value.items())
        return f"{space()}{{{inner or space()}}}{space()}"
    if isinstance(value, list):
        return f"{space()}[{','.join(_lay_out(v, random) for v in value) or space()}]{space()}"
    return f"{space()}{json.dumps(value)}{space()}"


@settings(max_examples=60)
@given(_OBJECTS, st.randoms(use_true_random=False))
def test_any_objects_in_any_layout_are_read_as_json_reads_them(objects: list[Any], random: Random) -> None:
    """For any list of JSON objects, however laid out, the scan gives exactly what json.loads gives."""
    text = ",".join(_lay_out(o, random) for o in objects).encode()
    events, stop = _scan(text + b"]}")
    assert [e.value for e in events] == objects == json.loads(b"[" + text + b"]")
    assert not any(e.is_broken or e.is_repaired for e in events)
    assert stop == len(text)


@settings(max_examples=60)
@given(_OBJECTS, st.data())
def test_what_is_found_early_is_final(objects: list[Any], data: st.DataObject) -> None:
    """Events found before the rest of the file is there are the ones found with it."""
    text = ",".join(json.dumps(o) for o in objects).encode() + b"]}"
    at = data.draw(st.integers(0, len(text)))
    events, stop = _scan(text[:at], at_end=False)
    assert [e.value for e in events] == objects[: len(events)]
    assert stop <= at
