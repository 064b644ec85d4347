"""What a command says while it works: one line a message, with nothing in it that a terminal obeys."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from pipeline.progress import Progress

NASTY = "r\x1b]0;x\x07\x9b31m\u202e\r\n\udcff[bold]z"
ESCAPED = r"r\x1b]0;x\x07\x9b31m\u202e\r\n\udcff[bold]z"


def test_a_message_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """On stderr, with names of files as they are but for what cannot be printed."""
    Progress().say(NASTY)
    assert capsys.readouterr() == ("", f"{ESCAPED}\n")


def test_a_message_in_a_log_of_json_reads_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """One object a line."""
    Progress(json_log=True).say(NASTY)
    out, err = capsys.readouterr()
    assert (out, json.loads(err)["message"]) == ("", ESCAPED)
    assert err.removesuffix("\n").isprintable()


def test_a_quiet_one_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Tests and libraries."""
    Progress(quiet=True).say(NASTY)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("what", ["bytes", "task", "say"])
def test_bars_show_names_as_text(what: str) -> None:
    """A name is neither a control sequence nor markup; only what draws the bar itself is one."""
    progress = Progress()
    screen = io.StringIO()
    progress._console = Console(file=screen, force_terminal=True, width=200, highlight=False, _environ={})
    if what == "task":
        with progress.task(NASTY):
            pass
    else:
        with progress.bytes(NASTY if what == "bytes" else "reading", 10) as read:
            read(10)
            progress.say(NASTY if what == "say" else "said")
    shown = screen.getvalue()
    assert ESCAPED in shown
    assert [text for text in ("\x1b]", "\x07", "\x9b", "\u202e", "\udcff") if text in shown] == []
