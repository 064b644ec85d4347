"""The screen: what it shows, what it refuses, and how it looks at 80 and at 160 columns."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from pipeline.analyses.breakdown import Screen, screens
from pipeline.errors import UsageError
from pipeline.lake.home import Home
from pipeline.lake.reading import reading
from pipeline.present.show import print_screen
from tests.support.builders import (
    ALL_REDUCE,
    GEMM,
    StepBuilder,
    header,
    ingest_into,
    kernel,
    launch,
    write_trace,
)
from tests.support.homes import STRANGE


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with a run without steps, and one whose ranks and steps differ."""
    folder = tmp_path_factory.mktemp("odd")
    home = Home(folder / "home")
    home.ensure()
    unmarked = [
        launch(0, 1),
        launch(100, 2),
        kernel(GEMM, 1_000, 5_000, 1),
        kernel(STRANGE, 10_000, 7_000, 2),
    ]
    ingest_into(home, write_trace(folder / "n.json", unmarked, header(0)), run="stepless")
    paths = []
    for rank, waits in enumerate((100_000, 300_000)):
        made = StepBuilder()
        for number in range(4):
            made.step([(GEMM, 50_000), *[(ALL_REDUCE, waits)] * (1 + number % 2)])
        paths.append(write_trace(folder / f"apart-rank-{rank}.json", made.events, header(rank, 2)))
    ingest_into(home, *paths, run="apart")
    return home


