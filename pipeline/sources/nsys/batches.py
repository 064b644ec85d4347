"""Batches of rows of bounded size: the wanted columns, text as bytes.

A dictionary may repeat a string of megabytes in every row, so rows are filtered before their text is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

BATCH_ROWS = 65_536
BATCH_BYTES = 32 << 20
"""Limit of the text in memory at a time, and of the text of one row."""

Ids = npt.NDArray[np.int64]


def wanted_schema(table: str, found: pa.Schema, wanted: Sequence[str]) -> pa.Schema:
    """The wanted columns that a table has.

    Raises ArrowInvalid for a repeated column, and for types other than numbers and text.
    """
    fields = []
    for column in (c for c in wanted if c in found.names):
        if found.names.count(column) > 1:
            raise pa.ArrowInvalid(f"{table} has the column {column} more than once")
        kind = found.field(column).type
        if not (is_text(kind) or _is_number(kind)):
            raise pa.ArrowInvalid(f"{table} with {column} as {kind}")
        fields.append(pa.field(column, pa.binary() if is_text(kind) else kind))
    return pa.schema(fields)


def pieces(batch: pa.RecordBatch, schema: pa.Schema, ids: Ids | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a batch (if `ids` are given, only theirs) in batches of at most BATCH_BYTES of text.

    Raises ArrowInvalid for offsets or indices beyond their values.
    """
    columns = [_checked(batch.column(field.name)) for field in schema]
    for at in range(0, batch.num_rows, BATCH_ROWS):
        rows = pa.record_batch([c.slice(at, BATCH_ROWS) for c in columns], names=schema.names)
        yield from _halves(rows if ids is None else rows.filter(_is_one_of(rows.column("id"), ids)), schema)


def is_text(kind: pa.DataType) -> bool:
    """Is it text or bytes, or a dictionary of them?"""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def _is_number(kind: pa.DataType) -> bool:
    tests = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_decimal,
        pa.types.is_boolean,
        pa.types.is_null,
    )
    return any(test(kind) for test in tests)


def _checked(column: pa.Array[Any]) -> pa.Array[Any]:
    """Text as bytes (it may not be UTF-8), with every offset and index inside its values."""
    if isinstance(column, pa.DictionaryArray):
        return pa.DictionaryArray.from_arrays(column.indices, _checked(column.dictionary))
    if pa.types.is_string(column.type):
        column = column.view(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.view(pa.large_binary())
    column.validate(full=True)
    return column


def _is_one_of(column: pa.Array[Any], ids: Ids) -> pa.BooleanArray:
    """Whether each value is one of `ids`, which are sorted."""
    if not len(ids):
        return pa.array(np.zeros(len(column), dtype=bool), pa.bool_())
    values = column.cast(pa.int64(), safe=False).fill_null(0).to_numpy(zero_copy_only=False)
    nearest = ids[np.minimum(np.searchsorted(ids, values), len(ids) - 1)]
    return pa.array((nearest == values) & column.is_valid().to_numpy(zero_copy_only=False), pa.bool_())


def _halves(rows: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    text = sum(_text_bytes(column) for column in rows.columns)
    if text > BATCH_BYTES and rows.num_rows > 1:
        middle = rows.num_rows // 2
        yield from _halves(rows.slice(0, middle), schema)
        yield from _halves(rows.slice(middle), schema)
    elif text > BATCH_BYTES:
        raise pa.ArrowInvalid(f"a text of {text} bytes; the limit is {BATCH_BYTES}")
    elif rows.num_rows:
        yield pa.record_batch(
            [c if c.type == f.type else c.cast(f.type) for c, f in zip(rows.columns, schema, strict=True)],
            schema=schema,
        )


def _text_bytes(column: pa.Array[Any]) -> int:
    if not is_text(column.type):
        return 0
    values: Any = column.dictionary if isinstance(column, pa.DictionaryArray) else column
    lengths = pc.binary_length(values).cast(pa.int64())
    if isinstance(column, pa.DictionaryArray):
        lengths = lengths.take(column.indices)
    return int(pc.sum(lengths).as_py() or 0)
