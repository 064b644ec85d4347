"""Typing of odd input: what is exact, what is counted, and that both paths agree."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.sources.kineto.stage import Stage
from tests.support.kineto_reading import BROKEN, Raw, kernel_text, lines, read_bytes

BASE = 10**18
BARE = b'{"traceEvents": ['
"""The head of a file without a base, for absolute times."""

RELATIVE = {
    "5000": 5_000_000,
    "5000.5": 5_000_500,
    "5000.001": 5_000_001,
    "1234567890123.456": 1_234_567_890_123_456,
    "5.5e3": 5_500_000,
    "5500000E-3": 5_500_000,
    '"5000.25"': 5_000_250,
    "5000.0014": 5_000_001,
    "5000.0015": 5_000_002,
    "5000.00149": 5_000_001,
}
ABSOLUTE = {
    "1790857026000000": 1_790_857_026_000_000_000,
    "1790857026000000.1": 1_790_857_026_000_000_100,
    "1790857026000000.123": 1_790_857_026_000_000_123,
    '"1790857026000000.123"': 1_790_857_026_000_000_123,
    "1.790857026000000123e15": 1_790_857_026_000_000_123,
    "1790857026000000.1235": 1_790_857_026_000_000_124,
}


@dataclass(frozen=True)
class Read:
    """A file that was read, and through which path its events came."""

    raw: Raw
    exact_events: int

    @property
    def starts(self) -> dict[str, int]:
        """Start of each kernel by name."""
        return {row["name"]: row["start_ns"] for row in self.raw.tables["gpu_activity"]}


def _read(folder: Path, *events: bytes, **layout: bytes) -> Read:
    """Read events given as text; counts those that came through the exact scan."""
    counts = [0]
    original = Stage.load_exact

    def counting(self: Stage, found: list[Any], *args: Any) -> None:
        counts[0] += len(found)
        original(self, found, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stage, "load_exact", counting)
        raw = read_bytes(folder, lines(*events, **layout))
    return Read(raw, counts[0])


def _times(folder: Path, spellings: dict[str, int], more: tuple[bytes, ...] = (), **layout: bytes) -> Read:
    return _read(folder, *(kernel_text(f"k{n}", ts=ts) for n, ts in enumerate(spellings)), *more, **layout)


@pytest.fixture(scope="module", params=["fast", "exact"])
def relative(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Read:
    """Relative times in every spelling, through either path."""
    return _times(tmp_path_factory.mktemp("relative"), RELATIVE, () if request.param == "fast" else (BROKEN,))


@pytest.fixture(scope="module", params=["fast", "exact"])
def absolute(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Read:
    """Absolute times in every spelling, through either path."""
    return _times(
        tmp_path_factory.mktemp("absolute"), ABSOLUTE, () if request.param == "fast" else (BROKEN,), head=BARE
    )


@pytest.mark.parametrize("spelling", RELATIVE)
def test_relative_time_is_exact_however_it_is_spelled(relative: Read, spelling: str) -> None:
    """Integers, fractions, exponents and digits in quotes become whole nanoseconds after the base."""
    assert relative.starts[f"k{list(RELATIVE).index(spelling)}"] == BASE + RELATIVE[spelling]


@pytest.mark.parametrize("spelling", ABSOLUTE)
def test_absolute_time_is_exact_however_it_is_spelled(absolute: Read, spelling: str) -> None:
    """Absolute times need more digits than a double has, and keep them."""
    assert absolute.starts[f"k{list(ABSOLUTE).index(spelling)}"] == ABSOLUTE[spelling]


def test_times_below_a_nanosecond_are_counted(relative: Read, absolute: Read) -> None:
    """More than three decimals are rounded to whole nanoseconds, and each event is counted."""
    assert relative.raw.issues["sub_ns_time", "kernel"][0] == 3
    assert absolute.raw.issues["sub_ns_time", "kernel"][0] == 1


def test_legal_spellings_need_no_exact_scan(tmp_path: Path) -> None:
    """All legal spellings of a number go through the fast path."""
    assert _times(tmp_path, RELATIVE).exact_events == 0
    assert _times(tmp_path, ABSOLUTE, head=BARE).exact_events == 0


def test_duration_keeps_its_decimals_in_the_books(tmp_path: Path) -> None:
    """A duration is rounded in the table; the sum of what the file states is kept to a hundredth of a
    nanosecond."""
    raw = _read(tmp_path, kernel_text("a", dur="1.00049"), kernel_text("b", dur="0.00004", ts="6")).raw
    assert raw.rows("gpu_activity", "dur_ns") == [(0,), (1000,)]
    assert str(raw.trace("gpu_ns_read")[0]) == "1000.53"


def test_old_spelling_of_external_id(tmp_path: Path) -> None:
    """torch 1.8 wrote `external id`; it is the same key."""
    read = _read(
        tmp_path, kernel_text("old", args='"external id": 41'), kernel_text("new", args='"External id": 42')
    )
    assert read.raw.rows("gpu_activity", "name", "external_id") == [("new", 42), ("old", 41)]
    assert read.exact_events == 0


HARMLESS = {
    "NaN where nothing is read": kernel_text(
        "NaN where nothing is read",
        args='"memory bandwidth (GB/s)": NaN, "blocks per SM": Infinity, "x": -Infinity',
    ),
    "deep nesting": kernel_text("deep nesting", args='"deep": ' + "[" * 500 + "]" * 500),
    "duplicate key": kernel_text("duplicate key", '"id": 1, "id": 2', args='"queued": 0, "queued": 0'),
    "unknown keys": kernel_text("unknown keys", '"s": [1, {"a": null}], "": 5'),
    "null arguments": kernel_text("null arguments", args='"correlation": null'),
}


@pytest.fixture(scope="module")
def harmless(tmp_path_factory: pytest.TempPathFactory) -> Read:
    """Kernels with oddities in what is not read."""
    return _read(tmp_path_factory.mktemp("harmless"), *HARMLESS.values())


def test_harmless_oddities_stay_on_the_fast_path(harmless: Read) -> None:
    """Oddities in what is not read cost nothing."""
    assert harmless.exact_events == 0


def test_harmless_oddities_are_no_issue(harmless: Read) -> None:
    """Oddities in fields that are not read are not counted, and every event lands."""
    assert harmless.raw.codes == {"unknown_rank"}
    assert harmless.raw.column("gpu_activity", "name") == sorted(HARMLESS)


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + lines(kernel_text()),
        b"\xef\xbb\xbf \n" + lines(kernel_text(), head=b"[", tail=b"]"),
        lines(kernel_text()).replace(b"\n", b"\r\n"),
        b"\n\n" + lines(kernel_text()) + b"\n\0\0\0",
    ],
    ids=["BOM", "BOM before a bare array", "CRLF", "blank space and zero padding"],
)
def test_marks_around_the_text_are_fine(tmp_path: Path, data: bytes) -> None:
    """A byte order mark, DOS line ends and padding change nothing."""
    raw = read_bytes(tmp_path, data)
    assert raw.column("gpu_activity", "name") == ["k"]
    assert raw.codes == {"unknown_rank"}


BAD_TEXT = {
    "bare word": (kernel_text("bad", ts="N/A"), ("unreadable_gpu_event", "kernel")),
    "unescaped quotes": (BROKEN, ("unreadable_event", "python_function")),
    "stray comma": (kernel_text("bad", '"x": {"a": 1,,}'), ("unreadable_gpu_event", "kernel")),
    "no category": (b'{"ph": "X", "name": oops}', ("unreadable_event", "unknown")),
    "bad UTF-8": (kernel_text("bad \\u00e9").replace(b"\\u00e9", b"\xe9"), ("repaired_text", "kernel")),
    "control character": (kernel_text("bad \x07"), ("repaired_text", "kernel")),
    "half a surrogate pair": (kernel_text("bad \\ud800"), ("repaired_text", "kernel")),
    "scalar": (b"17", ("not_an_event", "int")),
}


@pytest.fixture(scope="module")
def bad_text(tmp_path_factory: pytest.TempPathFactory) -> Raw:
    """Good kernels with an event of bad text between any two."""
    events = [kernel_text(f"good {n}") for n in range(len(BAD_TEXT) + 1)]
    mixed = [
        event for pair in zip(events, [bad for bad, _ in BAD_TEXT.values()], strict=False) for event in pair
    ]
    return _read(tmp_path_factory.mktemp("bad_text"), *mixed, events[-1]).raw


@pytest.mark.parametrize("what", BAD_TEXT)
def test_bad_text_is_counted_by_name(bad_text: Raw, what: str) -> None:
    """An event that a JSON reader rejects has an issue of its kind."""
    issue = BAD_TEXT[what][1]
    assert bad_text.issues[issue] == (sum(other == issue for _, other in BAD_TEXT.values()), None)


def test_bad_text_costs_its_own_event_only(bad_text: Raw) -> None:
    """Every neighbor of an event with bad text lands."""
    good = {name for name in bad_text.column("gpu_activity", "name") if name.startswith("good")}
    assert len(good) == len(BAD_TEXT) + 1


def test_repaired_text_lands(bad_text: Raw) -> None:
    """Events whose text was repaired are booked, with a mark for what could not be kept."""
    names = [name for name in bad_text.column("gpu_activity", "name") if name.startswith("bad")]
    assert names == ["bad \x07", "bad ?", "bad \ufffd"]


def test_trailing_comma_is_fine(tmp_path: Path) -> None:
    """A comma before the closing bracket is not an event."""
    raw = _read(tmp_path, kernel_text(), tail=b",\n]}").raw
    assert raw.trace("events_read") == (1,)


def test_unreadable_event_is_shown_with_its_place(tmp_path: Path) -> None:
    """The example of an unreadable event has its byte position and its first bytes."""
    raw = _read(tmp_path, BROKEN, kernel_text()).raw
    examples = {row["code"]: row["example"] for row in raw.tables["issue"]}
    assert examples["unreadable_event"].startswith(f"byte {lines().index(b'[') + 1}: ")
    assert "torch/a.py(3)" in examples["unreadable_event"]


def test_text_with_a_zero_character_lands(tmp_path: Path) -> None:
    """An escaped zero character in a name is legal JSON and breaks nothing, in issues neither."""
    raw = _read(tmp_path, kernel_text("a\\u0000b"), kernel_text("c\\u0000d", dur="null")).raw
    assert raw.column("gpu_activity", "name") == ["a\0b"]
    assert raw.issues["no_duration", "kernel"] == (1, None)


BAD_TIMES = ["NaN", "-Infinity", '"abc"', '""', "1e400", "[1]", "{}", "99999999999999999999"]


@pytest.fixture(scope="module")
def bad_times(tmp_path_factory: pytest.TempPathFactory) -> Raw:
    """Kernels whose duration, or time stamp, is no usable number."""
    durations = (kernel_text("dur", dur=bad) for bad in BAD_TIMES)
    stamps = (kernel_text("ts", ts=bad) for bad in BAD_TIMES)
    return _read(tmp_path_factory.mktemp("bad"), kernel_text("good"), *durations, *stamps).raw


def test_bad_duration_is_skipped_and_counted(bad_times: Raw) -> None:
    """A duration that is no number is NULL: the event is left out by name, the value is an issue."""
    assert bad_times.issues["no_duration", "kernel"][0] == len(BAD_TIMES)
    assert bad_times.issues["bad_value", "dur"][0] == len(BAD_TIMES)


def test_bad_time_stamp_is_skipped_and_counted(bad_times: Raw) -> None:
    """A time stamp that is no number cannot be placed."""
    assert bad_times.issues["no_timestamp", "kernel"] == (len(BAD_TIMES), len(BAD_TIMES) * 2500)
    assert bad_times.issues["bad_value", "ts"][0] == len(BAD_TIMES)


def test_good_neighbor_of_bad_times_lands(bad_times: Raw) -> None:
    """Values next to bad ones are read."""
    assert bad_times.column("gpu_activity", "name") == ["good"]


IDS = {
    "7": 7,
    '"7"': 7,
    '"stream 7"': 7,
    "9223372036854775807": 2**63 - 1,
    "9223372036854775808": -(2**63),
    "18446744073709551615": -1,
    "18446744073709551614": -2,
    "18446744073709551616": None,
    '"abc"': None,
    "NaN": None,
    "[7]": None,
    "-1": -1,
}


@pytest.fixture(scope="module", params=["fast", "exact"])
def ids(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Raw:
    """Kernels with odd correlation ids, through either path."""
    events = [kernel_text(f"k{n:02}", args=f'"correlation": {text}') for n, text in enumerate(IDS)]
    return _read(tmp_path_factory.mktemp("ids"), *events, *([] if request.param == "fast" else [BROKEN])).raw


@pytest.mark.parametrize("text", IDS)
def test_ids_land_as_64_bits(ids: Raw, text: str) -> None:
    """Ids from 2^63 land as two's complement; a word before the number is dropped; what is no id is NULL."""
    assert dict(ids.rows("gpu_activity", "name", "correlation"))[f"k{list(IDS).index(text):02}"] == IDS[text]


