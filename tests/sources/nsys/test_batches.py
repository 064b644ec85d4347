"""Batches of bounded size: rows are dropped and counted before their text is copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.sources.nsys import batches
from pipeline.sources.nsys.batches import BATCH_BYTES, BATCH_ROWS, pieces, wanted_schema
from tests.support.nsys_bombs import MEGABYTE, one_text

TEXTS: tuple[pa.DataType, ...] = (
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.large_binary(),
    pa.dictionary(pa.int32(), pa.string()),
)


def _schema(kind: pa.DataType) -> pa.Schema:
    return wanted_schema("StringIds", pa.schema({"id": pa.int64(), "value": kind}), ["id", "value"])


def _batch(values: pa.Array[Any], ids: list[int | None] | None = None) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids or range(len(values)), pa.int64()), "value": values})


@pytest.mark.parametrize("kind", TEXTS, ids=str)
def test_text_of_every_kind_becomes_bytes(kind: pa.DataType) -> None:
    """Row by row the same, NULL as NULL."""
    values = pa.array(["a", None, "", "ccc"], pa.string()).cast(kind)
    (made,) = pieces(_batch(values), _schema(kind))
    assert (made.schema.names, made.schema.types) == (["id", "value"], [pa.int64(), pa.binary()])
    assert made.column("value").to_pylist() == [b"a", None, b"", b"ccc"]


def test_bytes_that_are_not_utf8_are_kept() -> None:
    """What a report calls a string may hold any byte."""
    for values in (
        pa.array([b"ke\xe9"]).view(pa.string()),
        pa.array([b"ke\xe9"]).view(pa.string()).dictionary_encode(),
    ):
        (made,) = pieces(_batch(values), _schema(values.type))
        assert made.column("value").to_pylist() == [b"ke\xe9"]


def test_a_text_that_is_repeated_is_copied_a_few_times_at_once() -> None:
    """A hundred rows of one megabyte, stored once: no batch of it is larger than the limit, and none of its
    rows is missing."""
    values = one_text(MEGABYTE, 100)
    made = [(p.num_rows, p.nbytes) for p in pieces(_batch(values), _schema(values.type))]
    assert sum(rows for rows, _ in made) == 100
    assert max(size for _, size in made) <= BATCH_BYTES + MEGABYTE
    assert len(made) >= 100 * MEGABYTE // BATCH_BYTES


def test_a_batch_of_many_rows_is_split() -> None:
    """However few bytes they have."""
    assert [p.num_rows for p in pieces(_batch(pa.array([""] * (BATCH_ROWS + 1))), _schema(pa.string()))] == [
        BATCH_ROWS,
        1,
    ]


def test_a_text_longer_than_a_batch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could be read in no piece."""
    monkeypatch.setattr(batches, "BATCH_BYTES", 10)
    with pytest.raises(pa.ArrowInvalid, match="a text of 11 bytes"):
        list(pieces(_batch(pa.array(["", "x" * 11])), _schema(pa.string())))


def test_a_long_text_that_nothing_refers_to_is_left_out_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only rows with one of the ids are counted; NULL is none of them."""
    monkeypatch.setattr(batches, "BATCH_BYTES", 10)
    rows = _batch(pa.array(["a", "x" * 99, "b", "c", "d"]), [7, 8, None, -1, 0])
    ids = np.array([-1, 5, 7], dtype=np.int64)
    assert [row for p in pieces(rows, _schema(pa.string()), ids) for row in p.to_pylist()] == [
        {"id": 7, "value": b"a"},
        {"id": -1, "value": b"c"},
    ]
    assert list(pieces(rows, _schema(pa.string()), ids[:0])) == []


def _reaching(kind: pa.DataType, form: pa.DataType, offsets: list[int]) -> pa.Array[Any]:
    return pa.Array.from_buffers(
        kind, len(offsets) - 1, [None, pa.array(offsets, form).buffers()[1], pa.py_buffer(b"abc")]
    )


@pytest.mark.parametrize(
    "values",
    [
        _reaching(pa.string(), pa.int32(), [0, 1 << 30, 3]),
        _reaching(pa.large_binary(), pa.int64(), [0, 1 << 40, 3]),
        _reaching(pa.binary(), pa.int32(), [0, 3, 0, 3]),
        pa.DictionaryArray.from_arrays(pa.array([0, 7], pa.int32()), ["a"], safe=False),
        pa.DictionaryArray.from_arrays(pa.array([0]), _reaching(pa.string(), pa.int32(), [0, 1 << 30, 3])),
    ],
    ids=["offset", "large_offset", "offsets_that_overlap", "index", "offset_in_a_dictionary"],
)
def test_what_reaches_beyond_its_values_is_refused(values: pa.Array[Any]) -> None:
    """Arrow does not look at offsets and indices of a file; following them would read other memory."""
    with pytest.raises((pa.ArrowInvalid, pa.ArrowIndexError)):
        list(pieces(_batch(values), _schema(values.type)))


@pytest.mark.parametrize(
    "kind",
    [pa.timestamp("ns"), pa.list_(pa.int64()), pa.string_view(), pa.run_end_encoded(pa.int32(), pa.int64())],
    ids=str,
)
def test_a_column_that_is_neither_number_nor_text_is_refused(kind: pa.DataType) -> None:
    """Types in which a few bytes may encode many rows, or that have no meaning here."""
    with pytest.raises(pa.ArrowInvalid, match="StringIds with value as"):
        _schema(kind)


def test_a_column_that_is_there_twice_is_refused() -> None:
    """Which of them is meant cannot be known."""
    with pytest.raises(pa.ArrowInvalid, match="StringIds has the column id more than once"):
        wanted_schema("StringIds", pa.schema([("id", pa.int64()), ("id", pa.int64())]), ["id", "value"])
