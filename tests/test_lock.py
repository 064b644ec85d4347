"""Advisory locks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pipeline import lock

HOLD = """
import os, sys
from pipeline import lock
handle = os.open(sys.argv[1], os.O_RDWR)
lock.take(handle)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_is_taken_once_and_dies_with_its_process(tmp_path: Path) -> None:
    """Another process cannot take it, alone or shared, until the holder ends."""
    file = tmp_path / "file"
    file.touch()
    handle = os.open(file, os.O_RDWR)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert not lock.try_take(handle)
    assert not lock.try_take(handle, shared=True)
    holder.kill()
    holder.communicate()
    assert lock.try_take(handle)
    os.close(handle)


def test_shared_locks_do_not_exclude_each_other(tmp_path: Path) -> None:
    """Two readers may hold one lock; a writer then may not."""
    file = tmp_path / "file"
    file.touch()
    first, second, writer = (os.open(file, os.O_RDWR) for _ in range(3))
    assert lock.try_take(first, shared=True)
    assert lock.try_take(second, shared=True)
    assert not lock.try_take(writer)
    for handle in (first, second, writer):
        os.close(handle)
