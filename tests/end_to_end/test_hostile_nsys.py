"""nsys reports that fight back, through `stepledger run`: each is read whole, refused with its reason, or
left alone, and costs no other file."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from pipeline import duck
from pipeline.cli import app
from pipeline.errors import ExitCode
from pipeline.ingest.quarantine import quarantined
from pipeline.lake.home import Home
from pipeline.lake.reading import opened
from pipeline.sources.nsys.columns import TABLES
from tests.support.homes import HANG_S, settled
from tests.support.nsys_bombs import (
    ENDLESS,
    HUGE,
    KERNELS,
    MEGABYTE,
    arrow,
    beyond_its_bytes,
    chain,
    changed,
    columns_of,
    definition,
    exchanged,
    fan,
    in_capitals,
    instead_of,
    long_texts,
    nothing,
    parquet,
    repeated,
    with_column,
    with_tree,
)
from tests.support.nsys_builders import (
    ALL_REDUCE,
    Tables,
    tables_of,
    two_ranks,
    write_parquetdir,
    write_sqlite,
)

LONG = ALL_REDUCE + "x" * MEGABYTE
NUL = ALL_REDUCE + "\0tail"


@dataclass(frozen=True)
class Case:
    """How a report is made, its outcome, and the message."""

    make: Callable[[Path], object]
    outcome: Literal["read", "refused", "left"]
    message: str = ""


def _changed(change: Callable[[Tables], object]) -> Callable[[Path], object]:
    """A report whose tables were changed."""

    def make(path: Path) -> None:
        tables = tables_of(two_ranks())
        change(tables)
        write_sqlite(path, tables)

    return make


def _renamed(old: str, new: str) -> Callable[[Path], object]:
    """A report with another kernel name."""

    def change(tables: Tables) -> None:
        (row,) = (r for r in tables["StringIds"].rows if r["value"] == old)
        row["value"] = new

    return _changed(change)


def _add_unused_megabytes(tables: Tables) -> None:
    tables["StringIds"].rows += [{"id": 1_000_000 + n, "value": f"{n}" * MEGABYTE} for n in range(10, 60)]


def _name_kernels_by_megabytes(tables: Tables) -> None:
    for number, row in enumerate(tables[KERNELS].rows):
        row["demangledName"] = 1_000_000 + number
        tables["StringIds"].rows.append({"id": 1_000_000 + number, "value": f"{number}" * 4 * MEGABYTE})


def _raise_ids(tables: Tables) -> None:
    for row in tables["StringIds"].rows:
        row["id"] += 1 << 40
    for table, columns in (
        (KERNELS, ("demangledName", "shortName")),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", ("nameId",)),
    ):
        for row in tables[table].rows:
            row.update({c: row[c] + (1 << 40) for c in columns})


def _damaged_page(path: Path) -> None:
    """A page of the kernel table that says it holds no row."""
    write_sqlite(path, tables_of(two_ranks(100)))
    with sqlite3.connect(path) as con:
        root, page = con.execute(
            "SELECT rootpage, (SELECT * FROM pragma_page_size) FROM sqlite_master WHERE name = ?", [KERNELS]
        ).fetchone()
    con.close()
    data = bytearray(path.read_bytes())
    at = (root - 1) * page
    first_child = int.from_bytes(data[at + 12 : at + 14], "big")
    leaf = (int.from_bytes(data[at + first_child : at + first_child + 4], "big") - 1) * page
    assert (data[at], data[leaf]) == (5, 13), "a table of one page has no leaf of its own"
    data[leaf + 3 : leaf + 5] = b"\0\0"
    path.write_bytes(data)


def _with_log(path: Path) -> None:
    """A report whose kernels were changed, and the change is in the log beside it only."""
    work = path.with_name(".work.sqlite")
    write_sqlite(work, tables_of(two_ranks()))
    con = sqlite3.connect(work, isolation_level=None)
    con.execute("PRAGMA journal_mode = wal")
    con.execute(f"DELETE FROM {KERNELS}")
    for ending in ("", "-wal", "-shm"):
        settled(Path(shutil.copy(f"{work}{ending}", f"{path}{ending}")))
    con.close()
    work.unlink()


CASES = {
    "no_sqlite": Case(
        lambda p: p.write_bytes(b"hello " * 1_000),
        "refused",
        "found file is not a database, wanted a whole nsys export",
    ),
    "empty": Case(Path.touch, "refused", "found an empty file, wanted an nsys export"),
    "cut_off": Case(
        lambda p: (write_sqlite(p, tables_of(two_ranks())), p.write_bytes(p.read_bytes()[:-5_000])),
        "refused",
        "pages: the file is truncated",
    ),
    "damaged_page": Case(_damaged_page, "refused", "found damaged pages"),
    "no_kernels": Case(
        _changed(lambda t: (t.pop(KERNELS), t.pop("CUPTI_ACTIVITY_KIND_RUNTIME"))),
        "refused",
        "found no CUPTI_ACTIVITY_KIND_KERNEL",
    ),
    "no_strings": Case(_changed(lambda t: t.pop("StringIds")), "refused", "found no StringIds"),
    "log_beside_it": Case(_with_log, "refused", "bad.sqlite-wal, which holds rows that are not in the file"),
    "names_of_megabytes": Case(
        _changed(_name_kernels_by_megabytes),
        "refused",
        "found more data at once than fits in the memory of a read",
    ),
    "unused_megabytes": Case(_changed(_add_unused_megabytes), "read"),
    "a_name_of_a_megabyte": Case(_renamed(ALL_REDUCE, LONG), "read"),
    "nul_in_a_name": Case(_renamed(ALL_REDUCE, NUL), "read"),
    "ids_beyond_32_bits": Case(_changed(_raise_ids), "read"),
    "folder_of_that_name": Case(lambda p: write_parquetdir(p, tables_of(two_ranks())), "read"),
    "empty_folder_of_that_name": Case(Path.mkdir, "left"),
}

ENDLESS_KERNELS = f"{ENDLESS} SELECT {', '.join(f'i AS {c}' for c in columns_of(KERNELS))} FROM endless"
READ = ", ".join(c for c in columns_of(KERNELS) if c in TABLES[KERNELS])
FIRST_TWO = "ORDER BY rowid LIMIT 2"
MANY_VIEWS = (
    f"INSERT INTO sqlite_master {ENDLESS} SELECT 'view', 'v' || i, 'v' || i, 0, 'CREATE VIEW v' || "
    "i || ' AS SELECT 1' FROM endless LIMIT 5001"
)
BOMBS = {
    "generated_column": Case(
        instead_of(
            "StringIds",
            f"CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT GENERATED ALWAYS AS ({HUGE}))",
            "INSERT INTO StringIds (id) SELECT id FROM held",
        ),
        "refused",
        "StringIds: found a generated column (value), wanted values stored in the file",
    ),
    "generated_column_that_is_not_read": Case(
        changed(
            f"ALTER TABLE {KERNELS} ADD COLUMN bomb TEXT GENERATED ALWAYS AS ({HUGE})",
            definition(KERNELS, f"({HUGE})", f"({HUGE}) NOT NULL"),
        ),
        "refused",
        f"{KERNELS}: found a generated column, wanted values stored in the file",
    ),
    "virtual_table": Case(
        instead_of(
            KERNELS,
            f"CREATE VIEW source AS {ENDLESS_KERNELS}",
            (
                f"CREATE VIRTUAL TABLE {KERNELS} USING fts5({', '.join(columns_of(KERNELS))}, content = "
                "'source')"
            ),
        ),
        "refused",
        f"{KERNELS}: found a virtual table, wanted an ordinary table, as nsys writes it",
    ),
    "view": Case(
        instead_of(KERNELS, f"CREATE VIEW {KERNELS.lower()} AS {ENDLESS_KERNELS}"),
        "refused",
        f"{KERNELS}: found a view",
    ),
    "view_that_is_only_counted": Case(
        changed(f"CREATE VIEW OSRT_API AS {ENDLESS} SELECT i FROM endless"),
        "refused",
        "OSRT_API: found a view",
    ),
    "default": Case(
        changed(
            "CREATE TABLE short (id INTEGER PRIMARY KEY)",
            "INSERT INTO short SELECT id FROM StringIds",
            f"ALTER TABLE short ADD COLUMN value TEXT DEFAULT '{'x' * 30_000}'",
            "DROP TABLE StringIds",
            "ALTER TABLE short RENAME TO StringIds",
        ),
        "refused",
        "StringIds: found value with a default of 30002 characters",
    ),
    "statistics_that_compute": Case(
        changed(
            f"CREATE TABLE other (tbl, idx, stat GENERATED ALWAYS AS ({HUGE}))",
            "INSERT INTO other VALUES ('other', NULL)",
            definition("other", "other", "sqlite_stat1"),
            "UPDATE sqlite_master SET name = 'sqlite_stat1', tbl_name = 'sqlite_stat1' WHERE name = 'other'",
        ),
        "refused",
        "sqlite_stat1: found a generated column",
    ),
    "ring_of_pages": Case(
        with_tree(KERNELS, lambda first, _leaf: [[first], [first]]),
        "refused",
        "is not in the file, or is used twice",
    ),
    "pages_that_stand_in_many_places": Case(
        with_tree(KERNELS, fan(15)), "refused", "is not in the file, or is used twice"
    ),
    "pages_one_below_another": Case(
        with_tree(KERNELS, chain(25)), "refused", "a tree of more than 20 levels"
    ),
    "schema_that_stands_in_many_places": Case(
        with_tree("sqlite_master", fan(15)), "refused", "is not in the file, or is used twice"
    ),
    "many_tables": Case(changed(MANY_VIEWS), "refused", "more than 5000 tables and indexes"),
    "long_definition": Case(
        changed(f"CREATE TABLE other (a /* {'x' * 60_000} */)"), "refused", "string or blob too big"
    ),
    "long_text": Case(
        changed("UPDATE NVTX_EVENTS SET text = hex(zeroblob(20000000)) WHERE rowid = 1"),
        "refused",
        "NVTX_EVENTS: found a text of more than 32 MB",
    ),
    "programs_of_other_names": Case(
        changed(
            f"CREATE VIEW pragma_quick_check AS {ENDLESS} SELECT i FROM endless",
            f'CREATE VIEW "a""; DROP TABLE StringIds; --" AS {ENDLESS} SELECT i FROM endless',
            f"CREATE TABLE other (a, b TEXT GENERATED ALWAYS AS ({HUGE}))",
            "INSERT INTO other VALUES (1)",
            "CREATE VIRTUAL TABLE words USING fts5(a, content = 'pragma_quick_check')",
            (
                f"CREATE TRIGGER again AFTER INSERT ON {KERNELS} BEGIN INSERT INTO {KERNELS} SELECT * FROM "
                f"{KERNELS}; END"
            ),
            "ANALYZE",
        ),
        "read",
    ),
    "names_in_capitals": Case(lambda p: write_sqlite(p, in_capitals(tables_of(two_ranks()))), "read"),
    "check_that_fails": Case(
        changed(definition("StringIds", '"value" TEXT', '"value" TEXT CHECK (value IS NULL)')), "read"
    ),
    "index_of_other_rows": Case(
        changed(
            f"CREATE TABLE two AS SELECT * FROM {KERNELS} {FIRST_TWO}",
            f"CREATE INDEX all_of_them ON {KERNELS} ({READ})",
            f"CREATE INDEX two_of_them ON two ({READ})",
            exchanged("all_of_them", "two_of_them"),
        ),
        "read",
    ),
    "rows_of_nothing": Case(
        arrow(KERNELS, nothing(10**10)), "refused", "more than 64000000000 bytes of rows"
    ),
    "count_of_nothing": Case(
        arrow("CUDA_GRAPH_EVENTS", nothing(10**12)), "refused", "more than 64000000000 bytes of rows"
    ),
    "text_beyond_its_bytes": Case(beyond_its_bytes, "refused", "reading the export"),
    "text_by_what_it_shares": Case(
        parquet(
            "StringIds", lambda t: t, use_dictionary=False, column_encoding={"value": "DELTA_BYTE_ARRAY"}
        ),
        "refused",
        "shares prefixes",
    ),
    "words_of_a_full_disk": Case(
        parquet(
            "CUPTI_ACTIVITY_KIND_RUNTIME", with_column("start", lambda n: pa.array([os.strerror(28)] * n))
        ),
        "refused",
        "a whole nsys export",
    ),
}
"""Files of kilobytes that would never be read to the end, or would fill the memory, and some that only look
like that."""


def _name_all_alike(tables: Tables) -> None:
    tables["StringIds"].rows.append({"id": 1_000_000, "value": ALL_REDUCE + "x" * MEGABYTE})
    for row in tables[KERNELS].rows:
        row["demangledName"] = 1_000_000


LIMIT = 10 * MEGABYTE
LARGE = {
    "rows": Case(
        parquet(KERNELS, repeated(200_000)),
        "refused",
        f"more than {LIMIT} bytes of rows, wanted at most {LIMIT} bytes",
    ),
    "text_in_parquet": Case(parquet("NVTX_EVENTS", long_texts("text", 20)), "refused", "bytes of rows"),
    "text_in_arrow": Case(arrow("NVTX_EVENTS", long_texts("text", 20)), "refused", "bytes of rows"),
    "text_of_two_tables": Case(
        lambda p: (
            arrow("NVTX_EVENTS", long_texts("text", 6))(p),
            arrow("META_DATA_EXPORT", long_texts("value", 6))(p),
        ),
        "refused",
        "bytes of rows",
    ),
    "names": Case(
        _changed(_name_all_alike), "refused", f"more than {LIMIT} bytes of names in all rows together"
    ),
    "text_in_sqlite": Case(
        _changed(lambda t: [r.update(text="x" * MEGABYTE) for r in t["NVTX_EVENTS"].rows]), "read"
    ),
}
"""Files of kilobytes that say more than `--max-bytes` allows, and one of megabytes that does not."""


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little memory for a read, so that little is too much for it."""
    monkeypatch.setattr("pipeline.sources.nsys.reader._MEMORY_LIMIT", "40MB")


