"""Text from elsewhere, made safe for what reads it: a terminal, a log, a JSON parser, a spreadsheet.

Names of files, kernels and GPUs come from traces that anyone may have written. Everything that stepledger
prints goes through `printable` (or `json_text`), so that none of them moves a cursor, sets a title or turns a
line around.
"""

from __future__ import annotations

import re
from json.encoder import encode_basestring

FORMULA = r"^([=+\-@\t\r\n\x{FF1D}\x{FF0B}\x{FF0D}\x{FF20}])"
"""The first characters (half and full width) that make a spreadsheet run a cell, for DuckDB and polars."""
_FORMULA = re.compile(r"[=+\-@\t\r\n\uFF1D\uFF0B\uFF0D\uFF20]")


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: 1 step, 2 steps, 1,000 steps."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def printable(text: str) -> str:
    """A text that stays on its line: line breaks, control and bidi characters and the like are escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def printable_lines(text: str) -> str:
    """The same for a message of several lines: its line feeds stay."""
    return "\n".join(map(printable, text.split("\n")))


def json_text(text: str) -> str:
    r"""A JSON string. What is not printable is written as \uXXXX: lossless, and safe on a terminal."""
    quoted = encode_basestring(text)
    return quoted if quoted.isprintable() else "".join(c if c.isprintable() else _utf16(c) for c in quoted)


def _utf16(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def no_formula(text: str) -> str:
    """A text that a spreadsheet shows and does not run: a leading apostrophe turns a formula into text."""
    return f"'{text}" if _FORMULA.match(text) else text
