"""Models of steps and layers with a user's rule that names only id, name and category: the same answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.models.rules import UNNAMED, categories, load_rules
from tests.support.sequence import DENSE, HEAD, MOE, RULE, Sequence
from tests.support.tables import Row, Tables, run_model

LATENT = (
    "norm fused_a norm gemm gemm rope cache gemm mla combine gemm gemm allreduce norm gemm topk align expert "
    "expert sum"
)
MODEL = f"embed allreduce {DENSE} {MOE} {LATENT} {LATENT} {HEAD}"
WORDS = sorted({*MODEL.split()} - {"topk", "fused_a", "combine"})
"""All but those whose subcategory is what proves something; a test of its own says what."""
CATEGORY = {rule.id: rule.category for rule in load_rules().rules}


def _filed_by_user(tables: Tables, words: set[str], folder: Path) -> Tables:
    """The same kernels, those of `words` claimed by one-line rules of a user."""
    mine = {RULE[word]: f"mine_{word}" for word in words}
    (folder / "kernel_rules.toml").write_text(
        "".join(
            f"[[rule]]\nid = '{new}'\nname = 'x'\ncategory = '{CATEGORY[old]}'\n" for old, new in mine.items()
        )
    )
    rules = [rule for rule in load_rules(folder / "kernel_rules.toml").rules if rule.origin == "home"]
    claimed: list[Row] = [
        {**row, "rule_id": mine.get(row["rule_id"], row["rule_id"])} for row in tables["int_activity"]
    ]
    added: list[Row] = [
        {
            "sort_order": -1,
            "rule_id": rule.id,
            "category": rule.category,
            "subcategory": rule.subcategory,
            "is_fused": rule.is_fused,
        }
        for rule in rules
    ]
    return {**tables, "int_activity": claimed, "kernel_rule": added}


def _steps(*, graph: bool = False) -> Sequence:
    made = Sequence()
    for step in range(3):
        made.run(MODEL.removesuffix(" sample"), step, graph=graph, pid=1, tid=1).run(
            "sample", step, pid=1, tid=1
        )
        made.run("embed norm gemm mla gemm norm gemm", step, graph=graph, pid=1, tid=1)
    return made


def _with_layers(made: Sequence) -> Tables:
    return made.tables() | {"int_layer": made.layer_rows()}


CASES: dict[str, Tables] = {
    "int_layer": Sequence().run(MODEL).tables(),
    "int_role": _with_layers(Sequence().run(MODEL)),
    "int_draft": _steps(graph=True).tables(),
    "int_replay_pass": _steps(graph=True).tables(),
    "int_pattern_pass": _steps().tables(),
}


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("model", CASES)
def test_a_one_line_rule_changes_nothing_that_a_model_finds(model: str, word: str, tmp_path: Path) -> None:
    """Whatever kind of kernel the user's rule claims."""
    ours = run_model(model, CASES[model], "*")
    assert ours
    assert run_model(model, _filed_by_user(CASES[model], {word}, tmp_path), "*") == ours


@pytest.mark.parametrize("model", CASES)
def test_one_line_rules_for_all_kinds_change_nothing(model: str, tmp_path: Path) -> None:
    """All at once, too: attention without a name beside an MLP without one."""
    words = {*WORDS} - {"mla", "cache"}
    assert run_model(model, _filed_by_user(CASES[model], words, tmp_path), "*") == run_model(
        model, CASES[model], "*"
    )


def test_latent_attention_without_a_name_is_known_by_its_cache(tmp_path: Path) -> None:
    """mla_absorb, q_a and q_b stay proven; where the KV write has no name either they are not."""

    def roles(words: set[str]) -> set[str]:
        found = run_model("int_role", _filed_by_user(CASES["int_role"], words, tmp_path), "role")
        return {row[0] for row in found}

    assert {"mla_absorb", "q_a", "q_b"} <= roles(set())
    assert {"mla_absorb", "q_a", "q_b"} <= roles({"mla"})
    assert not {"mla_absorb", "q_a", "q_b"} & roles({"mla", "cache"})


def test_a_router_is_proven_by_a_top_k_that_is_named(tmp_path: Path) -> None:
    """Without the subcategory topk no GEMM is the router, and none shared; nothing else changes."""
    ours = run_model("int_role", CASES["int_role"], "activity_id, role")
    found = run_model("int_role", _filed_by_user(CASES["int_role"], {"topk"}, tmp_path), "activity_id, role")
    assert {row for row in ours if row[1] not in {"router", "shared"}} == {*found}


@pytest.mark.parametrize("category", categories())
def test_a_rule_without_a_subcategory_has_one(category: str, tmp_path: Path) -> None:
    """In every category, and fused is false."""
    file = tmp_path / "kernel_rules.toml"
    file.write_text(f"[[rule]]\nid = 'mine'\nname = 'x'\ncategory = '{category}'\n")
    rule = load_rules(file).rules[0]
    assert (rule.id, rule.subcategory, rule.is_fused) == ("mine", UNNAMED, False)
