"""Verdicts: what checks found, kept with the build they looked at, and what a failed run costs its owner and
no one else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import orjson
import pytest
from typer.testing import CliRunner, Result

from pipeline import duck
from pipeline.cli import app
from pipeline.contracts import contracts
from pipeline.errors import ExitCode, UsageError
from pipeline.lake.home import Home
from pipeline.lake.reading import opened
from pipeline.lake.settings import Settings
from pipeline.models.build import build_run
from pipeline.models.rules import load_rules
from pipeline.present.export import run_verdict
from pipeline.quality.checks import Check, CheckError, ask
from pipeline.quality.checks import Result as Finding
from pipeline.quality.checks import checks as all_checks
from pipeline.quality.verdicts import check_run, docs_page, verdict
from tests.support.builders import (
    ALL_REDUCE,
    DECODE,
    GEMM,
    MARLIN_MOE,
    StepBuilder,
    header,
    ingest_into,
    kernel,
    write_trace,
)
from tests.support.homes import HANG_S, STRANGE, copied, drop, environment


def steps() -> StepBuilder:
    """Four decode steps in which nothing is wrong."""
    made = StepBuilder()
    for number in range(4):
        made.step([(GEMM, 20_000), (ALL_REDUCE, 30_000 + number), (MARLIN_MOE, 25_000)], DECODE)
    return made


def fine_trace(path: Path) -> Path:
    """A trace that passes."""
    return write_trace(path, steps().events, header(0, 1))


def bad_trace(path: Path) -> Path:
    """A trace that fails: a kernel has a negative duration."""
    made = steps()
    return write_trace(path, [*made.events, kernel(GEMM, made.now_ns, -5_000)], header(0, 1))


def odd_trace(path: Path) -> Path:
    """A trace to be warned of: a few percent of its time have a name that no rule claims."""
    return write_trace(path, steps().step([(STRANGE, 10_000)], DECODE).events, header(0, 1))


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with a run that passes, one to be warned of, and one that fails."""
    folder = tmp_path_factory.mktemp("judged")
    home = Home(folder / "home")
    for run, write, wanted in (
        ("fine", fine_trace, "pass"),
        ("odd", odd_trace, "warn"),
        ("bad", bad_trace, "fail"),
    ):
        assert ingest_into(home, write(folder / f"{run}-rank-0.json"), run=run).verdicts == {run: wanted}
    return home


def call(home: Home, *arguments: str) -> Result:
    """The command in this process."""
    return CliRunner().invoke(app.app, ["--home", str(home.root), *arguments])


def verdicts(home: Home) -> dict[str, str]:
    """The verdict of each run, from the view."""
    with opened(home) as con:
        return dict(duck.rows(con, "SELECT run_id, verdict FROM runs"))


def finding(severity: str, rows: int) -> Finding:
    """What one check found."""
    return Finding("x", severity, rows, None, "", "")


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ([], "pass"),
        ([("fail", 0), ("warn", 0), ("info", 0)], "pass"),
        ([("info", 9)], "pass"),
        ([("warn", 1), ("info", 1)], "warn"),
        ([("warn", 0), ("info", 1), ("fail", 0)], "pass"),
        ([("warn", 1), ("fail", 1)], "fail"),
        ([("fail", 1)], "fail"),
    ],
)
def test_the_verdict_is_the_worst_severity_that_failed(found: list[tuple[str, int]], wanted: str) -> None:
    """What is for information never counts."""
    assert verdict([finding(*one) for one in found]) == wanted


def test_ingest_gives_each_run_its_verdict(judged: Home) -> None:
    """The view `runs` says what the checks of the present build found."""
    assert verdicts(judged) == {"fine": "pass", "odd": "warn", "bad": "fail"}
    assert [run_verdict(judged, r) for r in ("fine", "odd", "bad")] == ["pass", "warn", "fail"]


def test_results_hold_to_their_contract(judged: Home) -> None:
    """One row per check and build, of the columns and types of schemas/quality, never NULL where it says
    never."""
    for run in ("fine", "odd", "bad"):
        file = duck.files(judged.quality_lake_run(run), "quality.parquet")
        with duckdb.connect() as con:
            contracts("quality")["quality"].check(con, f"read_parquet({file}, hive_partitioning = false)")


