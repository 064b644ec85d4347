"""A reader process: queries one home repeatedly until a file appears, and reports what it read.

python -m tests.support.reader HOW HOME STOP: prints JSON with the number of rounds, every error, and every
distinct answer. HOW is `query` (a question over several marts, as `stepledger query` asks it) or `plain` (one
table after another, in a DuckDB connection that stays open, and in one that is new each time).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import duckdb

from pipeline.lake.home import Home
from pipeline.lake.query import run_query

# The rules of the run alternate between two variants that classify all-reduces differently; within one build
# all these agree.
ONE_BUILD = """
SELECT (SELECT rules_sha FROM run_facts WHERE run_id = 'turning') AS rules,
    (SELECT sum(dur_ns) FROM activity
     WHERE run_id = 'turning' AND category = 'sampling')::BIGINT AS by_activity,
    (SELECT sum(busy_ns) FROM step_breakdown
     WHERE run_id = 'turning' AND category = 'sampling')::BIGINT AS by_step,
    (SELECT round(sum(ms_total) * 1e6) FROM kernel_breakdown
     WHERE run_id = 'turning' AND category = 'sampling')::BIGINT AS by_kernel,
    (SELECT count(*) FROM steps JOIN step_breakdown USING (run_id, trace_id, device, step)
     WHERE run_id = 'turning' AND category = 'sampling') AS joined
"""
TABLES = (
    "activity",
    "steps",
    "step_breakdown",
    "run_breakdown",
    "kernel_breakdown",
    "run_facts",
    "timeline",
    "raw.trace",
    "raw.gpu_activity",
)


def main(how: str, root: Path, stop: Path) -> None:
    """Read until `stop` exists."""
    home = Home(root)
    rounds, errors, answers = 0, [], set()
    lasting = duckdb.connect(str(home.database), read_only=True)
    if how == "query":
        lasting.close()
    while not stop.exists():
        rounds += 1
        try:
            if how == "query":
                answers.add(run_query(home, ONE_BUILD)[1][0])
            else:
                _ask_each(lasting)
                with duckdb.connect(str(home.database), read_only=True) as fresh:
                    _ask_each(fresh)
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
        time.sleep(0.1)
    print(json.dumps({"rounds": rounds, "errors": errors, "answers": sorted(answers, key=str)}))


def _ask_each(con: duckdb.DuckDBPyConnection) -> None:
    for table in TABLES:
        con.execute(f"SELECT count(DISTINCT run_id), count(COLUMNS(*)) FROM {table}").fetchall()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
