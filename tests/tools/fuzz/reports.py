"""Changes of nsys reports that stay readable as databases or tables: values, columns, types and tables that
nsys never writes."""

from __future__ import annotations

import io
import sqlite3
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

_CELLS: tuple[Any, ...] = (
    None, 0, 1, -1, 2**31, 2**32, 2**63 - 1, -(2**63), 10**18, 1.5, -0.0, float("inf"), 1e300, "", "0",
    "abc", "12", "x" * 5_000, "\0", "a\0b", b"", b"\xff\xfe", b"x" * 300, "'; --",
    "execute_context_1(8)_generation_0(0)", "cudaGraphLaunch_v10000", "true", "-5", "1 2",
)  # fmt: skip
_MOST_ROWS = 5_000
"""A table with more is changed no further: what is written of it would fill this memory."""
_KINDS = ("INTEGER", "TEXT", "BLOB", "REAL", "NUMERIC")
_ARROW_KINDS = (
    pa.string(), pa.large_string(), pa.binary(), pa.int8(), pa.int32(), pa.uint64(), pa.float64(),
    pa.bool_(), pa.timestamp("ns"), pa.decimal128(38, 2), pa.null(), pa.list_(pa.int64()),
    pa.dictionary(pa.int32(), pa.string()), pa.string_view(),
)  # fmt: skip
_IMPORTANT = (
    "CUPTI_ACTIVITY_KIND_",
    "StringIds",
    "NVTX_EVENTS",
    "PROCESSES",
    "ThreadNames",
    "TARGET_INFO_GPU",
    "META_DATA_EXPORT",
    "ANALYSIS",
    "TARGET_INFO_SES",
)


def change_database(data: bytes, random: Random, count: int) -> bytes:
    """Apply `count` changes to a database; what sqlite itself refuses changes nothing."""
    con = sqlite3.connect(":memory:")
    con.deserialize(data)
    for _ in range(count):
        try:
            _change_table(con, random)
        except (sqlite3.OperationalError, sqlite3.IntegrityError):
            continue  # most are of a table that an earlier change took away
    con.commit()
    made = con.serialize()
    con.close()
    return made


def _change_table(con: sqlite3.Connection, random: Random) -> None:
    tables = [
        name for (name,) in con.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    ]
    tables = [t for t in tables if t.startswith(_IMPORTANT)] if random.random() < 0.85 else tables
    if not tables:
        return
    table = random.choice(tables)
    columns = [row[1] for row in con.execute(f'PRAGMA table_info("{table}")')]
    column, other = random.choice(columns), random.choice(columns)
    some = (
        f'WHERE rowid IN (SELECT rowid FROM "{table}" ORDER BY rowid LIMIT 1 OFFSET {random.randrange(8)})'
        if random.random() < 0.6
        else ""
    )
    what = random.random()
    if what < 0.45:
        _loosen(con, table, columns)
        con.execute(f'UPDATE "{table}" SET "{column}" = ? {some}', [random.choice(_CELLS)])
    elif what < 0.55:
        _loosen(con, table, columns)
        con.execute(f'UPDATE "{table}" SET "{column}" = "{other}" {some}')
    elif what < 0.62:
        con.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
    elif what < 0.68:
        con.execute(
            f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO '
            f'"{random.choice((column.upper(), column + "_", "weird name", "rowid"))}"'
        )
    elif what < 0.74:
        con.execute(f'DROP TABLE "{table}"')
    elif what < 0.80:
        con.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}" {some}')
    elif what < 0.85:
        con.execute(f'DELETE FROM "{table}" {some}')
    elif what < 0.93:
        kind = random.choice(_KINDS)
        copied = ", ".join(f'CAST("{c}" AS {kind}) AS "{c}"' if c == column else f'"{c}"' for c in columns)
        _replaced(con, table, f"CREATE TABLE replaced AS SELECT {copied} FROM source")
    elif what < 0.97:
        _make_program(con, table, columns, random)
    else:
        con.execute(f'ALTER TABLE "{table}" RENAME TO "{random.choice((table.lower(), table + "2"))}"')


