"""Decompression by content, in bounded blocks, with every kind of damage named."""

from __future__ import annotations

import gzip
import threading
import zlib
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.errors import TraceError, UnfinishedFile
from pipeline.sources.kineto import bytestream
from pipeline.sources.kineto.bytestream import blocks

TEXT = "".join(sha256(str(n).encode()).hexdigest() for n in range(10_000)).encode()


def _write(folder: Path, data: bytes, name: str = "t.json") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def _read(path: Path) -> bytes:
    return b"".join(blocks(path, lambda _: None))


def _gz(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def _zst(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


FORMS = {
    "plain": TEXT,
    "gzip": _gz(TEXT),
    "members": _gz(TEXT[:1000]) + _gz(b"") + _gz(TEXT[1000:]),
    "padded": _gz(TEXT) + b"\0" * 600,
    "padded members": _gz(TEXT[:9]) + b"\0" * 512 + _gz(TEXT[9:]),
    "zstd": _zst(TEXT),
    "frames": _zst(TEXT[:1000]) + _zst(TEXT[1000:]),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_bytes(tmp_path: Path, form: str) -> None:
    """Plain, gzip of one or many members with or without padding, and zstd hold the same text."""
    assert _read(_write(tmp_path, FORMS[form])) == TEXT


@pytest.mark.parametrize("form", FORMS)
def test_block_size_never_matters(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes come out in small blocks too, and no block is longer than asked for."""
    monkeypatch.setattr(bytestream, "BLOCK_BYTES", 1000)
    parts = list(blocks(_write(tmp_path, FORMS[form]), lambda _: None))
    assert b"".join(parts) == TEXT
    assert max(map(len, parts)) <= 1000


@pytest.mark.parametrize("form", FORMS)
def test_progress_is_told_in_bytes_of_the_file(tmp_path: Path, form: str) -> None:
    """What is reported as read adds up to the file's size on disk."""
    sizes: list[int] = []
    path = _write(tmp_path, FORMS[form])
    for _ in blocks(path, sizes.append):
        pass
    assert sum(sizes) == path.stat().st_size


@pytest.mark.parametrize(
    ("form", "name"), [("plain", "t.json.gz"), ("gzip", "t.json"), ("zstd", "t.json.gz"), ("gzip", "t.zst")]
)
def test_content_wins_over_file_name(tmp_path: Path, form: str, name: str) -> None:
    """A wrong suffix changes nothing."""
    assert _read(_write(tmp_path, FORMS[form], name)) == TEXT


def test_empty_file_gives_nothing(tmp_path: Path) -> None:
    """An empty file is no error here: it has no bytes."""
    assert _read(_write(tmp_path, b"")) == b""


@pytest.mark.parametrize("left", [2, 9, 10, 500, len(FORMS["gzip"]) - 9, len(FORMS["gzip"]) - 1])
def test_truncated_gzip_is_unfinished(tmp_path: Path, left: int) -> None:
    """A gzip truncated file may still be written: it is called unfinished."""
    with pytest.raises(UnfinishedFile, match="inside gzip data"):
        _read(_write(tmp_path, FORMS["gzip"][:left]))


def test_truncated_second_member_is_unfinished(tmp_path: Path) -> None:
    """A truncated later member is found too."""
    with pytest.raises(UnfinishedFile):
        _read(_write(tmp_path, FORMS["members"][:-5]))


@pytest.mark.parametrize("left", [4, 9, 500, len(FORMS["zstd"]) - 1])
def test_truncated_zstd_is_unfinished(tmp_path: Path, left: int) -> None:
    """A zstd truncated file may still be written: it is called unfinished."""
    with pytest.raises(UnfinishedFile):
        _read(_write(tmp_path, FORMS["zstd"][:left]))


def test_trailing_garbage_after_gzip_is_refused(tmp_path: Path) -> None:
    """Other bytes after a gzip file are reported, with their position."""
    data = FORMS["gzip"] + b"garbage"
    with pytest.raises(
        TraceError, match=f"compressed byte {len(FORMS['gzip'])}: found other bytes after the gzip data"
    ):
        _read(_write(tmp_path, data))


@pytest.mark.parametrize(("form", "at"), [("gzip", 100_000), ("zstd", 4)])
def test_damage_is_a_trace_error(tmp_path: Path, form: str, at: int) -> None:
    """Bytes that were changed on the way are found, and are not taken for an unfinished file."""
    data = bytearray(FORMS[form])
    data[at : at + 40] = b"\xff" * 40
    with pytest.raises(TraceError, match="damaged") as caught:
        _read(_write(tmp_path, bytes(data)))
    assert not isinstance(caught.value, UnfinishedFile)


def test_wrong_checksum_is_damage(tmp_path: Path) -> None:
    """A gzip checksum that does not fit its data is damage."""
    data = bytearray(FORMS["gzip"])
    data[-6] ^= 1
    with pytest.raises(TraceError, match="damaged gzip data"):
        _read(_write(tmp_path, bytes(data)))


def test_reading_may_stop_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of a reader that stops after one block ends."""
    monkeypatch.setattr(bytestream, "BLOCK_BYTES", 1000)
    before = threading.active_count()
    reading = blocks(_write(tmp_path, FORMS["gzip"]), lambda _: None)
    assert TEXT.startswith(next(reading))
    reading.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


@pytest.mark.parametrize("left", [10, 500, len(FORMS["gzip"]) - 9, len(FORMS["gzip"]) - 1])
def test_all_bytes_of_a_cut_gzip_come_first(tmp_path: Path, left: int) -> None:
    """All bytes come before the error, to the last one."""
    wanted = zlib.decompressobj(wbits=31).decompress(FORMS["gzip"][:left])
    assert _until_error(_write(tmp_path, FORMS["gzip"][:left])) == wanted


def test_all_bytes_of_a_cut_zstd_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that meets the end loses nothing: all whole blocks are there."""
    monkeypatch.setattr(bytestream, "BLOCK_BYTES", 400_000)
    got = _until_error(_write(tmp_path, FORMS["zstd"][:-1]))
    assert TEXT.startswith(got)
    assert len(got) >= len(TEXT) - 131_072


def _until_error(path: Path) -> bytes:
    got: list[bytes] = []
    with pytest.raises(UnfinishedFile):
        got.extend(blocks(path, lambda _: None))
    return b"".join(got)


@pytest.mark.parametrize("form", FORMS)
def test_more_bytes_than_the_limit_are_refused(tmp_path: Path, form: str) -> None:
    """The limit counts bytes after decompression; the message names it and how to raise it."""
    path = _write(tmp_path, FORMS[form])
    assert b"".join(blocks(path, lambda _: None, len(TEXT))) == TEXT
    with pytest.raises(TraceError, match=f"at most {len(TEXT) - 1} bytes after decompression") as caught:
        list(blocks(path, lambda _: None, len(TEXT) - 1))
    assert "--max-bytes" in caught.value.advice
    assert not isinstance(caught.value, UnfinishedFile)
