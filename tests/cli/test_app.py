"""The commands, end to end: exit codes, data on stdout, messages on stderr."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from pipeline import __version__
from pipeline.cli import app
from pipeline.errors import ModelError
from pipeline.ingest.demo import DEMO_TRACES
from pipeline.lake.home import Home
from tests.support.homes import HANG_S, Called, command, copied, drop, environment, mart_rows, rank_trace
from tests.support.paths import README

COMMANDS = sorted(get_command(app.app).commands)  # type: ignore[attr-defined]


def test_the_commands_are_those_that_people_script() -> None:
    """None goes away unnoticed."""
    assert {"run", "ingest", "build", "show", "query", "export", "runs", "rules", "demo"} <= set(COMMANDS)


def test_version_prints_name_and_version() -> None:
    """One line."""
    assert CliRunner().invoke(app.app, ["--version"]).stdout == f"stepledger {__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    """Its first sentence says what it does."""
    done = CliRunner().invoke(app.app, [name, "--help"])
    assert done.exit_code == 0
    assert "Usage" in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_the_readme(name: str) -> None:
    """The README and the command do not drift apart."""
    assert re.search(rf"stepledger (--home \S+ )?{name}\b", README.read_text(encoding="utf-8"))


def test_run_takes_a_dropped_trace_to_the_table_and_the_csv(tmp_path: Path) -> None:
    """Drop, run, read: the table and where the CSV is on stdout, what was done on stderr."""
    home = Home(tmp_path / "home")
    home.ensure()
    drop(home, rank_trace(tmp_path / "x-rank-0.json", ranks=1), "mine/x-rank-0.json")
    done = command("--home", home.root, "run")
    assert done.returncode == 0, done.stderr
    assert "GPU time of a decode step" in done.stdout
    assert f"per step, rank and category: {home.exports / 'mine' / 'step_breakdown.csv'}" in done.stdout
    assert done.stderr == "read: x-rank-0.json into run mine\n"
    assert (home.exports / "mine" / "manifest.json").is_file()


def test_ingest_with_a_bad_file_exits_3_and_still_names_the_run(
    call: Callable[..., Called], tmp_path: Path
) -> None:
    """The good file is there; the bad one is named on stderr."""
    good = rank_trace(tmp_path / "t" / "good-rank-0.json", ranks=1)
    (good.parent / "bad.json").write_text('{"traceEvents": [{')
    code, out, err = call("--home", tmp_path / "home", "ingest", good.parent, "--run", "my run")
    (run_id,) = Home(tmp_path / "home").run_ids()
    assert (code, out) == (3, f"{run_id}\n")
    assert "not read: bad.json" in err
    assert call("--home", tmp_path / "home", "build", "my run")[:2] == (0, f"{run_id}\n")
    assert call("--home", tmp_path / "home", "show", "my run")[0] == 0


def test_build_builds_the_run_that_was_named_and_no_other(
    built: Home, tmp_path: Path, call: Callable[..., Called]
) -> None:
    """By its name or its id."""
    home = copied(built, tmp_path / "home")
    assert call("--home", home.root, "build", "a")[:2] == (0, "a\n")


def test_build_builds_what_is_stale_and_rebuild_everything(
    built: Home, tmp_path: Path, call: Callable[..., Called]
) -> None:
    """Nothing is stale at first; an edited rule makes every run so, once."""
    home = copied(built, tmp_path / "home")
    assert call("--home", home.root, "build") == (0, "", "")
    home.user_rules.write_text('[[rule]]\nid = "mine"\nname = "mystery"\ncategory = "cast"\n')
    assert call("--home", home.root, "build")[:2] == (0, "2026\na\n")
    assert call("--home", home.root, "build")[:2] == (0, "")
    assert call("--home", home.root, "rebuild")[:2] == (0, "2026\na\n")
    assert call("--home", home.root, "rebuild", "a")[:2] == (0, "a\n")


def test_a_rules_file_can_be_checked_before_it_is_used(tmp_path: Path, call: Callable[..., Called]) -> None:
    """One line and exit 0 for a good file, every problem on a line of its own and exit 2 for a bad one."""
    file = tmp_path / "mine.toml"
    file.write_text('[[rule]]\nid = "mine"\nname = "mystery"\ncategory = "cast"\n')
    arguments = ("--home", tmp_path / "home", "rules", "--check", file)
    assert call(*arguments) == (0, f"{file}: 1 rule, no problems\n", "")
    file.write_text('[[rule]]\nid = "mine"\nname = "("\ncategory = "casts"\n')
    code, out, _ = call(*arguments)
    assert (code, [line.split(" (mine): ")[0] for line in out.splitlines()]) == (
        2,
        [f"{file}: line 1, rule 1"] * 2,
    )
    assert not (tmp_path / "home").exists()


def test_forget_takes_a_run_out_and_leaves_its_originals(
    built: Home, tmp_path: Path, call: Callable[..., Called]
) -> None:
    """With --yes at once; the other run stays as it was."""
    home = copied(built, tmp_path / "home")
    archived = sorted(home.archive.rglob("*.json"))
    assert call("--home", home.root, "forget", "a", "--yes")[:2] == (0, "a\n")
    assert [p.name for p in home.root.rglob("run_id=a")] == []
    assert sorted(home.archive.rglob("*.json")) == archived
    code, out, _ = call("--home", home.root, "runs", "--format", "json")
    assert (code, [row["run_id"] for row in json.loads(out)]) == (0, ["2026"])


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 2), ("", 2)])
def test_forget_asks_first(built: Home, tmp_path: Path, answer: str, code: int) -> None:
    """Only a yes removes anything; no answer at all (no terminal) is wrong usage, like a no."""
    home = copied(built, tmp_path / "home")
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "--home", str(home.root), "forget", "a"],
        input=answer, capture_output=True, text=True, timeout=HANG_S, check=False, env=environment(),
    )  # fmt: skip
    assert (done.returncode, home.raw_run("a").is_dir()) == (code, code != 0)
    assert "Remove run a from the lake" in done.stderr


def test_retry_puts_a_file_back_for_the_next_run(
    built: Home, tmp_path: Path, call: Callable[..., Called]
) -> None:
    """The place in the inbox is printed; a name that is not there is wrong usage."""
    home = copied(built, tmp_path / "home")
    (tmp_path / "bad.json").write_text("{}")
    drop(home, tmp_path / "bad.json", "r/bad.json")
    assert call("--home", home.root, "run")[0] == 3
    assert call("--home", home.root, "retry", "r/other.json")[0] == 2
    assert call("--home", home.root, "retry", "r/bad.json")[:2] == (0, "r/bad.json\n")
    assert (home.inbox / "r" / "bad.json").is_file()


def test_compact_prints_the_number_of_runs(built: Home, tmp_path: Path, call: Callable[..., Called]) -> None:
    """Young runs are left; the tables stay the same for everybody."""
    home = copied(built, tmp_path / "home")
    assert call("--home", home.root, "compact")[:2] == (0, "0 runs compacted\n")
    before = mart_rows(home)
    assert call("--home", home.root, "compact", "--older-than-days", "0")[:2] == (0, "2 runs compacted\n")
    assert mart_rows(home) == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--workers", "0"], "--workers"),
        (["--memory-limit", "much"], "is not a size"),
        (["--scheduler", "nowhere"], "nowhere"),
    ],
)
def test_execution_options_that_cannot_be_met_are_wrong_usage(
    built: Home,
    tmp_path: Path,
    call: Callable[..., Called],
    arguments: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before anything is read."""
    code, out, err = call("--home", copied(built, tmp_path / "home").root, "rebuild", *arguments)
    assert (code, out, says in err) == (2, "", True), err


