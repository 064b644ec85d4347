"""What lies below a folder that others may write to: found without a recursion or an error, moved without
following a link."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

import orjson
import pytest

from pipeline.lake import beneath
from pipeline.lake.beneath import Replaced, entries, free_place, move

MEMORY = Path("/dev/shm")  # noqa: S108 (another file system than the temporary folder's)


def made(folder: Path, *names: str) -> Path:
    """A folder with files of these names."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    folder.mkdir(exist_ok=True)
    return folder


def kinds(root: Path) -> dict[str, str]:
    """Kind by place."""
    return {entry.place.as_posix(): entry.kind for entry in entries(root)}


def test_every_kind_is_named(tmp_path: Path) -> None:
    """Files, exports, links (to files, folders, nowhere, themselves) and pipes; hidden names are left out."""
    root = made(
        tmp_path / "root",
        "a/b/c.json",
        "x_pqtdir/StringIds.parquet",
        "x_pqtdir/T.parquet",
        ".hidden/f",
        "y/.f",
    )
    os.mkfifo(root / "pipe")
    for name, target in (
        ("to_root", "/"),
        ("to_file", "a/b/c.json"),
        ("dangling", "nowhere"),
        ("loop", "loop"),
    ):
        (root / name).symlink_to(target)
    assert kinds(root) == {
        "a/b/c.json": "file",
        "x_pqtdir": "export",
        "pipe": "other",
        "to_root": "link",
        "to_file": "link",
        "dangling": "link",
        "loop": "link",
    }


@pytest.fixture
def nested(tmp_path: Path) -> Iterator[Callable[[str, int], Path]]:
    """Makes folders in each other, deeper than a path can name; pytest's own cleaning would end in a
    recursion."""

    def make(name: str, depth: int) -> Path:
        root = made(tmp_path / "root", "good.json")
        here = os.open(root, os.O_RDONLY)
        for _ in range(depth):
            os.mkdir(name, dir_fd=here)
            inner = os.open(name, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = inner
        os.close(here)
        return root

    yield make
    subprocess.run(["rm", "-rf", str(tmp_path / "root")], check=True)


@pytest.mark.parametrize(
    ("name", "depth", "looked_into"), [("a", 1100, beneath.MAX_DEPTH), ("n" * 200, 25, 4)]
)
def test_folders_are_looked_into_to_a_depth(
    nested: Callable[[str, int], Path], name: str, depth: int, looked_into: int
) -> None:
    """Neither a recursion nor a path that the system does not take: the first folder that is too deep is
    named."""
    found = entries(nested(name, depth))
    assert sorted((entry.kind, len(entry.place.parts)) for entry in found) == [
        ("deep", looked_into + 1),
        ("file", 1),
    ]


def test_no_more_than_so_many_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder that holds too many is named beside what was looked at."""
    monkeypatch.setattr(beneath, "MAX_ENTRIES", 3)
    root = made(tmp_path / "root", *(f"run/{n}" for n in range(9)))
    assert sorted(kinds(root).values()) == ["file", "file", "many"]


def kinds_as_nobody(root: Path) -> dict[str, str]:
    """The same, as a user without rights would see it: a process of its own gives them up."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        if os.geteuid() == 0:
            os.setuid(65534)
        os.write(write, orjson.dumps(kinds(root)))
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as told:
        found: dict[str, str] = orjson.loads(told.read())
    os.waitpid(child, 0)
    return found


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o744])
def test_a_closed_folder_is_named(mode: int) -> None:
    """One that cannot be listed, and one whose names can be listed and nothing more; the others are looked
    into."""
    with TemporaryDirectory() as open_to_all:
        Path(open_to_all).chmod(0o755)
        root = made(Path(open_to_all) / "root", "closed/f", "open/f")
        (root / "closed").chmod(mode)
        is_mine = os.geteuid() != 0 and mode & 0o500 == 0o500
        assert kinds_as_nobody(root) == ({"closed/f": "file"} if is_mine else {"closed": "closed"}) | {
            "open/f": "file"
        }
        (root / "closed").chmod(0o700)


def test_a_folder_exchanged_for_a_link_is_not_entered(tmp_path: Path) -> None:
    """Between the listing of its parent and its own."""
    outside = made(tmp_path / "outside", "secret")
    root = made(tmp_path / "root", "run/f")
    (root / "run").rename(tmp_path / "away")
    (root / "run").symlink_to(outside)
    with pytest.raises(OSError, match="Not a directory"), beneath.folder(root, ["run"]):
        pass
    with pytest.raises(OSError, match="Not a directory"):
        move(
            root,
            Path("run/secret"),
            made(tmp_path / "to"),
            Path("secret"),
            (outside / "secret").stat().st_ino,
        )
    assert (outside / "secret").exists()


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
