"""requirements.lock: what is installed from it is what was locked, on every machine and from every index."""

from __future__ import annotations

import re

from tests.support.paths import ROOT

LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
_PACKAGE = re.compile(r"[a-z0-9.-]+==[A-Za-z0-9.!+]+((?: \\\n    --hash=sha256:[0-9a-f]{64})+)")


def test_every_package_is_locked_to_a_version_and_to_hashes_of_its_files() -> None:
    """Nothing else is in the file: no option, no address of an index. pip itself is locked too: a hash
    leaves no package out."""
    lines = re.sub(r"^#.*\n|^\n", "", LOCK, flags=re.MULTILINE)
    packages = list(_PACKAGE.finditer(lines))
    assert len(packages) > 50
    assert _PACKAGE.sub("", lines).strip() == ""
    assert {"pip", "setuptools"} < {found[0].split("==")[0] for found in packages}


def test_packages_with_machine_code_are_locked_for_every_machine() -> None:
    """DuckDB has files for Linux, macOS and Windows, and its source: a lock made from one machine's files
    would name one."""
    hashes = {found[0].split("==")[0]: found[1].count("sha256:") for found in _PACKAGE.finditer(LOCK)}
    assert min(hashes[name] for name in ("duckdb", "numpy", "orjson", "polars-runtime-32", "pyarrow")) >= 8
    assert min(hashes.values()) >= 2  # a version with one file alone may exist in one index alone
