"""Land one file: read it whole into a staging folder, hold it to the contracts, commit it with one rename."""

from __future__ import annotations

import errno
import hashlib
import shutil
import stat
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipeline import duck
from pipeline.atomic import commit_folder
from pipeline.contracts import contracts
from pipeline.errors import SideFile, TraceError, UnfinishedFile
from pipeline.home import Home
from pipeline.sources.detect import reader_for
from pipeline.sources.job import MAX_BYTES, ReadJob
from pipeline.sources.names import as_text

_HASH_BLOCK = 1 << 20


@dataclass(frozen=True)
class Landed:
    """What became of a file: its id, and whether these bytes were in the run already."""

    run_id: str
    file_id: str
    was_known: bool


def land(
    home: Home,
    path: Path,
    run_name: str,
    on_read: Callable[[int], None],
    *,
    run_id: str | None = None,
    threads: int,
    memory_limit: str,
    salvage: bool = True,
    max_bytes: int = MAX_BYTES,
) -> Landed:
    """Read `path` into the lake under the run `run_name`. The same bytes again are a no-op, also when somebody lands them meanwhile.

    Raises TraceError (nothing is landed) or SideFile (it is no trace and need not be one); UnfinishedFile for a file
    without its end, if not told to salvage its complete events, and for one that changes while it is read.
    """
    read = reader_for(path)
    before = _state(path)
    sha256 = _sha256(path)
    file_id = sha256[:16]
    run_id = run_id or home.run_id_for(run_name)
    target = home.raw_run(run_id) / f"file_id={file_id}"
    if target.is_dir():
        return Landed(run_id, file_id, was_known=True)
    staging = home.staging / uuid.uuid4().hex
    out, work = staging / "out", staging / "work"
    out.mkdir(parents=True)
    work.mkdir()
    try:
        read(
            ReadJob(
                path=path,
                file_name=as_text(path.name),
                file_id=file_id,
                file_bytes=size_of(path),
                sha256=sha256,
                run_name=as_text(run_name),
                out=out,
                work=work,
                threads=threads,
                memory_limit=memory_limit,
                on_read=on_read,
                salvage=salvage,
                max_bytes=max_bytes,
            )
        )
        if _state(path) != before:
            raise UnfinishedFile(
                path.name,
                where="the file",
                found="that it changed while it was read",
                wanted="a file that nobody writes to",
                advice="Read it again when it is complete.",
            )
        _without_latencies(out)
        _check(out)
        try:
            commit_folder(out, target)
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise
            return Landed(run_id, file_id, was_known=True)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return Landed(run_id, file_id, was_known=False)


def _without_latencies(out: Path) -> None:
    """A trace holds no latency table: its readers do not know of one, and it lands with no rows."""
    file = out / "microbench.parquet"
    if not file.is_file():
        with duck.working(out.parent / "work", threads=1, memory_limit="256MB") as con:
            con.execute(f"COPY ({contracts('raw')['microbench'].empty_query()}) TO {duck.literal(file)} (FORMAT parquet)")


def _check(out: Path) -> None:
    """Hold every table to its contract: columns, types, no NULL where never, unique grain."""
    with duck.working(out.parent / "work", threads=1, memory_limit="256MB") as con:
        for table, contract in contracts("raw").items():
            contract.check(con, f"read_parquet({duck.files(out, f'{table}.parquet')}, hive_partitioning = false)")


def _state(path: Path) -> tuple[int, int] | None:
    """What changes when somebody writes to a file; None for a folder, or where the file has gone (it was open when read)."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files of a report's folder."""
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file()) if path.is_dir() else path.stat().st_size


def _sha256(path: Path) -> str:
    """Hash of the bytes as dropped; of a folder: of its files' sorted relative names and hashes."""
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file())
        listing = "\n".join(f"{p.relative_to(path).as_posix()} {_sha256(p)}" for p in files)
        return hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest()
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_HASH_BLOCK):
                digest.update(block)
    except OSError as error:
        raise TraceError(
            path.name, where="opening it", found=error.strerror or str(error), wanted="a readable file", advice="Check its permissions."
        ) from error
    return digest.hexdigest()


__all__ = ["Landed", "SideFile", "land"]