def _run(home: Home) -> Result:
    """Run with a good report beside what is in the inbox; the good one must be read and built whatever the
    other is."""
    settled(write_sqlite(home.inbox / "good.sqlite", tables_of(two_ranks())))
    done = CliRunner().invoke(app.app, ["--home", str(home.root), "run"])
    assert "read: good.sqlite into run good" in done.stderr
    assert (home.archive / "good" / "good.sqlite").is_file()
    with opened(home) as con:
        assert duck.rows(con, "SELECT traces, decode_steps FROM runs WHERE run_id = 'good'") == [(2, 2)]
    assert not [p for p in home.staging.iterdir() if not p.name.startswith("old-")]
    return done


def _kernels(home: Home, run_id: str) -> list[tuple[object, ...]]:
    with opened(home) as con:
        return duck.rows(
            con,
            f"SELECT start_ns, dur_ns, stream, category FROM activity WHERE run_id = '{run_id}' ORDER BY ALL",
        )


@pytest.mark.usefixtures("small_memory")
@pytest.mark.parametrize("name", CASES)
def test_a_hostile_report_is_read_refused_or_left_and_the_good_one_beside_it_is_read(
    home: Home, name: str
) -> None:
    """Refused: exit 3, quarantined with its reason, no row of it. Read: the rows of the good one. Left: where
    it was, exit 0."""
    case, bad = CASES[name], home.inbox / "bad.sqlite"
    case.make(bad)
    for path in (bad, *bad.rglob("*")):
        settled(path)
    done = _run(home)
    assert done.exit_code == (ExitCode.TRACE if case.outcome == "refused" else ExitCode.OK), done.stderr
    assert bad.exists() == (case.outcome == "left")
    assert (home.archive / "bad" / "bad.sqlite").exists() == (case.outcome == "read")
    assert (home.quarantine / "bad" / "bad.sqlite").exists() == (case.outcome == "refused")
    assert home.raw_run("bad").exists() == (case.outcome == "read")
    if case.outcome == "refused":
        error = quarantined(home)["bad/bad.sqlite"].error
        assert case.message in error
        assert f"quarantined: {error}" in done.stderr
    if case.outcome == "read":
        assert _kernels(home, "bad") == _kernels(home, "good")


