"""Exports: the mart itself, in its order, with a manifest that says what it was made from."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import tty
from pathlib import Path

import duckdb
import polars as pl
import pytest

from pipeline import __version__, duck
from pipeline.contracts import CONTRACT_VERSION, contracts
from pipeline.duck import literal
from pipeline.errors import UsageError
from pipeline.lake.home import Home
from pipeline.lake.reading import opened
from pipeline.models.rules import rollups
from pipeline.present.export import Exported, Format, export_run, export_to_stdout
from tests.support.homes import HANG_S, copied, environment

Rows = list[tuple[object, ...]]


def mart(home: Home, sql: str) -> Rows:
    """Rows of the warehouse."""
    with opened(home) as con:
        return duck.rows(con, sql)


def read_manifest(done: Exported) -> bytes:
    """The manifest of an export that has one."""
    assert done.manifest is not None
    return done.manifest.read_bytes()


def from_file(path: Path, table: str) -> Rows:
    """An exported file with the types of its mart, in the file's order."""
    if path.suffix == ".parquet":
        return duckdb.execute(f"FROM read_parquet({literal(path)})").fetchall()
    types = {c.name: c.type for c in contracts("marts")[table].columns}
    return duckdb.execute(f"FROM read_csv({literal(path)}, header = true, columns = {types})").fetchall()


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("table", sorted(contracts("marts")))
def test_an_export_equals_its_mart_in_the_order_of_its_keys(
    built: Home, tmp_path: Path, table: str, form: Format
) -> None:
    """Every column and row, of this run only."""
    done = export_run(built, "a", table, form, tmp_path / f"x.{form}", wide=False)
    wanted = mart(
        built,
        f"SELECT * FROM {table} WHERE run_id = 'a' ORDER BY {', '.join(contracts('marts')[table].grain)}",
    )
    assert from_file(done.path, table) == wanted
    assert done.rows == len(wanted)
    assert wanted or table in {"layer_breakdown", "bench_vs_trace"}


def test_by_default_it_goes_to_the_homes_exports(built: Home) -> None:
    """One folder a run, with one manifest for all its files."""
    one = export_run(built, "a", "steps", "csv", None, wide=False)
    two = export_run(built, "a", "timeline", "parquet", None, wide=False)
    assert one.path == built.exports / "a" / "steps.csv"
    assert one.manifest == two.manifest == built.exports / "a" / "manifest.json"
    files = json.loads(read_manifest(two))["files"]
    assert {"steps.csv", "timeline.parquet"} <= files.keys()
    assert sorted(p.name for p in one.path.parent.iterdir() if p.name.startswith(".")) == []


def test_the_manifest_says_what_the_numbers_were_made_from(built: Home, tmp_path: Path) -> None:
    """Inputs and hashes, versions, the build, rows and issues."""
    done = export_run(built, "a", "steps", "csv", tmp_path / "deep" / "x.csv", wide=False)
    assert done.manifest == tmp_path / "deep" / "x.csv.manifest.json"
    found = json.loads(read_manifest(done))
    traces = [p.read_bytes() for p in sorted((built.root.parent / "a").glob("*.json"))]
    assert sorted(i["sha256"] for i in found["inputs"]) == sorted(
        hashlib.sha256(t).hexdigest() for t in traces
    )
    assert sorted(i["file_bytes"] for i in found["inputs"]) == sorted(map(len, traces))
    assert (found["run_id"], found["run_name"], found["verdict"]) == ("a", "a", "pass")
    assert (found["stepledger_version"], found["duckdb_version"]) == (__version__, duckdb.__version__)
    ((build_id, rules_sha, models_sha),) = mart(
        built, "SELECT build_id, rules_sha, models_sha FROM run_facts WHERE run_id = 'a'"
    )
    assert found["build"] == {
        "build_id": build_id,
        "rules_sha": rules_sha,
        "models_sha": models_sha,
        "contract_version": CONTRACT_VERSION,
    }
    assert found["files"] == {"x.csv": {"table": "steps", "format": "csv", "rows": 8, "build_id": build_id}}
    assert found["issues"] == [
        dict(zip(("code", "severity", "count"), row, strict=True)) for row in mart(built, ISSUES)
    ]


