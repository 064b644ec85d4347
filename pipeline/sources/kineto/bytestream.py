"""The decompressed bytes of a trace in blocks of bounded size: plain, gzip (one or more members) or zstd."""

from __future__ import annotations

import queue
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from pipeline.errors import TraceError, UnfinishedFile
from pipeline.sources.job import MAX_BYTES

BLOCK_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


def blocks(path: Path, on_read: Callable[[int], None], max_bytes: int = MAX_BYTES) -> Iterator[bytes]:
    """Yield the decompressed bytes of `path`; `on_read` gets the number of bytes read from disk.

    Raises UnfinishedFile, after all of its bytes, for a truncated compressed file; TraceError for one that is
    damaged or followed by other data, and for more than `max_bytes`.
    """
    given = 0
    for block in _decompressed(path, on_read):
        given += len(block)
        if given > max_bytes:
            raise TraceError(
                path.name,
                where=f"byte {max_bytes} of the decompressed text",
                found="more data",
                wanted=f"at most {max_bytes} bytes after decompression",
                advice="If the trace is that large, raise the limit: --max-bytes N.",
            )
        yield block


def _decompressed(path: Path, on_read: Callable[[int], None]) -> Iterator[bytes]:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic.startswith(_GZIP):
        return _ahead(_gunzip(path, on_read))
    if magic == _ZSTD:
        return _ahead(_unzstd(path, on_read))
    return _plain(path, on_read)


def _plain(path: Path, on_read: Callable[[int], None]) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            on_read(len(block))
            yield block


def _gunzip(path: Path, on_read: Callable[[int], None]) -> Iterator[bytes]:
    taken = 0
    with path.open("rb") as file:
        member = zlib.decompressobj(wbits=31)
        pending = b""
        while True:
            if not pending:
                pending = file.read(BLOCK_BYTES >> 2)
                taken += len(pending)
                on_read(len(pending))
                if not pending:
                    break
            if member.eof:
                pending = pending.lstrip(b"\0")
                if not pending:
                    continue
                if not _GZIP.startswith(pending[:2]):
                    raise TraceError(
                        path.name,
                        where=f"compressed byte {taken - len(pending)}",
                        found="other bytes after the gzip data",
                        wanted="the end of the file or another gzip member",
                        advice="Copy the file again.",
                    )
                member = zlib.decompressobj(wbits=31)
            try:
                out = member.decompress(pending, BLOCK_BYTES)
            except zlib.error as error:
                raise TraceError(
                    path.name,
                    where=f"compressed byte {taken - len(pending)}",
                    found=f"damaged gzip data ({error})",
                    wanted="a whole gzip file",
                    advice="Copy the file again; `gzip -t` must pass.",
                ) from error
            pending = member.unused_data if member.eof else member.unconsumed_tail
            if out:
                yield out
        if not member.eof:
            if rest := member.flush():
                yield rest
            raise UnfinishedFile(
                path.name,
                where=f"compressed byte {taken}",
                found="the end of the file inside gzip data",
                wanted="a whole gzip file",
                advice="The profiler was still writing, or the copy is truncated: copy it again.",
            )


def _unzstd(path: Path, on_read: Callable[[int], None]) -> Iterator[bytes]:
    taken = given = 0
    try:
        with path.open("rb") as file, pa.CompressedInputStream(pa.PythonFile(file), "zstd") as stream:
            while block := stream.read(BLOCK_BYTES):
                on_read(file.tell() - taken)
                taken = file.tell()
                given += len(block)
                yield block
    except OSError as error:
        is_truncated = "Truncated" in str(error)  # Arrow has one exception for both
        if is_truncated:
            yield _last_of_zstd(path, given)
        raise (UnfinishedFile if is_truncated else TraceError)(
            path.name,
            where=f"compressed byte {taken}",
            found="the end of the file inside zstd data" if is_truncated else f"damaged zstd data ({error})",
            wanted="a whole zstd file",
            advice="Copy the file again; `zstd -t` must pass.",
        ) from error


def _last_of_zstd(path: Path, given: int) -> bytes:
    """The bytes of a truncated file after the first `given` ones.

    A read that meets the end fails and loses its bytes, so the last ones are read one by one.
    """
    last = bytearray()
    with (
        path.open("rb") as file,
        pa.CompressedInputStream(pa.PythonFile(file), "zstd") as stream,
        suppress(OSError),
    ):
        while given:
            given -= len(stream.read(min(given, BLOCK_BYTES)))
        while byte := stream.read(1):
            last += byte
    return bytes(last)


def _ahead(source: Iterator[bytes]) -> Iterator[bytes]:
    """Run `source` in a thread, a few blocks ahead: decompression releases the interpreter's lock."""
    ready: queue.Queue[bytes | BaseException | None] = queue.Queue(maxsize=4)
    stop = threading.Event()

    def put(item: bytes | BaseException | None) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        try:
            for block in source:
                if not put(block):
                    return
            put(None)
        except BaseException as error:  # handed to the reading thread, raised there
            put(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        thread.join()
