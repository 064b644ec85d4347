"""Where things are: what waits, what is in work, what is quarantined and why, the runs, the disk; and the issues of readers."""

from __future__ import annotations

from typing import Any

from pipeline import duck
from pipeline.atomic import size_of
from pipeline.errors import HeldFile
from pipeline.home import Home
from pipeline.inbox import Waiting, not_settled, waiting
from pipeline.quarantine import quarantined
from pipeline.sources.issues import issue_codes
from pipeline.sources.names import as_text
from pipeline.warehouse import opened


def status_rows(home: Home) -> tuple[list[str], list[list[Any]]]:
    """One row per waiting file, writer at work, quarantined file, run, and folder that takes disk space."""
    dropped = waiting(home.inbox)
    rows: list[list[Any]] = [["inbox", str(item.place), item.run_name, _state(item)] for item in dropped]
    rows += [["in work", name, None, state] for name, state in home.at_work()]
    rows += [["quarantine", name, one.run, one.error] for name, one in quarantined(home).items()]
    if home.database.is_file():
        with opened(home) as con:
            found = duck.rows(con, "SELECT run_id, source, verdict, traces FROM runs ORDER BY ALL")
        rows += [["run", run_id, run_id, f"{source}, {traces} traces, verdict {verdict}"] for run_id, source, verdict, traces in found]
    layers = (home.archive, home.quarantine, home.raw, home.marts, home.compact, home.exports)
    sizes = {"inbox": sum(item.size_bytes for item in dropped)} | {f.relative_to(home.root).as_posix(): size_of(f) for f in layers}
    rows += [["disk", name, None, f"{size / 1e6:.1f} MB"] for name, size in sizes.items()]
    return ["where", "what", "run", "state"], [[None if cell is None else as_text(cell) for cell in row] for row in rows]


def _state(item: Waiting) -> str:
    """Why a file of the inbox waits."""
    return str(item.problem) if isinstance(item.problem, HeldFile) else not_settled(item) or "ready"


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
