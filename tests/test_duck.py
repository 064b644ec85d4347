"""The one module that opens DuckDB, so that no session misses its settings."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.support.paths import ROOT

PACKAGE = ROOT / "pipeline"


def opens_duckdb(path: Path) -> bool:
    """Does a module call `duckdb.connect`, import `connect`, or use the default connection?"""
    own = {
        "connect",
        "sql",
        "query",
        "execute",
        "default_connection",
        "read_csv",
        "read_parquet",
        "read_json",
    }
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr in own:
            if isinstance(node.value, ast.Name) and node.value.id == "duckdb":
                return True
        elif isinstance(node, ast.ImportFrom) and node.module == "duckdb":
            return True
    return False


def test_only_one_module_opens_duckdb() -> None:
    """Everything else takes a connection from it: bounded memory, no downloads, no broken optimizer."""
    modules = sorted(PACKAGE.rglob("*.py"))
    assert len(modules) > 100
    assert [path.relative_to(PACKAGE).as_posix() for path in modules if opens_duckdb(path)] == ["duck.py"]
