"""A damaged file affects its run alone: the others are read as before, and it is named with what
to do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
import orjson
import pytest

from pipeline.contracts import Layer
from pipeline.ingest.ingest import build, drain, stale
from pipeline.lake.builds import unchecked_runs
from pipeline.lake.compact import compact_runs, compactable
from pipeline.lake.damage import damage_of, damaged_runs, incomplete_runs, is_damaged
from pipeline.lake.database import write_database
from pipeline.lake.home import Home
from pipeline.lake.manifest import Manifest
from pipeline.lake.tidy import forget, tidy
from pipeline.models import engine
from pipeline.progress import Progress
from tests.support.builders import ingest_into
from tests.support.homes import Called, copied, damage, drop, fingerprint, mart_rows, pair, settled
from tests.support.thorough import thorough

QUIET = Progress(quiet=True)
KINDS = ("empty", "half", "garbage", "missing")
FILES: dict[Layer, str] = {
    "raw": "gpu_activity",
    "config": "run_config",
    "marts": "steps",
    "quality": "quality",
}
SOME = ("garbage", "missing")
"""One that the bytes show, and one that the names in a folder show."""
CASES = [
    pytest.param(layer, kind, id=f"{layer}-{kind}", marks=() if kind in SOME or layer == "raw" else thorough)
    for layer in FILES
    for kind in KINDS
]
SOME_CASES = [pytest.param(layer, kind, id=f"{layer}-{kind}") for layer in FILES for kind in SOME]
TODO: dict[Layer, str] = {
    "raw": "run `stepledger forget Hurt` and put the originals from archive/Hurt back into the inbox",
    "config": "record the run's facts again with `stepledger describe Hurt`",
    "marts": "run `stepledger build Hurt`",
    "quality": "run `stepledger build Hurt`",
}
RUNS = ["Hurt", "fine"]
"""Capital letters sort before the template's name, small ones after it: a pattern finds the first run first,
or last."""

Call = Callable[..., Called]
UNDAMAGED: dict[str, str] = {}
"""What a command prints of the undamaged home, once for all tests."""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Two runs that were dropped into the inbox, with facts given."""
    folder = tmp_path_factory.mktemp("two")
    home = Home(folder / "home")
    for seed, run in enumerate(RUNS):
        for path in pair(folder / run, seed=seed):
            drop(home, path, f"{run}/{path.name}")
        (home.inbox / run / "run.toml").write_text("layers = 2\n")
        settled(home.inbox / run / "run.toml")
    assert drain(home, QUIET).built == RUNS
    return home


@pytest.fixture
def mine(two: Home, tmp_path: Path) -> Home:
    """A copy of my own."""
    return copied(two, tmp_path / "home")


def file_of(home: Home, layer: Layer, table: str | None = None, run: str = "Hurt") -> Path:
    """One file of a run."""
    folder = {"raw": home.raw, "config": home.config, "marts": home.marts, "quality": home.quality_lake}[
        layer
    ] / f"run_id={run}"
    return next(folder.rglob(f"{table or FILES[layer]}.parquet"))


def hurt(home: Home, layer: Layer, kind: str, table: str | None = None) -> str:
    """Damage one file of the run `Hurt`; returns the message about it."""
    file = file_of(home, layer, table)
    damage(file, kind)
    return f"damaged: {file.relative_to(home.root).as_posix()}: {TODO[layer]}"


def table_of(layer: Layer) -> str:
    """The name by which SQL knows the damaged table."""
    return f"raw.{FILES[layer]}" if layer == "raw" else FILES[layer]


def state_of(call: Call, home: Home, run: str) -> list[str]:
    """What `status` says of a run."""
    rows = orjson.loads(call("--home", home.root, "status", "--format", "json").out)
    return [row["state"] for row in rows if row["where"] == "run" and row["run"] == run]


