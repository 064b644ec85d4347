"""Marts to CSV or Parquet, with a manifest that says what the numbers were made from."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import duckdb
import orjson

from pipeline import __version__, duck
from pipeline.atomic import write_file
from pipeline.contracts import contracts
from pipeline.duck import literal
from pipeline.errors import UsageError
from pipeline.home import Home
from pipeline.warehouse import find_run, stable

Format = Literal["csv", "parquet"]
DEFAULT_MART = "step_breakdown"
_KEYS = ("run_id", "source", "trace_id", "rank", "device", "step", "phase")


@dataclass(frozen=True)
class Exported:
    """One file written, and its manifest."""

    path: Path
    manifest: Path
    rows: int


def export_run(home: Home, run: str, mart: str, form: Format, output: Path | None, *, wide: bool) -> Exported:
    """Write one mart of one run and its manifest. Raises UsageError for a run or mart that does not exist."""
    return stable(home, lambda: _export_run(home, run, mart, form, output, wide=wide))


def _export_run(home: Home, run: str, mart: str, form: Format, output: Path | None, *, wide: bool) -> Exported:
    with duck.database(home.database, read_only=True) as con:
        run_id = find_run(con, run)
        query = _query(mart, run_id, wide=wide)
        name = f"{mart}_wide" if wide else mart
        target = output or home.exports / run_id / f"{name}.{form}"
        data = _rendered(con, query, form, home, wide=wide)
        rows = duck.scalar(con, f"SELECT count(*) FROM ({query})")
        if wide:
            rows = duck.scalar(con, f"SELECT count(*) FROM steps WHERE run_id = {literal(run_id)}")
        manifest = target.with_name("manifest.json") if output is None else target.with_name(f"{target.name}.manifest.json")
        text = _manifest(con, run_id, name, form, target.name, rows, manifest)
    write_file(target, data)
    write_file(manifest, text)
    return Exported(target, manifest, rows)


def export_to_stdout(home: Home, run: str, mart: str, form: Format, *, wide: bool) -> None:
    """Write one mart of one run to stdout, without a manifest."""

    def once() -> bytes:
        with duck.database(home.database, read_only=True) as con:
            return _rendered(con, _query(mart, find_run(con, run), wide=wide), form, home, wide=wide)

    sys.stdout.buffer.write(stable(home, once))


def _query(mart: str, run_id: str, *, wide: bool) -> str:
    known = contracts("marts")
    if wide and mart != DEFAULT_MART:
        raise UsageError(f"--wide is a form of {DEFAULT_MART}, not of {mart}")
    if mart not in known:
        raise UsageError(f"no mart {mart!r}; known marts: {', '.join(known)}")
    order = ", ".join(("run_id", *known[mart].grain))
    return f"SELECT * FROM {mart} WHERE run_id = {literal(run_id)} ORDER BY {order}"


def _rendered(con: duckdb.DuckDBPyConnection, query: str, form: Format, home: Home, *, wide: bool) -> bytes:
    if wide:
        return _wide(con, query, form)
    scratch = home.staging / f"export-{datetime.now(UTC).timestamp()}.{form}"
    options = "FORMAT csv, HEADER" if form == "csv" else "FORMAT parquet, COMPRESSION zstd"
    try:
        con.execute(f"COPY ({query}) TO {literal(scratch)} ({options})")
        return scratch.read_bytes()
    finally:
        scratch.unlink(missing_ok=True)


def _wide(con: duckdb.DuckDBPyConnection, query: str, form: Format) -> bytes:
    """One row a step, one column a rollup (busy ns), in the rollups' fixed order: the same columns for every run."""
    import io

    import polars as pl

    from pipeline.rules import rollups

    frame = con.sql(query).pl()
    run_id = literal(frame["run_id"][0]) if len(frame) else "NULL"
    steps = con.sql(f"SELECT {', '.join(_KEYS)}, wall_ns, busy_ns, exposed_ns FROM steps WHERE run_id = {run_id}").pl()
    keys = ["trace_id", "device", "step"]
    totals = frame.filter(pl.col("step").is_not_null()).group_by(*keys, "rollup").agg(pl.col("busy_ns").sum())
    table = totals.pivot(on="rollup", on_columns=list(rollups()), index=keys, values="busy_ns", aggregate_function="sum")
    table = table.rename({name: f"{name} (busy_ns)" for name in rollups()})
    wide = steps.join(table, on=keys, how="left", maintain_order="left").sort(keys)
    wide = wide.with_columns(pl.col([f"{name} (busy_ns)" for name in rollups()]).fill_null(0))
    out = io.BytesIO()
    if form == "csv":
        wide.write_csv(out)
    else:
        wide.write_parquet(out)
    return out.getvalue()


def _manifest(con: duckdb.DuckDBPyConnection, run_id: str, name: str, form: Format, file: str, rows: int, path: Path) -> bytes:
    where = f"WHERE run_id = {literal(run_id)}"
    files: dict[str, Any] = {}
    if path.is_file():
        try:
            files = orjson.loads(path.read_bytes()).get("files", {})
        except orjson.JSONDecodeError:
            files = {}
    files[file] = {"table": name, "format": form, "rows": rows}
    facts = duck.dicts(con, f"SELECT DISTINCT build_id, rules_sha, models_sha, contract_version FROM run_facts {where}")
    content = {
        "run_id": run_id,
        "run_name": duck.scalar(con, f"SELECT min(run_name) FROM raw.trace {where}"),
        "exported_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "stepledger_version": __version__,
        "duckdb_version": duckdb.__version__,
        "build": facts[0] if facts else None,
        "verdict": duck.scalar(con, f"SELECT max(verdict) FROM runs {where}"),
        "files": dict(sorted(files.items())),
        "inputs": duck.dicts(con, f"SELECT file_name, file_bytes, sha256, trace_id, source, rank FROM raw.trace {where} ORDER BY trace_id"),
        "issues": duck.dicts(
            con,
            f"SELECT code, severity, sum(count)::BIGINT AS count FROM raw.issue {where} GROUP BY ALL ORDER BY code",
        ),
    }
    return orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