def test_results_are_kept_with_the_build_that_was_checked(judged: Home) -> None:
    """Every check has one row, with its severity, whether it passed, and what to do."""
    with opened(judged) as con:
        builds = dict(duck.rows(con, "SELECT run_id, build_id FROM run_facts"))
        rows = duck.dicts(con, "SELECT * FROM quality WHERE run_id = 'bad' ORDER BY \"check\"")
    assert [(r["check"], r["severity"], r["means"], r["todo"]) for r in rows] == [
        (c.name, c.severity, c.means, c.todo) for c in all_checks()
    ]
    assert {r["build_id"] for r in rows} == {builds["bad"]}
    assert all(r["is_passed"] == (r["failing_rows"] == 0) == (r["sample"] is None) for r in rows)


def test_a_failing_check_shows_a_sample(judged: Home) -> None:
    """A few of the rows that are wrong, as JSON."""
    with opened(judged) as con:
        ((check, failing_rows, sample),) = duck.rows(
            con,
            (
                "SELECT \"check\", failing_rows, sample FROM quality WHERE run_id = 'bad' AND NOT is_passed "
                "AND "
                "severity = 'fail'"
            ),
        )
    assert (check, failing_rows) == ("file_issues_fail", 1)
    (row,) = json.loads(sample)
    assert (row["code"], row["event_class"], row["count"]) == ("negative_duration", "kernel", 1)


@pytest.mark.usefixtures("without_gx")
def test_a_rebuilt_run_is_unchecked_until_it_is_checked(judged: Home, tmp_path: Path) -> None:
    """Results of another build do not count; the other runs keep theirs."""
    home = copied(judged, tmp_path / "home")
    build_run(home, "bad", load_rules(home.user_rules), Settings(1))
    assert verdicts(home) == {"fine": "pass", "odd": "warn", "bad": "unchecked"}
    assert call(home, "check", "bad").exit_code == ExitCode.QUALITY
    assert verdicts(home) == {"fine": "pass", "odd": "warn", "bad": "fail"}


def test_build_checks_what_it_built(judged: Home, tmp_path: Path) -> None:
    """No one has to think of it; the result of an earlier build is replaced."""
    home = copied(judged, tmp_path / "home")
    assert call(home, "build", "odd").exit_code == 0
    assert verdicts(home)["odd"] == "warn"
    with opened(home) as con:
        assert duck.rows(con, "SELECT count(*) FROM quality WHERE run_id = 'odd'") == [(len(all_checks()),)]


def test_more_files_change_the_verdict(judged: Home, tmp_path: Path) -> None:
    """A file that is wrong makes its run fail when it arrives, and no other run."""
    home = copied(judged, tmp_path / "home")
    assert ingest_into(home, bad_trace(tmp_path / "late-rank-1.json"), run="fine").verdicts == {
        "fine": "fail"
    }
    assert verdicts(home) == {"fine": "fail", "odd": "warn", "bad": "fail"}


def test_pages_of_an_earlier_build_are_taken_away(judged: Home, tmp_path: Path) -> None:
    """No one reads of one build what is true of another."""
    home = copied(judged, tmp_path / "home")
    for run in ("odd", "fine"):
        docs_page(home, run).parent.mkdir(parents=True)
        docs_page(home, run).write_text("old")
    check_run(home, "odd", with_docs=False)
    assert not docs_page(home, "odd").exists()
    assert docs_page(home, "fine").read_text() == "old"


def test_a_run_without_marts_cannot_be_checked(judged: Home) -> None:
    """It says what to do first, and leaves no verdict."""
    with pytest.raises(UsageError, match="stepledger build none"):
        check_run(judged, "none", with_docs=False)
    assert not judged.quality_lake_run("none").exists()
    assert list(judged.staging.iterdir()) == []


