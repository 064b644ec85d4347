"""Which rule claims a name: in order, with those that it beats."""

from __future__ import annotations

import pytest

from pipeline.errors import UsageError
from pipeline.lake.home import Home
from pipeline.models.explain import explain_name, rule_rows
from tests.support.builders import ALL_REDUCE
from tests.support.homes import STRANGE

OWN = """
[[rule]]
id = "mine"
name = "mystery"
category = "attention"
subcategory = "mine"
note = "because I say so"

[[rule]]
id = "mine_later"
name = "kernel_of"
category = "gemm"
"""


def rows(found: tuple[list[str], list[list[object]]]) -> list[dict[str, object]]:
    """Rows by column."""
    return [dict(zip(found[0], row, strict=True)) for row in found[1]]


def test_the_rule_that_claims_a_name_stands_first(home: Home) -> None:
    """With where it files it, and why."""
    first = rows(explain_name(home, ALL_REDUCE, None))[0]
    assert (first["verdict"], first["category"], first["rollup"], first["origin"]) == (
        "claims it",
        "allreduce",
        "AllReduce",
        "built-in",
    )


def test_a_name_that_no_rule_claims_is_said_to_be_unclassified(home: Home) -> None:
    """With what to do about it."""
    (only,) = [r for r in rows(explain_name(home, STRANGE, None)) if r["verdict"] == "no rule claims it"]
    assert only["category"] == "unclassified"
    assert "kernel_rules.toml" in str(only["why"])


def test_the_users_own_rules_are_tried_first(home: Home) -> None:
    """And beat the later ones, which are shown."""
    home.user_rules.write_text(OWN)
    found = rows(explain_name(home, STRANGE, None))
    assert [(r["rule_id"], r["verdict"], r["origin"]) for r in found[:2]] == [
        ("mine", "claims it", "home"),
        ("mine_later", "beaten by order", "home"),
    ]
    assert found[0]["why"] == "because I say so"
    assert [r["rule_id"] for r in rows(rule_rows(home)) if r["origin"] == "home"] == ["mine", "mine_later"]


def test_a_rule_that_asks_for_an_operator_says_so(home: Home) -> None:
    """It claims the name only where the operator is known."""
    home.user_rules.write_text('[[rule]]\nid = "o"\nname = "mystery"\nop = "^aten::mm$"\ncategory = "gemm"\n')
    without = rows(explain_name(home, STRANGE, None))
    assert {r["rule_id"]: r["verdict"] for r in without}["o"] == "would need an operator like ^aten::mm$"
    assert rows(explain_name(home, STRANGE, "aten::mm"))[0]["rule_id"] == "o"


def test_every_rule_in_force_is_listed_once(home: Home) -> None:
    """Numbered in the order in which they are tried."""
    found = rows(rule_rows(home))
    assert [r["order"] for r in found] == list(range(1, len(found) + 1))
    assert len({r["rule_id"] for r in found}) == len(found) > 50


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[rule", "not valid TOML"),
        ('[[rule]]\nid = "x"\nname = "("\ncategory = "gemm"', "regular expression"),
        ('[[rule]]\nid = "x"\nname = "y"\ncategory = "z"', "none of"),
    ],
)
def test_a_wrong_rule_of_the_user_is_a_usage_error(home: Home, text: str, says: str) -> None:
    """It names the file, the rule and what is wrong."""
    home.user_rules.write_text(text)
    with pytest.raises(UsageError, match=says):
        rule_rows(home)
