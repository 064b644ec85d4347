"""Listing a folder that others may write to: without a recursion, an error, or following a link."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson
import pytest

from pipeline.lake import beneath
from pipeline.lake.beneath import entries


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


def kinds_without_rights(root: Path) -> dict[str, str]:
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
    with os.fdopen(read, "rb") as pipe:
        found: dict[str, str] = orjson.loads(pipe.read())
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
        assert kinds_without_rights(root) == ({"closed/f": "file"} if is_mine else {"closed": "closed"}) | {
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