def test_ids_that_are_none_are_counted(ids: Raw) -> None:
    """Every id that became NULL is an issue."""
    assert ids.issues["bad_value", "correlation"][0] == sum(value is None for value in IDS.values())


def test_device_beyond_32_bits_is_a_bad_value(tmp_path: Path) -> None:
    """A device ordinal that no INTEGER holds is NULL and counted, and the pid replaces it."""
    raw = _read(
        tmp_path, kernel_text(args='"device": 4294967296, "stream": 7, "Group size": 99999999999')
    ).raw
    assert raw.rows("gpu_activity", "device", "group_size") == [(0, None)]
    assert raw.issues["bad_value", "device"][0] == raw.issues["bad_value", "group_size"][0] == 1


@pytest.mark.parametrize("more", [(), (BROKEN,)], ids=["duplicates only", "beside a broken event"])
def test_last_of_duplicate_keys_wins(tmp_path: Path, more: tuple[bytes, ...]) -> None:
    """The last of a repeated key, in the event or in its arguments, counts."""
    raw = _read(
        tmp_path, kernel_text("first", '"name": "last"', args='"correlation": 1, "correlation": 2'), *more
    ).raw
    assert raw.rows("gpu_activity", "name", "correlation") == [("last", 2)]


def test_keys_match_in_their_case(tmp_path: Path) -> None:
    """`Ts` and `Correlation` are other keys."""
    raw = _read(
        tmp_path, kernel_text("k", '"Ts": 1, "NAME": "x"', args='"Correlation": 5, "correlation": 6')
    ).raw
    assert raw.rows("gpu_activity", "name", "correlation", "start_ns") == [("k", 6, BASE + 5_000_001)]


