"""Commits: whole or not at all, and never over something else."""

from __future__ import annotations

import os
import threading
from itertools import islice
from pathlib import Path

import pytest

from pipeline.lake.atomic import (
    RETIRED,
    commit_folder,
    exchange_folder,
    numbered,
    replacing,
    scratch,
    staging_folder,
    write_file,
)


def folder(path: Path, text: str) -> Path:
    """A folder with one file."""
    path.mkdir(parents=True)
    (path / "f").write_text(text)
    return path


def test_a_commit_moves_the_staged_folder_into_place(tmp_path: Path) -> None:
    """The target appears with everything in it, and the staged folder is gone."""
    staged = folder(tmp_path / "staged", "new")
    commit_folder(staged, tmp_path / "deep" / "target")
    assert (tmp_path / "deep" / "target" / "f").read_text() == "new"
    assert not staged.exists()


def test_a_commit_never_replaces_a_folder(tmp_path: Path) -> None:
    """What has been committed is immutable."""
    target = folder(tmp_path / "target", "old")
    with pytest.raises(OSError, match="not empty"):
        commit_folder(folder(tmp_path / "staged", "new"), target)
    assert (target / "f").read_text() == "old"


def test_an_exchange_without_a_target_is_a_commit(tmp_path: Path) -> None:
    """The first build leaves no old folder."""
    old = tmp_path / "old"
    old.mkdir()
    exchange_folder(folder(tmp_path / "staged", "new"), tmp_path / "deep" / "target", old)
    assert (tmp_path / "deep" / "target" / "f").read_text() == "new"
    assert list(old.iterdir()) == []


def test_an_exchange_keeps_what_was_there_for_readers_that_have_it_open(tmp_path: Path) -> None:
    """The new folder is in place; the old one waits under another name."""
    target, old = folder(tmp_path / "target", "old"), tmp_path / "old"
    old.mkdir()
    with (target / "f").open() as reader:
        exchange_folder(folder(tmp_path / "staged", "new"), target, old)
        assert reader.read() == "old"
    assert (target / "f").read_text() == "new"
    (kept,) = old.iterdir()
    assert kept.name.startswith("old-")
    assert (kept / "f").read_text() == "old"


def test_a_file_is_written_aside_and_replaces_the_old_one_whole(tmp_path: Path) -> None:
    """A reader that has the old file open still reads the old one; nothing else is left."""
    write_file(tmp_path / "d" / "f", b"old")
    with (tmp_path / "d" / "f").open("rb") as reader:
        write_file(tmp_path / "d" / "f", b"new")
        assert reader.read() == b"old"
    assert {p.name: p.read_bytes() for p in (tmp_path / "d").iterdir()} == {"f": b"new"}


def test_a_folder_is_never_missing_while_it_is_exchanged(tmp_path: Path) -> None:
    """A reader that looks all the time finds the old folder or the new one, in every one of many
    exchanges."""
    target, old = tmp_path / "target", tmp_path / "old"
    for folder in (target, old):
        folder.mkdir()
    missing, done = [], threading.Event()

    def look() -> None:
        while not done.is_set():
            if not target.is_dir():
                missing.append(True)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for number in range(400):
            staged = tmp_path / f"staged-{number}"
            staged.mkdir()
            exchange_folder(staged, target, old)
    finally:
        done.set()
        reader.join()
    assert missing == []


@pytest.mark.parametrize("name", ["f.json", "n" * 255, "ü" * 127 + "x", os.fsdecode(b"\xff" * 255)])
def test_numbered_names_are_valid_and_different(tmp_path: Path, name: str) -> None:
    """The name itself first; with a number it is no longer than a file system takes, and no letter is cut in
    two."""
    found = list(islice(numbered(name), 12))
    assert found[0] == name
    assert len({*found}) == 12
    for one in found:
        (tmp_path / one).touch()


def test_only_its_owner_can_open_the_lock_of_a_scratch_folder(tmp_path: Path) -> None:
    """Who can open a lock file can lock it for ever, whatever the umask lets through."""
    mask = os.umask(0)
    try:
        with scratch(tmp_path) as folder:
            assert folder.with_suffix(".lock").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(mask)


def test_a_folder_is_replaced_when_all_went_well(tmp_path: Path) -> None:
    """In one step; the old one is retired for readers that have it open, and no staging folder stays."""
    staging, target = tmp_path / "staging", folder(tmp_path / "target", "old")
    with replacing(target, staging) as new:
        (new / "f").write_text("new")
        assert (target / "f").read_text() == "old"
    assert (target / "f").read_text() == "new"
    (retired,) = staging.iterdir()
    assert retired.name.startswith(RETIRED)
    assert (retired / "f").read_text() == "old"


def test_a_folder_stays_as_it_was_when_writing_the_new_one_fails(tmp_path: Path) -> None:
    """What was written so far is removed."""
    staging, target = tmp_path / "staging", folder(tmp_path / "target", "old")

    def write_half() -> None:
        with replacing(target, staging) as new:
            (new / "f").write_text("half")
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        write_half()
    assert (target / "f").read_text() == "old"
    assert list(staging.iterdir()) == []


def test_a_staging_folder_is_removed_whatever_happens(tmp_path: Path) -> None:
    """With all that is in it."""
    with staging_folder(tmp_path / "staging", "spill-") as first:
        folder(first / "deep", "x")
        assert first.name.startswith("spill-")

    def fail() -> None:
        with staging_folder(tmp_path / "staging") as second:
            folder(second / "deep", "x")
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert list((tmp_path / "staging").iterdir()) == []