ISSUES = (
    "SELECT code, severity, sum(count)::BIGINT FROM raw.issue WHERE run_id = 'a' GROUP BY ALL ORDER BY code"
)


def test_wide_is_one_row_a_step_and_one_column_a_rollup(built: Home, tmp_path: Path) -> None:
    """Every rollup is there, whether the run has it or not, in the fixed order."""
    done = export_run(built, "a", "step_breakdown", "csv", tmp_path / "w.csv", wide=True)
    frame = pl.read_csv(done.path)
    keys = ["trace_id", "device", "step"]
    assert [c for c in frame.columns if c.endswith(" (busy_ns)")] == [f"{r} (busy_ns)" for r in rollups()]
    assert frame.select(keys).rows() == mart(
        built, "SELECT trace_id, device, step FROM steps WHERE run_id = 'a' ORDER BY ALL"
    )
    assert done.rows == len(frame) == 8


def test_the_columns_of_a_wide_row_sum_to_its_busy_time(built: Home, tmp_path: Path) -> None:
    """Nothing is left out and nothing counted twice; a rollup that a step does not have is 0."""
    frame = pl.read_parquet(
        export_run(built, "a", "step_breakdown", "parquet", tmp_path / "w.parquet", wide=True).path
    )
    parts = frame.select(f"{r} (busy_ns)" for r in rollups())
    assert parts.null_count().sum_horizontal().item() == 0
    assert parts.sum_horizontal().to_list() == frame["busy_ns"].to_list()
    assert frame["Unclassified (busy_ns)"].to_list() == [0, 1500, 1500, 1500] * 2


