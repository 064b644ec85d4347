"""The home: safe run ids, and one writer at a time."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.home import TEMPLATE, Home

HOLDER = """
import sys, time
from pathlib import Path
from pipeline.home import Home
with Home(Path(sys.argv[1])).writing(print):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("name", ["a", "2026", "glm-5.1_tp8", "A.b", "x" * 100])
def test_a_safe_name_is_its_own_id(home: Home, name: str) -> None:
    """People find their runs under the names they gave."""
    assert home.run_id_for(name) == name


@pytest.mark.parametrize(
    "name", ["..", ".", "", "a/b", "it's", 'say "x"', "two\nlines", "müller", "日本", "-rf", "_template", "x" * 101, "a b", "50%", "a\n"]
)
def test_an_unsafe_name_becomes_a_safe_one_of_its_own(home: Home, name: str) -> None:
    """Whatever the name, its folder has only letters, digits, dot, underscore and hyphen, and starts with none of the last three."""
    run_id = home.run_id_for(name)
    assert run_id != name
    assert run_id[0].isascii()
    assert run_id[0].isalnum()
    assert all(c.isascii() and (c.isalnum() or c in "._-") for c in run_id)
    assert len(run_id) <= 100
    assert home.raw_run(run_id).parent == home.raw


def test_names_that_look_alike_when_made_safe_stay_apart(home: Home) -> None:
    """`a b` and `a/b` are two runs."""
    assert home.run_id_for("a b") != home.run_id_for("a/b")


def test_the_same_name_always_gets_the_same_id(home: Home) -> None:
    """A file dropped later finds its run."""
    (home.raw_run("Run") / "file_id=x").mkdir(parents=True)
    first = home.run_id_for("RUN")
    (home.raw_run(first) / "file_id=y").mkdir(parents=True)
    assert home.run_id_for("RUN") == first
    assert home.run_id_for("Run") == "Run"


def test_ids_are_unique_ignoring_case(home: Home) -> None:
    """On a filesystem that ignores case two runs still have two folders."""
    (home.raw_run("Run") / "file_id=x").mkdir(parents=True)
    assert home.run_id_for("RUN").casefold() != "run"


def test_runs_are_those_with_a_committed_trace(home: Home) -> None:
    """Neither the template nor an empty folder is a run."""
    (home.raw_run(TEMPLATE) / "file_id=_template").mkdir(parents=True)
    (home.raw_run("b") / "file_id=x").mkdir(parents=True)
    (home.raw_run("a") / "file_id=x").mkdir(parents=True)
    home.raw_run("empty").mkdir()
    assert home.run_ids() == ["a", "b"]


def test_a_home_that_cannot_be_made_is_a_usage_error(tmp_path: Path) -> None:
    """The user is told to choose another."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="--home"):
        Home(tmp_path / "file" / "home").ensure()


@pytest.mark.parametrize("folder", ["phase=decode", "what?"])
def test_a_home_that_duckdb_would_misread_is_refused(tmp_path: Path, folder: str) -> None:
    """A folder `phase=decode` above the lake would be read as a column and hide ours; `?` would cut the database's name."""
    with pytest.raises(UsageError, match=re.escape(folder)):
        Home(tmp_path / folder / "home").ensure()


def _holder(home: Home) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(home.root)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_writer_waits_says_so_and_goes_on_when_the_first_is_killed(home: Home) -> None:
    """One writer at a time, by a lock that dies with its process, even by kill -9."""
    said: list[str] = []
    waits, entered = threading.Event(), threading.Event()

    def say(text: str) -> None:
        said.append(text)
        waits.set()

    def write() -> None:
        with home.writing(say):
            entered.set()

    with _holder(home) as process:
        second = threading.Thread(target=write)
        second.start()
        try:
            assert waits.wait(30)
            assert not entered.is_set()
        finally:
            process.kill()
    second.join(30)
    assert entered.is_set()
    assert said == [f"waiting: another stepledger is writing to {home.root}"]


def test_a_writer_alone_says_nothing(home: Home) -> None:
    """No message where nobody waits; and the lock is free again afterwards."""
    said: list[str] = []
    for _ in range(2):
        with home.writing(said.append):
            pass
    assert said == []
