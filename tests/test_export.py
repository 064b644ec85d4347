"""Exports: the mart itself, in its order, with a manifest that says what it was made from."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import duckdb
import polars as pl
import pytest

from pipeline import __version__, duck
from pipeline.contracts import contracts
from pipeline.duck import literal
from pipeline.errors import UsageError
from pipeline.export import Format, export_run, export_to_stdout
from pipeline.home import Home
from pipeline.models import CONTRACT_VERSION
from pipeline.rules import rollups
from pipeline.warehouse import opened

Rows = list[tuple[object, ...]]


def mart(home: Home, sql: str) -> Rows:
    """Rows of the warehouse."""
    with opened(home) as con:
        return duck.rows(con, sql)


def from_file(path: Path, table: str) -> Rows:
    """An exported file with the types of its mart, in the file's order."""
    if path.suffix == ".parquet":
        return duckdb.execute(f"FROM read_parquet({literal(path)})").fetchall()
    types = {c.name: c.type for c in contracts("marts")[table].columns}
    return duckdb.execute(f"FROM read_csv({literal(path)}, header = true, columns = {types})").fetchall()


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("table", sorted(contracts("marts")))
def test_an_export_equals_its_mart_in_the_order_of_its_keys(built: Home, tmp_path: Path, table: str, form: Format) -> None:
    """Every column and row, of this run only."""
    done = export_run(built, "a", table, form, tmp_path / f"x.{form}", wide=False)
    wanted = mart(built, f"SELECT * FROM {table} WHERE run_id = 'a' ORDER BY {', '.join(contracts('marts')[table].grain)}")
    assert from_file(done.path, table) == wanted
    assert done.rows == len(wanted)
    assert wanted or table in {"layer_breakdown", "bench_vs_trace"}


def test_by_default_it_goes_to_the_homes_exports(built: Home) -> None:
    """One folder a run, with one manifest for all its files."""
    one = export_run(built, "a", "steps", "csv", None, wide=False)
    two = export_run(built, "a", "timeline", "parquet", None, wide=False)
    assert one.path == built.exports / "a" / "steps.csv"
    assert one.manifest == two.manifest == built.exports / "a" / "manifest.json"
    files = json.loads(two.manifest.read_bytes())["files"]
    assert {"steps.csv", "timeline.parquet"} <= files.keys()
    assert sorted(p.name for p in one.path.parent.iterdir() if p.name.startswith(".")) == []


def test_the_manifest_says_what_the_numbers_were_made_from(built: Home, tmp_path: Path) -> None:
    """Inputs and hashes, versions, the build, rows and issues."""
    done = export_run(built, "a", "steps", "csv", tmp_path / "deep" / "x.csv", wide=False)
    assert done.manifest == tmp_path / "deep" / "x.csv.manifest.json"
    found = json.loads(done.manifest.read_bytes())
    traces = [p.read_bytes() for p in sorted((built.root.parent / "a").glob("*.json"))]
    assert sorted(i["sha256"] for i in found["inputs"]) == sorted(hashlib.sha256(t).hexdigest() for t in traces)
    assert sorted(i["file_bytes"] for i in found["inputs"]) == sorted(map(len, traces))
    assert (found["run_id"], found["run_name"], found["verdict"]) == ("a", "a", "pass")
    assert (found["stepledger_version"], found["duckdb_version"]) == (__version__, duckdb.__version__)
    ((build_id, rules_sha, models_sha),) = mart(built, "SELECT build_id, rules_sha, models_sha FROM run_facts WHERE run_id = 'a'")
    assert found["build"] == {"build_id": build_id, "rules_sha": rules_sha, "models_sha": models_sha, "contract_version": CONTRACT_VERSION}
    assert found["files"] == {"x.csv": {"table": "steps", "format": "csv", "rows": 8, "build_id": build_id}}
    assert found["issues"] == [dict(zip(("code", "severity", "count"), row, strict=True)) for row in mart(built, ISSUES)]


ISSUES = "SELECT code, severity, sum(count)::BIGINT FROM raw.issue WHERE run_id = 'a' GROUP BY ALL ORDER BY code"


def test_wide_is_one_row_a_step_and_one_column_a_rollup(built: Home, tmp_path: Path) -> None:
    """Every rollup is there, whether the run has it or not, in the fixed order."""
    done = export_run(built, "a", "step_breakdown", "csv", tmp_path / "w.csv", wide=True)
    frame = pl.read_csv(done.path)
    keys = ["trace_id", "device", "step"]
    assert [c for c in frame.columns if c.endswith(" (busy_ns)")] == [f"{r} (busy_ns)" for r in rollups()]
    assert frame.select(keys).rows() == mart(built, "SELECT trace_id, device, step FROM steps WHERE run_id = 'a' ORDER BY ALL")
    assert done.rows == len(frame) == 8


def test_the_columns_of_a_wide_row_sum_to_its_busy_time(built: Home, tmp_path: Path) -> None:
    """Nothing is left out and nothing counted twice; a rollup that a step does not have is 0."""
    frame = pl.read_parquet(export_run(built, "a", "step_breakdown", "parquet", tmp_path / "w.parquet", wide=True).path)
    parts = frame.select(f"{r} (busy_ns)" for r in rollups())
    assert parts.null_count().sum_horizontal().item() == 0
    assert parts.sum_horizontal().to_list() == frame["busy_ns"].to_list()
    assert frame["Unclassified (busy_ns)"].to_list() == [0, 1500, 1500, 1500] * 2


def test_stdout_gets_the_bytes_of_the_file(built: Home, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """No manifest, no message: data only."""
    export_to_stdout(built, "a", "steps", "csv", wide=False)
    out = capfdbinary.readouterr().out
    assert out == export_run(built, "a", "steps", "csv", tmp_path / "x.csv", wide=False).path.read_bytes()


def test_an_older_file_keeps_the_build_it_came_from(built: Home) -> None:
    """The manifest of a folder does not say of a file what is true of another."""
    first = export_run(built, "2026", "steps", "csv", None, wide=False)
    content = json.loads(first.manifest.read_bytes())
    content["files"]["steps.csv"]["build_id"] = "older"
    first.manifest.write_text(json.dumps(content))
    files = json.loads(export_run(built, "2026", "timeline", "csv", None, wide=False).manifest.read_bytes())["files"]
    assert files["steps.csv"]["build_id"] == "older"
    assert files["timeline.csv"]["build_id"] != "older"


@pytest.mark.parametrize(
    ("run", "table", "wide", "says"),
    [
        ("none", "steps", False, "known runs: 2026, a"),
        ("a", "nonsense", False, "known marts: activity"),
        ("a", "steps", True, "--wide is a form of step_breakdown"),
    ],
)
def test_what_does_not_exist_is_a_usage_error(built: Home, tmp_path: Path, run: str, table: str, wide: bool, says: str) -> None:
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
    """The staging folder belongs to the writer, who empties it; an export to elsewhere leaves the home alone."""
    before = sorted(built.staging.iterdir())
    export_run(built, "a", "steps", "csv", tmp_path / "x.csv", wide=False)
    assert sorted(built.staging.iterdir()) == before
