"""Answers of the analyses as text, JSON, CSV or Markdown."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal

from pipeline.analyses.report import Report
from pipeline.present.output import print_table, write_rows
from pipeline.text import printable

ReportFormat = Literal["table", "json", "csv", "md"]


def write_reports(reports: Sequence[Report], form: ReportFormat, *, raw: bool = False) -> None:
    """Print reports. JSON and CSV hold the first one's rows alone, for programs; their notes go to stderr.

    `raw`: CSV keeps texts that a spreadsheet would run.
    """
    if form in {"json", "csv"}:
        first = reports[0]
        write_rows(first.columns, first.rows, "json" if form == "json" else "csv", raw=raw)
        sys.stdout.flush()
        for note in (note for report in reports for note in (report.title, *report.notes)):
            sys.stderr.write(f"{printable(note)}\n")
        return
    for number, report in enumerate(reports):
        if number:
            sys.stdout.write("\n")
        if form == "md":
            _write_markdown(report)
        else:
            sys.stdout.write(f"{printable(report.title)}\n")
            if report.rows:
                sys.stdout.flush()
                print_table(report.columns, report.rows)
            for note in report.notes:
                sys.stdout.write(f"  {printable(note)}\n")


def _write_markdown(report: Report) -> None:
    sys.stdout.write(f"### {printable(report.title)}\n\n")
    if report.rows:
        lines = [report.columns, ["---"] * len(report.columns), *report.rows]
        for line in lines:
            sys.stdout.write(f"| {' | '.join(map(_markdown_cell, line))} |\n")
        sys.stdout.write("\n")
    for note in report.notes:
        sys.stdout.write(f"- {printable(note)}\n")


def _markdown_cell(value: Any) -> str:
    return "" if value is None else printable(str(value)).replace("\\", "\\\\").replace("|", "\\|")
