"""The two tasks of an executor: land a file, build a run. Their inputs and results can be pickled."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import duckdb

from pipeline import __version__
from pipeline.errors import HomeError, ModelError, StepledgerError, TraceError, UsageError, home_trouble
from pipeline.ingest.land import Landed, land
from pipeline.lake.home import Home
from pipeline.lake.settings import Settings
from pipeline.models.build import build_run
from pipeline.models.rules import load_rules
from pipeline.quality.verdicts import check_run, verdict
from pipeline.sources.job import MAX_BYTES


@dataclass(frozen=True)
class Landing:
    """A file to read into a run of the home at `root`; `run_id` is the run's folder, chosen by the
    process that gives the task.
    """

    root: Path
    path: Path
    run_name: str
    run_id: str
    settings: Settings
    lock_token: str
    salvage: bool = True
    max_bytes: int = MAX_BYTES
    inbox: Path | None = None
    version: str = __version__


@dataclass(frozen=True)
class Building:
    """A run to build and check; to check only, where it is built already."""

    root: Path
    run_id: str
    settings: Settings
    lock_token: str
    is_built: bool = False
    version: str = __version__


@dataclass(frozen=True)
class Built:
    """A run that was built: its verdict, and the checks of severity fail that it failed, with what they mean.
    `problem`: why it could not be checked, if so."""

    verdict: str | None = None
    failed: tuple[tuple[str, str], ...] = ()
    problem: StepledgerError | None = None


def land_file(landing: Landing, on_read: Callable[[int], None] = lambda _count: None) -> Landed:
    """Read one file into the lake. Raises HomeError where the home cannot be written, which is not the file's
    fault; any other error of the file system or of DuckDB is a TraceError of this file.
    """
    _prove_home(landing)
    try:
        return land(
            Home(landing.root),
            landing.path,
            landing.run_name,
            on_read,
            run_id=landing.run_id,
            threads=landing.settings.threads,
            memory_limit=landing.settings.read_memory,
            salvage=landing.salvage,
            max_bytes=landing.max_bytes,
            inbox=landing.inbox,
        )
    except StepledgerError as error:
        if problem := home_error(landing.root, error):
            raise problem from error
        raise
    except (OSError, duckdb.Error, MemoryError, RecursionError) as error:
        if isinstance(error, OSError) and _is_of_lake(landing.root, error) and home_trouble(error) is None:
            raise UsageError(
                f"the lake cannot be written: {describe_error(error)}. Check its disk and its permissions."
            ) from error
        raise home_error(landing.root, error) or TraceError(
            landing.path.name,
            where="reading it",
            found=describe_error(error),
            wanted="a file that can be read to its end",
            advice="Check the file and the disk, then run `stepledger retry`.",
        ) from error


def _is_of_lake(root: Path, error: OSError) -> bool:
    """Did this happen to a file of the lake, not to the one that is read (which readers see in a folder
    `in`)?
    """
    path = Path(str(error.filename or ""))
    return path.is_relative_to(root / "lake") and "in" not in path.relative_to(root / "lake").parts


def build_and_check(building: Building) -> Built:
    """Build the marts of one run and check them. Raises ModelError, or HomeError where the home cannot be
    written.
    """
    _prove_home(building)
    home, root = Home(building.root), building.root
    try:
        if not building.is_built:
            build_run(
                home, building.run_id, load_rules(home.user_rules, home.user_markers), building.settings
            )
    except StepledgerError as error:
        if problem := home_error(root, error):
            raise problem from error
        raise
    except (OSError, duckdb.Error, MemoryError) as error:
        raise home_error(root, error) or ModelError(
            f"its marts cannot be built: {describe_error(error)}"
        ) from error
    try:
        results = check_run(home, building.run_id, with_docs=False)
    except StepledgerError as error:
        return Built(problem=home_error(root, error) or error)
    except (OSError, duckdb.Error, MemoryError) as error:
        return Built(
            problem=home_error(root, error) or ModelError(f"it cannot be checked: {describe_error(error)}")
        )
    failed = tuple((r.check, r.means) for r in results if not r.is_passed and r.severity == "fail")
    return Built(verdict(results), failed)


def _prove_home(work: Landing | Building) -> None:
    """Raises HomeError where this process has another version or home than the one that gave the task."""
    me, theirs = f"worker {socket.gethostname()}", work.version
    if theirs != __version__:
        text = f"{me} has stepledger {__version__}, this command has {theirs}"
        raise HomeError(f"{text}. Install the same version.")
    home = Home(work.root)
    try:
        is_same, why = home.lock_token() == work.lock_token, "another home is there, or another writer"
    except (OSError, UnicodeDecodeError) as error:
        is_same, why = False, f"{home.lock('writer').name}: {getattr(error, 'strerror', None) or error}"
    if not is_same:
        text = f"{me} does not see the home at {home.root} ({why})"
        raise HomeError(f"{text}. Mount the home there under the same path.")


def home_error(root: Path, error: BaseException) -> HomeError | None:
    """The HomeError for a home that cannot be written, if this error means that."""
    problem = home_trouble(error)
    if problem is None or isinstance(error, HomeError):
        return None
    return HomeError(
        f"{root}: {problem}. No data is lost: re-run once this is fixed. ({describe_error(error)})"
    )


def describe_error(error: BaseException) -> str:
    """The message of an error on one line, with its file."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({error.filename})" if error.filename else error.strerror
    return str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