def test_build_exits_4_when_a_model_fails(
    built: Home, tmp_path: Path, call: Callable[..., Called], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run and the model are on stderr, no run on stdout."""

    def fail(*_rest: object, **_options: object) -> str:
        raise ModelError("sql/marts/steps.sql: broken")

    monkeypatch.setattr("pipeline.ingest.tasks.build_run", fail)
    home = copied(built, tmp_path / "home")
    assert call("--home", home.root, "build", "a") == (4, "", "run a: sql/marts/steps.sql: broken\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show", "none"], "no run 'none'; known runs: 2026, a"),
        (["show", "a", "--phase", "verify"], "it has decode, prefill"),
        (["query", "DELETE FROM runs"], "not a read-only statement"),
        (["query", "SELECT nothing"], "nothing"),
        (["export", "--mart", "nonsense"], "no mart 'nonsense'"),
        (["export", "--output", "-"], "--output takes one run"),
        (["export", "--mart", "steps", "--wide"], "--wide is available for"),
        (["build", "none"], "no run 'none'; known runs: 2026, a"),
        (["build", "x*"], "no run matches 'x*'; known runs: 2026, a"),
        (["ingest", "no/such/file"], "no such file or folder: no/such/file"),
        (["query", "SELECT 1", "--format", "xml"], "xml"),
        (["nonsense"], "nonsense"),
        (["show"], "Missing argument"),
    ],
)
def test_wrong_usage_exits_2_with_one_message_and_no_data(
    built: Home, call: Callable[..., Called], arguments: list[str], says: str
) -> None:
    """No traceback; it says what is there instead."""
    code, out, err = call("--home", built.root, *arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert "Traceback" not in err


def test_a_home_without_a_warehouse_exits_2(call: Callable[..., Called], tmp_path: Path) -> None:
    """With what to do first."""
    for arguments in (["show", "a"], ["query", "SELECT 1"], ["runs"], ["export", "a"], ["export"]):
        code, out, err = call("--home", tmp_path / "home", *arguments)
        assert (code, out) == (2, "")
        assert "stepledger run" in err


@pytest.mark.parametrize(
    "arguments",
    [["show", "a"], ["query", "FROM steps"], ["runs"], ["rules"], ["rules", "--explain", "nvjet_x"]],
)
def test_every_table_is_printed_as_json_and_csv_too(
    built: Home, call: Callable[..., Called], arguments: list[str]
) -> None:
    """An array of objects, one per row; the same columns and rows in CSV."""
    code, out, err = call("--home", built.root, *arguments, "--format", "json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found
    assert all(isinstance(row, dict) for row in found)
    as_csv = list(csv.DictReader(io.StringIO(call("--home", built.root, *arguments, "--format", "csv")[1])))
    assert [list(row) for row in as_csv] == [list(row) for row in found]
    assert call("--home", built.root, *arguments)[0] == 0


def test_json_has_bigints_as_numbers(built: Home, call: Callable[..., Called]) -> None:
    """Nanoseconds since 1970 do not fit a double."""
    out = call(
        "--home",
        built.root,
        "query",
        "SELECT 1790857026001050001 AS ns, sum(9007199254740993) AS s FROM range(3)",
        "--format",
        "json",
    )[1]
    assert '"ns": 1790857026001050001' in out
    assert '"s": 27021597764222979' in out


def test_query_reads_its_sql_from_stdin(built: Home) -> None:
    """`stepledger query - < question.sql`."""
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "--home", built.root, "query", "-", "--format", "csv"],
        input="SELECT 1 AS one", capture_output=True, text=True, check=False, env=environment(),
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "one\n1\n", "")


def test_runs_lists_each_run_with_its_steps(built: Home, call: Callable[..., Called]) -> None:
    """What is there, at a glance."""
    rows = json.loads(call("--home", built.root, "runs", "--format", "json")[1])
    assert [(r["run_id"], r["source"], r["ranks"], r["decode_steps"], r["prefill_steps"]) for r in rows] == [
        ("2026", "kineto", 2, 3, 1),
        ("a", "kineto", 2, 3, 1),
    ]


def test_export_names_the_files_it_wrote(built: Home, tmp_path: Path, call: Callable[..., Called]) -> None:
    """One per run, on stdout, for scripts."""
    home = copied(built, tmp_path / "home")
    code, out, err = call("--home", home.root, "export")
    assert (code, err) == (0, "")
    assert out.splitlines() == [str(home.exports / run / "step_breakdown.csv") for run in ("2026", "a")]
    target = tmp_path / "x.parquet"
    assert (
        call(
            "--home", home.root, "export", "a", "--mart", "steps", "--format", "parquet", "--output", target
        )[1]
        == f"{target}\n"
    )
    assert target.read_bytes()[:4] == b"PAR1"


def test_export_to_stdout_is_data_only(built: Home, call: Callable[..., Called]) -> None:
    """It can be piped."""
    code, out, err = call("--home", built.root, "export", "a", "--wide", "--output", "-")
    assert (code, err) == (0, "")
    assert len(list(csv.DictReader(io.StringIO(out)))) == 8


def test_the_home_can_be_set_by_the_environment(
    built: Home, call: Callable[..., Called], monkeypatch: pytest.MonkeyPatch
) -> None:
    """STEPLEDGER_HOME instead of --home."""
    monkeypatch.setenv("STEPLEDGER_HOME", str(built.root))
    assert call("runs", "--format", "csv")[1].count("\n") == 3


def test_a_reader_that_stops_early_is_no_failure(built: Home) -> None:
    """`stepledger query ... | head -1` ends quietly with 0."""
    query = ["query", "FROM range(200000)", "--format", "csv"]
    with subprocess.Popen(
        [sys.executable, "-m", "pipeline", "--home", built.root, *query],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "range\n"
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


IMPORTS = """
import sys
from pipeline.cli import app
sys.argv = ["stepledger", *sys.argv[1:]]
try:
    app.main()
finally:
    heavy = {"polars", "pyarrow", "great_expectations", "pandas", "numpy"}
    print(sorted(heavy & sys.modules.keys()), file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["show", "a"], ["query", "FROM steps"], ["runs"]])
