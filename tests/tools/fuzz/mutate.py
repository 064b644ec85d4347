"""One damaged trace from a seed number: the same number and seeds give the same bytes, always."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pyarrow as pa

from tests.tools.fuzz import reports, trees
from tests.tools.fuzz.seeds import Seed

_NAMES = (
    "m-rank-0",
    "m-rank-1",
    "m",
    "dp0_pp0_tp1_dcp0_ep1_rank1.1795968595060704456",
    "host_123.1795968595060704456",
    "x-rank-999999999",
    "m-TP-1-DP-0",
)
_TOKENS = (
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b",",
    b":",
    b"\\",
    b"\0",
    b"\xff",
    b"\n",
    b"\xef\xbb\xbf",
    b'{"ph": "X"',
    b'"traceEvents": [',
    b"],",
    b"}]",
    b"NaN",
)
_PAGE = 512


@dataclass(frozen=True)
class Mutant:
    """A damaged trace: the file's name, and its bytes or, of a folder, those of its files."""

    name: str
    data: bytes | dict[str, bytes]

    def write(self, folder: Path) -> Path:
        """Write it into a folder; returns its path."""
        path = folder / self.name
        if isinstance(self.data, bytes):
            path.write_bytes(self.data)
            return path
        path.mkdir()
        for name, data in self.data.items():
            (path / name).write_bytes(data)
        return path


def mutant(seeds: Sequence[Seed], seed: int, number: int) -> Mutant:
    """The mutant of this number."""
    random = Random(f"{seed}:{number}")  # noqa: S311 (reproducible on purpose)
    chosen = random.choice(seeds)
    if isinstance(chosen.data, str):
        return _text(chosen.data, seeds, random)
    if isinstance(chosen.data, bytes):
        return Mutant(f"{random.choice(_NAMES)}.sqlite", _database(chosen.data, seeds, random))
    files = dict(chosen.data)
    for _ in range(random.choice((1, 1, 2, 3))):
        files = reports.change_folder(files, random)
    if random.random() < 0.4 and files:
        name = random.choice(sorted(files))
        files[name] = _bytes(files[name], files[name], random)
    return Mutant(chosen.name, files)


def as_is(seed: Seed) -> Mutant:
    """The seed, not changed."""
    return Mutant(
        seed.name, seed.data.encode("utf-8", "surrogatepass") if isinstance(seed.data, str) else seed.data
    )


def _text(text: str, seeds: Sequence[Seed], random: Random) -> Mutant:
    other = random.choice([s.data for s in seeds if isinstance(s.data, str)])
    how = random.random()
    if how < 0.7:
        tree, donor = trees.parsed(text), trees.parsed(other)
        for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
            trees.change(tree, donor, random)
        data = trees.written(tree).encode("utf-8", "surrogatepass")
    else:
        data = text.encode("utf-8", "surrogatepass")
    if how > 0.6:
        for _ in range(random.choice((1, 1, 2, 4))):
            data = _bytes(data, other.encode("utf-8", "surrogatepass"), random)
    ending, data = _packed(data, random)
    if ending != ".json" and random.random() < 0.4:
        data = _bytes(data, gzip.compress(other.encode("utf-8", "surrogatepass"), mtime=0), random)
    return Mutant(f"{random.choice(_NAMES)}{ending}", data)


def _packed(data: bytes, random: Random) -> tuple[str, bytes]:
    """The text plain, or compressed in one member, in several, or with something after it."""
    how = random.random()
    if how < 0.6:
        return ".json", data
    if how < 0.7:
        return ".json.zst", bytes(pa.compress(data, codec="zstd", asbytes=True))
    if how < 0.85:
        return ".json.gz", gzip.compress(data, mtime=0)
    cut = random.randrange(len(data) + 1)
    suffix = random.choice(
        (
            b"",
            b"\0" * 100,
            b"x",
            b"\x1f",
            b"\x1f\x8b",
            gzip.compress(b"", mtime=0),
            gzip.compress(data, mtime=0),
        )
    )
    return ".pt.trace.json.gz", gzip.compress(data[:cut], mtime=0) + gzip.compress(
        data[cut:], mtime=0
    ) + suffix


def _database(data: bytes, seeds: Sequence[Seed], random: Random) -> bytes:
    how = random.random()
    if how < 0.7:
        data = reports.change_database(data, random, random.choice((1, 1, 1, 2, 3, 6)))
    if how > 0.6:
        other = random.choice([s.data for s in seeds if isinstance(s.data, bytes)])
        for _ in range(random.choice((1, 1, 2, 4))):
            data = _page(data, other, random) if random.random() < 0.6 else _bytes(data, other, random)
    return data


def _page(data: bytes, other: bytes, random: Random) -> bytes:
    """One page in another's place, emptied, of another file, with bytes of its header changed, or with other
    pages below it."""
    pages = max(len(data) // _PAGE, 1)
    at, source = random.randrange(pages) * _PAGE, random.randrange(pages) * _PAGE
    what = random.randrange(5)
    if what == 0:
        page = data[source : source + _PAGE]
    elif what == 1:
        page = b"\0" * _PAGE
    elif what == 2:
        page = other[source : source + _PAGE]
    elif what == 3:
        page = _parent(
            random.choices(range(1, pages + 1), k=random.choice((1, 2, 40))), random.choice((2, 5))
        )
    else:
        page = (
            bytes([random.choice((0, 2, 5, 10, 13, 255))]) + random.randbytes(7) + data[at + 8 : at + _PAGE]
        )
    return data[:at] + page + data[at + _PAGE :]


def _parent(children: list[int], kind: int) -> bytes:
    """A page of a tree above these: among them may be itself, its parents, and one of them many times."""
    places = [_PAGE - 6 * (n + 1) for n in range(len(children) - 1)]
    head = (
        bytes([kind, 0, 0])
        + len(places).to_bytes(2, "big")
        + (places or [_PAGE])[-1].to_bytes(2, "big")
        + b"\0"
        + children[-1].to_bytes(4, "big")
    )
    pointers = b"".join(place.to_bytes(2, "big") for place in places)
    cells = b"".join(
        child.to_bytes(4, "big") + bytes([1, number + 1])
        for number, child in reversed(list(enumerate(children[:-1])))
    )
    return head + pointers + bytes(_PAGE - len(head + pointers + cells)) + cells


def _bytes(data: bytes, other: bytes, random: Random) -> bytes:
    """Bytes flipped, cut, inserted, repeated, or spliced with another trace's."""
    at = random.randrange(len(data) + 1)
    until = min(len(data), at + random.choice((1, 2, 8, 60, 600)))
    what = random.randrange(8)
    if what in {6, 7}:
        return _flipped(data, random, whole=what == 6)
    suffix = (
        b"",
        data[until:],
        random.choice(_TOKENS) + data[at:],
        data[at:until] * random.choice((2, 4, 200)) + data[until:],
        other[random.randrange(len(other) + 1) :],
        random.choice(_TOKENS) * random.choice((1, 1_000, 30_000)) + data[at:],
    )
    return data[:at] + suffix[what]


def _flipped(data: bytes, random: Random, *, whole: bool) -> bytes:
    """Some bytes, or bits, changed in their places."""
    made = bytearray(data)
    for place in sorted(
        {random.randrange(len(made)) for _ in range(random.choice((1, 1, 3, 20)))} if made else ()
    ):
        made[place] = random.randrange(256) if whole else made[place] ^ (1 << random.randrange(8))
    return bytes(made)
