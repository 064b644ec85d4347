"""The manifest beside an export: its files, and the inputs, versions and issues behind their numbers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import orjson

from pipeline import __version__, duck

_BUILD = "SELECT DISTINCT build_id, rules_sha, models_sha, contract_version FROM run_facts WHERE run_id = $1"
_NAME = "SELECT min(run_name) FROM raw.trace WHERE run_id = $1"
_VERDICT = """
SELECT verdict FROM runs WHERE run_id = $1
ORDER BY list_position(['fail', 'warn', 'unchecked', 'pass'], verdict) LIMIT 1
"""
_INPUTS = """
SELECT file_name, file_bytes, sha256, trace_id, source, rank FROM raw.trace WHERE run_id = $1
ORDER BY trace_id
"""
_ISSUES = """
SELECT code, severity, sum(count)::BIGINT AS count FROM raw.issue WHERE run_id = $1 GROUP BY ALL
ORDER BY code
"""


@dataclass(frozen=True)
class Entry:
    """One exported file: its name, the table in it, its format and its number of rows."""

    file: str
    table: str
    form: str
    rows: int


def manifest_of(con: duckdb.DuckDBPyConnection, run_id: str, entry: Entry, path: Path) -> bytes:
    """The manifest for `path` with this file; it keeps the other files of a manifest that already exists."""
    builds = duck.dicts(con, _BUILD, [run_id])
    files = _files_in(path)
    files[entry.file] = {
        "table": entry.table,
        "format": entry.form,
        "rows": entry.rows,
        "build_id": builds[0]["build_id"] if builds else None,
    }
    content = {
        "run_id": run_id,
        "run_name": duck.scalar(con, _NAME, [run_id]),
        "exported_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "stepledger_version": __version__,
        "duckdb_version": duckdb.__version__,
        "build": builds[0] if builds else None,
        "verdict": duck.scalar(con, _VERDICT, [run_id]),
        "files": dict(sorted(files.items())),
        "inputs": duck.dicts(con, _INPUTS, [run_id]),
        "issues": duck.dicts(con, _ISSUES, [run_id]),
    }
    return orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _files_in(path: Path) -> dict[str, Any]:
    """The files of an earlier manifest; none where there is none, or it is damaged."""
    if not path.is_file():
        return {}
    with suppress(orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return dict(orjson.loads(path.read_bytes())["files"])
    return {}
