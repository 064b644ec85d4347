"""Export marts as CSV or Parquet, with a manifest of the inputs and versions that the numbers rest on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import duckdb

from pipeline import duck, session
from pipeline.contracts import contracts
from pipeline.duck import literal
from pipeline.errors import ExitCode, UsageError
from pipeline.events import Event, Say
from pipeline.lake.atomic import scratch
from pipeline.lake.dropped import mode_of, same_mode
from pipeline.lake.home import Home
from pipeline.lake.reading import opened, run_id_of, stable
from pipeline.models.rules import rollups
from pipeline.present import destination
from pipeline.present.export_manifest import Entry, manifest_of
from pipeline.text import FORMULA

if TYPE_CHECKING:
    import polars as pl

Format = Literal["csv", "parquet"]
DEFAULT_MART = "step_breakdown"
_GUARDED = r"'\1"
_KEYS = ("run_id", "source", "trace_id", "rank", "device", "step", "phase")


@dataclass(frozen=True)
class Exported:
    """The file that was written, and its manifest: none beside a device or a FIFO."""

    path: Path
    manifest: Path | None
    rows: int


def export_run(
    home: Home,
    run: str,
    mart: str,
    form: Format,
    output: Path | None,
    *,
    wide: bool,
    raw: bool = False,
) -> Exported:
    """Write one mart of one run and its manifest. Raises UsageError for a run or mart that does not exist.

    A device, a FIFO or an open file is written into, without a manifest. `raw`: CSV keeps text that a
    spreadsheet would run as a formula.
    """
    run_id = run_id_of(home, run)
    table = _table(mart, run_id, form, wide=wide, raw=raw)
    target = output or home.exports / run_id / f"{table.name}.{form}"
    manifest = (
        target.with_name("manifest.json")
        if output is None
        else target.with_name(f"{target.name}.manifest.json")
    )
    try:
        if destination.is_special(target):
            with session.folder() as folder:
                rows, _ = stable(home, lambda: _written(home, table, folder / session.EXPORT, "", None))
                destination.pour_into(target, folder / session.EXPORT, is_text=form == "csv")
            return Exported(target, None, rows)
        with _aside(home, target, is_in_home=output is None) as folder:
            aside, noted = folder / f"{table.name}.{form}", folder / "manifest.json"
            rows, text = stable(home, lambda: _written(home, table, aside, target.name, manifest))
            noted.write_bytes(text)
            destination.put(aside, target)
            destination.put(noted, manifest)
            if output is None:
                same_mode(target.parent, mode_of(home.raw_run(run_id)))
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error.strerror}") from error
    return Exported(target, manifest, rows)


@contextmanager
def _aside(home: Home, target: Path, *, is_in_home: bool) -> Iterator[Path]:
    """A folder on the target's filesystem to write in; what a killed export leaves in the home is removed by
    the next writer."""
    hidden = destination.hidden_beside(target)
    hidden.parent.mkdir(parents=True, exist_ok=True)
    if is_in_home:
        with scratch(home.staging) as folder, session.held(folder):
            yield folder
    else:
        hidden.mkdir(mode=0o700)
        with session.held(hidden):
            yield hidden


def readable_runs(home: Home, run_ids: list[str]) -> tuple[list[str], dict[str, UsageError]]:
    """Those of the runs that can be read, and what is wrong with the others."""
    runs, damaged = [], {}
    for run_id in run_ids:
        try:
            runs.append(run_id_of(home, run_id))
        except UsageError as error:
            damaged[run_id] = error
    return runs, damaged


def export_built(home: Home, verdicts: dict[str, str], say: Say) -> None:
    """Export the default mart of runs just built, unless they failed their checks, and report each."""
    for run_id, verdict in verdicts.items():
        if verdict == "fail":
            text = f"run {run_id}: verdict fail, so it is not exported (stepledger check {run_id})"
            say(text, Event.NOT_EXPORTED, run=run_id, code=ExitCode.QUALITY)
        else:
            done = export_run(home, run_id, DEFAULT_MART, "csv", None, wide=False)
            text = f"run {run_id}: verdict {verdict}, exported to {done.path}"
            say(text, Event.EXPORTED, run=run_id, file=str(done.path))


def run_verdict(home: Home, run_id: str) -> str:
    """The worst verdict of a run's sources on its current build."""

    def read() -> set[str]:
        with opened(home) as con:
            return {
                row[0] for row in duck.rows(con, f"SELECT verdict FROM runs WHERE run_id = {literal(run_id)}")
            }

    found = stable(home, read)
    return next((v for v in ("fail", "warn", "unchecked", "pass") if v in found), "unchecked")


