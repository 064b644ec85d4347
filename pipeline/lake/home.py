"""The home: the one place that defines the paths of inbox, archive, lake, database and exports, and locks
them for writing."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline import lock
from pipeline.errors import HomeError, UsageError, home_trouble

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
TEMPLATE = "_template"
"""Partition of zero-row files, so that every view has a file to read; no run's safe name starts with `_`."""


@dataclass(frozen=True)
class Home:
    """Paths under one root."""

    root: Path

    @property
    def inbox(self) -> Path:
        """Where traces are dropped."""
        return self.root / "inbox"

    @property
    def archive(self) -> Path:
        """Originals that were read."""
        return self.root / "archive"

    @property
    def quarantine(self) -> Path:
        """Originals that could not be read."""
        return self.root / "quarantine"

    @property
    def reasons(self) -> Path:
        """Why each file of the quarantine could not be read; no dropped file is ever stored here."""
        return self.root / "reasons"

    @property
    def raw(self) -> Path:
        """Raw Parquet: run_id=R/file_id=F/<table>.parquet."""
        return self.root / "lake" / "raw"

    @property
    def marts(self) -> Path:
        """Marts: run_id=R/<table>.parquet."""
        return self.root / "lake" / "marts"

    @property
    def config(self) -> Path:
        """Facts about runs that traces do not hold: run_id=R/run_config.parquet."""
        return self.root / "lake" / "config"

    @property
    def quality_lake(self) -> Path:
        """Results of checks: run_id=R/quality.parquet."""
        return self.root / "lake" / "quality"

    @property
    def compact(self) -> Path:
        """Old runs in few files: gen=G/<table>.parquet, and the manifest."""
        return self.root / "lake" / "compact"

    @property
    def staging(self) -> Path:
        """Work in progress, on the same filesystem as the lake so that a rename commits it."""
        return self.root / "lake" / ".staging"

    @property
    def database(self) -> Path:
        """Views over the lake, for any DuckDB client."""
        return self.root / "stepledger.duckdb"

    @property
    def exports(self) -> Path:
        """CSVs and manifests."""
        return self.root / "exports"

    @property
    def user_rules(self) -> Path:
        """The user's own kernel rules, tried before ours."""
        return self.root / "kernel_rules.toml"

    @property
    def user_markers(self) -> Path:
        """The user's own step markers, tried before ours."""
        return self.root / "step_markers.toml"

    def ensure(self) -> None:
        """Create the folders. Raises UsageError where the home cannot be created or written."""
        if odd := next((part for part in self.root.resolve().parts if "=" in part or "?" in part), None):
            raise UsageError(
                f"{self.root}: DuckDB gives `=` and `?` in the folder name {odd} another meaning. "
                "Choose a home without them in its path."
            )
        try:
            for folder in (
                self.inbox,
                self.archive,
                self.quarantine,
                self.reasons,
                self.raw,
                self.marts,
                self.config,
                self.quality_lake,
                self.compact,
                self.staging,
                self.exports,
            ):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> UsageError:
        return UsageError(
            f"{self.root}: the home cannot be written: {error.strerror}. Choose another with --home."
        )

    def raw_run(self, run_id: str) -> Path:
        """The folder of a run's raw Parquet."""
        return self.raw / f"run_id={run_id}"

    def mart_run(self, run_id: str) -> Path:
        """The folder of a run's marts."""
        return self.marts / f"run_id={run_id}"

    def config_run(self, run_id: str) -> Path:
        """The folder of a run's facts."""
        return self.config / f"run_id={run_id}"

    def quality_lake_run(self, run_id: str) -> Path:
        """The folder of a run's check results."""
        return self.quality_lake / f"run_id={run_id}"

    def quality_run(self, run_id: str) -> Path:
        """The folder of a run's quality pages."""
        return self.root / "quality" / run_id

    def run_ids(self) -> list[str]:
        """Runs with at least one committed trace, by name."""
        found = (
            p.name.removeprefix("run_id=")
            for p in self.raw.glob("run_id=*")
            if next(p.glob("file_id=*"), None)
        )
        return sorted(r for r in found if r != TEMPLATE)

    def run_id_for(self, name: str, also_taken: Iterable[str] = ()) -> str:
        """The safe form of a run's name: itself if it is safe and no other run differs only in case, else
        with a hash."""
        taken = {p.name.removeprefix("run_id=") for p in self.raw.glob("run_id=*")} | {*also_taken}
        if _SAFE.fullmatch(name) and not any(t != name and t.casefold() == name.casefold() for t in taken):
            return name
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("._-")[:60] or "run"
        return f"{stem}-{hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"

    def at_work(self) -> list[tuple[str, str]]:
        """Processes that hold this home now: (lock, state)."""
        return [
            (what, state)
            for what, state in (("writer", "a writer is running"), ("watch", "a watcher is running"))
            if self._is_held(what)
        ]

    def _is_held(self, what: str) -> bool:
        try:
            handle = os.open(self.lock(what), os.O_RDONLY)
        except OSError:  # never written, or not ours to open
            return False
        try:
            return not lock.try_take(handle, shared=True)
        finally:
            os.close(handle)

    def lock(self, what: str) -> Path:
        """The file that the writer, or the watcher, holds a lock on."""
        return self.root / {"writer": ".lock", "watch": ".watch.lock"}[what]

    def open_lock(self, what: str) -> int:
        """A lock file that only its owner can open: any user who can open it could lock it for ever. Raises
        UsageError."""
        try:
            handle = os.open(self.lock(what), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise self._unwritable(error) from error
        found = os.fstat(handle)
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != 0o600:  # an older version made it
            with suppress(PermissionError):  # a filesystem without modes
                os.fchmod(handle, 0o600)
        return handle

    def lock_token(self) -> str:
        """The random token of the current writer, in its lock file: a process that reads the same token sees
        the same home."""
        return self.lock("writer").read_text("ascii")

    @contextmanager
    def writing(self, say: Callable[[str], None]) -> Iterator[None]:
        """Hold the home for writing; waits, with a message, while another process has it. The lock dies with
        its process.
        """
        self.ensure()
        handle = self.open_lock("writer")
        try:
            if not lock.try_take(handle):
                say(f"waiting: another stepledger is writing to {self.root}")
                lock.take(handle)
            self._renew_token(handle)
            yield
        finally:
            os.close(handle)

    def _renew_token(self, handle: int) -> None:
        """Overwrite the token in place: a file that never shrinks needs no space on a full disk."""
        token = secrets.token_hex(16).encode()
        try:
            os.pwrite(handle, token, 0)
            os.ftruncate(handle, len(token))
            os.fsync(handle)  # other machines see it when they open the file
        except OSError as error:
            why = home_trouble(error) or error.strerror
            raise HomeError(f"{self.root}: {why}. No data is lost: re-run once this is fixed.") from error
