"""Landing: one file, whole or not at all, once per run and bytes, as the contracts say."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from pipeline.contracts import contracts
from pipeline.duck import literal
from pipeline.errors import ContractError, SideFile, TraceError, UnfinishedFile
from pipeline.ingest import land as landing
from pipeline.ingest.land import Landed, land
from pipeline.lake.home import Home
from pipeline.sources.job import ReadJob
from pipeline.sources.kineto import read_kineto
from tests.support.homes import fingerprint, rank_trace


def landed(home: Home, path: Path, run: str = "run") -> Landed:
    """Land a file as an ingest does."""
    return land(home, path, run, lambda _count: None, threads=1, memory_limit="256MB")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """One small trace."""
    return rank_trace(tmp_path / "t-rank-0.json")


def test_a_file_lands_under_the_hash_of_its_bytes(home: Home, trace: Path) -> None:
    """The id says which bytes were read; every raw table is there and nothing else."""
    done = landed(home, trace)
    assert done == Landed("run", hashlib.sha256(trace.read_bytes()).hexdigest()[:16], was_known=False)
    folder = home.raw_run("run") / f"file_id={done.file_id}"
    assert sorted(p.stem for p in folder.iterdir()) == sorted(contracts("raw"))


def test_the_same_bytes_again_are_a_no_op(home: Home, trace: Path, tmp_path: Path) -> None:
    """Another name changes nothing: not a byte of the lake is touched."""
    first = landed(home, trace)
    before = fingerprint(home.root)
    again = landed(home, trace.rename(tmp_path / "other.json"))
    assert again == Landed(first.run_id, first.file_id, was_known=True)
    assert fingerprint(home.root) == before


def test_the_same_bytes_land_under_another_run_too(home: Home, trace: Path) -> None:
    """Idempotence is per run and bytes."""
    one, other = landed(home, trace, "one"), landed(home, trace, "other")
    assert one.file_id == other.file_id
    assert not other.was_known
    assert home.run_ids() == ["one", "other"]


def test_a_file_that_cannot_be_read_leaves_nothing(home: Home, tmp_path: Path) -> None:
    """Neither in the lake nor in staging."""
    path = tmp_path / "bad.json"
    path.write_bytes(b'{"traceEvents": [{"ph": "X"')
    before = fingerprint(home.root)
    with pytest.raises(TraceError):
        landed(home, path)
    assert fingerprint(home.root) == before


def test_a_file_that_is_missing_is_a_trace_error(home: Home, tmp_path: Path) -> None:
    """It may have been removed since it was listed."""
    with pytest.raises(TraceError, match="removed"):
        landed(home, tmp_path / "gone.json")


def test_a_side_file_is_not_landed(home: Home, tmp_path: Path) -> None:
    """A known companion of a capture says so."""
    path = tmp_path / "profiler_out_0.txt"
    path.write_text("table")
    with pytest.raises(SideFile):
        landed(home, path)


def test_a_file_without_its_end_lands_or_waits(home: Home, trace: Path) -> None:
    """Salvaged where the caller says so; otherwise it is unfinished and nothing is landed."""
    trace.write_bytes(trace.read_bytes()[:-200])
    with pytest.raises(UnfinishedFile):
        land(home, trace, "run", lambda _count: None, threads=1, memory_limit="256MB", salvage=False)
    assert home.run_ids() == []
    done = land(home, trace, "run", lambda _count: None, threads=1, memory_limit="256MB", salvage=True)
    table = home.raw_run("run") / f"file_id={done.file_id}" / "trace.parquet"
    assert duckdb.execute(
        f"SELECT is_truncated FROM read_parquet({literal(table)}, hive_partitioning = false)"
    ).fetchall() == [(True,)]


def test_a_file_that_grows_while_it_is_read_is_unfinished(home: Home, trace: Path) -> None:
    """Its hash would be that of other bytes than its rows: nothing is landed."""
    size = trace.stat().st_size

    def grow(_count: int) -> None:
        if trace.stat().st_size == size:
            with trace.open("ab") as file:
                file.write(b"\n")

    with pytest.raises(UnfinishedFile, match="changed while it was read"):
        land(home, trace, "run", grow, threads=1, memory_limit="256MB")
    assert home.run_ids() == []


def _reader_that_spoils(sql: str) -> Callable[..., Callable[[ReadJob], None]]:
    def read(job: ReadJob) -> None:
        read_kineto(job)
        target = job.out / "launch.parquet"
        with duckdb.connect() as con:
            con.execute(
                f"CREATE TABLE launch AS FROM read_parquet({literal(target)}, hive_partitioning = false)"
            )
            con.execute(f"COPY ({sql}) TO {literal(target)} (FORMAT parquet)")

    return lambda *_paths: read


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT * EXCLUDE (name) FROM launch", "columns differ"),
        ("SELECT *, 1 AS more FROM launch", "columns differ"),
        ("SELECT * REPLACE (dur_ns::DOUBLE AS dur_ns) FROM launch", "columns differ"),
        ("SELECT * REPLACE (NULL::BIGINT AS start_ns) FROM launch", "NULL in columns"),
    ],
)
def test_a_reader_that_writes_a_wrong_table_lands_nothing(
    home: Home, trace: Path, monkeypatch: pytest.MonkeyPatch, sql: str, says: str
) -> None:
    """The contracts in schemas/ are enforced before the commit."""
    monkeypatch.setattr(landing, "reader_for", _reader_that_spoils(sql))
    before = fingerprint(home.root)
    with pytest.raises(ContractError, match=says):
        landed(home, trace)
    assert fingerprint(home.root) == before
    assert home.run_ids() == []


def test_a_reader_that_forgets_a_table_lands_nothing(
    home: Home, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing table is a breach of contract too."""

    def read(job: ReadJob) -> None:
        read_kineto(job)
        (job.out / "launch.parquet").unlink()

    monkeypatch.setattr(landing, "reader_for", lambda *_paths: read)
    with pytest.raises(ContractError, match="launch"):
        landed(home, trace)
    assert home.run_ids() == []


@pytest.mark.parametrize("name", ["..", 'it\'s "x"\n', "日本"])
def test_a_run_of_any_name_lands_inside_the_lake_and_keeps_its_name(
    home: Home, trace: Path, name: str
) -> None:
    """The folder is a safe form; the name the user gave is a column."""
    done = landed(home, trace, name)
    (folder,) = home.raw.glob("run_id=*")
    assert folder == home.raw_run(done.run_id)
    found = duckdb.execute(
        f"SELECT run_name FROM read_parquet({literal(folder / '*' / 'trace.parquet')}, hive_partitioning = "
        "false)"
    ).fetchall()
    assert found == [(name,)]
