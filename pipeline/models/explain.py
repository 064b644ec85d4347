"""Which rule claims a kernel name, and the rules in force."""

from __future__ import annotations

from typing import Any

from pipeline import duck
from pipeline.lake.home import Home
from pipeline.models.rules import ANY_OPERATOR, categories, load_rules
from pipeline.sources.names import as_text


def rule_rows(home: Home) -> tuple[list[str], list[list[Any]]]:
    """The effective rules, in the order in which they are tried."""
    columns = [
        "order",
        "rule_id",
        "origin",
        "category",
        "subcategory",
        "fused",
        "name",
        "op",
        "after",
        "before",
    ]
    tried = load_rules(home.user_rules, home.user_markers).rules
    return columns, [
        [i, r.id, r.origin, r.category, r.subcategory, r.is_fused, r.name, r.op, r.after, r.before]
        for i, r in enumerate(tried, 1)
    ]


def explain_name(home: Home, name: str, op: str | None) -> tuple[list[str], list[list[Any]]]:
    """Every rule whose pattern matches the name, in order: the one that claims it first, then those it
    precedes."""
    columns = ["verdict", "rule_id", "origin", "category", "subcategory", "rollup", "pattern", "why"]
    name, op = as_text(name), None if op is None else as_text(op)
    rows: list[list[Any]] = []
    claimed = False
    with duck.in_memory() as con:
        for rule in load_rules(home.user_rules, home.user_markers).rules:
            if not con.execute("SELECT regexp_matches(?, ?)", [name, rule.name]).fetchall()[0][0]:
                continue
            if rule.is_positional:
                neighbors = " and ".join(
                    f"{word} {value}"
                    for word, value in (("after", rule.after), ("before", rule.before))
                    if value
                )
                verdict = f"claims it only {neighbors} on its stream"
            elif rule.op is not None and (
                op is None
                or not con.execute("SELECT regexp_matches(?, ?)", [op, ANY_OPERATOR + rule.op]).fetchall()[0][
                    0
                ]
            ):
                verdict = f"would need an operator like {rule.op}"
            else:
                verdict, claimed = ("beaten by order" if claimed else "claims it"), True
            rows.append(
                [
                    verdict,
                    rule.id,
                    rule.origin,
                    rule.category,
                    rule.subcategory,
                    categories()[rule.category]["rollup"],
                    rule.name,
                    rule.note,
                ]
            )
    if not claimed:
        rows.append(
            [
                "no rule claims it",
                "unclassified",
                "built-in",
                "unclassified",
                None,
                "Unclassified",
                None,
                "Add a rule to kernel_rules.toml in the home.",
            ]
        )
    return columns, sorted(rows, key=lambda r: ("claims it",).index(r[0]) if r[0] == "claims it" else 1)