def test_stdout_gets_the_bytes_of_the_file(
    built: Home, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """No manifest, no message: data only."""
    export_to_stdout(built, "a", "steps", "csv", wide=False)
    out = capfdbinary.readouterr().out
    assert out == export_run(built, "a", "steps", "csv", tmp_path / "x.csv", wide=False).path.read_bytes()


def test_an_older_file_keeps_the_build_it_came_from(built: Home) -> None:
    """The manifest of a folder does not say of a file what is true of another."""
    first = export_run(built, "2026", "steps", "csv", None, wide=False)
    content = json.loads(read_manifest(first))
    content["files"]["steps.csv"]["build_id"] = "older"
    (built.exports / "2026" / "manifest.json").write_text(json.dumps(content))
    files = json.loads(read_manifest(export_run(built, "2026", "timeline", "csv", None, wide=False)))["files"]
    assert files["steps.csv"]["build_id"] == "older"
    assert files["timeline.csv"]["build_id"] != "older"


@pytest.mark.parametrize(
    ("run", "table", "wide", "says"),
    [
        ("none", "steps", False, "known runs: 2026, a"),
        ("a", "nonsense", False, "known marts: activity"),
        ("a", "steps", True, "--wide is available for step_breakdown"),
    ],
)
def test_what_does_not_exist_is_a_usage_error(
    built: Home, tmp_path: Path, run: str, table: str, wide: bool, says: str
) -> None:
    """It names what there is, and writes nothing."""
    with pytest.raises(UsageError, match=says):
        export_run(built, run, table, "csv", tmp_path / "x.csv", wide=wide)
    assert list(tmp_path.iterdir()) == []


def test_a_home_without_a_warehouse_is_a_usage_error(tmp_path: Path) -> None:
    """Before the first run there is nothing to take away."""
    with pytest.raises(UsageError, match="no warehouse yet"):
        export_run(Home(tmp_path), "a", "steps", "csv", None, wide=False)


def test_a_place_that_cannot_be_written_is_a_usage_error(built: Home, tmp_path: Path) -> None:
    """A file stands where a folder would have to be."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="cannot be written"):
        export_run(built, "a", "steps", "csv", tmp_path / "file" / "x.csv", wide=False)


def test_an_export_needs_nothing_of_the_home_but_to_read_it(built: Home, tmp_path: Path) -> None:
    """The staging folder belongs to the writer, who empties it; an export to elsewhere leaves the home
    alone."""
    before = sorted(built.staging.iterdir())
    export_run(built, "a", "steps", "csv", tmp_path / "x.csv", wide=False)
    assert sorted(built.staging.iterdir()) == before


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1", "a=1"]
GUARDED = [*(f"'{text}" for text in FORMULAS[:-1]), "a=1"]


@pytest.fixture
def with_formulas(built: Home, tmp_path: Path) -> Home:
    """A home in which every text of step_breakdown's category and of the steps' phase is one of FORMULAS."""
    home = copied(built, tmp_path / "formulas")
    texts = ", ".join(f"({number}, {literal(text)})" for number, text in enumerate(FORMULAS))
    for table, column in (("step_breakdown", "category"), ("steps", "phase")):
        mart = home.mart_run("a") / f"{table}.parquet"
        with duckdb.connect() as con:
            numbered = f"SELECT row_number() OVER () - 1 AS n, * FROM read_parquet({literal(mart)})"
            con.execute(f"CREATE TABLE before AS {numbered}")
            con.execute(
                f"COPY (SELECT * EXCLUDE (n, number, text) REPLACE (text AS {column}) FROM before "
                f"INNER JOIN (VALUES {texts}) AS f (number, text) ON n % {len(FORMULAS)} = number) "
                f"TO {literal(mart)} (FORMAT parquet)"
            )
    return home


def texts_of(path: Path, column: str) -> set[str]:
    """The texts in a column of a CSV, as they are."""
    with path.open(encoding="utf-8", newline="") as file:
        return {row[column] for row in csv.DictReader(file)}


@pytest.mark.parametrize("raw", [False, True])
def test_a_csv_has_no_formula_unless_it_is_raw(with_formulas: Home, tmp_path: Path, raw: bool) -> None:
    """Texts get an apostrophe; everything else, and the order of the rows, is that of the mart."""
    done = export_run(with_formulas, "a", "step_breakdown", "csv", tmp_path / "x.csv", wide=False, raw=raw)
    assert texts_of(done.path, "category") == set(FORMULAS if raw else GUARDED)
    grain = ", ".join(contracts("marts")["step_breakdown"].grain)
    wanted = mart(with_formulas, f"SELECT * FROM step_breakdown WHERE run_id = 'a' ORDER BY {grain}")
    at = [c.name for c in contracts("marts")["step_breakdown"].columns].index("category")

    def others(rows: Rows) -> list[object]:
        return [row[:at] + row[at + 1 :] for row in rows]

    assert others(from_file(done.path, "step_breakdown")) == others(wanted)


@pytest.mark.parametrize("raw", [False, True])
def test_a_wide_csv_has_no_formula_unless_it_is_raw(with_formulas: Home, tmp_path: Path, raw: bool) -> None:
    """It is written by another library."""
    done = export_run(with_formulas, "a", "step_breakdown", "csv", tmp_path / "x.csv", wide=True, raw=raw)
    assert texts_of(done.path, "phase") == set((FORMULAS if raw else GUARDED)[:8])


def test_parquet_keeps_texts_as_they_are(with_formulas: Home, tmp_path: Path) -> None:
    """No spreadsheet runs it."""
    for wide, column, wanted in ((False, "category", FORMULAS), (True, "phase", FORMULAS[:8])):
        done = export_run(with_formulas, "a", "step_breakdown", "parquet", tmp_path / "x.parquet", wide=wide)
        assert set(pl.read_parquet(done.path)[column]) == set(wanted)


@pytest.fixture
def wanted(built: Home, tmp_path: Path) -> bytes:
    """The bytes of an export of `steps`."""
    return export_run(built, "a", "steps", "csv", tmp_path / "wanted" / "x.csv", wide=False).path.read_bytes()


def steps_to(home: Home, output: Path) -> Exported:
    """Export `steps` to a place."""
    return export_run(home, "a", "steps", "csv", output, wide=False)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o755])
def test_a_file_is_replaced_and_keeps_its_mode(built: Home, tmp_path: Path, wanted: bytes, mode: int) -> None:
    """In one step: a reader that has the old one open still reads that."""
    target = tmp_path / "x.csv"
    target.write_bytes(b"old")
    target.chmod(mode)
    with target.open("rb") as old:
        assert steps_to(built, target).path == target
        assert old.read() == b"old"
    assert (target.read_bytes(), target.stat().st_mode & 0o7777) == (wanted, mode)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["wanted", "x.csv", "x.csv.manifest.json"]


def test_a_long_name_in_another_script_is_written(built: Home, tmp_path: Path, wanted: bytes) -> None:
    """Names have 255 bytes; those of hidden files beside them are no longer."""
    target = tmp_path / ("\u65e5" * 77 + ".csv")
    assert steps_to(built, target).path.read_bytes() == wanted


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to another user")
def test_a_file_that_is_replaced_keeps_its_owner(built: Home, tmp_path: Path) -> None:
    """Root exports into another user's folder, and that user can still read it."""
    target = tmp_path / "x.csv"
    target.write_bytes(b"old")
    target.chmod(0o600)
    os.chown(target, 12345, 12346)
    steps_to(built, target)
    status = target.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (12345, 12346, 0o600)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_stays_and_its_target_is_written(
    built: Home,
    tmp_path: Path,
    wanted: bytes,
    is_there: bool,
) -> None:
    """Over two links, into another folder; the manifest is beside the name that was given."""
    target = tmp_path / "elsewhere" / "y.csv"
    target.parent.mkdir()
    if is_there:
        target.write_bytes(b"old")
        target.chmod(0o600)
    (tmp_path / "middle").symlink_to("elsewhere/y.csv")
    link = tmp_path / "x.csv"
    link.symlink_to(tmp_path / "middle")
    assert steps_to(built, link).manifest == tmp_path / "x.csv.manifest.json"
    assert [path.is_symlink() for path in (link, tmp_path / "middle", target)] == [True, True, False]
    assert target.read_bytes() == wanted
    assert not is_there or target.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in target.parent.iterdir()] == ["y.csv"]


