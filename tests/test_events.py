"""Events: one object a line for programs, a sentence for people."""

from __future__ import annotations

import json
import re
from datetime import datetime

import pytest

from pipeline.errors import ExitCode
from pipeline.events import Event, json_line, now, on_wait
from pipeline.progress import Progress


def test_an_event_has_all_fields() -> None:
    """Time with zone, event, run, file, code as a number, message."""
    text = "not read: a.json"
    line = json.loads(json_line(text, Event.NOT_READ, run="r", file="r/a.json", code=ExitCode.TRACE))
    assert datetime.fromisoformat(line.pop("time")).tzinfo is not None
    assert line == {"event": "not_read", "run": "r", "file": "r/a.json", "code": 3, "message": text}


def test_what_an_event_is_not_about_is_null() -> None:
    """The fields are there anyway, so that a filter need not test for them."""
    line = json.loads(json_line("hello", Event.NOTE))
    assert list(line) == ["time", "event", "run", "file", "code", "message"]
    assert (line["run"], line["file"], line["code"]) == (None, None, None)


def test_names_in_an_event_are_escaped() -> None:
    """Names of files and runs may hold anything, half a character too."""
    line = json_line("m", Event.READ, run="r\x1b]0;x", file="f\udcff\n")
    assert line.isprintable()
    assert (json.loads(line)["run"], json.loads(line)["file"]) == ("r\\x1b]0;x", "f\\udcff\\n")


def test_a_log_of_json_has_the_event(capsys: pytest.CaptureFixture[str]) -> None:
    """As it was reported."""
    Progress(json_log=True).say("read: a", Event.READ, run="r", file="r/a")
    found = json.loads(capsys.readouterr().err)
    assert (found["event"], found["run"], found["file"]) == ("read", "r", "r/a")


def test_a_traceback_in_a_log_of_json_names_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Each of its lines is an event."""
    Progress(json_log=True).say_error(KeyError("x"), file="r/a", code=ExitCode.BUG)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert lines[-1]["message"] == "KeyError: 'x'"
    assert {(line["event"], line["file"], line["code"]) for line in lines} == {("traceback", "r/a", 1)}


def test_a_text_log_has_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    """At the beginning of each line; without `has_times` there is none."""
    Progress(has_times=True).say("read: a", Event.READ)
    Progress().say("read: b", Event.READ)
    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ read: a", first)
    assert second == "read: b"


def test_the_time_is_utc_to_the_second() -> None:
    """As ISO 8601 writes it."""
    assert datetime.fromisoformat(now()).utcoffset() is not None


def test_waiting_for_the_writer_is_an_event(capsys: pytest.CaptureFixture[str]) -> None:
    """What the home says while another process has it."""
    on_wait(Progress(json_log=True).say)("waiting: x")
    assert json.loads(capsys.readouterr().err)["event"] == "waiting_for_writer"
