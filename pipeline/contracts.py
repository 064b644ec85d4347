"""Contracts: schemas/ describes every table, for landing, building, checking and documentation."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import duckdb

from pipeline.errors import ContractError
from pipeline.resources import resource

CONTRACT_VERSION = 4
"""Incremented when a table is added, or its columns or their meaning change: older marts are rebuilt."""

Layer = Literal["raw", "marts", "config", "quality"]


@dataclass(frozen=True)
class Column:
    """One column: its DuckDB type, meaning, range and allowed values.

    `values_from`: the allowed values are the names in schemas/categories.toml (`categories`, `rollups`) or in
    schemas/interconnects.toml (`interconnects`).
    """

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
        """The columns, cast to their types, in order: the last SELECT of a writer of this table."""
        return ", ".join(f'"{c.name}"::{c.type} AS "{c.name}"' for c in self.columns)

    def empty_query(self) -> str:
        """A query with this table's columns and no row (a view needs at least one file)."""
        return "SELECT " + ", ".join(f'NULL::{c.type} AS "{c.name}"' for c in self.columns) + " LIMIT 0"

    def check(self, con: duckdb.DuckDBPyConnection, relation: str, *, strict_nulls: bool = True) -> None:
        """Check `relation` (a table or a call of a table function) against this contract.

        Raises ContractError with the first difference: a column, its type, a NULL, or a repeated key.
        """
        try:
            bound = con.sql(f"FROM {relation}")
            found = list(zip(bound.columns, map(str, bound.types), strict=True))
        except duckdb.Error as error:
            raise ContractError(f"{self.layer}.{self.table}: cannot be read: {error}") from error
        wanted = [(c.name, c.type) for c in self.columns]
        if found != wanted:
            diff = sorted(set(wanted) ^ set(found)) or "the order of columns"
            raise ContractError(f"{self.layer}.{self.table}: columns differ from schemas/: {diff}")
        if strict_nulls:
            self._check_rows(con, relation)

    def _check_rows(self, con: duckdb.DuckDBPyConnection, relation: str) -> None:
        """NULLs and repeated keys, counted in one pass."""
        required = [c.name for c in self.columns if not c.null]
        names = {c.name for c in self.columns}
        key = ", ".join(f'"{k}"' for k in self.grain if k in names)
        counts = [f'count(*) - count("{name}")' for name in required]
        counts += [f"count(*) - count(DISTINCT row({key}))"] if key else []
        if not counts:
            return
        row = con.sql(f"SELECT {', '.join(counts)} FROM {relation}").fetchall()[0]
        if bad := {name: n for name, n in zip(required, row, strict=False) if n}:
            raise ContractError(f"{self.layer}.{self.table}: NULL in columns that are never NULL: {bad}")
        if key and row[-1]:
            repeated = f"SELECT {key}, count(*) FROM {relation} GROUP BY ALL HAVING count(*) > 1 LIMIT 1"
            raise ContractError(
                f"{self.layer}.{self.table}: {key} is not unique: {con.sql(repeated).fetchall()[0]}"
            )


@dataclass(frozen=True)
class Shared:
    """schemas/columns.toml: lists of values, and columns, by name."""

    values: dict[str, list[str]]
    columns: dict[str, dict[str, Any]]

    def column(self, entry: str | dict[str, Any]) -> Column:
        """A table's entry: the name of a shared column, or fields that add to it or replace them."""
        own = {"name": entry} if isinstance(entry, str) else entry
        fields = self.columns.get(own["name"], {}) | own
        values = fields.pop("values", [])
        if (listed := fields.get("values_from")) in self.values:
            values = self.values[fields.pop("values_from")]
        elif listed not in (None, "categories", "rollups", "interconnects"):
            raise ContractError(f"schemas/: {own['name']}: values_from = {listed!r} is not in columns.toml")
        values = (*values, *fields.pop("more_values", ()))
        try:
            return Column(**fields, values=values)
        except TypeError as error:
            raise ContractError(f"schemas/: {own['name']}: {error}; is it in columns.toml?") from error


@cache
def _shared() -> Shared:
    text = (resource("schemas") / "columns.toml").read_text(encoding="utf-8")
    return Shared(**tomllib.loads(text))


def _read(layer: Layer, text: str) -> Contract:
    data = tomllib.loads(text)
    return Contract(
        table=data["table"],
        layer=layer,
        doc=data["doc"],
        grain=tuple(data["grain"]),
        columns=tuple(_shared().column(entry) for entry in data["columns"]),
    )


@cache
def contracts(layer: Layer) -> dict[str, Contract]:
    """All contracts of a layer, by table name."""
    files = sorted((resource("schemas") / layer).glob("*.toml"))
    found = [_read(layer, f.read_text(encoding="utf-8")) for f in files]
    return {c.table: c for c in found}
