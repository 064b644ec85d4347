"""Facts that traces do not hold: run.toml beside traces, and how facts are checked and kept."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ExitCode, TraceError, UsageError
from pipeline.ingest.ingest import drain
from pipeline.lake.home import Home
from pipeline.lake.query import run_query
from pipeline.lake.run_config import checked, config_of, describe, fields, from_text, read_run_toml
from pipeline.progress import Progress
from tests.support.builders import ALL_REDUCE, GEMM, StepBuilder, header, ingest_into, write_trace
from tests.support.homes import copied, drop, reason_in, settled
from tests.support.known_answer import ACTIVATION, MLA, NORM

QUIET = Progress(quiet=True)
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
    """A home with one run without facts; tests work on copies."""
    folder = tmp_path_factory.mktemp("described")
    home = Home(folder / "home")
    home.ensure()
    ingest_into(home, two_layers(folder / "t.json"), run="serve")
    return home


@pytest.fixture
def own(one: Home, tmp_path: Path) -> Home:
    """A copy of that home."""
    return copied(one, tmp_path / "own")


def facts_of(home: Home, run: str = "serve") -> dict[str, Any]:
    """The facts of a run that are known."""
    return {key: value for key, value in config_of(home, run).items() if value is not None}


def test_a_run_toml_beside_traces_is_taken_and_archived(home: Home, tmp_path: Path) -> None:
    """Its facts are those of the run of its folder, used by the build, and the file goes to the archive like
    the trace."""
    drop(home, two_layers(tmp_path / "t.json"), "serve/t.json")
    (home.inbox / "serve" / "run.toml").write_text('model = "some-model"\nhidden_size = 7168\ntp = 8\n')
    settled(home.inbox / "serve" / "run.toml")
    outcome = drain(home, QUIET)
    assert (outcome.codes, outcome.built) == ([], ["serve"])
    _, rows = run_query(home, "SELECT run_id, model, hidden_size, tp, layers FROM run_config")
    assert [tuple(row) for row in rows] == [("serve", "some-model", 7168, 8, None)]
    assert (home.archive / "serve" / "run.toml").is_file()
    assert not (home.inbox / "serve").exists()
    _, rows = run_query(home, "SELECT DISTINCT msg_nelems FROM activity WHERE category = 'allreduce'")
    assert [tuple(row) for row in rows] == [(2 * 7168,)]


def test_a_run_toml_alone_adds_to_a_run_that_is_there(own: Home) -> None:
    """Dropped later, it is taken too, and the run is built anew."""
    (own.inbox / "serve").mkdir()
    settled_file = own.inbox / "serve" / "run.toml"
    settled_file.write_text("hidden_size = 64\n")
    settled(settled_file)
    assert drain(own, QUIET).built == ["serve"]
    assert facts_of(own) == {"hidden_size": 64}


def test_a_bad_run_toml_is_quarantined_and_the_traces_go_on(home: Home, tmp_path: Path) -> None:
    """Exit code 3, the reason beside it, and the run is built without it."""
    drop(home, two_layers(tmp_path / "t.json"), "serve/t.json")
    (home.inbox / "serve" / "run.toml").write_text("layer = 61\n")
    settled(home.inbox / "serve" / "run.toml")
    outcome = drain(home, QUIET)
    assert (outcome.codes, outcome.built) == ([ExitCode.TRACE], ["serve"])
    assert int(ExitCode.TRACE) == 3
    assert (home.quarantine / "serve" / "run.toml").is_file()
    reason = reason_in(home, "serve")
    assert "'layer'" in reason["found"]
    assert "Known facts" in reason["found"]
    assert "did you mean layers?" in reason["found"]
    assert facts_of(home) == {}


@pytest.mark.parametrize(
    "text",
    [
        "layers = ",
        "layers = '61'",
        "layers = true",
        "layers = 61.5",
        "layers = 0",
        "tp = -8",
        "[model]\nname = 'x'",
        "unknown_key = 1",
    ],
)
def test_an_invalid_run_toml_is_refused(tmp_path: Path, text: str) -> None:
    """No TOML, a wrong type, a number that is not above 0, a table, an unknown key: refused with the file's
    name."""
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(TraceError, match=r"run\.toml"):
        read_run_toml(path)


def test_a_run_toml_that_is_not_text_is_refused(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are invalid TOML."""
    path = tmp_path / "run.toml"
    path.write_bytes(b"model = '\xff'")
    with pytest.raises(TraceError, match="invalid TOML"):
        read_run_toml(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("unknown_key", 1),
        ("run_id", "other"),
        ("layers", "61"),
        ("layers", 61.0),
        ("layers", True),
        ("model", 5),
        ("measured_tpot_ms", "12"),
        ("layers", 0),
        ("hidden_size", -1),
        ("measured_tpot_ms", 0),
        ("measured_tpot_ms", float("nan")),
        ("measured_tpot_ms", float("inf")),
        ("layers", 2**31),
        ("sequence_parallel", 1),
        ("sequence_parallel", "yes"),
        ("tp", 0),
        ("experts", 0),
        ("dense_layers", -1),
        ("hbm_gbps", 0),
    ],
)
def test_a_value_that_is_not_allowed(key: str, value: object) -> None:
    """Unknown facts, wrong types, and numbers that are not above 0, not finite or too large for their
    column."""
    with pytest.raises(UsageError, match=key):
        checked({key: value})


def test_every_fact_takes_a_value() -> None:
    """Each field of the contract takes a value of its type; a whole number of ms is a number."""
    values: dict[str, Any] = {
        name: {"INTEGER": 8, "DOUBLE": 12, "VARCHAR": "x", "BOOLEAN": False}[column.type]
        for name, column in fields().items()
    }
    values |= {"groups": "tp:0,1", "ranks": "all", "link": "pcie4_x16"}
    assert checked(values) == values