def test_arguments_that_are_no_object_are_a_bad_value(tmp_path: Path) -> None:
    """An event whose args are a list or a number lands without them."""
    raw = _read(tmp_path, kernel_text().replace(b'{"device": 0, "stream": 7}', b"[1]")).raw
    assert raw.rows("gpu_activity", "name", "device", "stream") == [("k", 0, 7)]
    assert raw.issues["bad_value", "args"] == (1, None)


ODD_BUT_LEGAL = [
    kernel_text(
        "number as text",
        '"cat": "Kernel"',
        args='"dtype": 1.50, "grid": [1, 2.5, 3], "block": "[1, 2]", "Collective name": 5',
    ).replace(b'"cat": "kernel", ', b""),
    kernel_text(
        "unicode \\u00e9 \\ud83d\\ude00",
        args='"dtype": ["\\u00e9", {"a": null}], "Process Group Ranks": [0, 1]',
    ),
    kernel_text("flags", args='"dtype": true, "In msg nelems": 7.0, "Seq": 1e3, "bytes": false'),
    kernel_text("text pid", args='"device": "3"').replace(b'"pid": 0', b'"pid": "0"'),
    kernel_text("merged").replace(b'"pid": 0', b'"pid": "[TP00] 0"'),
    kernel_text("quoted time", ts='" 5001 "', dur='"1_0"'),
    kernel_text("").replace(b'"name": "", ', b""),
    kernel_text("commas and words", '"x": [1,]', args='"dtype": nan, "correlation": -inf,'),
    b"{}",
    b"null",
    b'{"ph": "X", "cat": "", "name": "no category", "ts": 1, "dur": 1}',
    b'{"ph": "q", "name": "odd phase"}',
    b'{"cat": "kernel", "name": "no phase", "ts": 1}',
    (
        b'{"ph": "X", "cat": "cpu_op", "name": "op", "ts": 6000, "dur": 1, "pid": 1, "args": {"Input Dims": '
        b"[[1, "
        b'2], []], "Input type": ["a", ""]}}'
    ),
    b'{"ph": "X", "cat": "Operator", "name": "ProfilerStep#3", "ts": 6000, "dur": 1, "pid": "5", "tid": "6"}',
    b'{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "w"}}',
]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Read, Read]:
    """The same odd but legal events through the fast path and, beside a broken event, through the exact
    scan."""
    folder = tmp_path_factory.mktemp("both")
    return _read(folder, *ODD_BUT_LEGAL), _read(folder, *ODD_BUT_LEGAL, BROKEN)


def test_odd_but_legal_events_are_fast(both: tuple[Read, Read]) -> None:
    """None of them needs the exact scan; next to a broken event all of them go through it."""
    assert (both[0].exact_events, both[1].exact_events) == (0, len(ODD_BUT_LEGAL) + 1)


@pytest.mark.parametrize("table", ["gpu_activity", "launch", "cpu_op", "annotation"])
def test_both_paths_land_the_same_rows(both: tuple[Read, Read], table: str) -> None:
    """The exact scan types every value as DuckDB's reader does."""
    assert both[0].raw.all_rows()[table] == both[1].raw.all_rows()[table]


def test_both_paths_count_the_same_issues(both: tuple[Read, Read]) -> None:
    """The exact scan skips and counts as the fast path does, but for the broken event itself."""
    fast, exact = (read.raw.issues for read in both)
    assert fast == {key: value for key, value in exact.items() if key[0] != "unreadable_event"}
