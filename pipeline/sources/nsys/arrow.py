"""Tables in Arrow IPC streams: their number of rows, and their batches of at most MESSAGE_BYTES.

A batch is read and decompressed whole, and 100 KB of a file may expand to a gigabyte. So the header of every
message is read first. It is a flatbuffer; its fields are decoded here because pyarrow shows them only after
it has read the batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc

MESSAGE_BYTES = 1 << 30
"""Limit of a batch, and of the sum of all dictionaries."""
_HEAD_BYTES = 16 << 20
_CONTINUATION = 0xFFFFFFFF
_DICTIONARY, _BATCH = 2, 3
_OLD_COMPRESSION = b"ARROW:experimental_compression"


def schema_of(file: Path) -> pa.Schema:
    """The columns of a file."""
    with pa.OSFile(str(file), "rb") as source, pyarrow.ipc.open_stream(source) as reader:
        return reader.schema


def count_rows(file: Path) -> int:
    """The number of rows, from the headers alone. Raises ArrowInvalid for a batch that is too large."""
    rows = dictionaries = 0
    for kind, found, size in _messages(file):
        dictionaries += size if kind == _DICTIONARY else 0
        if max(size, dictionaries) > MESSAGE_BYTES:
            raise pa.ArrowInvalid(f"a batch of {max(size, dictionaries)} bytes; the limit is {MESSAGE_BYTES}")
        rows += found if kind == _BATCH else 0
    return rows


def batches(file: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """The columns in batches as they are stored; other columns are not decoded."""
    count_rows(file)
    numbers = [n for n, name in enumerate(schema_of(file).names) if name in columns]
    options = pyarrow.ipc.IpcReadOptions(included_fields=numbers)
    with pa.OSFile(str(file), "rb") as stream, pyarrow.ipc.open_stream(stream, options=options) as reader:
        yield from reader


def _messages(file: Path) -> Iterator[tuple[int, int, int]]:
    """The kind, the number of rows and the decompressed size of every message."""
    end = file.stat().st_size
    with file.open("rb") as source:
        while (size := _length(source)) != 0:
            if size > _HEAD_BYTES:
                raise pa.ArrowInvalid(f"a header of a batch of {size} bytes")
            head, body = source.read(size), source.tell()
            try:
                kind, rows, stored, inside = _message(head, end - body)
                size = max(stored, sum(_decompressed(source, body, stored, *buffer) for buffer in inside))
            except struct.error:
                raise pa.ArrowInvalid(f"a damaged header of a batch before byte {body}") from None
            yield kind, rows, size
            source.seek(body + stored)


def _length(source: BufferedReader) -> int:
    """The size of the next message's header; 0 at the end."""
    first = int.from_bytes(source.read(4), "little")
    return int.from_bytes(source.read(4), "little") if first == _CONTINUATION else first


def _message(head: bytes, room: int) -> tuple[int, int, int, list[tuple[int, int]]]:
    """The kind, rows and size of a message, and the position and size of its compressed buffers.

    `room`: the bytes left in the file, which limit its size.
    """
    message = _Table(head, *struct.unpack_from("<I", head))
    kind, stored = message.number(1, "<B"), message.number(3, "<q")
    if not 0 <= stored <= room:
        raise struct.error
    if kind not in {_DICTIONARY, _BATCH}:
        return kind, 0, stored, []
    batch = message.table(2)
    if kind == _DICTIONARY:
        batch = batch.table(1)
    if (rows := batch.number(0, "<q")) < 0:
        raise struct.error
    is_compressed = batch.has(3) or _OLD_COMPRESSION in head
    return kind, rows, stored, batch.pairs(2) if is_compressed else []


def _decompressed(source: BufferedReader, body: int, stored: int, at: int, length: int) -> int:
    """The decompressed size of a buffer, its first field; -1 there means that it is not compressed."""
    if length <= 0:
        return 0
    if not 0 <= at <= stored:
        raise struct.error
    source.seek(body + at)
    (size,) = struct.unpack("<q", source.read(8))
    return length if size < 0 else int(size)


class _Table:
    """A table of a flatbuffer: its fields by number."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - self._get("<i", at)

    def _get(self, form: str, at: int) -> Any:
        if at < 0:
            raise struct.error
        return struct.unpack_from(form, self._data, at)[0]

    def _place(self, field: int) -> int:
        """The position of a field; 0 if it is absent."""
        where = 4 + 2 * field
        offset = self._get("<H", self._fields + where) if where < self._get("<H", self._fields) else 0
        return self._at + int(offset) if offset else 0

    def has(self, field: int) -> bool:
        """Is the field there?"""
        return self._place(field) > 0

    def number(self, field: int, form: str) -> int:
        """A number; 0 if it is absent."""
        place = self._place(field)
        return int(self._get(form, place)) if place else 0

    def table(self, field: int) -> _Table:
        """A table inside this one."""
        place = self._place(field)
        if not place:
            raise struct.error
        return _Table(self._data, place + self._get("<I", place))

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """A vector of pairs of 64-bit numbers."""
        place = self._place(field)
        if not place:
            return []
        at = place + self._get("<I", place)
        count = self._get("<I", at)
        return [(self._get("<q", at + 4 + 16 * n), self._get("<q", at + 12 + 16 * n)) for n in range(count)]