def refuse_failed(home: Home, run: str) -> None:
    """Raise UsageError for a run that failed its checks."""
    run_id = run_id_of(home, run)
    if run_verdict(home, run_id) == "fail":
        raise UsageError(
            f"run {run_id} failed its checks (stepledger check {run_id}); --allow-failed exports it anyway"
        )


def export_to_stdout(home: Home, run: str, mart: str, form: Format, *, wide: bool, raw: bool = False) -> None:
    """Write one mart of one run to stdout, without a manifest."""
    table = _table(mart, run_id_of(home, run), form, wide=wide, raw=raw)
    with session.folder() as folder:
        aside = folder / session.EXPORT
        stable(home, lambda: _written(home, table, aside, "", None))
        destination.pour(sys.stdout.buffer, aside, is_text=form == "csv")


@dataclass(frozen=True)
class _Table:
    """What is exported: its name, the query that makes it, its form. `is_guarded`: no text is a formula."""

    name: str
    run_id: str
    query: str
    form: Format
    is_wide: bool
    is_guarded: bool


def _written(home: Home, table: _Table, aside: Path, file: str, manifest: Path | None) -> tuple[int, bytes]:
    with opened(home) as con:
        con.execute(f"SET temp_directory = {literal(aside.parent)}")  # not a folder in the home
        if table.is_wide:
            frame = _wide(con, table.run_id)
            rows = len(frame)
            _write_frame(frame, table, aside)
        else:
            options = "FORMAT csv, HEADER" if table.form == "csv" else "FORMAT parquet, COMPRESSION zstd"
            rows = con.execute(f"COPY ({table.query}) TO {literal(aside)} ({options})").fetchall()[0][0]
        if manifest is None:
            return rows, b""
        return rows, manifest_of(con, table.run_id, Entry(file, table.name, table.form, rows), manifest)


def _write_frame(frame: pl.DataFrame, table: _Table, aside: Path) -> None:
    import polars as pl

    if table.is_guarded:
        frame = frame.with_columns(pl.col(pl.String).str.replace(FORMULA, "'${1}"))
    frame.write_csv(aside) if table.form == "csv" else frame.write_parquet(aside)


def _table(mart: str, run_id: str, form: Format, *, wide: bool, raw: bool) -> _Table:
    known = contracts("marts")
    if wide and mart != DEFAULT_MART:
        raise UsageError(f"--wide is available for {DEFAULT_MART}, not for {mart}")
    if mart not in known:
        raise UsageError(f"no mart {mart!r}; known marts: {', '.join(known)}")
    is_guarded = form == "csv" and not raw
    texts = (f'"{column.name}"' for column in known[mart].columns if column.type == "VARCHAR")
    how = f"{literal(FORMULA)}, {literal(_GUARDED)}"
    guarded = ", ".join(f"regexp_replace({text}, {how}) AS {text}" for text in texts)
    columns = f"* REPLACE ({guarded})" if is_guarded else "*"
    order = ", ".join(f'{mart}."{name}"' for name in known[mart].grain)
    query = f"SELECT {columns} FROM {mart} WHERE {mart}.run_id = {literal(run_id)} ORDER BY {order}"
    return _Table(f"{mart}_wide" if wide else mart, run_id, query, form, wide, is_guarded)


def _wide(con: duckdb.DuckDBPyConnection, run_id: str) -> pl.DataFrame:
    """One row a step, one column a rollup (busy ns), in the rollups' fixed order: the same columns for every
    run."""
    where = f"WHERE run_id = {literal(run_id)}"
    keys = ["trace_id", "device", "step"]
    steps = con.sql(f"SELECT {', '.join(_KEYS)}, wall_ns, busy_ns, exposed_ns FROM steps {where}").pl()
    parts = con.sql(
        f"SELECT {', '.join(keys)}, rollup, busy_ns FROM step_breakdown {where} AND step IS NOT NULL"
    ).pl()
    names = {name: f"{name} (busy_ns)" for name in rollups()}
    table = parts.pivot(
        on="rollup", on_columns=list(names), index=keys, values="busy_ns", aggregate_function="sum"
    ).rename(names)
    wide: pl.DataFrame = steps.join(table, on=keys, how="left").sort(keys)
    return wide.with_columns(wide.select(names.values()).fill_null(0))
