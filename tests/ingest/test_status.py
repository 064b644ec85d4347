"""Where things are, and what readers counted: everything that waits, failed or is judged has its row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.errors import UsageError
from pipeline.ingest.status import issue_rows, status_rows
from pipeline.lake.home import Home
from pipeline.sources.issues import issue_codes
from tests.support.builders import GEMM, event, header, ingest_into, kernel, memcpy, write_trace
from tests.support.homes import drop, rank_trace

WORST_FIRST = ["fail", "warn", "info"]


def troubled(path: Path, rank: int) -> Path:
    """A trace with issues of every severity: durations below 0, an unknown category, an event for
    information."""
    events = [
        kernel(GEMM, 1_000_000, 20_000),
        kernel(GEMM, 2_000_000, -7_000),
        kernel(GEMM, 3_000_000, -8_000),
        memcpy("Memcpy DtoH", 4_000_000, -9_000),
        event("strange_category", "x", 5_000_000, 1_000),
        event("python_function", "f", 6_000_000, 1_000),
    ]
    return write_trace(path, events, header(rank, 2))


@pytest.fixture(scope="module")
def troubles(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with two runs: two troubled ranks, and one rank with nothing worse than an unknown name."""
    folder = tmp_path_factory.mktemp("troubles")
    home = Home(folder / "home")
    ingest_into(home, *(troubled(folder / f"t-rank-{rank}.json", rank) for rank in range(2)), run="troubled")
    ingest_into(home, rank_trace(folder / "f-rank-0.json", ranks=1), run="calm")
    return home


def stated(home: Home) -> list[list[Any]]:
    """The rows but those of disk space."""
    return [row for row in status_rows(home)[1] if row[0] != "disk"]


def test_a_fresh_home_has_nothing_to_say(home: Home) -> None:
    """No inbox file, no quarantine, no database: no row and no error."""
    assert status_rows(home)[0] == ["where", "what", "run", "state"]
    assert stated(home) == stated(Home(home.root / "not made yet")) == []


def test_the_disk_use_of_each_layer_is_listed(home: Home) -> None:
    """Folder by folder, in megabytes."""
    (home.archive / "x").write_bytes(bytes(1_500_000))
    sizes = {row[1]: row[3] for row in status_rows(home)[1] if row[0] == "disk"}
    assert sizes == dict.fromkeys(
        ["inbox", "quarantine", "lake/raw", "lake/marts", "lake/compact", "exports"], "0.0 MB"
    ) | {"archive": "1.5 MB"}


def test_running_processes_are_listed(home: Home) -> None:
    """A writer that holds the home, as long as it does."""
    with home.writing(lambda _: None):
        assert stated(home) == [["in work", "writer", None, "a writer is running"]]
    assert stated(home) == []


def test_files_in_the_inbox_are_ready_or_say_what_they_wait_for(home: Home, tmp_path: Path) -> None:
    """With the run that each will belong to."""
    trace = rank_trace(tmp_path / "x-rank-0.json")
    drop(home, trace, "mine/x-rank-0.json")
    drop(home, trace, "mine/half.json.part")
    drop(home, trace, "loose-rank-1.json")
    (home.inbox / "mine" / "new.json").write_text("{")
    rows = stated(home)
    assert [row[:3] for row in rows] == [
        ["inbox", "loose/loose-rank-1.json", "loose"],
        ["inbox", "mine/half.json.part", "mine"],
        ["inbox", "mine/new.json", "mine"],
        ["inbox", "mine/x-rank-0.json", "mine"],
    ]
    states = [row[3] for row in rows]
    assert states[0] == states[3] == "ready"
    assert states[1] == ".part marks an unfinished copy"
    assert states[2].endswith("run again when it has not changed for 5 s")


def test_quarantined_files_have_a_reason(home: Home, tmp_path: Path) -> None:
    """The file as it was dropped, its run, and the reader's own message."""
    bad = tmp_path / "bad.json"
    bad.write_text('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1}]}')
    drop(home, bad, "mine/bad.json")
    drop(home, rank_trace(tmp_path / "good-rank-0.json", ranks=1), "mine/good-rank-0.json")
    assert CliRunner().invoke(app.app, ["--home", str(home.root), "run"]).exit_code == 3
    rows = stated(home)
    assert [row[:3] for row in rows] == [["quarantine", "mine/bad.json", "mine"], ["run", "mine", "mine"]]
    assert rows[0][3].startswith("bad.json: traceEvents: found no kernel, memcpy or memset")


def test_runs_have_their_verdicts(troubles: Home) -> None:
    """One row per run and source."""
    assert stated(troubles) == [
        ["run", "calm", "calm", "kineto, 1 traces, verdict pass"],
        ["run", "troubled", "troubled", "kineto, 2 traces, verdict fail"],
    ]


def test_issues_are_listed_worst_first_with_what_to_do(troubles: Home) -> None:
    """By run, code and kind of event, over all files of the run."""
    columns, rows = issue_rows(troubles)
    assert columns == [
        "run_id",
        "severity",
        "code",
        "event_class",
        "events",
        "gpu_ns",
        "example",
        "meaning",
        "todo",
    ]
    found = [dict(zip(columns, row, strict=True)) for row in rows]
    order = [(WORST_FIRST.index(r["severity"]), r["run_id"], r["code"], r["event_class"]) for r in found]
    assert order == sorted(order)
    assert [
        (r["run_id"], r["code"], r["event_class"], r["events"], r["gpu_ns"])
        for r in found
        if r["severity"] == "fail"
    ] == [
        ("troubled", "negative_duration", "kernel", 4, -30_000),
        ("troubled", "negative_duration", "memcpy", 2, -18_000),
    ]
    assert {r["severity"] for r in found} == set(WORST_FIRST)
    assert [(r["events"], r["gpu_ns"]) for r in found if r["code"] == "python_function"] == [(2, None)]
    for row in found:
        entry = issue_codes()[row["code"]]
        assert (row["severity"], row["meaning"], row["todo"]) == (
            entry["severity"],
            entry["meaning"],
            entry["todo"],
        )


def test_the_command_prints_both_lists(troubles: Home) -> None:
    """On stdout, as a table or as JSON."""
    runner = CliRunner()
    table = runner.invoke(app.app, ["--home", str(troubles.root), "status", "--issues"])
    assert table.exit_code == 0
    assert "negative_duration" in table.stdout
    as_json = orjson.loads(
        runner.invoke(
            app.app, ["--home", str(troubles.root), "status", "--issues", "--format", "json"]
        ).stdout
    )
    assert [r["code"] for r in as_json[:2]] == ["negative_duration", "negative_duration"]
    assert (
        orjson.loads(
            runner.invoke(app.app, ["--home", str(troubles.root), "status", "--format", "json"]).stdout
        )[0]["where"]
        == "run"
    )


def test_issues_need_a_warehouse(home: Home) -> None:
    """Before the first run there is none, and it says what to do."""
    with pytest.raises(UsageError, match="no warehouse yet"):
        issue_rows(home)


@pytest.mark.parametrize("code", sorted(issue_codes()))
def test_every_issue_code_has_severity_meaning_and_remedy(code: str) -> None:
    """A severity of three, and two sentences; events of a code are left out of the tables only where it says
    so."""
    entry = issue_codes()[code]
    assert entry.keys() <= {"severity", "meaning", "todo", "skip"}
    assert entry["severity"] in WORST_FIRST
    assert entry["meaning"].endswith(".")
    assert entry["todo"].endswith(".")
    assert isinstance(entry.get("skip", False), bool)