def test_asking_does_not_import_what_it_does_not_need(built: Home, arguments: list[str]) -> None:
    """Questions are answered at once: neither polars nor pyarrow nor Great Expectations is loaded."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, "--home", built.root, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert (done.returncode, done.stderr) == (0, "[]\n")


@pytest.mark.skipif(not DEMO_TRACES.is_dir(), reason="the demo traces are not there")
def test_demo_prints_the_table_and_what_to_type_next(tmp_path: Path) -> None:
    """Where the CSV and the database are; and the query that it suggests works."""
    done = command("--home", tmp_path / "home", "demo")
    assert done.returncode == 0, done.stderr
    assert "AllReduce" in done.stdout
    assert str(tmp_path / "home" / "stepledger.duckdb") in done.stdout
    suggested = re.search(r'query "(.+)"', done.stdout)
    assert suggested is not None
    assert (
        command("--home", tmp_path / "home", "query", suggested.group(1), "--format", "csv").stdout.count(
            "\n"
        )
        > 3
    )


def test_a_home_that_moved_is_right_again_after_the_next_run(
    built: Home, tmp_path: Path, call: Callable[..., Called]
) -> None:
    """The database holds absolute paths; any writing command writes them anew."""
    home = Home(tmp_path / "moved")
    shutil.copytree(built.root, home.root)
    assert call("--home", home.root, "run")[0] == 0
    assert (
        call("--home", home.root, "query", "SELECT count(*) AS n FROM runs", "--format", "csv")[1] == "n\n2\n"
    )
