"""Rows of marts that break their contracts, counted by DuckDB in one scan a mart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import duckdb
import orjson

from pipeline import duck
from pipeline.contracts import Column, Contract
from pipeline.duck import literal
from pipeline.models.rules import categories, rollups
from pipeline.quality.checks import SAMPLE_ROWS, Result


@dataclass(frozen=True)
class Requirement:
    """One demand of a contract: its kind, its columns, and SQL that holds for a row that breaks it."""

    kind: str
    columns: tuple[str, ...]
    breaks: str

    @property
    def count(self) -> str:
        """SQL that counts what breaks it: rows, or for `unique` the rows beyond the first of each key."""
        if self.kind == "unique":
            return f"count(*) - count(DISTINCT row({self._names}))"
        return f"count(*) FILTER (WHERE {self.breaks})"

    def sample(self, table: str) -> str:
        """A query of a few values of its columns that break it."""
        if self.kind == "unique":
            return (
                f"SELECT {self._names} FROM {table} GROUP BY ALL HAVING count(*) > 1 ORDER BY ALL "
                f"LIMIT {SAMPLE_ROWS}"
            )
        return (
            f"SELECT DISTINCT {self._names} FROM {table} WHERE {self.breaks} ORDER BY ALL LIMIT {SAMPLE_ROWS}"
        )

    @property
    def _names(self) -> str:
        return ", ".join(f'"{name}"' for name in self.columns)


def requirements(contract: Contract) -> list[Requirement]:
    """All demands of a contract on rows; names, order and types of columns are compared before."""
    found = [one for column in contract.columns for one in _of_column(column)]
    return [*found, Requirement("unique", contract.grain, "")] if contract.grain else found


def _of_column(column: Column) -> list[Requirement]:
    name, found = f'"{column.name}"', []
    if not column.null:
        found.append(Requirement("not_null", (column.name,), f"{name} IS NULL"))
    limits = [(column.min, "<"), (column.max, ">")]
    outside = [f"{name} {sign} {limit}" for limit, sign in limits if limit is not None]
    if outside:
        found.append(Requirement("in_range", (column.name,), " OR ".join(outside)))
    allowed = {"categories": tuple(categories()), "rollups": rollups()}.get(
        column.values_from or "", column.values
    )
    if allowed:
        listed = ", ".join(map(literal, allowed))
        found.append(Requirement("in_set", (column.name,), f"{name} NOT IN ({listed})"))
    return found


def contract_result(con: duckdb.DuckDBPyConnection, contract: Contract) -> Result:
    """How many rows of a mart break its contract, with a sample of each demand that is broken."""
    table = contract.table
    bound = con.sql(f"FROM {table}")
    columns = list(zip(bound.columns, map(str, bound.types), strict=True))
    wanted = [(column.name, column.type) for column in contract.columns]
    if columns != wanted:
        differing = [f"{name} {kind}" for name, kind in columns if (name, kind) not in wanted]
        differing += [f"no {name} {kind}" for name, kind in wanted if (name, kind) not in columns]
        broken = {"requirement": "columns", "columns": [], "values": differing or ["another order"]}
        return _result(table, len(differing) or 1, [broken])
    demands = requirements(contract)
    counts = con.sql(f"SELECT {', '.join(one.count for one in demands)} FROM {table}").fetchall()[0]
    samples = [
        {"requirement": one.kind, "columns": list(one.columns), "values": duck.rows(con, one.sample(table))}
        for one, count in zip(demands, counts, strict=True)
        if count
    ]
    return _result(table, sum(counts), samples)


def _result(table: str, failing_rows: int, samples: list[dict[str, Any]]) -> Result:
    sample = orjson.dumps(samples[:SAMPLE_ROWS], default=str).decode() if samples else None
    return Result(
        check=f"contract.{table}",
        severity="fail",
        failing_rows=failing_rows,
        sample=sample,
        means=(
            f"The mart {table} breaks its contract (schemas/marts/{table}.toml): types, NULLs, ranges, "
            "sets or its grain."
        ),
        todo="Rebuild the run; report it if it stays.",
    )
