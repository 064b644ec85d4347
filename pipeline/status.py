"""Where things are: what waits, what is quarantined and why, the runs; and the issues that readers counted."""

from __future__ import annotations

import json
from typing import Any

from pipeline import duck
from pipeline.home import Home
from pipeline.inbox import not_settled, waiting
from pipeline.sources.issues import issue_codes
from pipeline.warehouse import opened


def status_rows(home: Home) -> tuple[list[str], list[list[Any]]]:
    """One row per waiting file, quarantined file and run."""
    rows: list[list[Any]] = [["inbox", str(item.place), item.run_name, not_settled(item.path) or "ready"] for item in waiting(home.inbox)]
    for note in sorted(home.quarantine.rglob("*.reason.json")):
        reason = json.loads(note.read_text(encoding="utf-8"))
        rows.append(["quarantine", str(reason.get("file")), str(reason.get("run")), str(reason.get("error"))])
    if home.database.is_file():
        with opened(home) as con:
            found = duck.rows(con, "SELECT run_id, source, verdict, traces FROM runs ORDER BY ALL")
        rows += [["run", run_id, run_id, f"{source}, {traces} traces, verdict {verdict}"] for run_id, source, verdict, traces in found]
    return ["where", "what", "run", "state"], rows


def issue_rows(home: Home) -> tuple[list[str], list[list[Any]]]:
    """Issues of all files by run and code, worst first, with what they mean and what to do."""
    with opened(home) as con:
        found = duck.rows(
            con,
            "SELECT run_id, code, event_class, severity, sum(count)::BIGINT, sum(dur_ns)::BIGINT, min(example) FROM raw.issue "
            "GROUP BY run_id, code, event_class, severity ORDER BY list_position(['fail', 'warn', 'info'], severity), run_id, code, event_class",
        )
    columns = ["run_id", "severity", "code", "event_class", "events", "gpu_ns", "example", "meaning", "todo"]
    texts = issue_codes()
    return columns, [[r, sev, code, cls, n, ns, ex, texts[code]["meaning"], texts[code]["todo"]] for r, code, cls, sev, n, ns, ex in found]
