"""Golden files: what a small pair of ranks gives, byte by byte.

STEPLEDGER_UPDATE_GOLDEN=1 writes them anew; look at the difference before committing it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.analyses.breakdown import screens
from pipeline.lake.home import Home
from pipeline.lake.reading import reading
from pipeline.present.export import export_run
from pipeline.present.show import print_screen
from tests.support.paths import GOLDEN


def compare(name: str, data: bytes) -> None:
    """Hold bytes to the file of this name."""
    path = GOLDEN / name
    if os.environ.get("STEPLEDGER_UPDATE_GOLDEN"):
        path.write_bytes(data)
    assert data == path.read_bytes()


@pytest.mark.parametrize(("mart", "wide", "name"), [
    ("step_breakdown", False, "step_breakdown.csv"),
    ("run_breakdown", False, "run_breakdown.csv"),
    ("step_breakdown", True, "step_breakdown_wide.csv"),
])  # fmt: skip
def test_an_export_is_the_golden_file(built: Home, tmp_path: Path, mart: str, wide: bool, name: str) -> None:
    """Ids come from bytes and times from the trace, so nothing varies."""
    compare(name, export_run(built, "a", mart, "csv", tmp_path / name, wide=wide).path.read_bytes())


def test_the_screen_is_the_golden_file(
    built: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 80 columns, as people see it."""
    monkeypatch.setenv("COLUMNS", "80")
    with reading(built) as con:
        for screen in screens(con, "a", None):
            print_screen(screen)
    compare("show_80.txt", capsys.readouterr().out.encode())