def test_a_link_in_the_homes_exports_stays_too(built: Home, tmp_path: Path, wanted: bytes) -> None:
    """Also one that leads out of the home."""
    home = copied(built, tmp_path / "home")
    link = home.exports / "a" / "steps.csv"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(tmp_path / "y.csv")
    export_run(home, "a", "steps", "csv", None, wide=False)
    assert (link.is_symlink(), (tmp_path / "y.csv").read_bytes()) == (True, wanted)


SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (a file system of its own is wanted)


def test_a_link_in_the_homes_exports_may_lead_to_another_disk(
    built: Home, tmp_path: Path, wanted: bytes
) -> None:
    """The file is written on that disk, since no rename leads from one to another."""
    if not os.access(SHARED_MEMORY, os.W_OK) or SHARED_MEMORY.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no other file system to write to")
    home = copied(built, tmp_path / "home")
    link = home.exports / "a" / "steps.csv"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as elsewhere:
        link.symlink_to(Path(elsewhere) / "y.csv")
        export_run(home, "a", "steps", "csv", None, wide=False)
        assert (link.is_symlink(), link.read_bytes()) == (True, wanted)
        assert [p.name for p in Path(elsewhere).iterdir()] == ["y.csv"]


@pytest.mark.parametrize("is_link", [False, True])
def test_a_device_is_written_into(built: Home, tmp_path: Path, is_link: bool) -> None:
    """A device stays one, also through a link, and has no manifest."""
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        device.write_bytes(b"")
    except PermissionError:
        pytest.skip("this user or file system has no device nodes")
    place = device
    if is_link:
        place = tmp_path / "link"
        place.symlink_to(device)
    before = sorted(tmp_path.iterdir())
    assert steps_to(built, place) == Exported(place, None, 8)
    assert stat.S_ISCHR(device.stat().st_mode)
    assert sorted(tmp_path.iterdir()) == before


def test_the_error_of_a_device_is_a_usage_error(built: Home) -> None:
    """A disk that is full, here one that always is."""
    with pytest.raises(UsageError, match=r"/dev/full: cannot be written: No space left on device"):
        steps_to(built, Path("/dev/full"))
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


