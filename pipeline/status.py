"""Where things are: what waits, what is in work, what is quarantined and why, the runs, the disk; and the issues of readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline import duck
from pipeline.home import Home
from pipeline.inbox import not_settled, quarantined, waiting
from pipeline.sources.issues import issue_codes
from pipeline.sources.names import as_text
from pipeline.warehouse import opened


def status_rows(home: Home) -> tuple[list[str], list[list[Any]]]:
    """One row per waiting file, writer at work, quarantined file, run, and folder that takes disk space."""
    rows: list[list[Any]] = [["inbox", str(item.place), item.run_name, not_settled(item.path) or "ready"] for item in waiting(home.inbox)]
    rows += [["in work", name, None, state] for name, state in home.at_work()]
    rows += [["quarantine", name, one.run, one.error] for name, one in quarantined(home).items()]
    if home.database.is_file():
        with opened(home) as con:
            found = duck.rows(con, "SELECT run_id, source, verdict, traces FROM runs ORDER BY ALL")
        rows += [["run", run_id, run_id, f"{source}, {traces} traces, verdict {verdict}"] for run_id, source, verdict, traces in found]
    layers = (home.inbox, home.archive, home.quarantine, home.raw, home.marts, home.compact, home.exports)
    rows += [["disk", folder.relative_to(home.root).as_posix(), None, f"{_bytes(folder) / 1e6:.1f} MB"] for folder in layers]
    return ["where", "what", "run", "state"], [[None if cell is None else as_text(cell) for cell in row] for row in rows]


def _bytes(folder: Path) -> int:
    """Bytes of the files below a folder; one that is taken away meanwhile counts as nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size
        except FileNotFoundError:
            continue
    return total


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
