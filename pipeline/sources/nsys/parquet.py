"""Tables in Parquet files: how many rows they hold, and their text in batches of bounded size.

DuckDB reads columns of numbers itself, within its memory limit. Text is read as bytes with pyarrow, which has no limit: a page
of 2 GB takes 100 KB in a file. So the head of every page is read first.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from pipeline.sources.nsys.batches import BATCH_BYTES, BATCH_ROWS, is_text

PAGE_BYTES = 512 << 20
"""A page is decompressed whole. Writers end one after a megabyte or so, but look at that every thousand values only."""
_HEAD_BYTES = 1 << 16
_DELTA_BYTE_ARRAY = 7
"""The encoding of strings by what they share with the one before: a page of it may hold any amount of text."""
_DICTIONARY = 2
_DEPTH = 4
_BUFFER_BYTES = 1 << 20


def schema_of(file: Path) -> pa.Schema:
    """The columns of a file."""
    return pyarrow.parquet.read_schema(file)


def count_rows(file: Path) -> int:
    """The rows of a file, without a look at them."""
    found = pyarrow.parquet.read_metadata(file)
    return max(found.num_rows, sum(found.row_group(n).num_rows for n in range(found.num_row_groups)))


def batches(file: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """The columns in batches; text as dictionaries, as it is stored."""
    text = [f.name for f in schema_of(file) if f.name in columns and is_text(f.type)]
    rows = _rows_at_once(file, columns)
    with pyarrow.parquet.ParquetFile(file, read_dictionary=text, buffer_size=_BUFFER_BYTES) as source:
        yield from source.iter_batches(batch_size=rows, columns=columns, use_threads=False)


def _rows_at_once(file: Path, columns: list[str]) -> int:
    """Rows of a batch, so that the pages of one hold no more than about BATCH_BYTES each column."""
    densest = 1
    metadata = pyarrow.parquet.read_metadata(file)
    with file.open("rb") as source:
        for group in (metadata.row_group(n) for n in range(metadata.num_row_groups)):
            for chunk in (group.column(n) for n in range(group.num_columns)):
                if chunk.path_in_schema in columns:
                    densest = max(densest, *_bytes_per_row(source, chunk), 1)
    return max(1, min(BATCH_ROWS, BATCH_BYTES // densest))


def _bytes_per_row(source: BufferedReader, chunk: pyarrow.parquet.ColumnChunkMetaData) -> Iterator[int]:
    """Bytes a row of every page. Raises ArrowInvalid for a page that is too large, or of whose size nothing can be known."""
    at = min(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset)
    end = at + chunk.total_compressed_size
    while at < end:
        head, size = _head(source, at)
        compressed, decompressed, values = head.get(3, -1), head.get(2, -1), _values(head)
        if not (0 <= decompressed <= PAGE_BYTES and compressed >= 0 and values >= 0):
            raise pa.ArrowInvalid(f"a page of {decompressed} bytes")
        if head.get(1) != _DICTIONARY:
            yield -(-decompressed // max(1, values))
        at += size + compressed


def _values(head: dict[int, Any]) -> int:
    """The values of a page. Raises ArrowInvalid for an encoding that repeats text without naming its length."""
    kinds = [head[field] for field in (5, 7, 8) if isinstance(head.get(field), dict)]
    encodings = [kind.get(4 if kind is head.get(8) else 2) for kind in kinds]
    if _DELTA_BYTE_ARRAY in encodings:
        raise pa.ArrowInvalid("text that is stored by what it shares with its neighbor (DELTA_BYTE_ARRAY)")
    return min((kind.get(1, -1) for kind in kinds), default=0)


def _head(source: BufferedReader, at: int) -> tuple[dict[int, Any], int]:
    """The head of a page, by the numbers of its fields, and its size."""
    source.seek(at)
    try:
        return _struct(source.read(_HEAD_BYTES), 0)
    except IndexError:
        raise pa.ArrowInvalid(f"the head of a page at byte {at} without its end") from None


def _struct(data: bytes, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """A struct of Thrift's compact protocol, as far as heads of pages use it."""
    fields: dict[int, Any] = {}
    field = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            field += head >> 4
        else:
            field, at = _number(data, at)
        field = (field + 0x8000 & 0xFFFF) - 0x8000  # readers keep 16 bits of it
        kind = head & 15
        if kind in {1, 2}:
            fields[field] = kind == 1
        elif kind in {4, 5, 6}:
            fields[field], at = _number(data, at)
        elif kind == 8:
            size, at = _varint(data, at)
            at += size
        elif kind == 12 and depth < _DEPTH:
            fields[field], at = _struct(data, at, depth + 1)
        else:
            raise pa.ArrowInvalid(f"the head of a page with a field of kind {kind}")
    return fields, at + 1


def _number(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7
