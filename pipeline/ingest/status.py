"""The state of a home: waiting files, running processes, the quarantine, the runs and the disk; and the
issues of readers."""

from __future__ import annotations

from typing import Any

from pipeline import duck
from pipeline.errors import HeldFile, UsageError
from pipeline.ingest.inbox import InboxItem, not_settled, waiting
from pipeline.ingest.quarantine import quarantined
from pipeline.lake.atomic import size_of
from pipeline.lake.damage import damaged_runs
from pipeline.lake.home import Home
from pipeline.lake.manifest import Manifest
from pipeline.lake.reading import opened, print_left_out, stable
from pipeline.lake.versions import refuse_newer
from pipeline.lake.views import left_out_of
from pipeline.sources.issues import issue_codes
from pipeline.sources.names import as_text


def status_rows(home: Home) -> tuple[list[str], list[list[Any]]]:
    """One row per waiting file, running process, quarantined file, run, and folder that takes disk space."""
    dropped = waiting(home.inbox)
    rows: list[list[Any]] = [["inbox", str(item.place), item.run_name, _state(item)] for item in dropped]
    rows += [["in work", name, None, state] for name, state in home.at_work()]
    rows += [["quarantine", name, one.run, one.error] for name, one in quarantined(home).items()]
    rows += _run_rows(home)
    layers = (home.archive, home.quarantine, home.raw, home.marts, home.compact, home.exports)
    sizes = {"inbox": sum(item.size_bytes for item in dropped)} | {
        f.relative_to(home.root).as_posix(): size_of(f) for f in layers
    }
    rows += [["disk", name, None, f"{size / 1e6:.1f} MB"] for name, size in sizes.items()]
    return ["where", "what", "run", "state"], [
        [None if cell is None else as_text(cell) for cell in row] for row in rows
    ]


def _state(item: InboxItem) -> str:
    """Why a file of the inbox is waiting."""
    return str(item.problem) if isinstance(item.problem, HeldFile) else not_settled(item) or "ready"


def _run_rows(home: Home) -> list[list[Any]]:
    """One row per run and source, with the reason for those that cannot be read; or the reason why no run can
    be read.

    Raises UsageError for a home of a newer version.
    """
    refuse_newer(home)
    if not home.database.is_file():
        return []
    try:
        found, left_out = stable(home, lambda: _runs(home))
    except UsageError as error:
        return [["database", home.database.name, None, str(error).removeprefix(f"{home.root}: ")]]
    left_out = {
        run_id: str(damage) for run_id, damage in damaged_runs(home, Manifest.load(home).serves).items()
    } | left_out
    states = [
        (run_id, f"{source}, {traces} traces, verdict {verdict}")
        for run_id, source, verdict, traces in found
        if run_id not in left_out
    ]
    return [
        ["run", run_id, run_id, state]
        for run_id, state in sorted([*states, *left_out.items()], key=lambda row: row[0])
    ]


def _runs(home: Home) -> tuple[list[tuple[Any, ...]], dict[str, str]]:
    with opened(home) as con:
        return duck.rows(con, "SELECT run_id, source, verdict, traces FROM runs ORDER BY ALL"), left_out_of(
            con
        )


def _issues(home: Home) -> tuple[list[tuple[Any, ...]], dict[str, str]]:
    with opened(home) as con:
        found = duck.rows(
            con,
            "SELECT run_id, code, event_class, severity, sum(count)::BIGINT, sum(dur_ns)::BIGINT, "
            "min(example) FROM raw.issue "
            "GROUP BY run_id, code, event_class, severity ORDER BY list_position(['fail', 'warn', 'info'], "
            "severity), run_id, code, event_class",
        )
        return found, left_out_of(con)


def issue_rows(home: Home) -> tuple[list[str], list[list[Any]]]:
    """Issues of all files by run and code, worst first, with what they mean and what to do."""
    found, left_out = stable(home, lambda: _issues(home), across_runs=True)
    print_left_out(left_out)
    columns = ["run_id", "severity", "code", "event_class", "events", "gpu_ns", "example", "meaning", "todo"]
    texts = issue_codes()
    return columns, [
        [r, sev, code, cls, n, ns, ex, texts[code]["meaning"], texts[code]["todo"]]
        for r, code, cls, sev, n, ns, ex in found
    ]
