"""Advisory locks on open files. A lock dies with its process, so a crash never leaves one behind."""

from __future__ import annotations

import fcntl


def take(handle: int) -> None:
    """Wait until this process alone holds the lock. Raises OSError where the file system has no locks."""
    fcntl.flock(handle, fcntl.LOCK_EX)


def try_take(handle: int, *, shared: bool = False) -> bool:
    """Take the lock if no other process holds it. `shared`: holders of a shared lock do not exclude each
    other."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
