"""Results on stdout: JSON that keeps every digit, CSV that other tools read, tables that are not cut."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from pipeline.present.output import TABLE_ROWS, write_rows


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2**63 - 1, "9223372036854775807"),
        (2**64 + 1, "18446744073709551617"),
        (-(2**100), "-1267650600228229401496703205376"),
        (Decimal("1234567890123456789.123"), "1234567890123456789.123"),
        (Decimal("1.500"), "1.5"),
        (Decimal("1E+3"), "1000"),
        (Decimal(0), "0"),
        (Decimal("1234567890123456789012345678901234.5678"), "1234567890123456789012345678901234.5678"),
        (0.1, "0.1"),
        (float("nan"), "null"),
        (None, "null"),
        (True, "true"),
        ('a\n"é', '"a\\n\\"é"'),
        (date(2026, 1, 2), '"2026-01-02"'),
        (datetime(2026, 1, 2, 3, 4, 5), '"2026-01-02T03:04:05"'),  # noqa: DTZ001
        (UUID(int=0), '"00000000-0000-0000-0000-000000000000"'),
        (b"\x00", "\"b'\\\\x00'\""),
    ],
)
def test_json_writes_each_value_exactly(capsys: pytest.CaptureFixture[str], value: Any, text: str) -> None:
    """Bigints and decimals are numbers with all their digits; NULL is null."""
    write_rows(["v"], [[value]], "json")
    assert capsys.readouterr().out == f'[\n  {{\n    "v": {text}\n  }}\n]\n'


def test_json_is_an_array_of_one_object_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    """Also for nested values."""
    write_rows(["a", "b"], [[1, [1, {"x": 2**70}]], [2, None]], "json")
    assert json.loads(capsys.readouterr().out) == [{"a": 1, "b": [1, {"x": 2**70}]}, {"a": 2, "b": None}]


def test_json_of_no_row_is_an_empty_array(capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts need no special case."""
    write_rows(["a"], [], "json")
    assert capsys.readouterr().out == "[]\n"


def test_json_loses_no_column_of_a_repeated_name(capsys: pytest.CaptureFixture[str]) -> None:
    """An object cannot hold two keys of one name, so the second gets a number."""
    write_rows(["a", "a", "a_1"], [[1, 2, 3]], "json")
    assert json.loads(capsys.readouterr().out) == [{"a": 1, "a_1": 2, "a_1_1": 3}]


def test_csv_quotes_what_needs_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Commas, quotes and line ends inside a value survive."""
    rows = [["void f<a, b>(int)", 'say "x"', "two\nlines"]]
    write_rows(["a,b", "c", "d"], rows, "csv")
    assert list(csv.reader(io.StringIO(capsys.readouterr().out))) == [["a,b", "c", "d"], *rows]


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1"]


def test_csv_writes_formulas_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    """An apostrophe stands before them; numbers, and texts that a spreadsheet shows as they are, stay."""
    rows = [[text, "a=1", -1, Decimal("-0.5"), -1.5, None] for text in FORMULAS]
    write_rows(["=a", "b", "c", "d", "e", "f"], rows, "csv")
    found = list(csv.reader(io.StringIO(capsys.readouterr().out, newline="")))
    guarded = [[f"'{text}", "a=1", "-1", "-0.5", "-1.5", ""] for text in FORMULAS]
    assert found == [["'=a", "b", "c", "d", "e", "f"], *guarded]


def test_raw_csv_keeps_texts_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """For programs that compare names."""
    write_rows(["a"], [[text] for text in FORMULAS], "csv", raw=True)
    found = list(csv.reader(io.StringIO(capsys.readouterr().out, newline="")))
    assert found[1:] == [[text] for text in FORMULAS]


NASTY = "\x1b]0;x\x07\x9b31m\u202e\r\n\x7f\U000e0001z"
ESCAPED = r"\x1b]0;x\x07\x9b31m\u202e\r\n\x7f\U000e0001z"


class Terminal(io.StringIO):
    """A stdout that is a terminal."""

    def isatty(self) -> bool:
        """It is."""
        return True


def test_csv_is_escaped_on_a_terminal_and_nowhere_else(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file or a pipe gets the bytes that are there."""
    write_rows(["name"], [[NASTY]], "csv", raw=True)
    assert capsys.readouterr().out == f'name\n"{NASTY}"\n'
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    write_rows([NASTY], [[NASTY], ["=\x1b"]], "csv")
    assert terminal.getvalue() == f"{ESCAPED}\n{ESCAPED}\n'=\\x1b\n"


