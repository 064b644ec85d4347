"""Tables in Arrow streams: batches are measured by the heads of their messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pytest

from pipeline.sources.nsys import arrow

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "zstd": {"compression": "zstd"},
    "lz4": {"compression": "lz4"},
    "version_4": {"metadata_version": pyarrow.ipc.MetadataVersion.V4},
    "old_frames": {"use_legacy_format": True},
}


def _written(path: Path, table: pa.Table, **options: Any) -> Path:
    with pyarrow.ipc.new_stream(
        str(path), table.schema, options=pyarrow.ipc.IpcWriteOptions(**options)
    ) as writer:
        writer.write_table(table, max_chunksize=1_000)
    return path


def _table(rows: int = 2_500, text: str = "name") -> pa.Table:
    values = pa.array([f"{text} {n % 50}" for n in range(rows)])
    return pa.table(
        {"id": range(rows), "other": [[1]] * rows, "value": values, "coded": values.dictionary_encode()}
    )


@pytest.mark.parametrize("name", OPTIONS)
def test_every_row_is_counted_and_read_however_it_is_stored(tmp_path: Path, name: str) -> None:
    """Compressed or not, in old frames and new ones; the columns asked for, and no other."""
    path = _written(tmp_path / "a.arrow", _table(), **OPTIONS[name])
    found = list(arrow.batches(path, ["id", "value", "coded"]))
    assert arrow.count_rows(path) == 2_500
    assert [batch.num_rows for batch in found] == [1_000, 1_000, 500]
    assert found[0].schema.names == ["id", "value", "coded"]
    for column in ("value", "coded"):
        assert [v for batch in found for v in batch.column(column).to_pylist()] == _table()[
            column
        ].to_pylist()


@pytest.mark.parametrize("name", OPTIONS)
def test_a_batch_that_is_too_large_is_refused_before_it_is_decompressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Its size is what it is decompressed to, however few bytes it takes in the file."""
    path = _written(tmp_path / "a.arrow", pa.table({"value": ["x" * 100_000] * 10}), **OPTIONS[name])
    assert (path.stat().st_size < 10_000) == ("compression" in OPTIONS[name])
    monkeypatch.setattr(arrow, "MESSAGE_BYTES", 900_000)
    for look in (arrow.count_rows, lambda file: list(arrow.batches(file, ["value"]))):
        with pytest.raises(pa.ArrowInvalid, match="a batch of 10000"):
            look(path)


def test_dictionaries_are_too_large_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are in memory at once, unlike batches."""
    coded = {name: pa.array([name * 60_000]).dictionary_encode() for name in "ab"}
    path = _written(tmp_path / "a.arrow", pa.table(coded), compression="zstd")
    monkeypatch.setattr(arrow, "MESSAGE_BYTES", 100_000)
    with pytest.raises(pa.ArrowInvalid, match="a batch of 1200"):
        arrow.count_rows(path)


def test_rows_without_a_byte_are_counted(tmp_path: Path) -> None:
    """A column without a type takes none, however many rows it has."""
    rows = 10**12
    path = tmp_path / "a.arrow"
    made = pa.table({"start": pa.Array.from_buffers(pa.null(), rows, [None])})
    with pyarrow.ipc.new_stream(
        str(path), made.schema, options=pyarrow.ipc.IpcWriteOptions(allow_64bit=True)
    ) as writer:
        writer.write_table(made)
    assert path.stat().st_size < 1_000
    assert arrow.count_rows(path) == rows


@pytest.mark.parametrize("cut", [1, 100, 9_000, 20_000])
def test_a_truncated_file_is_refused(tmp_path: Path, cut: int) -> None:
    """Also when only rows are counted, unless it ends between two batches."""
    path = _written(tmp_path / "a.arrow", _table())
    data = path.read_bytes().removesuffix(b"\xff\xff\xff\xff\0\0\0\0")
    path.write_bytes(data[:-cut])
    with pytest.raises(pa.ArrowInvalid):
        arrow.count_rows(path)


def test_any_flipped_byte_of_a_head_is_refused_or_harmless(tmp_path: Path) -> None:
    """Headers hold offsets into themselves: no wrong one is followed."""
    whole = _written(tmp_path / "a.arrow", _table(10), compression="zstd").read_bytes()
    path = tmp_path / "b.arrow"
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            assert arrow.count_rows(path) >= 0
        except pa.ArrowInvalid as error:
            assert str(error)  # noqa: PT017 (either outcome is right)
