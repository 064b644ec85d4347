"""Homes of other versions and other places: one message, the same from every command, and nothing is changed
before it."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pytest
from typer.main import get_command

from pipeline import __version__, duck
from pipeline.cli import app
from pipeline.contracts import CONTRACT_VERSION
from pipeline.duck import literal
from pipeline.errors import UsageError
from pipeline.ingest.ingest import describe_runs, stale
from pipeline.lake.builds import unchecked_runs
from pipeline.lake.database import write_database
from pipeline.lake.home import Home
from pipeline.lake.reading import opened
from pipeline.progress import Progress
from tests.support.builders import ingest_into
from tests.support.contract_version import set_contract_version
from tests.support.homes import Called, command, copied, fingerprint, mart_rows, pair, rank_trace
from tests.support.paths import GOLDEN

OLD = {"bfa57ae": 1, "e4c7892": 2, "e810df6": 3}
"""The commits that made the homes in tests/golden/homes, and the version of their tables. The last one is
compacted, and knows facts about its run. Each holds the run `serve` (tests.support.homes.pair) and a
quarantined file with its note beside it."""
HOMES = GOLDEN / "homes"
QUIET = Progress(quiet=True)
OURS = CONTRACT_VERSION
READING = [
    ["show", "serve"],
    ["query", "SELECT 1"],
    ["export"],
    ["export", "serve", "--allow-failed"],
    ["check"],
    ["check", "serve"],
    ["runs"],
    ["status", "--issues"],
    ["audit", "serve"],
    ["ranks", "serve"],
    ["bandwidth", "serve"],
    ["bench", "serve"],
    ["compare", "serve", "serve"],
    ["curve", "serve"],
    ["whatif", "ep", "serve", "--mode", "dp_ep"],
    ["whatif", "overlap", "serve"],
    ["whatif", "speculate", "serve"],
    ["describe", "serve", "layers=2"],
    ["forget", "serve", "--yes"],
    ["compact", "--older-than-days", "0"],
]
"""A call of every command that needs the home's tables as they are."""
OTHERS = [["status"], ["run"], ["ingest", __file__], ["build"], ["rebuild"], ["retry"], ["rules"], ["demo"]]
"""Those that do without, or bring a home up to date; `watch` is called in a process of its own."""

Call = Callable[..., Called]


def named(words: list[str]) -> str:
    """What a case is called."""
    return " ".join(word for word in words if "/" not in word)


def unpacked(commit: str, folder: Path) -> Home:
    """The home that this commit made."""
    with tarfile.open(HOMES / f"{commit}.tar.gz") as packed:
        packed.extractall(folder, filter="data")
    return Home(folder)


@pytest.fixture(scope="module", params=OLD)
def old(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, int]:
    """A home of an older version, for tests that change nothing; and that version."""
    return unpacked(request.param, tmp_path_factory.mktemp("old") / "home"), OLD[request.param]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home of this version, fed with what the old ones were fed with."""
    folder = tmp_path_factory.mktemp("fresh")
    home = Home(folder / "home")
    ingest_into(home, *pair(folder), run="serve")
    return home


@pytest.fixture
def mine(fresh: Home, tmp_path: Path) -> Home:
    """A copy of my own."""
    return copied(fresh, tmp_path / "home")


@pytest.fixture(scope="module")
def newer(fresh: Home, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home whose database a newer version wrote, for tests that change nothing."""
    home = copied(fresh, tmp_path_factory.mktemp("newer") / "home")
    with pytest.MonkeyPatch.context() as patch:
        set_contract_version(patch, OURS + 1)
        patch.setattr("pipeline.lake.views.__version__", "9.0")
        write_database(home)
    return home


