"""Reports: one answer in four forms, notes included."""

from __future__ import annotations

import json

import pytest

from pipeline.analyses.report import Report
from pipeline.present.reports import ReportFormat, write_reports

REPORT = Report("Waiting of r", ["rank", "wait_ms"], [[0, 1.5], [None, 2.0]], ["clocks within 1 us"])


def test_a_table_has_title_and_notes(capsys: pytest.CaptureFixture[str]) -> None:
    """Everything stands on stdout: the title, the rows, what they rest on."""
    write_reports([REPORT, Report("Refused", [], [], ["no collective"])], "table")
    lines = capsys.readouterr().out.splitlines()
    assert [line.rstrip() for line in lines] == [
        "Waiting of r",
        "rank  wait_ms",
        "   0      1.5",
        "          2.0",
        "  clocks within 1 us",
        "",
        "Refused",
        "  no collective",
    ]


def test_json_holds_the_first_tables_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """Programs get an array of objects; notes go to stderr."""
    write_reports([REPORT, Report("Other", ["x"], [[1]])], "json")
    found = capsys.readouterr()
    assert json.loads(found.out) == [{"rank": 0, "wait_ms": 1.5}, {"rank": None, "wait_ms": 2.0}]
    assert found.err.splitlines() == ["Waiting of r", "clocks within 1 us", "Other"]


def test_csv_holds_the_first_tables_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """A header and rows, NULL as nothing."""
    write_reports([REPORT], "csv")
    assert capsys.readouterr().out == "rank,wait_ms\n0,1.5\n,2.0\n"


NASTY = "\x1b[2J\u202e\rz"
ESCAPED = r"\x1b[2J\u202e\rz"


@pytest.mark.parametrize("form", ["table", "md", "json", "csv"])
def test_nothing_a_terminal_obeys_is_printed(capsys: pytest.CaptureFixture[str], form: ReportFormat) -> None:
    """Neither from titles and notes nor from cells; a note is one line. CSV in a pipe keeps its cells."""
    write_reports([Report(NASTY, ["a"], [[NASTY]], [f"{NASTY}\n{NASTY}"])], form)
    found = capsys.readouterr()
    texts = found.err if form == "csv" else found.out + found.err
    assert texts.replace("\n", "").isprintable()
    assert rf"{ESCAPED}\n{ESCAPED}" in texts


def test_a_report_as_csv_can_be_raw(capsys: pytest.CaptureFixture[str]) -> None:
    """Formulas are made text otherwise."""
    write_reports([Report("T", ["a"], [["=1"]])], "csv")
    write_reports([Report("T", ["a"], [["=1"]])], "csv", raw=True)
    assert capsys.readouterr().out == "a\n'=1\na\n=1\n"


def test_a_cell_of_markdown_stays_in_its_column(capsys: pytest.CaptureFixture[str]) -> None:
    """Bars and the backslashes before them are escaped; a line break is no row."""
    write_reports([Report("T", ["a"], [["x\\|y\nz"]])], "md")
    assert "| x\\\\\\|y\\\\nz |\n" in capsys.readouterr().out


def test_markdown_is_a_section(capsys: pytest.CaptureFixture[str]) -> None:
    """A heading, a pipe table with bars in cells escaped, notes as a list."""
    write_reports([Report("T", ["a"], [["x|y"]], ["n"])], "md")
    assert capsys.readouterr().out == "### T\n\n| a |\n| --- |\n| x\\|y |\n\n- n\n"
