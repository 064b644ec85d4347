"""The warehouse: views that any DuckDB can read, builds that appear in one step, readers that never wait."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pytest

from pipeline import duck
from pipeline.contracts import contracts
from pipeline.duck import literal
from pipeline.errors import StepledgerError, UsageError
from pipeline.ingest.ingest import build, drain, stale
from pipeline.lake.database import write_database
from pipeline.lake.home import TEMPLATE, Home
from pipeline.lake.query import run_query
from pipeline.lake.reading import find_run, opened, reading, stable
from pipeline.lake.tidy import GRACE_SECONDS, tidy
from pipeline.progress import Progress
from tests.support.builders import ingest_into
from tests.support.contract_version import set_contract_version
from tests.support.homes import copied, rank_trace
from tests.support.reader import ONE_BUILD
from tests.support.thorough import IS_THOROUGH

QUIET = Progress(quiet=True)
VARIANT = '[[rule]]\nid = "turn"\nname = "{name}"\ncategory = "sampling"\n'


def ask(home: Home, sql: str) -> list[tuple[object, ...]]:
    """Rows, as any DuckDB client gets them."""
    with duckdb.connect(str(home.database), read_only=True) as con:
        return con.execute(sql).fetchall()


@pytest.fixture
def mine(built: Home, tmp_path: Path) -> Home:
    """A copy of the built home, to be changed."""
    return copied(built, tmp_path / "mine")


def test_every_view_works_before_there_is_any_run(home: Home) -> None:
    """A glob with no match cannot become a view, so an empty template is in; it never shows."""
    write_database(home)
    for layer in ("raw", "marts"):
        for table in contracts(layer):
            assert ask(home, f"SELECT count(*) FROM {'raw.' if layer == 'raw' else ''}{table}") == [(0,)]
    assert ask(home, "SELECT * FROM runs") == []


def test_templates_never_show(built: Home) -> None:
    """No run, no row and no file of the user's is called after them."""
    assert ask(built, "SELECT run_id FROM runs ORDER BY 1") == [("2026",), ("a",)]
    assert ask(built, f"SELECT count(*) FROM raw.trace WHERE run_id = {literal(TEMPLATE)}") == [(0,)]
    assert built.run_ids() == ["2026", "a"]


def test_a_run_called_2026_stays_text(built: Home) -> None:
    """Its name is not taken for a number, in raw tables and in marts."""
    for table in ("runs", "steps", "raw.gpu_activity"):
        assert ask(built, f"SELECT DISTINCT run_id, typeof(run_id) FROM {table} ORDER BY 1") == [
            ("2026", "VARCHAR"),
            ("a", "VARCHAR"),
        ]


def test_a_query_of_one_run_reads_one_runs_file(built: Home) -> None:
    """The other runs' folders are skipped by their names."""
    plan = str(ask(built, "EXPLAIN ANALYZE SELECT sum(dur_ns) FROM activity WHERE run_id = 'a'")[0][1])
    found = re.search(r"(?:Total )?Files Read:\s*(\d+)", plan)
    assert found is not None, plan
    assert found.group(1) == "1"


@pytest.mark.parametrize("how", ["plain", "ours"])
@pytest.mark.parametrize("table", ["activity", "raw.gpu_activity"])
def test_a_window_over_one_run_counts_that_run_alone(built: Home, table: str, how: str) -> None:
    """DuckDB 2.0 forgets the filter on run_id in a window without an order, unless it is kept from it; in any
    client."""
    with duckdb.connect(str(built.database), read_only=True) if how == "plain" else opened(built) as con:
        window = (
            f"SELECT DISTINCT n FROM (SELECT count(*) OVER (PARTITION BY kind) AS n FROM {table} WHERE "
            "run_id = 'a' AND kind = 'kernel')"
        )
        assert duck.rows(con, window) == duck.rows(
            con, f"SELECT count(*) FROM {table} WHERE run_id = 'a' AND kind = 'kernel'"
        )


def test_duckdb_still_has_the_fault_that_is_worked_around(tmp_path: Path) -> None:
    """When this fails, DuckDB was fixed: drop NO_SELF_JOINED_WINDOWS and the union in the views."""
    for run, rows in (("a", 2), ("b", 5)):
        (tmp_path / f"run_id={run}").mkdir()
        duckdb.execute(
            f"COPY (SELECT 1 AS k FROM range({rows})) TO '{tmp_path}/run_id={run}/t.parquet' (FORMAT parquet)"
        ).fetchall()
    scan = f"read_parquet('{tmp_path}/*/t.parquet', hive_types = {{'run_id': VARCHAR}})"
    window = (
        f"SELECT DISTINCT n FROM (SELECT count(*) OVER (PARTITION BY k) AS n FROM {scan} WHERE run_id = 'a')"
    )
    assert duckdb.execute(window).fetchall() == [(7,)]


