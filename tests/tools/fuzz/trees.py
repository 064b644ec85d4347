"""JSON that keeps what a parser hides (duplicate keys, how a number is written), and changes of it at random
places."""

from __future__ import annotations

import json
from random import Random
from typing import Any


class Raw(str):
    """A token that is written as it is."""

    __slots__ = ()


class Pairs(list[tuple[str, Any]]):
    """An object: its keys and values in order, repeated ones too."""

    __slots__ = ()


_LONG = "x" * 5_000
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1,
    10**18, 10**30, 10**40,
    *map(Raw, (
        "NaN", "-Infinity", "Infinity", "nan", "1e400", "-1e400", "1e-400", "1e18", "9" * 5_000, "0.0001",
        "12.34567890123", "-0.0", "01", "1.", "+1", "0x10", "undefined", "'x'", "",
    )),
    "", "0", "-1", "7", "1e3", "NaN", "stream 7", " 12 ", "0x1F", _LONG, "\0", "\x07", "\ud800",
    "\U0001f600", "'; SELECT 1; --", '"', "\\", "%s", "$1", "[TP01] 5", "[", "[]5", "[TP-0-DP-1] x",
    "kernel", "gpu_memcpy", "cuda_runtime", "X", "M", "i", "ProfilerStep#1", "cudaGraphLaunch",
    "execute_context_999999999999(1)_generation_1(1)", "execute_context_1(8)_generation_0(0)",
    "ncclDevKernel_AllGather_RING_LL", "2026-01-01", [], Pairs(), [None], [[]], Pairs([("", None)]),
    Pairs([("name", "x"), ("rank", "1")]), [1, 2, 3], Raw("[" * 3_000 + "]" * 3_000),
    Raw('{"a":' * 300 + "1" + "}" * 300), Raw("[" * 40 + "]" * 40),
)  # fmt: skip
KEYS = (
    "ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id", "device", "stream", "correlation",
    "External id", "external id", "context", "grid", "block", "bytes", "graph id", "graph node id",
    "Input Dims", "traceEvents", "baseTimeNanoseconds", "distributedInfo", "rank", "world_size",
    "deviceProperties", "host_name", "Process Group Ranks", "Group size", "PH", "Ts", "", "\0", "a.b",
    'a"b', _LONG,
)  # fmt: skip


def parsed(text: str) -> Any:
    """A tree of Pairs, lists and tokens."""
    return json.loads(
        text, object_pairs_hook=Pairs, parse_float=Raw, parse_int=Raw, parse_constant=Raw, strict=False
    )


def written(tree: Any) -> str:
    """The tree as text again."""
    if isinstance(tree, Raw):
        return str(tree)
    if isinstance(tree, Pairs):
        return "{" + ", ".join(f"{json.dumps(key)}: {written(value)}" for key, value in tree) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(map(written, tree)) + "]"
    return json.dumps(tree)


def events_of(tree: Any) -> list[Any]:
    """The list of events in a tree, or an empty one."""
    if not isinstance(tree, Pairs):
        return tree if isinstance(tree, list) else []
    return next((value for key, value in tree if key == "traceEvents" and type(value) is list), [])


def change(tree: Any, other: Any, random: Random) -> None:
    """Change one thing in a tree: a value, a key, or the events; `other` is a tree to take events from."""
    events = events_of(tree)
    if events and random.random() < 0.35:
        _change_events(events, events_of(other), random)
    else:
        _change_inside(_container(tree, random), random)


def _container(tree: Any, random: Random) -> Any:
    """A list or object at some depth; events are met more often than what is around them."""
    here = events_of(tree) if random.random() < 0.8 else tree
    while True:
        values = [v for _, v in here] if isinstance(here, Pairs) else here
        deeper = [v for v in values if isinstance(v, list) and v]
        if not deeper or (isinstance(here, Pairs) and random.random() < 0.55):
            return here
        here = random.choice(deeper)


def _change_inside(here: Any, random: Random) -> None:
    at = random.randrange(len(here)) if here else 0
    if not isinstance(here, Pairs):
        if here and random.random() < 0.5:
            here[at] = random.choice(VALUES)
        else:
            here.insert(at, random.choice(VALUES))
        return
    value = random.choice(VALUES)
    what = random.random()
    if not here or what < 0.1:
        here.insert(at, (random.choice(KEYS), value))
    elif what < 0.6:
        here[at] = (here[at][0], value)
    elif what < 0.75:
        del here[at]
    elif what < 0.85:
        here.append((here[at][0], value))
    elif what < 0.93:
        here[at] = (random.choice(KEYS), here[at][1])
    else:
        with_ = random.randrange(len(here))
        (one, a), (two, b) = here[at], here[with_]
        here[at], here[with_] = (one, b), (two, a)


def _change_events(events: list[Any], others: list[Any], random: Random) -> None:
    at = random.randrange(len(events))
    what = random.randrange(7)
    if what == 0:
        events.insert(random.randrange(len(events) + 1), events[at])
    elif what == 1:
        del events[at]
    elif what == 2:
        random.shuffle(events)
    elif what == 3:
        events.insert(at, random.choice(VALUES))
    elif what == 4 and others:
        events[at:at] = random.sample(others, min(5, len(others)))
    elif what == 5:
        del events[at:]
    else:
        _scale(events, random)


def _scale(events: list[Any], random: Random) -> None:
    """One field of every event to one value, or its digits moved."""
    field, value = random.choice(("ts", "dur", "pid", "tid", "cat", "name", "ph")), random.choice(VALUES)
    shift = random.choice(("", "000", "0000000000", "00000000000000000"))
    for number, item in enumerate(events):
        if isinstance(item, Pairs):
            moved = [
                (
                    k,
                    (
                        Raw(f"{shift and str(v).split('.')[0]}{shift}")
                        if shift and isinstance(v, Raw)
                        else value
                    )
                    if k == field
                    else v,
                )
                for k, v in item
            ]
            events[number] = Pairs(moved)
