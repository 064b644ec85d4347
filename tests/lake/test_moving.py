"""Moving files below a folder that others may write to: never over another file, never through a link."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import gettempdir

import pytest

from pipeline.lake.moving import Replaced, free_place, move

MEMORY = Path("/dev/shm")  # noqa: S108 (another file system than the temporary folder's)


def made(folder: Path, *names: str) -> Path:
    """A folder with files of these names."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    folder.mkdir(exist_ok=True)
    return folder


def inode(path: Path) -> int:
    """Which file this is."""
    return path.lstat().st_ino


def test_a_move_keeps_the_file_and_never_goes_over_another(tmp_path: Path) -> None:
    """A taken name gets a number, again and again; a link that points nowhere is someone's file too."""
    root, to = made(tmp_path / "root"), made(tmp_path / "to")
    (to / "f").symlink_to("nowhere")
    for number in range(3):
        (root / "f").write_text(str(number))
        which = inode(root / "f")
        place = move(root, Path("f"), to, Path("f"), which, aside=tmp_path)
        assert inode(to / place) == which
    assert [(to / f"f.{n}").read_text() for n in (2, 3, 4)] == ["0", "1", "2"]
    assert (to / "f").readlink() == Path("nowhere")


def test_two_files_of_the_longest_name_are_both_kept(tmp_path: Path) -> None:
    """A number is added to fewer letters where 255 bytes are the limit."""
    root, to = made(tmp_path / "root"), made(tmp_path / "to")
    for _ in range(2):
        (root / ("n" * 255)).touch()
        move(root, Path("n" * 255), to, Path("n" * 255), inode(root / ("n" * 255)))
    assert sorted(p.name for p in to.iterdir()) == ["n" * 253 + ".2", "n" * 255]


def test_a_folder_where_a_file_was_gets_another_name(tmp_path: Path) -> None:
    """`run/a` is a file in the quarantine, then `run/a/b` comes."""
    root, to = made(tmp_path / "root", "run/a/b"), made(tmp_path / "to", "run/a")
    assert free_place(to, Path("run/a/b")) == Path("run/a.2/b")
    assert move(root, Path("run/a/b"), to, Path("run/a/b"), inode(root / "run/a/b"), aside=tmp_path) == Path(
        "run/a.2/b"
    )


def test_nothing_is_moved_through_a_link(tmp_path: Path) -> None:
    """A folder that was exchanged for a link is not entered."""
    outside, root = made(tmp_path / "outside", "secret"), made(tmp_path / "root", "run/f")
    (root / "run").rename(tmp_path / "away")
    (root / "run").symlink_to(outside)
    with pytest.raises(OSError, match="Not a directory"):
        move(root, Path("run/secret"), made(tmp_path / "to"), Path("secret"), inode(outside / "secret"))
    assert (outside / "secret").exists()


def test_what_was_exchanged_stays_where_it_is(tmp_path: Path) -> None:
    """The file that was read is moved, or nothing."""
    root, to = made(tmp_path / "root", "f", "other"), made(tmp_path / "to")
    which = inode(root / "f")
    (root / "other").replace(root / "f")
    with pytest.raises(Replaced):
        move(root, Path("f"), to, Path("f"), which)
    assert (root / "f").read_text() == "other"
    assert list(to.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only an administrator may give a folder to another user")
def test_nothing_is_put_into_a_folder_of_another_user(tmp_path: Path) -> None:
    """It could be changed there: a folder of our own is made beside it, and what is moved becomes ours."""
    root, to = made(tmp_path / "root", "run/f"), made(tmp_path / "to", "run/g")
    for path in (root / "run" / "f", to / "run"):
        os.chown(path, 12345, 12345)
    place = move(root, Path("run/f"), to, Path("run/f"), inode(root / "run" / "f"), aside=tmp_path)
    assert place == Path("run.2/f")
    assert (to / place).stat().st_uid == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only an administrator may give a folder to another user")
def test_a_folder_of_another_user_becomes_ours(tmp_path: Path) -> None:
    """An export is moved file by file into a folder of ours."""
    root, to = made(tmp_path / "root", "x/StringIds.parquet", "x/T.parquet"), made(tmp_path / "to")
    os.chown(root / "x", 12345, 12345)
    place = move(root, Path("x"), to, Path("x"), inode(root / "x"), aside=tmp_path)
    assert (to / place).stat().st_uid == 0
    assert sorted(p.name for p in (to / place).iterdir()) == ["StringIds.parquet", "T.parquet"]
    assert not (root / "x").exists()


@pytest.mark.skipif(
    not MEMORY.is_dir() or MEMORY.stat().st_dev == Path(gettempdir()).stat().st_dev,
    reason="needs another file system",
)
def test_a_move_to_another_file_system_is_a_whole_copy_first(tmp_path: Path) -> None:
    """A file with its time, and an export with its files; nothing is left where they were."""
    root = made(MEMORY / f"stepledger-test-{os.getpid()}", "f", "x/StringIds.parquet", "x/T.parquet")
    to, aside = made(tmp_path / "to"), made(tmp_path / "aside")
    try:
        os.utime(root / "f", (5, 5))
        for name in ("f", "x"):
            assert move(root, Path(name), to, Path(name), inode(root / name), aside=aside) == Path(name)
        assert (to / "f").stat().st_mtime == 5
        assert sorted(p.name for p in (to / "x").iterdir()) == ["StringIds.parquet", "T.parquet"]
        assert list(root.iterdir()) == list(aside.iterdir()) == []
    finally:
        for path in sorted(root.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        root.rmdir()
