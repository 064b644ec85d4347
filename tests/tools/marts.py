"""Digests of every table of every recorded trace, to compare before and after a change that must move no
number.

Run it in both trees and compare the two files:

    python -m tests.tools.marts TRACES --home /tmp/home > before.tsv
    python -m tests.tools.marts TRACES --home /tmp/home > after.tsv && diff before.tsv after.tsv

A line is table, run, rows, and a digest of all its rows in any order. Columns that name a build or a time are
left out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import duckdb

_OF_A_BUILD = {
    "build_id",
    "checked_at",
    "contract_version",
    "described_at",
    "ingested_at",
    "inputs_sha",
    "models_sha",
    "rules_sha",
    "stepledger_version",
}


def _stepledger(home: Path, *arguments: str) -> int:
    """Run the command of this tree, with its messages on stderr."""
    command = [sys.executable, "-m", "pipeline", "--home", str(home), *arguments]
    return subprocess.run(command, stdout=sys.stderr, check=False).returncode


def digests(database: Path) -> list[tuple[str, str, int, str]]:
    """(table, run, rows, digest) of each view over a home's lake."""
    found: list[tuple[str, str, int, str]] = []
    with duckdb.connect(database, read_only=True) as con:
        views = con.sql(
            "SELECT schema_name, view_name FROM duckdb_views() WHERE NOT internal ORDER BY ALL"
        ).fetchall()
        for schema, view in views:
            columns = {row[0] for row in con.sql(f"DESCRIBE {schema}.{view}").fetchall()}
            if "run_id" not in columns:
                continue
            kept = ", ".join(f'"{column}"' for column in sorted(columns - _OF_A_BUILD))
            rows = con.sql(
                "SELECT run_id, count(*), printf('%x.%x', bit_xor(row_hash), sum(row_hash % "
                "1000003)::BIGINT) "
                f"FROM (SELECT run_id, hash({kept}) AS row_hash FROM {schema}.{view}) GROUP BY run_id ORDER "
                "BY run_id"
            ).fetchall()
            found += [(f"{schema}.{view}", *row) for row in rows]
    return found


def main() -> None:
    """Ingest each folder of traces as a run of its own, build, check, and print the digests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path, nargs="+", help="folders whose sub-folders each hold one run")
    parser.add_argument("--home", type=Path, required=True, help="an empty folder for the home")
    options = parser.parse_args()
    for folder in sorted(run for traces in options.traces for run in traces.iterdir() if run.is_dir()):
        _stepledger(options.home, "ingest", str(folder), "--run", folder.name)
    _stepledger(options.home, "build")
    for row in digests(options.home / "stepledger.duckdb"):
        print(*row, sep="\t")


if __name__ == "__main__":
    main()
