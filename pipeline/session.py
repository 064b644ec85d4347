"""Temporary files that a command writes outside the home. None of them stays, not even after SIGTERM.

A session's folder is `stepledger-*` in the system's temporary folder, locked by its process. The next session
removes the folders whose process has ended, as after SIGKILL.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir

from pipeline import lock
from pipeline.errors import UsageError

PREFIX = "stepledger-"
EXPORT = "export"
"""The one file that stepledger itself writes into a session's folder; all others are DuckDB's."""
ABANDONED_S = 60.0
"""Younger folders stay even without a lock: their process may be about to lock them."""
_OWN = re.compile(rf"duckdb_temp_.+|{EXPORT}")
"""The files of a session. A folder that holds anything else is not one of ours, even if it has such a
name."""
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_held: set[Path] = set()


@contextmanager
def folder() -> Iterator[Path]:
    """A private folder outside the home, removed at the end. Raises UsageError where it cannot be made."""
    root = Path(gettempdir())
    _remove_abandoned(root)
    made = root / f"{PREFIX}{uuid.uuid4().hex}"
    with held(made):  # before it is made: Ctrl-C may come in between
        try:
            made.mkdir(mode=0o700)
            handle = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
            lock.take(handle)
        except OSError as error:
            problem = f"no temporary folder can be made: {error.strerror}. Choose another with TMPDIR."
            raise UsageError(f"{root}: {problem}") from error
        try:
            yield made
        finally:
            os.close(handle)


@contextmanager
def held(made: Path) -> Iterator[None]:
    """Remove this folder at the end. SIGTERM and SIGHUP remove it too, and exit with 143 or 129."""
    _held.add(made)
    with _ended_by_signals():
        try:
            yield
        finally:
            shutil.rmtree(made, ignore_errors=True)
            _held.discard(made)


def remove_held() -> None:
    """Remove all folders held now, for a process that ends at once; DuckDB may still write to them."""
    for made in [*_held]:
        for _ in range(100):
            shutil.rmtree(made, ignore_errors=True)
            if not made.exists():
                break


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP, unless another handler is installed (`watch`) or they are ignored (`nohup`).

    Python runs a handler between two of its own instructions, and a statement in DuckDB can take minutes. But
    it writes a byte for each signal at once: a thread reads that, cleans up and ends the process.
    """
    taken = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    if not taken or threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    ender = threading.Thread(target=_end_by_signal, args=(reader, taken), daemon=True)
    ender.start()
    for number in taken:
        signal.signal(number, lambda _number, _frame: None)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(before)
        os.close(writer)
        ender.join()
        os.close(reader)


def _end_by_signal(reader: int, taken: list[signal.Signals]) -> None:
    while number := os.read(reader, 1):
        if number[0] in taken:
            remove_held()
            os._exit(128 + number[0])


def _remove_abandoned(root: Path) -> None:
    """Remove this user's session folders whose process has ended."""
    for path in root.glob(f"{PREFIX}*"):
        with suppress(OSError):  # removed meanwhile, a link, another user's, in use
            _remove_if_abandoned(path)


def _remove_if_abandoned(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(handle)
        is_ours = status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == 0o700
        if not is_ours or time.time() - status.st_mtime < ABANDONED_S:
            return
        if lock.try_take(handle) and all(_OWN.fullmatch(one.name) for one in path.iterdir()):
            shutil.rmtree(path)
    finally:
        os.close(handle)
