"""Where the SQL and the schemas are: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def resource(name: str) -> Path:
    """The folder `name` (sql or schemas) of this installation."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name