@pytest.mark.parametrize("value", ["tp:0,1", "tp:0,1;tp:2,3;ep:0,1,2,3", "ep:7;dp:10,11;pp:0,4"])
def test_groups_are_purposes_and_their_ranks(value: str) -> None:
    """One group or several, a rank once for each purpose."""
    assert checked({"groups": value}) == {"groups": value}


@pytest.mark.parametrize(
    "value",
    [
        "",
        "0,1",
        "tp=0,1",
        "tp:0-3",
        "tp:0,1;",
        "tp:0, 1",
        "xx:0,1",
        "tp:0,1;tp:1,2",
        "tp:0,0",
        "tp:1234567",
        "tp:0,1\n",
    ],
)
def test_groups_that_cannot_be(value: str) -> None:
    """Another form, an unknown purpose, or a rank twice for one purpose: refused with what it should look
    like, or the rank."""
    with pytest.raises(UsageError, match=r"groups = .*(of the form tp:0,1;tp:2,3;ep:0,1,2,3|twice in tp)"):
        checked({"groups": value})


@pytest.mark.parametrize("name", ["dense_layers", "shared_experts"])
def test_a_model_may_lack_what_can_be_0(name: str) -> None:
    """No dense layers, or no shared experts, is a fact."""
    assert checked({name: 0}) == {name: 0}


def test_yes_and_no_are_kept(home: Home) -> None:
    """False is a fact too, and stays when another is added."""
    describe(home, "serve", {"sequence_parallel": False})
    describe(home, "serve", {"layers": 2})
    assert facts_of(home) == {"layers": 2, "sequence_parallel": False}


def test_a_run_toml_with_groups_and_booleans(tmp_path: Path) -> None:
    """As TOML writes them."""
    path = tmp_path / "run.toml"
    path.write_text('groups = "tp:0,1"\nsequence_parallel = true\nhbm_gbps = 4800\n')
    assert read_run_toml(path) == {"groups": "tp:0,1", "sequence_parallel": True, "hbm_gbps": 4800}


def test_earlier_facts_stay(home: Home) -> None:
    """A second description adds facts and changes those given again; nothing changes when one is refused."""
    describe(home, "serve", {"layers": 61, "model": "a"})
    describe(home, "serve", {"hidden_size": 7168, "model": "it's b"})
    with pytest.raises(UsageError):
        describe(home, "serve", {"layers": 0})
    assert facts_of(home) == {"layers": 61, "hidden_size": 7168, "model": "it's b"}


def test_runs_are_described_apart(home: Home) -> None:
    """Facts of one run are not another's."""
    describe(home, "a", {"layers": 1})
    describe(home, "b", {"layers": 2})
    assert (facts_of(home, "a"), facts_of(home, "b"), facts_of(home, "c")) == (
        {"layers": 1},
        {"layers": 2},
        {},
    )


def test_a_cleared_fact_is_unknown_again(home: Home) -> None:
    """None clears it; the others stay."""
    describe(home, "serve", {"layers": 61, "model": "a"})
    describe(home, "serve", {"layers": None})
    assert facts_of(home) == {"model": "a"}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("link", "foo", r"link = 'foo' is not known; known values: pcie3_x16, pcie4_x16, .*xgmi_mi300x"),
        ("ranks", "some", "ranks = 'some' is not known; known values: all"),
        ("layer", 61, r"unknown fact 'layer'; did you mean layers\? Known facts: model, layers, "),
        ("top_k", 8, r"unknown fact 'top_k'; did you mean experts_per_token\?"),
        ("zzz", 8, r"unknown fact 'zzz'\. Known facts: model, layers, "),
        ("layers", "61", "layers = '61' is not an integer"),
        ("sequence_parallel", "maybe", "sequence_parallel = 'maybe' is not true or false"),
        ("dense_layers", -1, "must be 0 or more"),
        ("layers", 0, "must be above 0"),
    ],
)
def test_a_refused_value_is_answered_with_what_is_allowed(key: str, value: object, message: str) -> None:
    """The known values, the closest key, the type or the range."""
    with pytest.raises(UsageError, match=message):
        checked({key: value})


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("layers", "61", 61),
        ("measured_tpot_ms", "12.2", 12.2),
        ("measured_tpot_ms", "12", 12.0),
        ("sequence_parallel", "yes", True),
        ("sequence_parallel", "False", False),
        ("model", "61", "61"),
        ("notes", "a=b", "a=b"),
        ("layers", "", None),
        ("groups", "", None),
    ],
)
def test_text_becomes_a_value_of_the_facts_type(key: str, text: str, value: object) -> None:
    """As on the command line; an empty text clears the fact."""
    found = from_text(key, text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("key", "text"), [("layers", "6l"), ("layers", "61.5"), ("layers", "0"), ("sequence_parallel", "2")]
)
def test_text_of_another_type_is_refused(key: str, text: str) -> None:
    """With the key and the text."""
    with pytest.raises(UsageError, match=f"{key} = .*{text}"):
        from_text(key, text)


NESTED = st.sampled_from([10, 3000]).map(lambda depth: b"x=" + b"[" * depth)
TOML_LIKE = st.text("[]{}=\"'\n#.,x01 tlayers", max_size=200).map(str.encode)


@given(st.one_of(st.binary(max_size=200), TOML_LIKE, NESTED))
def test_any_bytes_are_facts_or_a_trace_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """Nothing that is in a run.toml ends in another error."""
    path = tmp_path_factory.getbasetemp() / "any-run.toml"
    path.write_bytes(data)
    with suppress(TraceError):
        assert read_run_toml(path).keys() <= fields().keys()
