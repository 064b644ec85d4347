"""Reports in nsys's own format: exported by the nsys on PATH, or refused with the command."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pipeline.errors import TraceError
from tests.support.builders import raw_rows
from tests.support.nsys_builders import WRITERS, read_report, tables_of, two_ranks, write

COMMAND = "nsys export --type=sqlite --force-overwrite=true serve.nsys-rep"


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """A file that only nsys could read."""
    path = tmp_path / "serve.nsys-rep"
    path.write_bytes(b"only nsys knows")
    return path


def _nsys(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Put a program called nsys on PATH; `form`, `output` and `report` are its arguments."""
    folder.mkdir()
    program = folder / "nsys"
    program.write_text(
        f"#!{sys.executable}\nimport shutil, sys\nform = sys.argv[2].removeprefix('--type=')\n"
        f"output = sys.argv[4].removeprefix('--output=')\nreport = sys.argv[5]\n"
        "assert sys.argv[1] == 'export' and sys.argv[3] == '--force-overwrite=true' and open(report).read() "
        f"== 'only nsys knows'\n{body}\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_without_nsys_the_refusal_gives_the_command(
    tmp_path: Path, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exact export command, to be run where nsys is."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TraceError) as refused:
        read_report(report, tmp_path)
    assert COMMAND in refused.value.advice
    assert refused.value.found == "a report in nsys's own format, and no nsys on PATH"


@pytest.mark.parametrize("known", WRITERS)
def test_with_nsys_the_report_is_exported_and_read(
    tmp_path: Path, report: Path, monkeypatch: pytest.MonkeyPatch, known: str
) -> None:
    """Newest form first, then what an older nsys can write."""
    made = write(tmp_path / "made", tables_of(two_ranks()), known)
    copy = "shutil.copytree" if made.is_dir() else "shutil.copy"
    refuse = f"if form != {known!r}: sys.exit('unknown form ' + form)"
    _nsys(tmp_path / "bin", monkeypatch, f"{refuse}\n{copy}({str(made)!r}, output)")
    read_report(report, tmp_path)
    assert (
        raw_rows(tmp_path, "trace", "file_name, source, gpu_events_read")
        == [("serve.nsys-rep", "nsys", 12)] * 2
    )


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (
            "print('Exporting')\nsys.exit('Exportation error: Version number is invalid: 2026@4@4')",
            "Version number is invalid",
        ),
        ("pass", "nothing written, and no error"),
        ("open(output, 'w').close()", "nothing written, and no error"),
        ("sys.exit(7)", "exit code 7"),
        ("sys.stderr.buffer.write(b'caf\\xe9'); sys.exit(1)", "caf"),
    ],
    ids=["newer_report", "silent", "empty", "code", "not_utf8"],
)
def test_a_failed_export_says_what_nsys_said(
    tmp_path: Path, report: Path, monkeypatch: pytest.MonkeyPatch, body: str, found: str
) -> None:
    """nsys refuses a newer report, or writes nothing and prints nothing: its last line and the command to try
    are in the message."""
    _nsys(tmp_path / "bin", monkeypatch, body)
    with pytest.raises(TraceError) as refused:
        read_report(report, tmp_path)
    assert found in refused.value.found
    assert COMMAND in refused.value.advice


def test_an_nsys_that_cannot_run_is_no_traceback(
    tmp_path: Path, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program for another machine is reported as failed."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "nsys"
    program.write_bytes(b"\x7fELF nothing")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(TraceError, match="a failure: Exec format error"):
        read_report(report, tmp_path)
