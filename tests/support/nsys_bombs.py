"""nsys exports of kilobytes that hold any number of rows and bytes: programs in a schema, pages in a ring,
values that are repeated."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from tests.support.nsys_builders import (
    Tables,
    tables_of,
    two_ranks,
    write_arrowdir,
    write_parquetdir,
    write_sqlite,
)

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
MEGABYTE = 1_000_000
PAGE_BYTES = 4_096
HUGE = "hex(zeroblob(4000000))"
ENDLESS = "WITH RECURSIVE endless (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM endless)"
_INTERIOR = 5

Make = Callable[[Path], object]


def changed(*statements: str, tables: Tables | None = None) -> Make:
    """A good report on which statements were run; the schema may be written as any other table."""

    def make(path: Path) -> None:
        write_sqlite(path, tables or tables_of(two_ranks()))
        con = sqlite3.connect(path, isolation_level=None)
        con.execute("PRAGMA ignore_check_constraints = ON")
        con.execute("PRAGMA writable_schema = ON")
        for statement in statements:
            assert con.execute(statement).rowcount, f"nothing is changed by {statement}"
        con.close()

    return make


def instead_of(table: str, *statements: str) -> Make:
    """A good report in which a table is re-created; its rows are in `held`."""
    return changed(f'ALTER TABLE "{table}" RENAME TO held', *statements)


def definition(table: str, old: str, new: str) -> str:
    """A statement that changes a part of a table's definition."""
    return (
        f"UPDATE sqlite_master SET sql = replace(sql, '{old}', '{new}') WHERE name = '{table}' AND "
        f"instr(sql, '{old}')"
    )


def exchanged(one: str, other: str) -> str:
    """A statement after which each of two indexes has the rows of the other."""
    both = f"name IN ('{one}', '{other}')"
    return (
        f"UPDATE sqlite_master SET rootpage = (SELECT sum(rootpage) FROM sqlite_master WHERE {both}) - "
        f"rootpage WHERE {both}"
    )


def columns_of(table: str) -> list[str]:
    """The columns of a table of the good report."""
    return [c.name for c in tables_of(two_ranks())[table].columns]


def in_capitals(tables: Tables) -> Tables:
    """Tables and columns under names that differ in case only."""
    for table in tables.values():
        table.rows = [{name.upper(): value for name, value in row.items()} for row in table.rows]
        table.columns = [type(c)(c.name.upper(), c.kind, c.is_required) for c in table.columns]
    return {name.upper(): table for name, table in tables.items()}


def with_tree(table: str, tree: Callable[[int, int], list[list[int]]]) -> Make:
    """A good report in which a table's tree is another one: for every page, its children; given are the next
    new page and a leaf."""

    def make(path: Path) -> None:
        write_sqlite(path, tables_of(two_ranks()))
        with sqlite3.connect(path) as con:
            ((root,),) = con.execute(
                "SELECT rootpage FROM sqlite_master WHERE name = ?", [table]
            ).fetchall() or [(1,)]
        con.close()
        data = bytearray(path.read_bytes())
        head = 100 if root == 1 else 0
        at = (root - 1) * PAGE_BYTES
        cells = at + int.from_bytes(data[at + head + 5 : at + head + 7], "big")
        leaf = (data[at + head : cells] + bytes(PAGE_BYTES))[: cells - at] + data[cells : at + PAGE_BYTES]
        first = len(data) // PAGE_BYTES + 1
        pages = tree(first + 1, first)
        data[at + head : at + PAGE_BYTES] = _interior(pages[0], head)
        data += leaf
        for children in pages[1:]:
            data += _interior(children, 0)
        data[28:32] = (len(data) // PAGE_BYTES).to_bytes(4, "big")
        path.write_bytes(data)

    return make


def _interior(children: list[int], head: int) -> bytes:
    """A page of a table's tree with these children; the last one has no key."""
    page = bytearray(PAGE_BYTES - head)
    places = [PAGE_BYTES - 5 * (n + 1) for n in range(len(children) - 1)]
    page[0] = _INTERIOR
    page[3:5] = len(places).to_bytes(2, "big")
    page[5:7] = (places or [PAGE_BYTES])[-1].to_bytes(2, "big")
    page[8:12] = children[-1].to_bytes(4, "big")
    for number, place in enumerate(places):
        page[12 + 2 * number : 14 + 2 * number] = place.to_bytes(2, "big")
        page[place - head : place - head + 5] = children[number].to_bytes(4, "big") + bytes([number + 1])
    return bytes(page)


def chain(levels: int) -> Callable[[int, int], list[list[int]]]:
    """Pages with one child each."""
    return lambda first, leaf: [[first + n] for n in range(levels - 1)] + [[leaf]]


def fan(levels: int) -> Callable[[int, int], list[list[int]]]:
    """Pages whose hundred children are the same one."""
    return lambda first, leaf: [[first + n] * 100 for n in range(levels - 1)] + [[leaf] * 100]


def parquet(table: str, change: Callable[[pa.Table], pa.Table], **options: Any) -> Make:
    """A parquetdir, or the one that is there, with a changed table, compressed."""

    def make(path: Path) -> None:
        if not path.exists():
            write_parquetdir(path, tables_of(two_ranks()))
        file = path / f"{table}.parquet"
        pyarrow.parquet.write_table(
            change(pyarrow.parquet.read_table(file)), file, compression="zstd", **options
        )

    return make


def arrow(table: str, change: Callable[[pa.Table], pa.Table]) -> Make:
    """An arrowdir, or the one that is there, with a changed table."""

    def make(path: Path) -> None:
        if not path.exists():
            write_arrowdir(path, tables_of(two_ranks()))
        file = path / f"{table}.arrow"
        made = change(pyarrow.ipc.open_stream(file.read_bytes()).read_all())
        with pyarrow.ipc.new_stream(
            str(file), made.schema, options=pyarrow.ipc.IpcWriteOptions(allow_64bit=True)
        ) as writer:
            writer.write_table(made)

    return make


def repeated(times: int) -> Callable[[pa.Table], pa.Table]:
    """The first row, repeated."""
    return lambda table: table.take([0] * times)


def with_column(name: str, values: Callable[[int], pa.Array[Any]]) -> Callable[[pa.Table], pa.Table]:
    """Another column of that name."""
    return lambda table: table.set_column(table.schema.get_field_index(name), name, values(table.num_rows))


def long_texts(column: str, rows: int) -> Callable[[pa.Table], pa.Table]:
    """So many rows with one text of a megabyte, stored once."""
    return lambda table: with_column(column, lambda times: one_text(MEGABYTE, times))(repeated(rows)(table))


def one_text(size: int, rows: int) -> pa.Array[Any]:
    """A text of that size in every row, stored once."""
    return pa.DictionaryArray.from_arrays([0] * rows, pa.array(["x" * size]))


def beyond_its_bytes(path: Path) -> None:
    """An arrowdir whose last string ends a gigabyte after the file."""
    size = 54_321
    arrow("StringIds", with_column("value", lambda rows: pa.array([""] * (rows - 1) + ["x" * size])))(path)
    file = path / "StringIds.arrow"
    data = bytearray(file.read_bytes())
    at = data.rindex(size.to_bytes(4, "little"))
    data[at : at + 4] = (1 << 30).to_bytes(4, "little")
    file.write_bytes(data)


def nothing(rows: int) -> Callable[[pa.Table], pa.Table]:
    """The columns without a type, which take no byte however many rows they have."""
    none = pa.Array.from_buffers(pa.null(), rows, [None])
    return lambda table: pa.table(dict.fromkeys(table.schema.names, none))