@pytest.mark.parametrize(("layer", "kind"), CASES)
def test_other_runs_are_read_as_before(two: Home, mine: Home, call: Call, layer: Layer, kind: str) -> None:
    """By commands that name them, and by a statement that asks for them alone."""
    hurt(mine, layer, kind)
    sql = f"SELECT * FROM {table_of(layer)} WHERE run_id = 'fine' ORDER BY ALL"
    for words in (
        ["show", "fine"],
        ["export", "fine", "--output", "-"],
        ["query", sql, "--format", "csv"],
    ):
        answer = call("--home", mine.root, *words)
        if (asked := " ".join(words)) not in UNDAMAGED:
            UNDAMAGED[asked] = call("--home", two.root, *words).out
        assert (answer.code, answer.out) == (0, UNDAMAGED[asked])


@pytest.mark.parametrize(("layer", "kind"), CASES)
def test_a_query_over_all_runs_leaves_the_damaged_one_out_with_a_note(
    mine: Home, call: Call, layer: Layer, kind: str
) -> None:
    """One line on stderr names the run, the file, and what to do."""
    why = hurt(mine, layer, kind)
    answer = call(
        "--home",
        mine.root,
        "query",
        f"SELECT DISTINCT run_id FROM {table_of(layer)} WHERE len(run_id) > 0 ORDER BY ALL",
        "--format",
        "csv",
    )
    assert answer == (0, "run_id\nfine\n", f"left out: run Hurt: {why}\n")


@pytest.mark.parametrize(("layer", "kind"), SOME_CASES)
def test_the_damaged_run_is_refused_by_name(mine: Home, call: Call, layer: Layer, kind: str) -> None:
    """It is not shown as if nothing of it were missing."""
    why = hurt(mine, layer, kind)
    for words in (["show", "Hurt"], ["compare", "fine", "Hurt"], ["export", "Hurt"]):
        assert call("--home", mine.root, *words) == (2, "", f"stepledger: error: run Hurt: {why}\n")


@pytest.mark.parametrize(("layer", "kind"), CASES)
def test_status_names_the_file_and_what_to_do(mine: Home, call: Call, layer: Layer, kind: str) -> None:
    """In the row of the run; the other run has its verdict."""
    why = hurt(mine, layer, kind)
    assert state_of(call, mine, "Hurt") == [why]
    assert state_of(call, mine, "fine") == ["kineto, 2 traces, verdict pass"]


@pytest.mark.parametrize("layer", ["marts", "quality"])
@pytest.mark.parametrize("kind", KINDS)
def test_build_makes_again_what_can_be_made(
    two: Home, mine: Home, call: Call, layer: Layer, kind: str
) -> None:
    """Without a run named: the damaged one alone is stale."""
    hurt(mine, layer, kind)
    assert call("--home", mine.root, "build")[:2] == (0, "Hurt\n")
    assert mart_rows(mine) == mart_rows(two)
    assert state_of(call, mine, "Hurt") == state_of(call, two, "Hurt")


