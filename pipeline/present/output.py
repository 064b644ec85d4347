"""Results on stdout in the formats people script against: a table, CSV, or JSON (an array, an object a row).

Cells come from traces that anyone may have written. A table and JSON escape what is not printable; CSV does
where stdout is a terminal, and always makes formulas text, unless asked to keep values as they
are.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import chain, islice
from math import isfinite
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.text import json_text, no_formula, printable, printable_lines

Format = Literal["table", "csv", "json"]
_WIDE = 100_000
TABLE_ROWS = 10_000
_BATCH_ROWS = 2048
_QUOTED = re.compile(r'[",\r\n]')
"""What a field of CSV is quoted for. Python's csv leaves a CR bare: spreadsheets begin a row there."""


def console() -> Console:
    """Stdout: as wide as the terminal; unlimited where it is no terminal, so that piped output is never
    truncated."""
    made = Console(highlight=False)
    return made if made.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=_WIDE)


def write_rows(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    form: Format,
    *,
    raw: bool = False,
    has_lines: bool = False,
) -> None:
    """Print one result as its rows come. A table, which needs all rows to find its widths, ends after
    TABLE_ROWS.

    `raw`: CSV keeps texts that a spreadsheet would run. `has_lines`: cells of a table may have several lines.
    """
    if form == "json":
        _write_json(_unique(columns), iter(rows))
    elif form == "csv":
        _write_csv(columns, rows, raw=raw)
    else:
        shown = list(islice(rows, TABLE_ROWS + 1))
        print_table(columns, shown[:TABLE_ROWS], has_lines=has_lines)
        if len(shown) > TABLE_ROWS:
            sys.stdout.flush()
            sys.stderr.write(
                f"stepledger: only the first {TABLE_ROWS} rows are shown; more rows: use --format csv "
                "(or json)\n"
            )


def _write_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, raw: bool) -> None:
    is_terminal = sys.stdout.isatty()

    def field(value: Any) -> str:
        text = "" if value is None else _text(value)
        text = no_formula(text) if isinstance(value, str) and not raw else text
        text = printable(text) if is_terminal else text
        return '"' + text.replace('"', '""') + '"' if _QUOTED.search(text) else text

    for row in chain([columns], rows):
        line = ",".join(map(field, row))
        sys.stdout.write((line if line or len(row) != 1 else '""') + "\n")


def _write_json(columns: Sequence[str], rows: Iterator[Sequence[Any]]) -> None:
    # orjson 3.13 crashes where it gets no memory for an answer, and `query` limits memory.
    keys = [f"\n    {json_text(column)}: " for column in columns]
    before = "[\n"
    while batch := list(islice(rows, _BATCH_ROWS)):
        sys.stdout.write(before + ",\n".join(_json_object(keys, row) for row in batch))
        before = ",\n"
    sys.stdout.write("[]\n" if before == "[\n" else "\n]\n")


def _json_object(keys: Sequence[str], row: Sequence[Any]) -> str:
    fields = ",".join(key + _json(value, "\n    ") for key, value in zip(keys, row, strict=True))
    return f"  {{{fields}\n  }}" if fields else "  {}"


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


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, has_lines: bool = False) -> None:
    """A table for eyes: numbers to the right, NULL as nothing."""
    shown = printable_lines if has_lines else printable
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        is_number = any(
            isinstance(row[number], (int, float, Decimal)) and not isinstance(row[number], bool)
            for row in rows
        )
        table.add_column(Text(printable(column)), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("" if v is None else shown(_text(v))) for v in row))
    console().print(table)


def _text(value: Any) -> str:
    return "true" if value is True else "false" if value is False else str(value)


def _json(value: Any, indent: str) -> str:  # noqa: PLR0911 - one return a type
    """A value of a result as JSON; `indent` is the line break and indent that it stands at."""
    if isinstance(value, str):
        return json_text(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return _text(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if isfinite(value) else "null"
    if isinstance(value, Decimal):
        text = format(value, "f")
        return (text.rstrip("0").rstrip(".") if "." in text else text) if value.is_finite() else "null"
    deeper = f"{indent}  "
    if isinstance(value, dict):
        fields = (f"{json_text(str(key))}: {_json(one, deeper)}" for key, one in value.items())
        return _joined("{}", fields, indent)
    if isinstance(value, (list, tuple)):
        return _joined("[]", (_json(one, deeper) for one in value), indent)
    return json_text(value.isoformat() if isinstance(value, (date, datetime)) else str(value))


def _joined(brackets: str, parts: Iterable[str], indent: str) -> str:
    inside = f",{indent}  ".join(parts)
    return f"{brackets[0]}{indent}  {inside}{indent}{brackets[1]}" if inside else brackets
