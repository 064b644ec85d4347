"""Stretches of events to staged Parquet: typed whole by DuckDB, or event by event after an exact scan."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from pipeline import duck
from pipeline.sources import units
from pipeline.sources.issues import IssueBook
from pipeline.sources.kineto import events, exact
from pipeline.sources.kineto.events import ARGS, GPU_KINDS, KINDS, SCANNED

_ARROW: dict[str, pa.DataType] = {
    "VARCHAR": pa.string(),
    "BIGINT": pa.int64(),
    "BOOLEAN": pa.bool_(),
    "DECIMAL(38,5)": pa.decimal128(38, 5),
}
_SCHEMA = pa.schema([(name, _ARROW[kind]) for name, kind in SCANNED])
_NS_MAX = 2**63 - 1


class Stage:
    """The staged part files of one trace, in a folder of their own."""

    def __init__(self, con: duckdb.DuckDBPyConnection, folder: Path, book: IssueBook) -> None:
        self._con, self._folder, self._book = con, folder, book
        self._parts = 0
        con.execute(events.MACROS)
        con.execute(f"CREATE TEMP MACRO event_kind(ph, category, name) AS {events.sql_kind()}")

    def glob(self) -> str:
        """The glob of all part files, for read_parquet; there is at least one, even without events."""
        if not any(self._folder.glob("part-*.parquet")):
            self._write(_SCHEMA.empty_table())
        return duck.files(self._folder, "part-*.parquet")

    def _next_part(self) -> Path:
        self._parts += 1
        return self._folder / f"part-{self._parts:06d}.parquet"

    def load(self, stretches: list[memoryview]) -> bool:
        """Type whole stretches of comma-separated events at once; False, and nothing staged, if one does not
        parse.

        A stretch that parses proves its own end: JSON is deterministic, so from a known good start a wrong
        boundary (inside a string, an object, or beyond the array's end) cannot parse as an array.
        """
        written = []
        for number, stretch in enumerate(stretches):
            file = self._folder / f"stretch-{number}.json"
            with file.open("wb") as out:
                out.write(b"[")
                out.write(stretch)
                out.write(b"]")
            written.append(file)
        limit = max(len(s) for s in stretches) + 64
        part = self._next_part()
        try:
            return any(
                self._copy([duck.plain(file) for file in written], part, limit, number_type)
                for number_type in (units.NARROW, units.WIDE)
            )
        finally:
            for file in written:
                file.unlink()

    def _copy(self, files: list[str], part: Path, limit: int, number_type: str) -> bool:
        args = ", ".join(f'"{key}" VARCHAR' for key in ARGS)
        columns = (
            f"{{ph: 'VARCHAR', cat: 'VARCHAR', name: 'VARCHAR', ts: '{number_type}', dur: '{number_type}', "
            f"pid: 'VARCHAR', tid: 'VARCHAR', args: 'STRUCT({args})'}}"
        )
        kept = ", ".join(f"'{kind}'" for kind in (*KINDS, "metadata"))
        gpu = ", ".join(f"'{kind}'" for kind in GPU_KINDS)
        fields = ", ".join(f'args."{key}" AS {column}' for key, column in ARGS.items())
        process, pid = (
            f"CASE WHEN starts_with(pid, '[') THEN regexp_extract(pid, '{events.MERGED_PID}', {n})"
            for n in (1, 2)
        )
        scanned = f"""
            SELECT
                kind, NULL::VARCHAR AS event_class, name,
                {process} END AS process, {pid} ELSE pid END AS pid, tid,
                {units.sql_ns("ts")} AS ts_ns, {units.sql_ns("dur")} AS dur_ns,
                CASE WHEN kind IN ({gpu}) THEN dur END::DECIMAL(38, 5) AS dur_us,
                {units.sql_is_sub_ns("ts")} OR coalesce({units.sql_is_sub_ns("dur")}, false) AS is_sub_ns,
                {fields}
            FROM event WHERE kind IN ({kept})
        """
        try:
            self._con.execute(
                f"""
                COPY (
                    WITH event AS MATERIALIZED (
                        SELECT *, event_kind(ph, category, name) AS kind
                        FROM (SELECT *, lower(cat) AS category
                              FROM read_json(
                                  $files, format = 'array', columns = {columns}, maximum_object_size = {limit}
                              ))
                    )
                    {events.sql_staged(scanned)}
                    UNION ALL BY NAME
                    SELECT kind, coalesce(cat, 'ph ' || ph, 'none') AS event_class, {process} END AS process,
                        count(*) AS events
                    FROM event WHERE kind NOT IN ({kept}) GROUP BY ALL
                ) TO '{_quoted(part)}' (FORMAT parquet, COMPRESSION lz4_raw)
                """,
                {"files": files},
            )
        except (
            duckdb.InvalidInputException,
            duckdb.ConversionException,
            duckdb.OutOfRangeException,
            duckdb.OutOfMemoryException,
        ):
            # The statement's file is incomplete: a value does not fit, the text is not JSON, or its nesting
            # needs too much memory.
            part.unlink(missing_ok=True)
            return False
        return True

    def load_exact(self, found: list[exact.Event], buf: bytes, offset: int) -> None:
        """Type events found by the exact scan of `buf`, which starts at byte `offset` of the decompressed
        file."""
        columns: dict[str, list[Any]] = {name: [] for name, _ in SCANNED}
        for event in found:
            row = self._row(event, buf, offset)
            for name, values in columns.items():
                values.append(row.get(name))
        self._write(pa.table(columns, schema=_SCHEMA))

    def _write(self, scanned: pa.Table) -> None:
        self._con.register("scanned", scanned)
        self._con.execute(
            f"COPY ({events.sql_staged('SELECT * FROM scanned')}) TO '{_quoted(self._next_part())}' (FORMAT "
            "parquet)"
        )
        self._con.unregister("scanned")

    def _row(self, event: exact.Event, buf: bytes, offset: int) -> dict[str, Any]:
        where = f"byte {offset + event.start}: "
        if event.is_broken:
            raw = buf[event.start : event.end]
            category = _word_after(raw, b'"cat"')
            gpu = events.KIND_OF_CATEGORY.get(category.lower()) in GPU_KINDS
            code = "unreadable_gpu_event" if gpu else "unreadable_event"
            return {
                "kind": code,
                "event_class": category or "unknown",
                "name": where + raw[:160].decode("utf-8", "replace"),
            }
        value = {} if event.value is None else event.value  # DuckDB's reader makes an empty row of null
        if not isinstance(value, dict):
            text = where + json.dumps(value, default=float)[:100]
            return {"kind": "not_an_event", "event_class": type(value).__name__, "name": text}
        return self._typed(value, where, is_repaired=event.is_repaired)

    def _typed(self, value: dict[str, Any], where: str, *, is_repaired: bool) -> dict[str, Any]:
        name, cat, phase = (_text(value.get(key)) for key in ("name", "cat", "ph"))
        kind = events.kind_of(phase, cat, name)
        kept = kind in KINDS or kind == "metadata"
        event_class = cat if cat is not None else "none" if phase is None else f"ph {phase}"
        if is_repaired:
            self._book.add("repaired_text", event_class, example=where + (name or ""))
        pid = _text(value.get("pid"))
        process = None
        if pid and pid.startswith("["):
            prefix, _, rest = pid.partition("]")
            process, pid = prefix[1:], rest.strip()
        row: dict[str, Any] = {"kind": kind, "process": process, "is_sub_ns": False}
        if not kept:
            return row | {"event_class": event_class}
        ts, dur = (self._number(value, key, where) for key in ("ts", "dur"))
        args = value.get("args")
        if args is not None and not isinstance(args, dict):
            self._book.add("bad_value", "args", example=where + repr(args)[:80])
            args = None
        for key, column in ARGS.items():
            row[column] = _text((args or {}).get(key))
        row |= {"name": name, "pid": pid, "tid": _text(value.get("tid"))}
        row |= {"ts_ns": ts and units.decimal_to_ns(ts), "dur_ns": dur and units.decimal_to_ns(dur)}
        row["ts_ns"] = 0 if ts == 0 else row["ts_ns"]
        row["dur_ns"] = 0 if dur == 0 else row["dur_ns"]
        row["dur_us"] = dur if kind in GPU_KINDS else None
        row["is_sub_ns"] = any(v is not None and (v * 1000) % 1 != 0 for v in (ts, dur))
        return row

    def _number(self, value: dict[str, Any], key: str, where: str) -> Decimal | None:
        """A time of the event in microseconds.

        None, and counted, if it is not a number or exceeds a BIGINT of nanoseconds.
        """
        raw = value.get(key)
        if raw is None:
            return None
        try:
            number = units.us_to_decimal(Decimal(raw if isinstance(raw, (int, Decimal, str)) else str(raw)))
            if abs(number * 1000) <= _NS_MAX:
                return number
        except (InvalidOperation, ValueError):
            number = None
        self._book.add("bad_value", key, example=f"{where}{key} = {raw!s:.60}")
        return None


def _text(value: Any) -> str | None:
    """A JSON value as DuckDB's reader would give it as VARCHAR."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, (dict, list)):
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=float)
        return text.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(float(value)) if isinstance(value, Decimal) else str(value)


def _word_after(raw: bytes, key: bytes) -> str:
    """The string value that follows `key` in broken bytes, or "" if there is none."""
    _, _, rest = raw.partition(key)
    return rest.partition(b'"')[2].partition(b'"')[0][:40].decode("utf-8", "replace")


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