def _make_program(con: sqlite3.Connection, table: str, columns: list[str], random: Random) -> None:
    """A table that makes rows or bytes out of nothing, or holds what is looked at beside the rows."""
    names = ", ".join(f'"{c}"' for c in columns)
    numbers = ", ".join(f'i AS "{c}"' for c in columns)
    endless = (
        "WITH RECURSIVE endless (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM endless) SELECT "
        f"{numbers} FROM endless"
    )
    computed = "GENERATED ALWAYS AS (hex(zeroblob(1000000)))"
    made = random.choice((
        (f'ALTER TABLE "{table}" RENAME TO "{table}_held"', (f'CREATE VIEW "{table}" AS SELECT * FROM '
                                                            f'"{table}_held"')),
        (f'DROP TABLE "{table}"', f'CREATE VIEW "{table}" AS {endless}'),
        (f'DROP TABLE "{table}"', f"CREATE VIEW source AS {endless}", (f"CREATE VIRTUAL TABLE \"{table}\" "
                                                                      f"USING fts5({names}, content = "
                                                                      "'source')")),
        (f'ALTER TABLE "{table}" ADD COLUMN computed TEXT {computed}',),
        (f'ALTER TABLE "{table}" DROP COLUMN "{columns[-1]}"', (f'ALTER TABLE "{table}" ADD COLUMN '
                                                               f'"{columns[-1]}" TEXT {computed}')),
        (f'ALTER TABLE "{table}" DROP COLUMN "{columns[-1]}"', (f"ALTER TABLE \"{table}\" ADD COLUMN "
                                                               f"\"{columns[-1]}\" DEFAULT '{'x' * 5_000}'")),
        ((f'CREATE INDEX "i{random.random()}" ON "{table}" ("{columns[0]}", abs("{columns[-1]}")) WHERE '
         f'"{columns[0]}" > 5'), "ANALYZE"),
        (f'CREATE UNIQUE INDEX "i{random.random()}" ON "{table}" ({names})',),
        ((f'CREATE TRIGGER again AFTER DELETE ON "{table}" BEGIN INSERT INTO "{table}" SELECT * FROM '
         f'"{table}"; END'),),
    ))  # fmt: skip
    for statement in made:
        con.execute(statement)


def _loosen(con: sqlite3.Connection, table: str, columns: list[str]) -> None:
    """The table without types and NOT NULL, so that any value stays as it is given."""
    names = ", ".join(f'"{c}"' for c in columns)
    _replaced(con, table, f"CREATE TABLE replaced ({names})", fill=True)


def _replaced(con: sqlite3.Connection, table: str, create: str, *, fill: bool = False) -> None:
    con.execute(f'ALTER TABLE "{table}" RENAME TO source')
    con.execute(create)
    if fill:
        con.execute("INSERT INTO replaced SELECT * FROM source")
    con.execute("DROP TABLE source")
    con.execute(f'ALTER TABLE replaced RENAME TO "{table}"')


def change_folder(files: dict[str, bytes], random: Random) -> dict[str, bytes]:
    """One file of a report's folder gone, in another's place, or with other columns, types or rows."""
    made = dict(files)
    names = [n for n in sorted(made) if n.startswith(_IMPORTANT)]
    if not names:
        return made
    name, other = random.choice(names), random.choice(sorted(made))
    what = random.random()
    if what < 0.15:
        del made[name]
    elif what < 0.2:
        made[name] = made[other]
    else:
        made[name] = _changed_table(made[name], name, random)
    return made


def _changed_table(data: bytes, name: str, random: Random) -> bytes:
    is_parquet = name.endswith(".parquet")
    try:
        table = (
            pyarrow.parquet.read_table(io.BytesIO(data))
            if is_parquet
            else pyarrow.ipc.open_stream(data).read_all()
        )
    except (pa.ArrowException, OSError):
        return data  # damaged by an earlier change
    if table.num_columns == 0 or table.num_rows > _MOST_ROWS:
        return data
    at = random.randrange(table.num_columns)
    what = random.random()
    if what < 0.2:
        table = table.remove_column(at)
    elif what < 0.3:
        table = table.slice(0, random.choice((0, 1)))
    elif what < 0.38:
        table = pa.concat_tables([table, table])
    elif what < 0.4:
        table = table.take([0] * random.choice((0, 300, 3_000))) if table.num_rows else table
    elif what < 0.43 and not is_parquet:
        table = pa.table(dict.fromkeys(table.schema.names, pa.Array.from_buffers(pa.null(), 1 << 30, [None])))
    elif what < 0.5:
        table = table.append_column(table.schema.field(at).name, table.column(at))
    else:
        table = table.set_column(at, table.schema.field(at).name, _other_values(table.num_rows, random))
    out = io.BytesIO()
    if is_parquet:
        stored: dict[str, Any] = random.choice(
            ({}, {}, {"use_dictionary": False}, {"data_page_version": "2.0"}, {"data_page_size": 100})
        )
        try:
            pyarrow.parquet.write_table(
                table, out, compression=random.choice(("none", "zstd", "snappy")), **stored
            )
        except (pa.ArrowException, OSError):
            return data  # no Parquet type for it
    else:
        options = pyarrow.ipc.IpcWriteOptions(compression=random.choice((None, None, "zstd", "lz4")))
        with pyarrow.ipc.new_stream(out, table.schema, options=options) as writer:
            writer.write_table(table)
    return out.getvalue()


def _other_values(rows: int, random: Random) -> pa.Array[Any]:
    """A column of another type: NULL, or one value everywhere."""
    kind = random.choice(_ARROW_KINDS)
    value = random.choice(("0", "7", "-1", "abc", None, "9223372036854775807", "x" * 20_000))
    try:
        return pa.array([value] * rows, pa.string()).cast(kind)
    except (pa.ArrowException, NotImplementedError):
        return pa.nulls(rows, kind)