def test_views_have_the_columns_of_their_contracts(built: Home) -> None:
    """Names, and the sentence of each column as its comment."""
    found = ask(
        built,
        (
            "SELECT column_name, comment FROM duckdb_columns() WHERE table_name = 'steps' AND schema_name = "
            "'main' ORDER BY column_index"
        ),
    )
    assert found == [(c.name, c.doc) for c in contracts("marts")["steps"].columns]


def test_the_database_is_written_for_duckdb_1_5_too(built: Home) -> None:
    """The storage format of 2.0 would be refused by older clients."""
    tags = ask(built, "SELECT tags['storage_version'] FROM duckdb_databases() WHERE path IS NOT NULL")
    assert tags[0][0] is not None
    assert str(tags[0][0]).startswith("v1.5"), tags


def test_the_database_is_replaced_and_never_opened_for_writing_in_place(mine: Home) -> None:
    """A new inode each time: who has the old file open goes on reading it."""
    before = mine.database.stat().st_ino
    with duckdb.connect(str(mine.database), read_only=True) as reader:
        write_database(mine)
        assert mine.database.stat().st_ino != before
        assert reader.execute("SELECT count(*) FROM runs").fetchall() == [(2,)]
    assert [p.name for p in mine.root.glob(".stepledger.duckdb*")] == []


def test_the_database_can_be_opened_while_somebody_writes(mine: Home) -> None:
    """Readers never wait for the lock of the writer."""
    with mine.writing(lambda _text: None):
        assert ask(mine, "SELECT count(*) FROM runs") == [(2,)]
        write_database(mine)
        assert ask(mine, "SELECT count(*) FROM runs") == [(2,)]


@pytest.mark.parametrize("name", ["a [b] c*{d}", "it's", 'say "x"', "100%s $x ; -- y"])
def test_a_home_of_any_name_works(built: Home, tmp_path: Path, name: str) -> None:
    """Wildcards, quotes and blanks in the path are letters."""
    home = copied(built, tmp_path / name / "home")
    assert ask(home, "SELECT run_id FROM runs ORDER BY 1") == [("2026",), ("a",)]
    assert stale(home) == []
    with reading(home) as con:
        assert duck.scalar(con, "SELECT count(*) FROM raw.trace") == 4
    assert build(home, ["a"], QUIET).built == ["a"]


def test_traces_can_be_read_into_a_home_with_wildcards_in_its_name(tmp_path: Path) -> None:
    """The whole walk, not the views alone."""
    home = Home(tmp_path / "a [b] c*{d}")
    assert ingest_into(home, rank_trace(tmp_path / "x.json", ranks=1)).built == ["run"]


def test_a_replaced_build_is_deleted_after_the_grace_time_only(mine: Home) -> None:
    """A reader that has it open may go on; an unfinished one has no reader and goes at once."""
    old, unfinished = mine.staging / "old-x", mine.staging / "unfinished"
    old.mkdir()
    unfinished.mkdir()
    tidy(mine)
    assert old.is_dir()
    assert not unfinished.exists()