def screen_of(home: Home, run: str, phase: str | None = None) -> Screen:
    """The one screen of a run."""
    with reading(home) as con:
        (screen,) = screens(con, run, phase)
    return screen


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Draw a screen at a width; gives its lines."""

    def draw(screen: Screen, columns: int = 80) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        capsys.readouterr()
        print_screen(screen)
        return capsys.readouterr().out.splitlines()

    return draw


def line(lines: list[str], start: str) -> str:
    """The one line that starts so."""
    (found,) = [text for text in lines if text.startswith(start)]
    return found


def test_the_head_says_verdict_engine_ranks_and_steps(built: Home, drawn: Any) -> None:
    """First things first."""
    lines = drawn(screen_of(built, "a"))
    assert lines[0] == "run a (kineto)   verdict: pass"
    assert lines[1] == "  engine vllm, NVIDIA H200, 2 traces, 2 of 2 ranks"
    assert lines[2] == "  steps over all ranks: 6 decode, 2 prefill"


def test_without_a_step_per_step_numbers_are_refused_and_the_capture_is_shown(odd: Home, drawn: Any) -> None:
    """Never invented."""
    lines = drawn(screen_of(odd, "stepless"))
    text = "\n".join(lines)
    assert "No step was found, so there are no per-step numbers." in text
    assert (
        "in no step: 2 activities, 0.012 ms (nothing marks steps: no annotation, graph replay or periodic "
        "order of kernels)"
    ) in " ".join(text.split())
    assert line(lines, "GEMM").split() == ["GEMM", "0.005", "0.005", "1", "41.7%"]
    assert "of a decode step" not in text


def test_ranks_that_differ_by_2x_get_no_single_number(odd: Home, drawn: Any) -> None:
    """The lowest and the highest rank are there; a median over both would hide it."""
    lines = drawn(screen_of(odd, "apart"), 160)
    assert line(lines, "AllReduce").split()[:5] == ["AllReduce", "see", "ranks", "0.150-0.450", "1"]
    assert line(lines, "Communication").split()[:3] == ["Communication", "see", "ranks"]
    assert line(lines, "GEMM").split()[1] == "0.050"
    assert not re.search(r"0\.300", "\n".join(text for text in lines if text.startswith("AllReduce")))
    assert any("see ranks: the ranks differ" in text for text in lines)


def test_calls_are_integers_and_a_range_where_steps_differ(odd: Home, drawn: Any) -> None:
    """Never a total divided by the number of steps."""
    screen = screen_of(odd, "apart")
    assert line(drawn(screen), "AllReduce").split()[4:6] == ["1", "(1-2)"]
    for row in screen.rollups:
        assert all(isinstance(row[key], int) for key in ("calls_min", "calls_mode", "calls_max"))


def test_unclassified_names_are_listed_with_calls_and_time(built: Home, drawn: Any) -> None:
    """They are what the user can add rules for."""
    lines = drawn(screen_of(built, "a"))
    at = lines.index("Kernels that no rule matches (add rules to kernel_rules.toml in the home):")
    assert lines[at + 1].split() == ["0.009", "ms", "6", "calls", STRANGE]
    assert line(lines, "Unclassified")


def test_no_list_of_unclassified_names_where_there_is_none(odd: Home, drawn: Any) -> None:
    """Nothing to do, no list."""
    assert not any("no rule matches" in text for text in drawn(screen_of(odd, "apart")))


def test_the_parts_of_a_ranks_wall_add_up_to_its_mean(built: Home) -> None:
    """compute + communication + other + idle + gap, to the nanosecond."""
    for row in screen_of(built, "a").ranks:
        parts = row["compute"] + row["communication"] + row["other"] + row["idle_inside"] + row["gap"]
        assert float(parts) == pytest.approx(float(row["wall_mean"]), abs=1)


def test_a_phase_can_be_asked_for(built: Home, drawn: Any) -> None:
    """The prefill step has its own table; its last step without a wall is noted."""
    lines = drawn(screen_of(built, "a", "prefill"))
    assert any(text.startswith("GPU time of a prefill step") for text in lines)


def test_a_phase_that_the_run_does_not_have_is_a_usage_error(built: Home) -> None:
    """It names those that it has."""
    with pytest.raises(UsageError, match="it has decode, prefill"):
        screen_of(built, "a", "verify")


def test_a_run_that_was_not_built_says_what_to_do(built: Home) -> None:
    """Its traces are there, its marts are not."""
    with reading(built) as con, pytest.raises(UsageError, match="stepledger build x"):
        screens(con, "x", None)


def test_steps_without_a_complete_one_are_not_called_no_step(built: Home, drawn: Any) -> None:
    """The refusal names what is missing."""
    text = "\n".join(drawn(replace(screen_of(built, "a"), rollups=[])))
    assert "No complete step with GPU work was found" in text


def _large(screen: Screen) -> Screen:
    """The same screen with the widest numbers that are likely: seconds, thousands of calls, a long name and
    message."""
    rows = [
        r
        | {
            "ms_p50": 1234.5678,
            "ms_rank_min": 1200.25,
            "ms_rank_max": 1234.5678,
            "calls_mode": 1783,
            "calls_min": 1780,
            "calls_max": 1790,
        }
        | {
            "rollup": "MoE dispatch and combine",
            "exposed_ms_p50": 1234.5678,
            "us_per_call": 1234.5678,
            "worst_rank": 127,
            "share": 1.0,
        }
        for r in screen.rollups
    ]
    ranks = [
        r
        | {
            key: 4_321_987_654
            for key in r
            if key not in {"rank", "device", "trace_id", "steps", "lag", "host_late"}
        }
        for r in screen.ranks
    ]
    names = [
        r | {"short_name": f"void long<{'int, ' * 60}>", "ms": 12345.678, "calls": 1234567}
        for r in screen.unclassified
    ]
    facts = screen.facts | {
        "run_id": "x" * 100,
        "gpu_name": "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    }
    return replace(
        screen,
        facts=facts,
        rollups=rows,
        ranks=[*ranks, *[r | {"device": 7} for r in ranks]],
        unclassified=names,
    )


@pytest.mark.parametrize("columns", [80, 100, 160])
@pytest.mark.parametrize("make", [lambda s: s, _large], ids=["small", "large"])
@pytest.mark.parametrize("run", ["a", "apart", "stepless"])
def test_no_line_is_longer_than_the_screen_and_nothing_is_cut(
    built: Home, odd: Home, drawn: Any, run: str, make: Any, columns: int
) -> None:
    """No ellipsis, no blank at a line's end, every number whole."""
    screen = make(screen_of(built if run == "a" else odd, run))
    lines = drawn(screen, columns)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= columns
    assert "…" not in text
    assert "..." not in text
    assert [t for t in lines if t != t.rstrip()] == []
    if make is _large and screen.rollups:
        assert "1780-1790" in text
        assert "1234.6" in text
    if make is _large and screen.unclassified:
        assert text.count("int,") == 60 * len(screen.unclassified)


def test_a_wide_screen_shows_more_columns(built: Home, drawn: Any) -> None:
    """At 160 columns there is room for the mean, the percentiles and the worst rank."""
    head = next(text for text in drawn(screen_of(built, "a"), 160) if text.split()[:2] == ["p50", "ranks"])
    assert head.split() == [
        "p50",
        "ranks",
        "calls",
        "exposed",
        "share",
        "us/call",
        "mean",
        "p90",
        "p99",
        "worst",
        "rank",
        "of",
        "wall",
    ]
    head = next(text for text in drawn(screen_of(built, "a"), 80) if text.split()[:2] == ["p50", "ranks"])
    assert head.split() == ["p50", "ranks", "calls", "exposed", "share"]
