"""`stepledger describe`: facts as key=value, from a config.json, and from another run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.lake.home import Home
from pipeline.lake.query import run_query
from pipeline.lake.run_config import config_of, describe
from tests.support.builders import ALL_REDUCE, GEMM, StepBuilder, header, ingest_into, write_trace
from tests.support.homes import Called, command, copied
from tests.support.known_answer import ACTIVATION, MLA, NORM

DENSE = (NORM, GEMM, MLA, GEMM, ALL_REDUCE, NORM, GEMM, ACTIVATION, GEMM, ALL_REDUCE)
BATCH_OF_TWO = "execute_context_0(0)_generation_2(2)"


def two_layers(path: Path) -> Path:
    """Three decode steps of a batch of two, each of two dense layers, 100 us from step to step."""
    made = StepBuilder()
    for _ in range(3):
        made.step([(name, 1_000) for name in (*DENSE, *DENSE)], BATCH_OF_TWO, lead_ns=60_000)
    return write_trace(path, made.events, header(0, 1))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with two runs without facts; tests that write work on copies."""
    folder = tmp_path_factory.mktemp("described")
    home = Home(folder / "home")
    home.ensure()
    for run in ("serve", "serve_again"):
        ingest_into(home, two_layers(folder / f"{run}.json"), run=run)
    return home


@pytest.fixture
def own(one: Home, tmp_path: Path) -> Home:
    """A copy of that home."""
    return copied(one, tmp_path / "own")


def facts_of(home: Home, run: str = "serve") -> dict[str, Any]:
    """The facts of a run that are known."""
    return {key: value for key, value in config_of(home, run).items() if value is not None}


@pytest.fixture(scope="module")
def described(one: Home, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A copy of that home in which a run was described by the command."""
    home = copied(one, tmp_path_factory.mktemp("described") / "home")
    describe(home, "serve", {"model": "earlier"})
    done = command(
        "--home", home.root, "describe", "serve", "layers=2", "hidden_size=7168", "measured_tpot_ms=0.05"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "serve\n", "")
    return home


def test_the_command_adds_facts(described: Home) -> None:
    """Earlier facts stay."""
    assert facts_of(described) == {
        "model": "earlier",
        "layers": 2,
        "hidden_size": 7168,
        "measured_tpot_ms": 0.05,
    }


def test_describing_a_run_rebuilds_it(one: Home, described: Home) -> None:
    """With the hidden size known, all-reduces without arguments have a message size, and its source."""
    question = "SELECT DISTINCT msg_nelems, msg_source FROM activity WHERE category = 'allreduce'"
    assert [tuple(row) for row in run_query(one, question)[1]] == [(None, None)]
    with_facts = f"{question} AND run_id = 'serve'"
    assert [tuple(row) for row in run_query(described, with_facts)[1]] == [
        (2 * 7168, "scheduled tokens x hidden_size")
    ]


def test_show_compares_with_the_measured_time(described: Home) -> None:
    """The measured time, the trace's, and their ratio."""
    shown = command("--home", described.root, "show", "serve", columns=160)
    assert "0.05 ms per token; this trace: 0.100 ms, 2.00 times that" in shown.stdout, shown.stdout


def test_several_runs_are_described_at_once(own: Home, call: Callable[..., Called]) -> None:
    """Names and patterns."""
    code, out, err = call("--home", own.root, "describe", "serve", "s*_again", "layers=2", "tp=2")
    assert (code, out, err) == (0, "serve\nserve_again\n", "")
    assert facts_of(own) == facts_of(own, "serve_again") == {"layers": 2, "tp": 2}


def test_an_empty_value_clears_a_fact(own: Home, call: Callable[..., Called]) -> None:
    """The others stay."""
    describe(own, "serve", {"layers": 61, "tp": 8})
    assert call("--home", own.root, "describe", "serve", "layers=").code == 0
    assert facts_of(own) == {"tp": 8}


def test_options_of_older_versions_go_on_working(own: Home, call: Callable[..., Called]) -> None:
    """Each with a note on how to write it now."""
    old = ["--layers", "2", "--hidden=64", "--top-k", "8", "--no-sequence-parallel", "--notes", "x=y"]
    code, out, err = call("--home", own.root, "describe", "serve", *old)
    assert (code, out) == (0, "serve\n")
    assert err.splitlines() == [
        "note: --layers is deprecated; write it as layers=2",
        "note: --hidden is deprecated; write it as hidden_size=64",
        "note: --top-k is deprecated; write it as experts_per_token=8",
        "note: --no-sequence-parallel is deprecated; write it as sequence_parallel=false",
        "note: --notes is deprecated; write it as notes=x=y",
    ]
    assert facts_of(own) == {
        "layers": 2,
        "hidden_size": 64,
        "experts_per_token": 8,
        "sequence_parallel": False,
        "notes": "x=y",
    }


def test_a_config_json_gives_facts(own: Home, tmp_path: Path, call: Callable[..., Called]) -> None:
    """Which keys gave which facts is reported, and what is missing; facts of the command line win."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"num_hidden_layers": 61, "hidden_size": 7168, "n_routed_experts": 256}))
    code, out, err = call("--home", own.root, "describe", "serve", "--config", config, "layers=2", "tp=2")
    assert (code, out) == (0, "serve\n")
    taken, missing = err.splitlines()
    assert taken == (
        f"from {config}: layers=61 (num_hidden_layers), hidden_size=7168 (hidden_size), "
        "experts=256 (n_routed_experts)"
    )
    assert missing.startswith(f"not in {config}: model, experts_per_token, ")
    assert facts_of(own) == {"layers": 2, "hidden_size": 7168, "experts": 256, "tp": 2}


def test_like_copies_the_facts_of_another_run(own: Home, call: Callable[..., Called]) -> None:
    """All but the time that was measured on that run."""
    describe(own, "serve", {"layers": 2, "link": "nvlink4", "measured_tpot_ms": 12.2})
    code, out, err = call("--home", own.root, "describe", "serve_again", "--like", "serve", "tp=2")
    assert (code, out) == (0, "serve_again\n")
    not_copied = "not copied: measured_tpot_ms, which was measured on that run"
    assert err == f"from run serve: layers=2, link=nvlink4; {not_copied}\n"
    assert facts_of(own, "serve_again") == {"layers": 2, "link": "nvlink4", "tp": 2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve"], "no facts given"),
        (["layers=2"], "no run given"),
        (["no_one", "layers=61"], "no run 'no_one'; known runs: serve, serve_again"),
        (["serve", "layers=0"], "layers = 0 is out of range"),
        (["serve", "layers=two"], "layers = 'two' is not an integer"),
        (["serve", "measured_tpot_ms=-1"], "must be above 0"),
        (["serve", "link=foo"], "known values: pcie3_x16, pcie4_x16"),
        (["serve", "hiden_size=1"], "did you mean hidden_size?"),
        (["serve", "tp=2", "--layer", "61"], "no option --layer"),
        (["serve", "--layers"], "--layers needs a value; write it as layers=VALUE"),
        (["serve", "--config", "no/such.json"], "no/such.json: cannot be read"),
        (["serve", "--like", "serve_again"], "run serve_again has no facts to copy"),
    ],
)
def test_the_command_refuses(
    one: Home, call: Callable[..., Called], arguments: list[str], message: str
) -> None:
    """Exit code 2 with what is wrong, and nothing changes."""
    code, out, err = call("--home", one.root, "describe", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
    assert facts_of(one) == {}