def test_a_fifo_is_written_into(built: Home, tmp_path: Path, wanted: bytes) -> None:
    """Its reader gets the bytes of the file, and nothing is beside it."""
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(fifo.read_bytes()), daemon=True)
    reader.start()
    assert steps_to(built, fifo).manifest is None
    reader.join(timeout=HANG_S)
    assert got == [wanted]
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["pipe", "wanted"]


@pytest.mark.parametrize("place", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_an_open_file_is_written_into(built: Home, tmp_path: Path, wanted: bytes, place: str) -> None:
    """The shell's file behind /dev/stdout is not replaced under it: what stands there stays, as with `>>`."""
    out = tmp_path / "out.csv"
    out.write_bytes(b"before\n")
    arguments = ["--home", str(built.root), "export", "a", "--mart", "steps", "--output", place]
    with out.open("ab") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "pipeline", *arguments],
            stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=HANG_S, env=environment(),
        )  # fmt: skip
    note = f"written to {place}, which is not a regular file: no manifest beside it\n"
    assert (done.returncode, done.stderr) == (0, note)
    assert out.read_bytes() == b"before\n" + wanted
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.csv", "wanted"]


@pytest.mark.parametrize("kind", ["folder", "link to a folder", "socket", "loop"])
def test_what_cannot_take_a_file_is_a_usage_error(built: Home, tmp_path: Path, kind: str) -> None:
    """It stays as it was."""
    place = tmp_path / "x"
    if kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(place))
    elif kind == "loop":
        place.symlink_to(place)
    else:
        (tmp_path / "folder").mkdir()
        place = tmp_path / "folder"
        if kind == "link to a folder":
            place = tmp_path / "x"
            place.symlink_to("folder")
    before = place.lstat()
    says = "is a folder; name a file in it" if "folder" in kind else "cannot be written"
    with pytest.raises(UsageError, match=says):
        steps_to(built, place)
    assert place.lstat().st_ino == before.st_ino
    assert not list(tmp_path.glob("*manifest.json"))


def on_a_terminal(*arguments: str | Path) -> tuple[int, bytes, str]:
    """Run an export whose stdout is a terminal: exit code, what it shows, stderr."""
    terminal, inside = os.openpty()
    tty.setraw(inside)
    with subprocess.Popen(
        [sys.executable, "-m", "pipeline", *map(str, arguments)],
        stdout=inside, stderr=subprocess.PIPE, text=True, env=environment(),
    ) as process:  # fmt: skip
        os.close(inside)
        shown = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while part := os.read(terminal, 65536):
                shown += part
        os.close(terminal)
        _, err = process.communicate(timeout=HANG_S)
    return process.returncode, shown, err


@pytest.mark.parametrize("output", ["-", "/dev/stdout"])
def test_a_csv_on_a_terminal_is_escaped(with_formulas: Home, output: str) -> None:
    """And its lines stay lines."""
    arguments = ["export", "a", "--raw", "--output", output]
    code, shown, err = on_a_terminal("--home", with_formulas.root, *arguments)
    assert code == 0, err
    assert shown.decode().replace("\n", "").isprintable()
    assert rb"\t=1" in shown


def test_parquet_on_a_terminal_is_a_usage_error(built: Home) -> None:
    """It is no text."""
    arguments = ["export", "a", "--format", "parquet", "--output", "-"]
    code, shown, err = on_a_terminal("--home", built.root, *arguments)
    assert (code, shown) == (2, b"")
    assert "Parquet is not written to a terminal" in err


@pytest.mark.parametrize("content", [b"[]", b"{", b"null", b'{"files": 1}'])
def test_a_manifest_that_is_none_is_replaced(built: Home, tmp_path: Path, content: bytes) -> None:
    """Another program wrote into it."""
    (tmp_path / "x.csv.manifest.json").write_bytes(content)
    assert json.loads(read_manifest(steps_to(built, tmp_path / "x.csv")))["files"].keys() == {"x.csv"}