def test_a_check_that_raises_costs_no_other_run_its_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an error (exit 1), its run is built and unchecked, and the next run is checked anyway."""
    messages: list[str] = []

    def ask_or_raise(con: duckdb.DuckDBPyConnection, check: Check) -> Finding:
        run_id = duck.scalar(con, "SELECT min(run_id) FROM run_facts")
        if run_id == "first":
            raise CheckError("sql/checks/x.sql cannot be run")
        return ask(con, check)

    monkeypatch.setattr("pipeline.quality.verdicts.ask", ask_or_raise)
    home = Home(tmp_path / "home")
    home.ensure()
    drop(home, fine_trace(tmp_path / "a-rank-0.json"), "first/a-rank-0.json")
    drop(home, bad_trace(tmp_path / "b-rank-0.json"), "second/b-rank-0.json")
    monkeypatch.setattr(
        "pipeline.progress.Progress.say", lambda _self, text, *_event, **_about: messages.append(text)
    )
    done = call(home, "run")
    assert done.exit_code == ExitCode.BUG
    assert "run first: sql/checks/x.sql cannot be run" in messages
    assert verdicts(home) == {"first": "unchecked", "second": "fail"}


def test_run_exits_5_exports_no_failed_run_and_goes_on_with_the_others(tmp_path: Path) -> None:
    """The check and what it means are on stderr; the failed run's table is printed anyway."""
    home = Home(tmp_path / "home")
    home.ensure()
    drop(home, bad_trace(tmp_path / "b-rank-0.json"), "bad/b-rank-0.json")
    drop(home, fine_trace(tmp_path / "f-rank-0.json"), "fine/f-rank-0.json")
    done = call(home, "run")
    assert done.exit_code == ExitCode.QUALITY
    assert (
        "run bad: check file_issues_fail failed: The reader of a file found problems of severity fail"
        in done.stderr
    )
    assert "bad failed its checks and is not exported (stepledger export bad --allow-failed)" in done.stderr
    assert sorted(p.name for p in home.exports.iterdir()) == ["fine"]
    assert json.loads((home.exports / "fine" / "manifest.json").read_bytes())["verdict"] == "pass"
    assert call(home, "run").exit_code == 0


def test_export_refuses_a_failed_run(judged: Home, tmp_path: Path) -> None:
    """It says how to see why, and how to export it anyway; nothing is written, not for the other runs
    either."""
    home = copied(judged, tmp_path / "home")
    for arguments in (
        ["export"],
        ["export", "bad", "--mart", "steps"],
        ["export", "bad", "--output", "-"],
    ):
        done = call(home, *arguments)
        assert isinstance(done.exception, UsageError)
        assert "run bad failed its checks (stepledger check bad); --allow-failed exports it anyway" in str(
            done.exception
        )
        assert done.stdout == ""
    assert list(home.exports.iterdir()) == []


@pytest.mark.parametrize(("run", "wanted"), [("fine", "pass"), ("odd", "warn"), ("bad", "fail")])
def test_the_manifest_records_the_verdict(judged: Home, tmp_path: Path, run: str, wanted: str) -> None:
    """A person who reads the CSV later knows what it is worth."""
    target = tmp_path / "x.csv"
    assert call(judged, "export", run, "--allow-failed", "--output", str(target)).exit_code == 0
    assert json.loads((tmp_path / "x.csv.manifest.json").read_bytes())["verdict"] == wanted


@pytest.mark.usefixtures("without_gx")
def test_check_prints_what_is_wrong_and_exits_5_when_a_run_fails(judged: Home, tmp_path: Path) -> None:
    """One line a run with its verdict and page, then the checks that failed, and no check that passed."""
    home = copied(judged, tmp_path / "home")
    done = call(home, "check")
    assert done.exit_code == ExitCode.QUALITY
    first = [line for line in done.stdout.splitlines() if "checks passed; page:" in line]
    total = len(all_checks())
    assert [line.split(", ")[0] for line in first] == ["bad: fail", "fine: pass", "odd: warn"]
    assert f"{total} of {total} checks passed; page: {docs_page(home, 'fine')}" in first[1]
    assert "file_issues_fail" in done.stdout
    assert "unclassified_share" in done.stdout
    assert "booked_once" not in done.stdout


@pytest.mark.usefixtures("without_gx")
def test_check_exits_0_when_no_run_fails(judged: Home, tmp_path: Path) -> None:
    """A warning is no failure."""
    done = call(copied(judged, tmp_path / "home"), "check", "odd")
    assert done.exit_code == 0
    assert done.stdout.startswith("odd: warn, ")


