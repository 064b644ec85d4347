"""Tables in Parquet files: their number of rows, and their text in batches of bounded size.

DuckDB reads columns of numbers itself, within its memory limit. Text is read as bytes with pyarrow, which has
no limit, and a page of 2 GB may take 100 KB in a file. So the header of every page is read first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from pipeline.sources.nsys.batches import BATCH_BYTES, BATCH_ROWS, is_text

PAGE_BYTES = 256 << 20
"""Limit of a page, which is decompressed whole. Writers end a page after about a megabyte, but check only
every thousand values."""
_HEAD_BYTES = 1 << 16
_DICTIONARY = 2
_DELTA_LENGTH_BYTE_ARRAY, _DELTA_BYTE_ARRAY = 6, 7
"""Encodings of text: all lengths, then all bytes; and prefixes shared with the previous text, which can
expand a page to any size."""
_DEPTH = 4
_BUFFER_BYTES = 1 << 20


@dataclass
class _Pages:
    """Memory needs of the pages of some columns: bytes per row of the densest page, bytes of the largest
    dictionary, and whether text must be copied."""

    densest: int = 1
    dictionary: int = 0
    is_copied: bool = False


def schema_of(file: Path) -> pa.Schema:
    """The columns of a file."""
    return pyarrow.parquet.read_schema(file)


def count_rows(file: Path) -> int:
    """The number of rows, from the metadata alone."""
    found = pyarrow.parquet.read_metadata(file)
    return max(found.num_rows, sum(found.row_group(n).num_rows for n in range(found.num_row_groups)))


def batches(file: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """The columns in batches of at most about BATCH_BYTES; text as a dictionary if pyarrow can read it so."""
    text = [f.name for f in schema_of(file) if f.name in columns and is_text(f.type)]
    metadata = pyarrow.parquet.read_metadata(file)
    for number in range(metadata.num_row_groups):
        pages = _read_headers(file, metadata.row_group(number), columns)
        # A copied text may be the longest of the dictionary in every row.
        densest = max(pages.densest, pages.dictionary) if pages.is_copied else pages.densest
        coded = [] if pages.is_copied else text
        with pyarrow.parquet.ParquetFile(
            file, metadata=metadata, read_dictionary=coded, buffer_size=_BUFFER_BYTES
        ) as source:
            rows = max(1, min(BATCH_ROWS, BATCH_BYTES // densest))
            yield from source.iter_batches(
                batch_size=rows, row_groups=[number], columns=columns, use_threads=False
            )


def _read_headers(file: Path, group: pyarrow.parquet.RowGroupMetaData, columns: list[str]) -> _Pages:
    found = _Pages()
    with file.open("rb") as source:
        for chunk in (group.column(n) for n in range(group.num_columns)):
            if chunk.path_in_schema in columns:
                _read_column(source, chunk, found)
    return found


def _read_column(source: BufferedReader, chunk: pyarrow.parquet.ColumnChunkMetaData, found: _Pages) -> None:
    """Read the header of each page of a column. Raises ArrowInvalid for a page that may be too large."""
    at = min(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset)
    end = at + chunk.total_compressed_size
    while at < end:
        head, size = _head(source, at)
        compressed, decompressed, values = head.get(3, -1), head.get(2, -1), _values(head)
        if not (0 <= decompressed <= PAGE_BYTES and compressed >= 0 and values >= 0):
            raise pa.ArrowInvalid(f"a page of {decompressed} bytes; the limit is {PAGE_BYTES}")
        if head.get(1) == _DICTIONARY:
            found.dictionary = max(found.dictionary, decompressed)
        else:
            found.densest = max(found.densest, -(-decompressed // max(1, values)))
        encodings = _encodings(head)
        if _DELTA_BYTE_ARRAY in encodings:
            raise pa.ArrowInvalid("text that shares prefixes with its neighbors (DELTA_BYTE_ARRAY)")
        found.is_copied |= _DELTA_LENGTH_BYTE_ARRAY in encodings
        at += size + compressed


def _values(head: dict[int, Any]) -> int:
    """The fewest values that a page may hold, by any of its parts: 5 data, 7 dictionary, 8 data version 2."""
    return min((head[part].get(1, -1) for part in (5, 7, 8) if isinstance(head.get(part), dict)), default=0)


def _encodings(head: dict[int, Any]) -> set[int]:
    return {head[part].get(field) for part, field in ((5, 2), (8, 4)) if isinstance(head.get(part), dict)}


def _head(source: BufferedReader, at: int) -> tuple[dict[int, Any], int]:
    """The header of a page, by field number, and its size."""
    source.seek(at)
    try:
        return _struct(source.read(_HEAD_BYTES), 0)
    except IndexError:
        raise pa.ArrowInvalid(f"a truncated header of a page at byte {at}") from None


def _struct(data: bytes, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """A struct of Thrift's compact protocol, with the types that headers of pages use."""
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
            raise pa.ArrowInvalid(f"a header of a page with a field of kind {kind}")
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