@pytest.mark.parametrize("text", [LONG, NUL], ids=["megabyte", "nul"])
def test_a_strange_name_is_kept_whole(home: Home, text: str) -> None:
    """Not a letter of it is cut."""
    _renamed(ALL_REDUCE, text)(home.inbox / "bad.sqlite")
    settled(home.inbox / "bad.sqlite")
    _run(home)
    with opened(home) as con:
        assert duck.rows(
            con, "SELECT DISTINCT name FROM raw.gpu_activity WHERE run_id = 'bad' AND name LIKE 'nccl%'"
        ) == [(text,)]


@contextmanager
def _locking(path: Path) -> Iterator[None]:
    """Another process that writes the database."""
    program = (
        f"import sqlite3, sys; con = sqlite3.connect({str(path)!r}, isolation_level=None); "
        "con.execute('BEGIN EXCLUSIVE')\n"
        "print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        try:
            yield
        finally:
            process.communicate("")


def test_a_report_that_another_process_writes_is_left_until_it_has_ended(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It changed lately: it stays in the inbox, untouched, and is read by the next run."""
    monkeypatch.setattr("pipeline.ingest.inbox.STALL_SECONDS", 1_000_000)
    bad = settled(write_sqlite(home.inbox / "bad.sqlite", tables_of(two_ranks())))
    before = bad.read_bytes()
    with _locking(bad):
        done = _run(home)
    assert done.exit_code == ExitCode.OK, done.stderr
    assert "left in the inbox: bad.sqlite: the file: found a lock by a program that writes it" in done.stderr
    assert [p.name for p in home.inbox.iterdir()] == ["bad.sqlite"]
    assert bad.read_bytes() == before
    assert _run(home).exit_code == ExitCode.OK
    assert _kernels(home, "bad") == _kernels(home, "good")


def test_a_report_that_is_locked_and_does_not_change_is_refused(home: Home) -> None:
    """Its holder does not finish it: quarantined, exit 3."""
    bad = settled(write_sqlite(home.inbox / "bad.sqlite", tables_of(two_ranks())))
    with _locking(bad):
        done = _run(home)
    assert done.exit_code == ExitCode.TRACE, done.stderr
    assert (
        "quarantined: bad.sqlite: the file: found a lock by a program that writes it, wanted a "
        "finished export."
    ) in done.stderr
    assert not home.raw_run("bad").exists()


def _bombed(root: Path, cases: dict[str, Case], *arguments: str) -> tuple[Home, int]:
    """One run over a file of each case and a good one, in a process of its own; returns the home and the exit
    code."""
    home = Home(root)
    home.ensure()
    for name, case in {
        **cases,
        "good": Case(lambda p: write_sqlite(p, tables_of(two_ranks())), "read"),
    }.items():
        path = home.inbox / name / "bad.sqlite"
        path.parent.mkdir()
        case.make(path)
        for made in (path, *path.rglob("*")):
            settled(made)
    command = [
        sys.executable,
        "-m",
        "pipeline",
        "--home",
        str(home.root),
        "run",
        "--workers",
        "1",
        *arguments,
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            _, err = process.communicate(timeout=HANG_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    print(err.decode(), file=sys.stderr)
    return home, process.returncode


def _hold(home: Home, name: str, case: Case) -> None:
    assert home.raw_run(name).exists() == (case.outcome == "read")
    if case.outcome == "refused":
        assert case.message in quarantined(home)[f"{name}/bad.sqlite"].error
    else:
        assert _kernels(home, name) == _kernels(home, "good")


@pytest.fixture(scope="module")
def bombed(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home into which every bomb was dropped."""
    home, code = _bombed(tmp_path_factory.mktemp("bombs") / "home", BOMBS)
    assert code == ExitCode.TRACE
    return home


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_by_what_it_is(bombed: Home, name: str) -> None:
    """The reason names the table and what was found; what only looks like a bomb is read like the good
    report."""
    _hold(bombed, name, BOMBS[name])


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home into which files were dropped that hold more than is allowed."""
    home, code = _bombed(tmp_path_factory.mktemp("limited") / "home", LARGE, "--max-bytes", str(LIMIT))
    assert code == ExitCode.TRACE
    return home


@pytest.mark.parametrize("name", LARGE)
def test_what_a_report_decodes_to_is_limited(limited: Home, name: str) -> None:
    """`--max-bytes` holds for rows, for text and for names in rows, however few bytes of a file they take."""
    _hold(limited, name, LARGE[name])