@pytest.mark.usefixtures("without_gx")
def test_check_as_json_is_one_object_per_failing_check(judged: Home, tmp_path: Path) -> None:
    """With what it means and what to do; a run in which nothing is wrong gives an empty array."""
    home = copied(judged, tmp_path / "home")
    done = call(home, "check", "bad", "--format", "json")
    assert done.exit_code == ExitCode.QUALITY
    rows = orjson.loads(done.stdout)
    assert [(r["run_id"], r["severity"], r["check"], r["failing_rows"]) for r in rows] == [
        ("bad", "fail", "file_issues_fail", 1)
    ]
    assert list(rows[0]) == ["run_id", "severity", "check", "failing_rows", "means", "todo"]
    assert orjson.loads(call(home, "check", "fine", "--format", "json").stdout) == []


def test_check_of_what_is_not_there_is_wrong_usage(judged: Home, tmp_path: Path) -> None:
    """It names the runs that there are, or says what to do first."""
    assert "known runs: bad, fine, odd" in str(call(judged, "check", "none").exception)
    for arguments in (["check"], ["check", "x"]):
        assert isinstance(call(Home(tmp_path / "empty"), *arguments).exception, UsageError)


@pytest.mark.usefixtures("without_gx")
@pytest.mark.parametrize(
    ("broken", "code", "message"),
    [
        ("check", ExitCode.BUG, "not checked: run fine: sql/checks/x.sql cannot be run"),
        (
            "mart",
            ExitCode.MODEL,
            (
                "not checked: run fine: damaged: lake/marts/run_id=fine/steps.parquet: "
                "run `stepledger build fine`"
            ),
        ),
        (
            "marts",
            ExitCode.QUALITY,
            "not checked: run fine: run fine has no marts yet: run `stepledger build fine`",
        ),
    ],
)
def test_check_goes_on_with_the_other_runs(
    judged: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, code: ExitCode, message: str
) -> None:
    """One run cannot be checked: it is named, the others are checked anyway, and of all exit codes the
    first in precedence is left."""
    home = copied(judged, tmp_path / "home")
    if broken == "check":

        def ask_or_raise(con: duckdb.DuckDBPyConnection, check: Check) -> Finding:
            if duck.scalar(con, "SELECT min(run_id) FROM run_facts") == "fine":
                raise CheckError("sql/checks/x.sql cannot be run")
            return ask(con, check)

        monkeypatch.setattr("pipeline.quality.verdicts.ask", ask_or_raise)
    elif broken == "mart":
        (home.mart_run("fine") / "steps.parquet").write_bytes(b"no Parquet")
    else:
        shutil.rmtree(home.mart_run("fine"))
    done = call(home, "check")
    assert done.exit_code == code
    assert [line.split(", ")[0] for line in done.stdout.splitlines() if "checks passed" in line] == [
        "bad: fail",
        "odd: warn",
    ]
    assert message in done.stderr
    assert orjson.loads(call(home, "check", "odd", "--format", "json").stdout)
    assert list(home.staging.glob("[!o]*")) == []


HEAVY = ["adbc_driver_manager", "great_expectations", "numpy", "pandas", "polars", "pyarrow"]
IMPORTS = f"""
import sys
from pipeline.cli import app
home, trace = sys.argv[1:]
for line in (
    ["show", "fine"], ["query", "FROM steps"], ["runs"], ["status"], ["status", "--issues"], ["rules"],
    ["export", "fine"], ["export", "fine", "--wide"], ["build", "fine"], ["ingest", trace, "--run", "more"],
):
    sys.argv = ["stepledger", "--home", home, *line]
    try:
        app.main()
    except SystemExit as left:
        print(line[0], left.code or 0, sorted(set({HEAVY}) & sys.modules.keys()), file=sys.stderr)
"""


def test_nothing_but_check_imports_great_expectations(judged: Home, tmp_path: Path) -> None:
    """It takes seconds; ingest and build check with SQL alone, and their runs have verdicts. What only looks
    loads no library of frames."""
    home = copied(judged, tmp_path / "home")
    trace = odd_trace(tmp_path / "more-rank-0.json")
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, home.root, trace],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
        env=environment(),
    )
    lines = [line for line in done.stderr.splitlines() if line.endswith("]")]
    light = [f"{name} 0 []" for name in ("show", "query", "runs", "status", "status", "rules", "export")]
    assert lines[: len(light)] == light, done.stderr
    assert [line.split("[")[0] for line in lines[len(light) :]] == ["export 0 ", "build 0 ", "ingest 0 "], (
        done.stderr
    )
    assert not any("great_expectations" in line for line in lines)
    assert verdicts(home)["more"] == "warn"