def test_a_replaced_build_is_deleted_when_the_grace_time_is_over(
    mine: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Disk space comes back."""
    (mine.staging / "old-x").mkdir()
    later = time.time() + GRACE_SECONDS + 1
    monkeypatch.setattr(time, "time", lambda: later)
    tidy(mine)
    assert list(mine.staging.iterdir()) == []


def test_a_rebuild_keeps_the_old_build_aside(mine: Home) -> None:
    """It is one folder, whole."""
    build(mine, ["a"], QUIET)
    (old,) = (folder for folder in mine.staging.glob("old-*") if (folder / "steps.parquet").is_file())
    assert sorted(p.stem for p in old.iterdir()) == sorted(contracts("marts"))


def test_a_leftover_database_of_a_killed_writer_is_removed(mine: Home) -> None:
    """It was never moved into place."""
    (mine.root / ".stepledger.duckdb.abc").write_text("half")
    tidy(mine)
    assert list(mine.root.glob(".stepledger.duckdb*")) == []


def test_a_build_is_not_stale(built: Home) -> None:
    """Nothing is built twice."""
    assert stale(built) == []


def test_marts_of_another_contract_version_are_rebuilt(mine: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their columns or meaning changed; the next start builds them all."""
    set_contract_version(monkeypatch, 99)
    assert stale(mine) == ["2026", "a"]
    assert drain(mine, QUIET).built == ["2026", "a"]
    assert stale(mine) == []


def test_marts_without_what_tells_their_version_are_stale(mine: Home) -> None:
    """The oldest of all had no such column."""
    facts = mine.mart_run("a") / "run_facts.parquet"
    with duckdb.connect() as con:
        con.execute(
            f"CREATE TABLE f AS SELECT * EXCLUDE (contract_version) FROM read_parquet({literal(facts)}, "
            "hive_partitioning = false)"
        )
        con.execute(f"COPY f TO {literal(facts)} (FORMAT parquet)")
    assert stale(mine) == ["a"]


def test_a_run_that_got_another_file_is_stale(mine: Home) -> None:
    """Marts say which files they were built from."""
    source = next(mine.raw_run("2026").glob("file_id=*"))
    shutil.copytree(source, mine.raw_run("a") / source.name)
    assert stale(mine) == ["a"]


def test_a_home_without_a_warehouse_is_answered_with_what_to_do(tmp_path: Path) -> None:
    """Not a traceback from the database."""
    with pytest.raises(UsageError, match="stepledger run"):
        opened(Home(tmp_path))


@pytest.mark.parametrize("name", ["a", "A"])
def test_a_run_is_found_by_id_ignoring_case(built: Home, name: str) -> None:
    """Exactly first."""
    with reading(built) as con:
        assert find_run(con, name) == "a"


def test_a_run_that_is_not_there_names_those_that_are(built: Home) -> None:
    """The user mistyped, most likely."""
    with reading(built) as con, pytest.raises(UsageError, match="known runs: 2026, a"):
        find_run(con, "b")


def test_a_read_during_which_a_build_changed_is_done_again(mine: Home) -> None:
    """So that one statement never mixes two builds."""
    seen: list[int] = []

    def read() -> int:
        seen.append(1)
        if len(seen) == 1:
            shutil.copytree(mine.mart_run("a"), mine.mart_run("copy"))
        return len(seen)

    assert stable(mine, read) == 2


def test_a_read_that_never_finds_rest_is_refused(mine: Home) -> None:
    """It does not return a mixture after all."""

    def read() -> None:
        os.utime(mine.mart_run("a"), ns=(0, time.monotonic_ns()))

    with pytest.raises(StepledgerError, match="rebuilt continuously"):
        stable(mine, read)


def test_a_read_that_fails_while_a_build_is_exchanged_is_done_again(mine: Home) -> None:
    """The files that it had found may be gone."""
    seen: list[int] = []

    def read() -> int:
        seen.append(1)
        if len(seen) == 1:
            shutil.copytree(mine.mart_run("a"), mine.mart_run("copy"))
            raise duckdb.IOException("Cannot open file")
        return len(seen)

    assert stable(mine, read) == 2


def test_a_read_that_fails_is_not_done_again_without_a_reason(mine: Home) -> None:
    """No file is damaged: the error comes out, as one that is named where a file might be the reason."""

    def failing(error: duckdb.Error) -> None:
        raise error

    with pytest.raises(duckdb.BinderException, match="column"):
        stable(mine, lambda: failing(duckdb.BinderException("no such column")))
    with pytest.raises(UsageError, match="a table cannot be read"):
        stable(mine, lambda: failing(duckdb.IOException("Cannot open file")))


ARRIVING = 50 if IS_THOROUGH else 4
"""How many traces arrive while others read."""


def test_readers_see_no_error_and_no_mixture_while_traces_arrive_and_a_run_is_rebuilt(
    home: Home, tmp_path: Path
) -> None:
    """Traces arrive one after another, each a build, and one run is rebuilt under turning rules; processes
    that read all the while never notice."""
    answers: list[list[object]] = []
    for variant in ("AllReduce", "nvjet"):
        home.user_rules.write_text(VARIANT.format(name=variant))
        if answers:
            build(home, ["turning"], QUIET)
        else:
            ingest_into(home, rank_trace(tmp_path / "t.json", ranks=1), run="turning")
        answers.append(list(run_query(home, ONE_BUILD)[1][0]))
    assert answers[0] != answers[1]
    assert all(a[1] == a[2] == a[3] and a[4] for a in answers)
    stop = tmp_path / "stop"
    with _reader("query", home, stop) as query, _reader("plain", home, stop) as plain:
        try:
            for variant in ("AllReduce", "nvjet", "AllReduce"):
                home.user_rules.write_text(VARIANT.format(name=variant))
                build(home, ["turning"], QUIET)
            for rank in range(ARRIVING):
                ingest_into(
                    home,
                    rank_trace(tmp_path / f"x{rank}.json", rank, ranks=ARRIVING, steps=1),
                    run="arriving",
                )
        finally:
            stop.touch()
        saw = {"query": json.loads(query.communicate()[0]), "plain": json.loads(plain.communicate()[0])}
    for seen in saw.values():
        assert seen["errors"] == []
        assert seen["rounds"] > 1
    assert saw["query"]["answers"]
    assert all(answer in answers for answer in saw["query"]["answers"])


def _reader(how: str, home: Home, stop: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.reader", how, str(home.root), str(stop)],
        stdout=subprocess.PIPE,
        text=True,
    )