def test_a_table_escapes_what_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    """In cells and heads, line breaks too: a name is on the row that it belongs to."""
    write_rows([NASTY], [[NASTY]], "table")
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == [ESCAPED, ESCAPED]


def test_a_plan_keeps_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """It is drawn with them; all else is escaped."""
    write_rows(["plan"], [["one\ntwo\x1b"]], "table", has_lines=True)
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == ["plan", "one", r"two\x1b"]


def test_json_escapes_what_a_terminal_obeys_and_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """In values, nested ones and keys."""
    write_rows([NASTY], [[NASTY], [[NASTY, {NASTY: NASTY}]]], "json")
    out = capsys.readouterr().out
    assert out.replace("\n", "").isprintable()
    assert json.loads(out) == [{NASTY: NASTY}, {NASTY: [NASTY, {NASTY: NASTY}]}]


def test_json_nests_with_an_indent_and_keeps_empty_ones_short(capsys: pytest.CaptureFixture[str]) -> None:
    """As a JSON formatter would."""
    value = [1, {"a": [], "b": {}, "c": [True]}]
    write_rows(["v"], [[value]], "json")
    assert capsys.readouterr().out == json.dumps([{"v": value}], indent=2) + "\n"


def test_csv_writes_null_as_nothing_and_numbers_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    """No exponent, no thousands separator, lower-case truth."""
    write_rows(["a", "b", "c", "d"], [[None, 2**63, Decimal("0.5"), False]], "csv")
    assert capsys.readouterr().out == "a,b,c,d\n,9223372036854775808,0.5,false\n"


def test_a_table_in_a_pipe_is_never_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long kernel name stays on its line."""
    monkeypatch.delenv("COLUMNS", raising=False)
    write_rows(["name", "n"], [["k" * 500, 1]], "table")
    assert "k" * 500 in capsys.readouterr().out


def test_a_table_on_a_narrow_screen_folds_and_does_not_truncate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No letter is lost."""
    monkeypatch.setenv("COLUMNS", "80")
    write_rows(["name"], [["k" * 200]], "table")
    out = capsys.readouterr().out
    assert out.count("k") == 200
    assert max(map(len, out.splitlines())) <= 80


def test_a_table_prints_brackets_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """A kernel's name is no markup."""
    write_rows(["[bold]"], [["f[red](x)"]], "table")
    out = capsys.readouterr().out
    assert "[bold]" in out
    assert "f[red](x)" in out


@pytest.mark.parametrize("form", ["csv", "json"])
def test_rows_are_written_as_they_come(capsys: pytest.CaptureFixture[str], form: Any) -> None:
    """What was written when the rows break off stays; a JSON without its last bracket is seen to be no whole
    answer."""

    def rows() -> Iterator[list[int]]:
        yield from ([n] for n in range(10_000))
        raise RuntimeError("broken off")

    with pytest.raises(RuntimeError, match="broken off"):
        write_rows(["n"], rows(), form)
    out = capsys.readouterr().out
    if form == "csv":
        assert out.splitlines() == ["n", *map(str, range(10_000))]
    else:
        written = json.loads(out + "]")
        assert written == [{"n": n} for n in range(len(written))]
        assert 0 < len(written) < 10_000


@pytest.mark.parametrize(
    ("rows", "warning"), [(TABLE_ROWS, ""), (TABLE_ROWS + 1, f"only the first {TABLE_ROWS} rows are shown")]
)
def test_a_table_ends_where_it_grows_too_long(
    capsys: pytest.CaptureFixture[str], rows: int, warning: str
) -> None:
    """The message is on stderr and names the formats that print everything."""
    write_rows(["n"], ([n] for n in range(rows)), "table")
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1 + TABLE_ROWS
    assert captured.err == (
        f"stepledger: {warning}; more rows: use --format csv (or json)\n" if warning else ""
    )
