"""The metadata around the events, before or after them, valid or broken; and what other tools' files look
like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from pipeline.errors import TraceError
from pipeline.sources.issues import IssueBook
from pipeline.sources.kineto import header
from pipeline.sources.kineto.header import Header
from tests.support.kineto_reading import kernel_text, lines, read_bytes

BOM = b"\xef\xbb\xbf"


def _parse(head: bytes, tail: bytes) -> tuple[Header, list[str]]:
    book = IssueBook()
    return header.parse(head, tail, "t.json", book), [row[0] for row in book.rows()]


@pytest.mark.parametrize(
    ("head", "tail"),
    [
        (
            b'{"baseTimeNanoseconds": 5, "distributedInfo": {"rank": 3}, "traceEvents": [',
            b', "traceName": "x"}',
        ),
        (b'{"traceEvents": [', b', "baseTimeNanoseconds": 5, "distributedInfo": {"rank": 3}}\n'),
        (b'{"baseTimeNanoseconds": "5", "traceEvents" :\n[', b', "distributedInfo": {"rank": "3"}}\0\0'),
        (
            BOM + b'{"distributedInfo": {"rank": 0}, "traceEvents": [',
            b', "distributedInfo": {"rank": 3}, "baseTimeNanoseconds": 5}',
        ),
    ],
    ids=["before", "after", "digits as text", "BOM and duplicate key"],
)
def test_metadata_is_read_wherever_it_stands(head: bytes, tail: bytes) -> None:
    """Base and rank are found before and after the events; of duplicate keys the last one counts."""
    found, codes = _parse(head, tail)
    assert (found.integer("baseTimeNanoseconds"), found.distributed("rank"), codes) == (5, 3, [])


@pytest.mark.parametrize("head", [b"[", b"\n [", BOM + b"[", BOM + b"\n["])
def test_bare_array_has_no_metadata(head: bytes) -> None:
    """The oldest files are an array of events without anything around it."""
    assert _parse(head, b"\n") == (Header(), [])


@pytest.mark.parametrize(
    ("head", "tail"),
    [
        (
            (
                b'{"WARNING": ["odd "quote""], "baseTimeNanoseconds": 5, "distributedInfo": {"backend": '
                b'"nccl", '
                b'"rank": 3}, "traceEvents": ['
            ),
            b"}",
        ),
        (b'{"traceEvents": [', b', "baseTimeNanoseconds": 5, "distributedInfo": {"rank": 3}, "x": nan'),
    ],
    ids=["unescaped quotes", "truncated"],
)
def test_known_keys_are_rescued_from_broken_metadata(head: bytes, tail: bytes) -> None:
    """Base and rank are extracted from metadata that is not JSON, and the damage is counted."""
    found, codes = _parse(head, tail)
    assert (found.integer("baseTimeNanoseconds"), found.distributed("rank"), codes) == (
        5,
        3,
        ["unreadable_header"],
    )


_TAIL = (
    b', "baseTimeNanoseconds": 5, "distributedInfo": {"rank": 3, "pg_config": [{"pg_name": "}"}]}, '
    b'"traceName": "t"}'
)


@pytest.mark.parametrize("at", range(len(_TAIL)))
def test_metadata_that_ends_early_is_truncated(at: int) -> None:
    """Wherever the file ends before its last brace, the rest is missing."""
    assert header.parse(b'{"traceEvents": [', _TAIL[:at], "t.json", IssueBook()).is_truncated


@pytest.mark.parametrize("tail", [_TAIL, _TAIL + b"\n\0\0", b', "x": nan}', b', "ERROR": ["a "b""]}'])
def test_metadata_with_its_end_is_not_truncated(tail: bytes) -> None:
    """Broken metadata is not a truncated file."""
    assert not header.parse(b'{"traceEvents": [', tail, "t.json", IssueBook()).is_truncated


@pytest.mark.parametrize("tail", [b"}{", b'}\n{"schemaVersion": 1, "device', b"}\0\0[", b', "a": 1}{"b"'])
def test_the_beginning_of_another_document_is_refused(tail: bytes) -> None:
    """A second writer is seen before it came to its events."""
    with pytest.raises(TraceError, match="more data"):
        header.parse(b'{"traceEvents": [', tail, "t.json", IssueBook())


def test_broken_metadata_keeps_the_events(tmp_path: Path) -> None:
    """A file with broken metadata is read, with its base."""
    raw = read_bytes(
        tmp_path,
        lines(
            kernel_text(),
            head=b'{"ERROR": ["a "b""], "baseTimeNanoseconds": 1000000000000000000, "traceEvents": [',
        ),
    )
    assert raw.trace("first_ns", "base_ns") == (10**18 + 5_000_001, 10**18)
    assert raw.issues["unreadable_header", "header"] == (1, None)


@pytest.mark.parametrize(
    "data",
    [
        lines(kernel_text()) * 2,
        lines(kernel_text()) + b"\n" + lines(kernel_text("other")),
        lines(kernel_text(), head=b"[", tail=b"]") * 2,
    ],
    ids=["twice", "on two lines", "bare arrays"],
)
def test_several_documents_are_refused(tmp_path: Path, data: bytes) -> None:
    """Several ranks that wrote into one file cannot be separated: the file is refused with that reason."""
    with pytest.raises(TraceError, match="more data") as caught:
        read_bytes(tmp_path, data)
    assert "one file per rank" in caught.value.advice


@pytest.mark.parametrize(
    ("info", "wanted"),
    [
        ({"rank": 0}, 0),
        ({"rank": ""}, None),
        ({"rank": -1}, None),
        ({"rank": None}, None),
        ({"rank": True}, None),
        ({"rank": 2**40}, None),
    ],
)
def test_rank_is_a_small_number_or_missing(info: dict[str, Any], wanted: int | None) -> None:
    """Placeholders for no rank, as some writers have them, are no rank."""
    assert Header({"distributedInfo": info}).distributed("rank") == wanted


@pytest.mark.parametrize("info", [None, [], "x", 5])
def test_odd_distributed_info_tells_nothing(info: object) -> None:
    """distributedInfo that is no object has no rank."""
    assert Header({"distributedInfo": info}).distributed("rank") is None


@pytest.mark.parametrize("value", [None, "", "x", [], {}, True, float("inf")])
def test_odd_base_is_missing(value: object) -> None:
    """A base time that is no number is none."""
    assert Header({"baseTimeNanoseconds": value}).integer("baseTimeNanoseconds") is None


def test_device_names_leave_out_what_is_empty() -> None:
    """Names are given by device id; empty names and odd entries are left out."""
    devices = [
        {"id": 0, "name": ""},
        {"id": 1, "name": "NVIDIA H200"},
        {"id": [2], "name": "x"},
        "y",
        {"id": 3},
    ]
    assert Header({"deviceProperties": devices}).device_names == {1: "NVIDIA H200"}
    assert Header({"deviceProperties": None}).device_names == {}


@pytest.mark.parametrize(("value", "wanted"), [("gpu-3", "gpu-3"), ("", None), (["a"], None), (None, None)])
def test_host_is_a_text_or_missing(value: object, wanted: str | None) -> None:
    """host_name is used if it is text and not empty."""
    assert Header({"host_name": value}).host == wanted


OTHERS = {
    b"": "found nothing",
    b" \n": "found nothing",
    b"hello": "is not JSON",
    b"\x89PNG": "is not JSON",
    b'"text"': "is not JSON",
    b"[[-1, 1, 37888, 7], [-1, 1, 512, 7]]": "memory timeline",
    b"[1, 2]": "not events",
    b'{"schema": "1.1.0", "nodes": [{"id": 1}]}': "execution trace",
    b'{"rocprofiler-sdk-tool": [{"metadata": {}}]}': "rocprofv3",
    b'{"segments": [], "device_traces": []}': "memory snapshot",
    b'{"a": 1, "b": 2}': r"keys \['a', 'b'\]",
    b"{}": r"keys \[\]",
    b'{"traceEvents": {}}': r"keys \['traceEvents'\]",
}


@pytest.mark.parametrize("data", OTHERS)
def test_other_tools_files_are_named(tmp_path: Path, data: bytes) -> None:
    """A file without events is refused, and the message says what it looks like and how to record a trace."""
    with pytest.raises(TraceError, match=OTHERS[data]) as caught:
        read_bytes(tmp_path, data)
    assert "record" in caught.value.advice.lower()


def test_metadata_as_a_torch_writes_it(tmp_path: Path) -> None:
    """Rank, world size, host and GPU name come from the metadata."""
    head = {
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
        "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
        "host_name": "gpu-3",
    }
    raw = read_bytes(tmp_path, lines(kernel_text(), head=orjson.dumps(head)[:-1] + b', "traceEvents": ['))
    assert raw.trace("rank", "rank_source", "world_size", "host", "gpu_name", "vendor") == (
        3,
        "distributed_info",
        8,
        "gpu-3",
        "NVIDIA H200",
        "nvidia",
    )