@pytest.mark.parametrize("table", ["gpu_activity", "trace"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_raw_table_cannot_be_built_from(mine: Home, call: Call, table: str, kind: str) -> None:
    """The run is named with the file, the other is built, and the marts that are there stay."""
    why = hurt(mine, "raw", kind, table)
    before = fingerprint(mine.mart_run("Hurt"))
    done = call("--home", mine.root, "rebuild")
    assert (done.code, done.out) == (4, "fine\n")
    assert f"run Hurt: {why}\n" in done.err
    assert fingerprint(mine.mart_run("Hurt")) == before


@pytest.mark.parametrize("kind", SOME)
def test_a_run_with_a_damaged_raw_table_comes_back_from_the_archive(
    two: Home, mine: Home, call: Call, kind: str
) -> None:
    """Forget it and put its originals back, as the message says."""
    hurt(mine, "raw", kind)
    assert call("--home", mine.root, "forget", "Hurt", "--yes").code == 0
    (mine.archive / "Hurt").rename(mine.inbox / "Hurt")
    for path in (mine.inbox / "Hurt").iterdir():
        settled(path)
    assert call("--home", mine.root, "run").code == 0
    assert mart_rows(mine) == mart_rows(two)


@pytest.mark.parametrize("kind", SOME)
def test_facts_that_were_lost_can_be_given_again(two: Home, mine: Home, call: Call, kind: str) -> None:
    """Building without them is refused: the marts would hold less than before, without a word."""
    why = hurt(mine, "config", kind)
    done = call("--home", mine.root, "build")
    assert (done.code, done.out, why in done.err) == (4, "", True)
    assert call("--home", mine.root, "describe", "Hurt", "layers=2")[:2] == (0, "Hurt\n")
    assert mart_rows(mine) == mart_rows(two)


@pytest.mark.parametrize(("layer", "kind"), SOME_CASES)
def test_a_new_database_serves_the_other_runs_to_any_client(mine: Home, layer: Layer, kind: str) -> None:
    """A writer leaves out the damaged run where its file would make reading fail, and notes why."""
    why = hurt(mine, layer, kind)
    write_database(mine)
    with duckdb.connect(str(mine.database), read_only=True) as con:
        found = con.execute(
            f"SELECT DISTINCT run_id FROM {table_of(layer)} WHERE run_id <> 'Hurt'"
        ).fetchall()
        noted = con.execute("FROM left_out").fetchall()
    assert found == [("fine",)]
    if layer in {"raw", "config"} or kind == "missing":
        assert noted == [("Hurt", why)]


@pytest.mark.usefixtures("without_gx")
@pytest.mark.parametrize(("layer", "kind"), SOME_CASES)
def test_check_names_the_damaged_run_and_goes_on(
    mine: Home, call: Call, monkeypatch: pytest.MonkeyPatch, layer: Layer, kind: str
) -> None:
    """Results that are damaged are written again."""
    why = hurt(mine, layer, kind)
    done = call("--home", mine.root, "check")
    assert "fine: pass" in done.out
    if layer == "quality":
        assert (done.code, state_of(call, mine, "Hurt")) == (0, ["kineto, 2 traces, verdict pass"])
    else:
        assert (done.code, f"not checked: run Hurt: {why}\n" in done.err) == (4, True)


@pytest.mark.parametrize("table", ["run_facts", "steps"])
@pytest.mark.parametrize("kind", SOME)
def test_the_other_runs_are_compacted(two: Home, mine: Home, call: Call, table: str, kind: str) -> None:
    """A run with a damaged mart keeps its folder, and is built again from there."""
    hurt(mine, "marts", kind, table)
    assert compactable(mine, 0) == ["fine"]
    assert call("--home", mine.root, "compact", "--older-than-days", "0")[:2] == (0, "1 run compacted\n")
    assert Manifest.load(mine).serves.keys() == {"fine"}
    assert call("--home", mine.root, "build")[:2] == (0, "Hurt\n")
    assert mart_rows(mine) == mart_rows(two)


@pytest.mark.parametrize("kind", SOME)
def test_a_damaged_folder_does_not_end_the_serving_from_a_generation(
    two: Home, mine: Home, kind: str
) -> None:
    """The folder of a compacted run is there for a while: nothing of it is read."""
    compact_runs(mine, RUNS)
    write_database(mine)
    hurt(mine, "marts", kind, "run_facts")
    tidy(mine)
    write_database(mine)
    assert Manifest.load(mine).serves.keys() == {*RUNS}
    assert (stale(mine), unchecked_runs(mine)) == ([], [])
    assert mart_rows(mine) == mart_rows(two)


@pytest.mark.parametrize("table", ["run_facts", "quality"])
@pytest.mark.parametrize("kind", SOME)
def test_a_damaged_generation_is_built_again(
    two: Home, mine: Home, call: Call, kind: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It affects the runs served from it, and no other."""
    monkeypatch.setattr("pipeline.lake.tidy.GRACE_SECONDS", 0)
    gen = compact_runs(mine, ["Hurt"])
    write_database(mine)
    tidy(mine)
    write_database(mine)
    file = mine.compact / f"gen={gen}" / f"{table}.parquet"
    damage(file, kind)
    why = f"damaged: {file.relative_to(mine.root).as_posix()}: run `stepledger build Hurt`"
    assert call("--home", mine.root, "show", "fine") == call("--home", two.root, "show", "fine")
    answer = call(
        "--home",
        mine.root,
        "query",
        f"SELECT DISTINCT run_id FROM {table} WHERE len(run_id) > 0",
        "--format",
        "csv",
    )
    assert answer == (0, "run_id\nfine\n", f"left out: run Hurt: {why}\n")
    assert state_of(call, mine, "Hurt") == [why]
    assert call("--home", mine.root, "build")[:2] == (0, "Hurt\n")
    assert mart_rows(mine) == mart_rows(two)


@pytest.mark.parametrize(("layer", "kind"), SOME_CASES)
def test_a_damaged_run_can_be_forgotten(mine: Home, layer: Layer, kind: str) -> None:
    """The database is then as if it had never been."""
    hurt(mine, layer, kind)
    write_database(mine)
    forget(mine, "Hurt")
    write_database(mine)
    with duckdb.connect(str(mine.database), read_only=True) as con:
        assert con.execute("SELECT run_id FROM runs").fetchall() == [("fine",)]
        assert con.execute("FROM left_out").fetchall() == []


def broken_inside(file: Path, *, footer: bool) -> str:
    """Change bytes of the footer, or of the rows before it: the ends still look whole. Returns the message
    about it."""
    data = bytearray(file.read_bytes())
    end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for at in range(*((end, len(data) - 8) if footer else (4, end)), 3):
        data[at] ^= 0xFF
    file.write_bytes(data)
    assert not is_damaged(file)
    layer: Layer = file.relative_to(file.parents[3 if "raw" in file.parts else 2]).parts[0]  # type: ignore[assignment]
    return f"damaged: lake/{'/'.join(file.parts[file.parts.index('lake') + 1 :])}: {TODO[layer]}"


@pytest.mark.parametrize("layer", ["raw", "config", "marts"])
def test_a_run_with_a_broken_footer_is_left_out(mine: Home, call: Call, layer: Layer) -> None:
    """Its file looks whole, so that only reading it shows the damage."""
    why = broken_inside(file_of(mine, layer), footer=True)
    answer = call(
        "--home",
        mine.root,
        "query",
        f"SELECT DISTINCT run_id FROM {table_of(layer)} WHERE len(run_id) > 0",
        "--format",
        "csv",
    )
    assert answer == (0, "run_id\nfine\n", f"left out: run Hurt: {why}\n")


@pytest.mark.parametrize("layer", ["raw", "config"])
def test_a_database_can_be_written_beside_a_broken_footer(mine: Home, layer: Layer) -> None:
    """Without the run that it belongs to."""
    why = broken_inside(file_of(mine, layer), footer=True)
    write_database(mine)
    with duckdb.connect(str(mine.database), read_only=True) as con:
        assert con.execute("FROM left_out").fetchall() == [("Hurt", why)]
        assert con.execute(f"SELECT DISTINCT run_id FROM {table_of(layer)}").fetchall() == [("fine",)]


@pytest.mark.parametrize("layer", ["raw", "marts"])
def test_check_names_a_file_with_broken_rows(mine: Home, call: Call, layer: Layer) -> None:
    """A statement that meets them fails in one line that says so; one that does not, does not."""
    why = broken_inside(file_of(mine, layer), footer=False)
    answer = call("--home", mine.root, "query", f"FROM {table_of(layer)}")
    assert (
        answer.code,
        answer.out,
        "`stepledger check` names the file" in answer.err,
        answer.err.count("\n"),
    ) == (2, "", True, 1)
    assert call("--home", mine.root, "query", f"FROM {table_of(layer)} WHERE run_id = 'fine'").code == 0
    assert call("--home", mine.root, "check", "Hurt") == (4, "", f"not checked: run Hurt: {why}\n")


@pytest.mark.parametrize(("layer", "footer"), [("raw", True), ("raw", False), ("config", True)])
def test_building_from_a_file_that_is_broken_inside_names_it(
    mine: Home, call: Call, layer: Layer, footer: bool
) -> None:
    """As an error of that run."""
    why = broken_inside(file_of(mine, layer), footer=footer)
    assert call("--home", mine.root, "build", "Hurt") == (4, "", f"run Hurt: {why}\n")


def test_a_system_error_while_building_counts_for_that_run(
    mine: Home, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that gives an error for one run's file: no traceback, and the next run is built."""
    build_marts = engine.build_marts

    def failing(raw_run: Path, run_id: str, *rest: object, **options: object) -> None:
        if run_id == "Hurt":
            raise OSError(5, "Input/output error", str(raw_run / "launch.parquet"))
        build_marts(raw_run, run_id, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "build_marts", failing)
    done = call("--home", mine.root, "rebuild", "--workers", "1")
    assert (done.code, done.out) == (4, "fine\n")
    assert done.err.startswith(
        "run Hurt: its tables cannot be read or written: [Errno 5] Input/output error: "
    )


def test_export_of_all_runs_goes_on_with_the_others(mine: Home, call: Call) -> None:
    """It ends with the exit code of the refusal."""
    why = hurt(mine, "marts", "missing")
    path = mine.exports / "fine" / "step_breakdown.csv"
    assert call("--home", mine.root, "export") == (2, f"{path}\n", f"not exported: run Hurt: {why}\n")


def test_many_damaged_runs_take_few_lines(home: Home, tmp_path: Path, call: Call) -> None:
    """The first ten are named, the others are counted."""
    ingest_into(home, *pair(tmp_path), run="fine")
    for number in range(12):
        for root in (home.raw, home.marts, home.quality_lake):
            shutil.copytree(root / "run_id=fine", root / f"run_id=r{number:02}")
        file_of(home, "marts", run=f"r{number:02}").unlink()
    answer = call("--home", home.root, "query", "SELECT DISTINCT run_id FROM steps", "--format", "csv")
    assert answer.out == "run_id\nfine\n"
    assert [line.split(":")[1] for line in answer.err.splitlines()] == [
        f" run r{number:02}" for number in range(10)
    ] + [" 2 more"]


def test_whole_runs_get_no_message(two: Home, call: Call) -> None:
    """No file is looked at in vain."""
    assert (damaged_runs(two, {}), incomplete_runs(two, {})) == ({}, {})
    assert call("--home", two.root, "query", "SELECT count(*) AS n FROM runs", "--format", "csv") == (
        0,
        "n\n2\n",
        "",
    )


def test_what_old_versions_did_not_land_is_not_missing(mine: Home) -> None:
    """They knew of no latency tables."""
    for file in mine.raw.glob("run_id=*/file_id=*/microbench.parquet"):
        file.unlink()
    assert damage_of(mine, "Hurt") is None
    assert (incomplete_runs(mine, {}), build(mine, RUNS, QUIET).built) == ({}, RUNS)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PAR1",
        b"PAR1" * 2,
        b"PAR1" + bytes(20),
        bytes(20) + b"PAR1",
        b"PAR1" + b"\xff\xff\xff\x7f" + b"PAR1",
        b"PAR1" + bytes(4) + b"PAR2",
    ],
    ids=[
        "empty",
        "one end",
        "ends that overlap",
        "no end",
        "no beginning",
        "a footer longer than the file",
        "another format",
    ],
)
def test_what_is_no_whole_parquet_file(tmp_path: Path, data: bytes) -> None:
    """By its size, its ends, and the length of its footer."""
    (tmp_path / "x.parquet").write_bytes(data)
    assert is_damaged(tmp_path / "x.parquet")


def test_a_folder_in_the_place_of_a_file_is_damage(tmp_path: Path) -> None:
    """As is nothing at all."""
    assert is_damaged(tmp_path)
    assert is_damaged(tmp_path / "none")
