"""Results on stdout in the formats people script against: a table, CSV, or JSON (an array of objects, one per row)."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import islice
from typing import Any, Literal

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

Format = Literal["table", "csv", "json"]
_INT64 = range(-(2**63), 2**64)
_WIDE = 100_000
TABLE_ROWS = 10_000
_BATCH_ROWS = 2048


def console() -> Console:
    """Stdout: as wide as the terminal; unlimited where it is none, so that nothing is cut from a pipe."""
    made = Console(highlight=False)
    return made if made.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=_WIDE)


def write_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]], form: Format) -> None:
    """Print one result as its rows come. A table needs all its rows to find its widths: it ends after TABLE_ROWS, and says so."""
    if form == "json":
        _write_json(_unique(columns), iter(rows))
    elif form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(["" if v is None else _text(v) for v in row] for row in rows)
    else:
        shown = list(islice(rows, TABLE_ROWS + 1))
        print_table(columns, shown[:TABLE_ROWS])
        if len(shown) > TABLE_ROWS:
            sys.stdout.flush()
            sys.stderr.write(f"stepledger: only the first {TABLE_ROWS} rows are shown; more rows: use --format csv (or json)\n")


def _write_json(columns: Sequence[str], rows: Iterator[Sequence[Any]]) -> None:
    """An array that grows batch by batch: each is written as an array of its own, less its brackets."""
    before = "["
    while objects := [dict(zip(columns, map(_json_value, row), strict=True)) for row in islice(rows, _BATCH_ROWS)]:
        text = orjson.dumps(objects, default=str, option=orjson.OPT_INDENT_2).decode()
        sys.stdout.write(before + text[1:-2])
        before = ","
    sys.stdout.write("[]\n" if before == "[" else "\n]\n")


def _unique(columns: Sequence[str]) -> list[str]:
    """Column names as keys of an object: a repeated one gets a number, as DuckDB names it in a table."""
    found: list[str] = []
    for column in columns:
        name, number = column, 0
        while name in found:
            number += 1
            name = f"{column}_{number}"
        found.append(name)
    return found


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table for eyes: numbers to the right, NULL as nothing."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        is_number = any(isinstance(row[number], (int, float, Decimal)) and not isinstance(row[number], bool) for row in rows)
        table.add_column(Text(column), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("" if v is None else _text(v)) for v in row))
    console().print(table)


def _text(value: Any) -> str:
    return "true" if value is True else "false" if value is False else str(value)


def _json_value(value: Any) -> Any:
    if isinstance(value, bool) or value is None or isinstance(value, (str, float, date, datetime)):
        return value
    if isinstance(value, int):
        return value if value in _INT64 else orjson.Fragment(str(value).encode())
    if isinstance(value, Decimal):
        text = format(value, "f")
        return orjson.Fragment((text.rstrip("0").rstrip(".") if "." in text else text).encode()) if value.is_finite() else None
    if isinstance(value, dict):
        return {str(k): _json_value(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(v) for v in value]
    return str(value)
