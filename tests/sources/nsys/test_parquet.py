"""Text in Parquet files: pages are measured by their own heads, and batches are as small as they must be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from pipeline.sources.nsys import parquet
from pipeline.sources.nsys.batches import BATCH_BYTES

WRITERS: dict[str, dict[str, Any]] = {
    "dictionary": {},
    "plain": {"use_dictionary": False},
    "zstd": {"compression": "zstd"},
    "pages_of_version_2": {"data_page_version": "2.0", "use_dictionary": False},
    "lengths_first": {"use_dictionary": False, "column_encoding": {"value": "DELTA_LENGTH_BYTE_ARRAY"}},
    "many_pages": {"data_page_size": 1_000, "row_group_size": 700},
    "checksums": {"write_page_checksum": True},
}


def _written(path: Path, values: Sequence[str | None], **options: Any) -> Path:
    pyarrow.parquet.write_table(
        pa.table({"id": range(len(values)), "other": [""] * len(values), "value": values}), path, **options
    )
    return path


@pytest.mark.parametrize("name", WRITERS)
def test_every_row_is_read_however_it_is_stored(tmp_path: Path, name: str) -> None:
    """Encodings and versions of pages; the columns asked for, and no other."""
    values = [None if n % 7 == 0 else f"name {n % 300}" for n in range(3_000)]
    path = _written(tmp_path / "a.parquet", values, **WRITERS[name])
    found = list(parquet.batches(path, ["id", "value"]))
    assert parquet.count_rows(path) == 3_000
    assert found[0].schema.names == ["id", "value"]
    assert [v for batch in found for v in batch.column("value").to_pylist()] == values


@pytest.mark.parametrize("name", ["dictionary", "zstd", "pages_of_version_2"])
def test_a_page_that_is_too_large_is_refused_before_it_is_decompressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A megabyte of one letter takes a few bytes in the file. The file's own metadata is not
    asked."""
    path = _written(tmp_path / "a.parquet", ["x" * 1_000_000], **WRITERS[name] | {"compression": "zstd"})
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(parquet, "PAGE_BYTES", 900_000)
    with pytest.raises(pa.ArrowInvalid, match=r"a page of 100000\d bytes"):
        list(parquet.batches(path, ["id", "value"]))
    assert [b.num_rows for b in parquet.batches(path, ["id", "other"])] == [1]


def test_long_text_is_read_a_few_rows_at_a_time(tmp_path: Path) -> None:
    """Pages that shrink to nothing: the rows of a batch are as many as its bytes allow, and all are read."""
    values = [f"{n}{'x' * 100_000}" for n in range(1_000)]
    path = _written(tmp_path / "a.parquet", values, compression="zstd", use_dictionary=False)
    assert path.stat().st_size < 1_000_000
    found = [batch.num_rows for batch in parquet.batches(path, ["value"])]
    assert sum(found) == 1_000
    assert max(found) <= BATCH_BYTES // 100_000


@pytest.mark.parametrize("longest", [100_000, 1_000_000])
def test_text_that_has_to_be_copied_is_read_by_the_longest_of_its_dictionary(
    tmp_path: Path, longest: int
) -> None:
    """One column of a row group by lengths, the other by a dictionary: pyarrow reads neither as a dictionary,
    so a row may take that much."""
    path = tmp_path / "a.parquet"
    made = pa.table({"name": ["a"] * 1_000, "value": ["x" * longest] * 1_000})
    options: dict[str, Any] = {
        "use_dictionary": ["value"],
        "column_encoding": {"name": "DELTA_LENGTH_BYTE_ARRAY"},
    }
    pyarrow.parquet.write_table(made, path, **options)
    found = [batch.num_rows for batch in parquet.batches(path, ["name", "value"])]
    assert sum(found) == 1_000
    assert max(found) <= BATCH_BYTES // longest


def test_text_by_what_it_shares_with_its_neighbor_is_refused(tmp_path: Path) -> None:
    """The size of such a page does not limit its decoded bytes."""
    path = _written(
        tmp_path / "a.parquet",
        ["x" * 1_000] * 1_000,
        use_dictionary=False,
        column_encoding={"value": "DELTA_BYTE_ARRAY"},
    )
    with pytest.raises(pa.ArrowInvalid, match="shares prefixes with its neighbors"):
        list(parquet.batches(path, ["value"]))


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"\xff" * 40, "field of kind 15"),
        (b"\x15\x00" * 40_000, "truncated header"),
        (b"\x15\x00\x15\x08\x15\x01\x00", "a page of 4 bytes"),
        (b"\x15\x00\x15\x01\x15\x08\x00", "a page of -1 bytes"),
        (b"\x15" + b"\x80" * 70_000, "truncated header"),
    ],
    ids=["kind", "endless", "negative_size", "negative_decompressed_size", "endless_number"],
)
def test_a_damaged_head_of_a_page_is_refused(tmp_path: Path, head: bytes, message: str) -> None:
    """Whatever its bytes are, the look at it ends."""
    path = _written(tmp_path / "a.parquet", ["x" * 100_000], use_dictionary=False, compression="none")
    chunk = pyarrow.parquet.read_metadata(path).row_group(0).column(2)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset : chunk.data_page_offset + len(head)] = head
    path.write_bytes(data)
    with pytest.raises(pa.ArrowInvalid, match=message):
        list(parquet.batches(path, ["value"]))
