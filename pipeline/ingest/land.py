"""Land one file: read it whole into a staging folder, check it against the contracts, commit it with one
rename."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipeline import duck
from pipeline.contracts import contracts
from pipeline.errors import SideFile, TraceError, UnfinishedFile, UsageError, home_trouble
from pipeline.lake.atomic import commit_folder, staging_folder
from pipeline.lake.dropped import Dropped, opened, same_mode
from pipeline.lake.home import Home
from pipeline.sources.detect import reader_for
from pipeline.sources.job import MAX_BYTES, ReadJob
from pipeline.sources.names import as_text


@dataclass(frozen=True)
class Landed:
    """A landed file: its id, whether these bytes were in the run already, and which file was read."""

    run_id: str
    file_id: str
    was_known: bool
    inode: int = field(default=0, compare=False)


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
    inbox: Path | None = None,
) -> Landed:
    """Read `path` into the lake under the run `run_name`. The same bytes again are a no-op, also when another
    process lands them at the same time.

    `inbox`: the folder that the file was dropped into, below which no symbolic link is followed. Raises
    TraceError (nothing is landed) or SideFile (it is not a trace and need not be one); UnfinishedFile for a
    truncated file, unless its complete events are to be salvaged, and for one that changes while it is read;
    UsageError where the lake cannot be written.
    """
    run_id = run_id or home.run_id_for(run_name)
    with _staging(home) as (out, work, private), opened(path, private, inbox) as dropped:
        read = reader_for(dropped.path, dropped.folder)
        _refuse_large(dropped, max_bytes)
        before = dropped.state()
        sha256 = _sha256(dropped.path)
        landed = Landed(run_id, sha256[:16], was_known=False, inode=dropped.inode)
        target = home.raw_run(run_id) / f"file_id={landed.file_id}"
        if target.is_dir():
            return replace(landed, was_known=True)
        read(
            ReadJob(
                path=dropped.path,
                file_name=as_text(path.name),
                file_id=landed.file_id,
                file_bytes=dropped.size_bytes,
                sha256=sha256,
                run_name=as_text(run_name),
                out=out,
                work=work,
                threads=threads,
                memory_limit=memory_limit,
                on_read=on_read,
                salvage=salvage,
                max_bytes=max_bytes,
                folder=dropped.folder,
            )
        )
        if dropped.state() != before:
            raise UnfinishedFile(
                path.name,
                where="the file",
                found="that it changed while it was read",
                wanted="a finished file",
                advice="Read it again when it is complete.",
            )
        _check(out)
        same_mode(out, dropped.mode, dropped.gid)
        return replace(landed, was_known=not _committed(out, target))


@contextmanager
def _staging(home: Home) -> Iterator[tuple[Path, Path, Path]]:
    """Folders for the tables, for scratch files, and for the file as readers see it; always removed at the
    end."""
    with staging_folder(home.staging) as staging:
        folders = staging / "out", staging / "work", staging / "in"
        for folder in folders:
            folder.mkdir()
        folders[2].chmod(0o700)
        yield folders


def _refuse_large(dropped: Dropped, max_bytes: int) -> None:
    """A file that is larger than its decoded text may be is not even hashed."""
    if dropped.size_bytes > max_bytes:
        raise TraceError(
            dropped.name,
            where="the file",
            found=f"{dropped.size_bytes} bytes",
            wanted=f"at most {max_bytes} bytes",
            advice="If the trace is that large, raise the limit: --max-bytes N.",
        )


def _committed(out: Path, target: Path) -> bool:
    """Put the tables in place; False if another process has landed the same bytes in the meantime."""
    try:
        commit_folder(out, target)
    except OSError as error:
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
            return False
        if home_trouble(error):
            raise
        raise UsageError(
            f"{target.parent}: cannot be written: {error.strerror}. Check its permissions."
        ) from error
    return True


def _check(out: Path) -> None:
    """Check every table against its contract: columns, types, no NULL where not allowed, unique grain."""
    with duck.working(out.parent / "work", threads=1, memory_limit="256MB") as con:
        for table, contract in contracts("raw").items():
            contract.check(
                con, f"read_parquet({duck.files(out, f'{table}.parquet')}, hive_partitioning = false)"
            )


def _sha256(path: Path) -> str:
    """Hash of the bytes as dropped; of a folder: of its files' sorted names and hashes."""
    if path.is_dir():
        listing = "\n".join(f"{file.name} {_sha256(file)}" for file in sorted(path.iterdir()))
        return hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


__all__ = ["Landed", "SideFile", "land"]
