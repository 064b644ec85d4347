"""Contracts: schemas/*.toml are the one description of every table, used for landing, building, checking and
docs."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from typing import Literal

import duckdb

from pipeline.errors import ContractError
from pipeline.resources import resource

CONTRACT_VERSION = 4
"""Raised when a table is added, or its columns or their meaning change: marts of an older version are
rebuilt."""

Layer = Literal["raw", "marts", "config", "quality"]


@dataclass(frozen=True)
class Column:
    """One column: DuckDB type, what it holds, whether NULL is allowed, its range or set (`values_from`:
    categories or rollups)."""

    name: str
    type: str
    doc: str
    null: bool = False
    min: float | None = None
    max: float | None = None
    values: tuple[str, ...] = ()
    values_from: str | None = None


@dataclass(frozen=True)
class Contract:
    """One table: its columns in order, the columns that make a row unique, and what a row is."""

    table: str
    layer: Layer
    doc: str
    grain: tuple[str, ...]
    columns: tuple[Column, ...]

    def select_list(self) -> str:
        """The columns, cast to their types, in order: the last SELECT of whatever writes this table."""
        return ", ".join(f'"{c.name}"::{c.type} AS "{c.name}"' for c in self.columns)

    def empty_query(self) -> str:
        """A query of this table's shape with no row (a view needs at least one file of it)."""
        return "SELECT " + ", ".join(f'NULL::{c.type} AS "{c.name}"' for c in self.columns) + " LIMIT 0"

    def check(self, con: duckdb.DuckDBPyConnection, relation: str, *, strict_nulls: bool = True) -> None:
        """Hold `relation` (a table or a table function call) to this contract.

        Raises ContractError that names the first difference: a column, its type, a NULL, or a repeated key.
        """
        try:
            found = [(r[0], r[1]) for r in con.sql(f"DESCRIBE SELECT * FROM {relation}").fetchall()]
        except duckdb.Error as error:
            raise ContractError(f"{self.layer}.{self.table}: not there, or no table: {error}") from error
        wanted = [(c.name, c.type) for c in self.columns]
        if found != wanted:
            diff = sorted(set(wanted) ^ set(found)) or "the order of columns"
            raise ContractError(f"{self.layer}.{self.table}: columns differ from schemas/: {diff}")
        required = [c.name for c in self.columns if not c.null] if strict_nulls else []
        if required:
            counts = ", ".join(f'count(*) FILTER (WHERE "{name}" IS NULL)' for name in required)
            row = con.sql(f"SELECT {counts} FROM {relation}").fetchall()[0]
            bad = {name: n for name, n in zip(required, row, strict=True) if n}
            if bad:
                raise ContractError(f"{self.layer}.{self.table}: NULL where schemas/ says never: {bad}")
        key = [k for k in self.grain if k in dict(wanted)]
        if key and strict_nulls:
            names = ", ".join(f'"{k}"' for k in key)
            dup = con.sql(
                f"SELECT {names}, count(*) FROM {relation} GROUP BY ALL HAVING count(*) > 1 LIMIT 1"
            ).fetchall()
            if dup:
                raise ContractError(f"{self.layer}.{self.table}: {names} is not unique: {dup[0]}")


def _read(layer: Layer, text: str) -> Contract:
    data = tomllib.loads(text)
    return Contract(
        table=data["table"],
        layer=layer,
        doc=data["doc"],
        grain=tuple(data["grain"]),
        columns=tuple(Column(**{**c, "values": tuple(c.get("values", ()))}) for c in data["columns"]),
    )


@cache
def contracts(layer: Layer) -> dict[str, Contract]:
    """All contracts of a layer, by table name."""
    files = sorted((resource("schemas") / layer).glob("*.toml"))
    found = [_read(layer, f.read_text(encoding="utf-8")) for f in files]
    return {c.table: c for c in found}
