"""Which runs a command is about: names, ids or shell patterns, as people type them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from fnmatch import fnmatchcase

from pipeline import duck
from pipeline.errors import UsageError
from pipeline.lake.home import Home
from pipeline.lake.reading import NAMES, find_run, known_run, opened, run_id_of, stable

Find = Callable[[Home, str], str]
_WILDCARDS = frozenset("*?[")


def any_run(home: Home, run: str) -> str:
    """The id of a run by its name or id, of a damaged one too. Raises UsageError."""
    return run_id_of(home, run, known_run)


def readable_run(home: Home, run: str) -> str:
    """The id of a run by its name or id. Raises UsageError, also for a run that cannot be read as it is."""
    return run_id_of(home, run, find_run)


def landed_run(home: Home, run: str) -> str:
    """The id of a run by its name or id, without the database of views: it may be what is rebuilt. Raises
    UsageError."""
    known = home.run_ids()
    found = next((run_id for run_id in known if run_id in {run, home.run_id_for(run)}), None)
    if found is None:
        raise UsageError(f"no run {run!r}; known runs: {', '.join(known) or 'none yet'}")
    return found


def select_runs(home: Home, texts: Iterable[str], find: Find = any_run) -> list[str]:
    """The ids of these runs, each once: names and ids through `find`, shell patterns (A_*) as all that match.

    Raises UsageError for a name that no run has and a pattern that matches none.
    """
    found: list[str] = []
    for text in texts:
        found += [run_id for run_id in _selected(home, text, find) if run_id not in found]
    return found


def _selected(home: Home, text: str, find: Find) -> list[str]:
    if _WILDCARDS.isdisjoint(text):
        return [find(home, text)]
    with suppress(UsageError):  # a run's name may hold these characters itself
        return [find(home, text)]
    known = home.run_ids()
    matches = [run_id for run_id in known if fnmatchcase(run_id, text)] or _by_name(home, text)
    if not matches:
        raise UsageError(f"no run matches {text!r}; known runs: {', '.join(known) or 'none yet'}")
    return matches


def _by_name(home: Home, pattern: str) -> list[str]:
    """Runs whose name, as it was given when they were dropped, matches."""

    def read() -> list[tuple[str, str]]:
        with opened(home) as con:
            return duck.rows(con, NAMES)

    with suppress(UsageError):  # without a database there are no names but the ids
        return sorted({run_id for run_id, name in stable(home, read) if fnmatchcase(name, pattern)})
    return []
