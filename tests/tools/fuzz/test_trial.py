"""A trial sees what it looks for: readers that are made to fail in each way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from pipeline.errors import TraceError
from pipeline.ingest.land import Landed, land
from pipeline.lake.home import Home
from tests.tools.fuzz import trial as trials
from tests.tools.fuzz.mutate import as_is
from tests.tools.fuzz.seeds import own_seeds
from tests.tools.fuzz.trial import Result


def outcome(home: Home, folder: Path, monkeypatch: pytest.MonkeyPatch, reader: Any) -> Result:
    """What a trial says of a valid trace that is landed by `reader`."""
    monkeypatch.setattr(trials, "land", reader)
    return trials.trial(home, folder, as_is(own_seeds()[0]), salvage=False, build=False)


def refusal() -> TraceError:
    """Any refusal."""
    return TraceError("m.json", where="here", found="this", wanted="that")


def test_an_error_without_a_name_is_a_finding(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that raises anything but a refusal has failed; the outcome is the error's name."""

    def failing(*_args: Any, **_options: Any) -> Landed:
        raise KeyError("ts")

    assert outcome(home, tmp_path, monkeypatch, failing).outcome == "KeyError"


def test_debris_of_a_refused_file_is_a_finding(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal that leaves its scratch folder behind has failed."""

    def untidy(*_args: Any, **_options: Any) -> Landed:
        (home.staging / "half").mkdir()
        raise refusal()

    assert outcome(home, tmp_path, monkeypatch, untidy).outcome == "debris"


def test_tables_of_a_refused_file_are_a_finding(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal after a commit has failed."""

    def too_late(*args: Any, **options: Any) -> Landed:
        land(*args, **options)
        raise refusal()

    assert outcome(home, tmp_path, monkeypatch, too_late).outcome == "debris"


@pytest.mark.parametrize("table", ["launch", "gpu_activity", "issue"])
def test_lost_rows_are_a_finding(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """Totals of which a row is gone do not agree."""

    def losing(*args: Any, **options: Any) -> Landed:
        done = land(*args, **options)
        file = home.raw_run(done.run_id) / f"file_id={done.file_id}" / f"{table}.parquet"
        pyarrow.parquet.write_table(pyarrow.parquet.read_table(file).slice(1), file)
        return done

    assert outcome(home, tmp_path, monkeypatch, losing).outcome == "broken books"


def test_events_that_were_never_read_are_a_finding(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Books that close over fewer events than a direct look finds are broken too."""

    def blind(home: Home, path: Path, *args: Any, **options: Any) -> Landed:
        whole = path.read_text()
        path.write_text(whole.replace('"traceEvents": [', '"traceEvents": [\n  {"ph": "X"},', 1))
        done = land(home, path, *args, **options)
        path.write_text(whole)
        return done

    assert outcome(home, tmp_path, monkeypatch, blind).outcome == "broken books"