@pytest.fixture(scope="module", params=["copied", "moved"])
def elsewhere(request: pytest.FixtureRequest, fresh: Home, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home that is not where its views look, whether something is still there or not; for tests that change
    nothing."""
    folder = tmp_path_factory.mktemp("elsewhere")
    if request.param == "copied":
        shutil.copytree(fresh.root, folder / "there")
        return Home(folder / "there")
    return Home(copied(fresh, folder / "here").root.rename(folder / "there"))


def with_version(home: Home, run_id: str, version: int) -> None:
    """Change what the marts of a run say of their version."""
    facts = home.mart_run(run_id) / "run_facts.parquet"
    with duckdb.connect() as con:
        con.execute(f"CREATE TABLE f AS FROM read_parquet({literal(facts)}, hive_partitioning = false)")
        con.execute(f"UPDATE f SET contract_version = {version}")
        con.execute(f"COPY f TO {literal(facts)} (FORMAT parquet)")


def states(call: Call, home: Home, where: str) -> list[str]:
    """What `status` says of one kind of thing."""
    rows = orjson.loads(call("--home", home.root, "status", "--format", "json").out)
    return [row["state"] for row in rows if row["where"] == where]


def test_every_command_is_among_the_calls() -> None:
    """A new command has its place in one of the lists."""
    commands: dict[str, Any] = get_command(app.app).commands  # type: ignore[attr-defined]
    assert {*commands} == {words[0] for words in (*READING, *OTHERS)} | {"watch"}
    assert {*commands["whatif"].commands} == {words[1] for words in READING if words[0] == "whatif"}


@pytest.mark.parametrize("words", READING, ids=named)
def test_an_older_home_is_not_read(old: tuple[Home, int], call: Call, words: list[str]) -> None:
    """Its version and what to do, in one line; nothing is changed."""
    home, version = old
    before = fingerprint(home.root)
    message = (
        f"stepledger: error: {home.root}: written by stepledger 0.1.0 (tables of version {version}): "
        "run `stepledger build`\n"
    )
    assert call("--home", home.root, *words) == (2, "", message)
    assert fingerprint(home.root) == before


def test_status_of_an_older_home_lists_what_it_can(old: tuple[Home, int], call: Call) -> None:
    """The quarantined file with its reason, the disk, and the version in a row of its own."""
    home, version = old
    assert states(call, home, "database") == [
        f"written by stepledger 0.1.0 (tables of version {version}): run `stepledger build`"
    ]
    (reason,) = states(call, home, "quarantine")
    assert reason.startswith("bad.json: traceEvents: found no kernel")
    assert len(states(call, home, "disk")) == 7
    assert states(call, home, "run") == []


@pytest.mark.parametrize("commit", OLD)
def test_build_makes_of_an_older_home_what_a_fresh_one_holds(
    fresh: Home, tmp_path: Path, call: Call, commit: str
) -> None:
    """Every row of every mart: the raw tables of these versions have all columns of today, and latency tables
    have no row of a trace."""
    home = unpacked(commit, tmp_path / "home")
    expected = fresh
    if next(home.config.glob("run_id=serve"), None):
        expected = copied(fresh, tmp_path / "fresh")
        describe_runs(expected, ["serve"], {"layers": 2, "hidden_size": 7168}, QUIET)
    assert call("--home", home.root, "build")[:2] == (0, "serve\n")
    assert mart_rows(home) == mart_rows(expected)
    assert states(call, home, "run") == states(call, expected, "run")
    assert call("--home", home.root, "build")[:2] == (0, "")


@pytest.mark.parametrize("commit", OLD)
def test_what_was_quarantined_by_an_older_version_stays(tmp_path: Path, call: Call, commit: str) -> None:
    """Through a build, with its reason; and it can be put back."""
    home = unpacked(commit, tmp_path / "home")
    before = states(call, home, "quarantine")
    data = (home.quarantine / "serve" / "bad.json").read_bytes()
    assert call("--home", home.root, "build").code == 0
    assert (len(before), states(call, home, "quarantine")) == (1, before)
    assert call("--home", home.root, "retry").code == 0
    assert (home.inbox / "serve" / "bad.json").read_bytes() == data


@pytest.mark.parametrize("words", [["run"], ["rebuild"], ["build", "serve"], ["demo"]], ids=named)
def test_other_writing_commands_bring_an_older_home_up_to_date_too(
    tmp_path: Path, call: Call, words: list[str]
) -> None:
    """As they build what is stale."""
    home = unpacked("bfa57ae", tmp_path / "home")
    assert call("--home", home.root, *words).code == 0
    assert call("--home", home.root, "show", "serve").code == 0


def test_a_run_that_is_not_built_yet_is_left_out_of_a_home_that_others_brought_up_to_date(
    tmp_path: Path, call: Call
) -> None:
    """Landing without building writes the views of today, and the old marts have other columns."""
    home = unpacked("e4c7892", tmp_path / "home")
    trace = rank_trace(tmp_path / "x-rank-0.json", ranks=1)
    assert call("--home", home.root, "ingest", trace, "--run", "new", "--no-build").code == 0
    why = f"its tables have version 2, this stepledger needs version {OURS}: run `stepledger build serve`"
    assert call("--home", home.root, "query", "SELECT count(*) AS n FROM steps", "--format", "csv") == (
        0,
        "n\n0\n",
        f"left out: run serve: {why}\n",
    )
    assert call("--home", home.root, "show", "serve") == (2, "", f"stepledger: error: run serve: {why}\n")
    assert states(call, home, "run") == [why]
    assert call("--home", home.root, "build")[:2] == (0, "new\nserve\n")
    assert call(
        "--home", home.root, "query", "SELECT DISTINCT run_id FROM steps ORDER BY 1", "--format", "csv"
    ) == (0, "run_id\nnew\nserve\n", "")


@pytest.mark.parametrize("words", [*READING, *OTHERS], ids=named)
def test_a_newer_home_is_refused(newer: Home, call: Call, words: list[str]) -> None:
    """By every command, before anything is changed."""
    before = fingerprint(newer.root)
    message = (
        f"{newer.root}: written by stepledger 9.0 (tables of version {OURS + 1}), newer than this one "
        f"({__version__}): "
        "upgrade stepledger, or choose another home"
    )
    assert call("--home", newer.root, *words) == (2, "", f"stepledger: error: {message}\n")
    assert fingerprint(newer.root) == before


def test_watch_refuses_a_newer_home(newer: Home) -> None:
    """It ends, and changes nothing."""
    before = fingerprint(newer.root)
    done = command("--home", newer.root, "watch")
    assert (done.returncode, "newer than this one" in done.stderr, fingerprint(newer.root)) == (
        2,
        True,
        before,
    )


@pytest.mark.parametrize(
    "words",
    [["show", "serve"], ["runs"], ["status"], ["run"], ["build"], ["rebuild"], ["forget", "serve", "--yes"]],
    ids=named,
)
def test_a_newer_home_without_its_database_is_refused(mine: Home, call: Call, words: list[str]) -> None:
    """The tables of any run show it."""
    with_version(mine, "serve", OURS + 1)
    mine.database.unlink()
    before = fingerprint(mine.root)
    done = call("--home", mine.root, *words)
    assert (done.code, done.out) == (2, "")
    assert (
        f"written by stepledger (tables of version {OURS + 1}), newer than this one ({__version__}): "
        "upgrade "
        "stepledger"
    ) in done.err
    assert fingerprint(mine.root) == before


def test_one_newer_run_is_never_built_down(
    mine: Home, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came from another home, say: it is left out, neither built nor compacted, and the others go on."""
    ingest_into(mine, rank_trace(tmp_path / "x-rank-0.json", ranks=1), run="other")
    with_version(mine, "serve", OURS + 1)
    before = fingerprint(mine.mart_run("serve"))
    shutil.rmtree(mine.quality_lake_run("serve"))
    assert (stale(mine), unchecked_runs(mine)) == ([], [])
    why = f"its tables have version {OURS + 1}, this stepledger needs version {OURS}: upgrade stepledger"
    assert call("--home", mine.root, "rebuild") == (2, "other\n", f"run serve: {why}\n")
    assert call("--home", mine.root, "compact", "--older-than-days", "0")[:2] == (0, "1 run compacted\n")
    assert fingerprint(mine.mart_run("serve")) == before


@pytest.mark.parametrize("words", READING, ids=named)
def test_a_home_in_another_place_is_not_read(elsewhere: Home, call: Call, words: list[str]) -> None:
    """Every command says the same."""
    message = (
        f"{elsewhere.root}: its views do not find their files (was the home moved?): run `stepledger build`"
    )
    assert call("--home", elsewhere.root, *words) == (2, "", f"stepledger: error: {message}\n")


def test_build_repairs_a_home_that_was_moved(
    fresh: Home, elsewhere: Home, tmp_path: Path, call: Call
) -> None:
    """Nothing is built again for it; `status` says what is wrong until then."""
    home = Home(tmp_path / "home")
    shutil.copytree(elsewhere.root, home.root)
    assert states(call, home, "database") == [
        "its views do not find their files (was the home moved?): run `stepledger build`"
    ]
    assert call("--home", home.root, "build")[:2] == (0, "")
    assert (states(call, home, "database"), states(call, home, "run")) == ([], states(call, fresh, "run"))
    assert mart_rows(home) == mart_rows(fresh)


def test_a_home_that_is_reached_by_a_link_was_not_moved(fresh: Home, tmp_path: Path, call: Call) -> None:
    """Only where its files really are counts."""
    (tmp_path / "link").symlink_to(fresh.root)
    assert call("--home", tmp_path / "link", "runs") == call("--home", fresh.root, "runs")


def test_a_database_that_cannot_be_opened_is_named_and_written_again(mine: Home, call: Call) -> None:
    """Not a traceback."""
    mine.database.write_bytes(b"no database")
    done = call("--home", mine.root, "runs")
    assert (done.code, f"{mine.database} cannot be opened: run `stepledger build`" in done.err) == (
        2,
        True,
    )
    assert call("--home", mine.root, "build").code == 0
    assert call("--home", mine.root, "runs").code == 0


def test_the_database_names_its_writer(fresh: Home) -> None:
    """For any client, with what each column means."""
    with duckdb.connect(str(fresh.database), read_only=True) as con:
        assert duck.dicts(con, "FROM written_by") == [
            {
                "stepledger_version": __version__,
                "contract_version": OURS,
                "home": str(fresh.root),
                "lake": str(fresh.root / "lake"),
            }
        ]
        views = (
            "SELECT view_name, comment IS NOT NULL FROM duckdb_views() WHERE view_name IN "
            "('written_by', "
            "'left_out') ORDER BY 1"
        )
        columns = (
            "SELECT count(*) FROM duckdb_columns() WHERE table_name IN ('written_by', 'left_out') AND "
            "comment IS NULL"
        )
        assert (con.execute(views).fetchall(), con.execute(columns).fetchall()) == (
            [("left_out", True), ("written_by", True)],
            [(0,)],
        )


def test_who_asks_in_python_gets_a_usage_error(old: tuple[Home, int]) -> None:
    """With the same words."""
    with pytest.raises(UsageError, match="tables of version"):
        opened(old[0])
