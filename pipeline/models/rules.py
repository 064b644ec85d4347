"""Kernel rules: data in kernel_rules.toml (ours, and the home's) as SQL that DuckDB runs.

Patterns become constants of one CASE expression, so that DuckDB compiles each once and stops at the first
that matches.
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import duckdb

from pipeline.duck import literal
from pipeline.errors import UsageError
from pipeline.models.entries import (
    Entry,
    Patterns,
    field_problems,
    read_entries,
    read_text,
    repeated_ids,
)
from pipeline.models.markers import Markers, load_markers, own_markers, own_text
from pipeline.resources import resource

ANY_OPERATOR = "(?m)"
"""Precedes a rule's operator pattern: operators are one per line, outermost first, and ^ and $ match at
each."""

FILE = "kernel_rules.toml"
_TYPES: dict[str, type] = {"fused": bool} | dict.fromkeys(
    (
        "id",
        "name",
        "op",
        "after",
        "before",
        "category",
        "subcategory",
        "example",
        "example_op",
        "example_after",
        "example_before",
        "note",
    ),
    str,
)
UNNAMED = "other"
"""Subcategory of a user's rule without one. Never NULL: `subcategory NOT IN (...)` would be NULL too, and
models would not recognize an attention kernel."""
_COMMUNICATION = 2
"""Owner class of communication in categories.toml."""
_RESERVED = ("unclassified", "opaque_graph")
"""Ids of activities that no rule claims: no rule may have them."""


@dataclass(frozen=True)
class Rule:
    """One rule: what it matches, and the category it files under. `origin` is home or built-in."""

    id: str
    name: str
    category: str
    subcategory: str
    op: str | None
    after: str | None
    before: str | None
    is_fused: bool
    origin: str
    example: str | None
    example_op: str | None
    note: str | None

    @property
    def is_positional(self) -> bool:
        """Does it require a neighbor on the stream?"""
        return self.after is not None or self.before is not None


@dataclass(frozen=True)
class RuleSet:
    """The rules in force, in the order in which they are tried: the user's before ours, of each those by
    place before those by name."""

    rules: tuple[Rule, ...]
    sha: str
    markers: Markers = field(default_factory=own_markers)

    def macros(self) -> str:
        """SQL that creates first_rule and neighbor_rule."""
        return (
            f"CREATE OR REPLACE TEMP MACRO first_rule(name, ops) AS {_first_rule(self.rules)};\n"
            "CREATE OR REPLACE TEMP MACRO neighbor_rule(name, category_before, category_after) AS "
            f"{_neighbor_rule(self.rules)};\n"
        )

    def install(self, con: duckdb.DuckDBPyConnection) -> None:
        """Create the macros and tables that models use: those of kernel rules, of step markers (and their
        scopes and drafts), and of categories."""
        con.execute(self.macros() + self.markers.macros())
        rows: list[tuple[int, str, str, str | None, bool]]
        rows = [(i, r.id, r.category, r.subcategory, r.is_fused) for i, r in enumerate(self.rules)]
        rows += [
            (len(rows), "unclassified", "unclassified", None, False),
            (len(rows) + 1, "opaque_graph", "opaque", "graph", False),
        ]
        values = ", ".join(f"({', '.join(literal(v) for v in row)})" for row in rows)
        con.execute(
            f"CREATE TABLE kernel_rule AS FROM (VALUES {values}) AS rule (sort_order, rule_id, category, "
            "subcategory, is_fused)"
        )
        owners = ", ".join(
            f"({literal(c)}, {literal(v['rollup'])}, {v['owner']})" for c, v in categories().items()
        )
        con.execute(
            f"CREATE TABLE category_info AS FROM (VALUES {owners}) AS category (category, rollup, owner)"
        )


@cache
def categories() -> dict[str, dict[str, Any]]:
    """schemas/categories.toml: category to rollup and owner class."""
    found: dict[str, dict[str, Any]] = tomllib.loads(_schema("categories.toml"))["category"]
    return found


@cache
def rollups() -> tuple[str, ...]:
    """The table's rows, in the order in which they are shown when all are equal."""
    return tuple(tomllib.loads(_schema("categories.toml"))["rollups"])


@cache
def communication_categories() -> tuple[str, ...]:
    """Categories of communication between ranks: those of owner class 2."""
    return tuple(name for name, facts in categories().items() if facts["owner"] == _COMMUNICATION)


@cache
def communication_rollups() -> tuple[str, ...]:
    """The table's rows of communication, in the table's order."""
    rows = {categories()[name]["rollup"] for name in communication_categories()}
    return tuple(row for row in rollups() if row in rows)


def load_rules(user_rules: Path | None = None, user_markers: Path | None = None) -> RuleSet:
    """The rules and step markers in force. Raises UsageError if a user's file is not what it should be."""
    text = ""
    if user_rules is not None and user_rules.is_file():
        text = read_text(user_rules)
        if problems := rule_problems(text):
            raise UsageError(f"{user_rules.name}: {problems[0]}")
    return with_users(text, load_markers(user_markers))


def with_users(text: str, markers: Markers) -> RuleSet:
    """The rules in force with the text of a user's file, which is right."""
    users = tuple(_rule(entry, "home") for entry in read_entries(text, ("rule",))[0])
    replaced = {rule.id for rule in users}
    rules = (
        *_tried_order(users),
        *_tried_order(tuple(rule for rule in own_rules() if rule.id not in replaced)),
    )
    ours = _schema(FILE) + _schema("categories.toml") + own_text()
    digest = hashlib.sha256((text + ours + markers.text).encode())
    return RuleSet(rules, digest.hexdigest()[:16], markers)


def _tried_order(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    return (*(r for r in rules if r.is_positional), *(r for r in rules if not r.is_positional))


@cache
def own_rules() -> tuple[Rule, ...]:
    """schemas/kernel_rules.toml. A test checks them as a user's file is checked."""
    return tuple(_rule(entry, "built-in") for entry in read_entries(_schema(FILE), ("rule",))[0])


def _schema(name: str) -> str:
    return (resource("schemas") / name).read_text(encoding="utf-8")


def rule_problems(text: str) -> list[str]:
    """Everything that is wrong with a user's file of rules."""
    entries, problems = read_entries(text, ("rule",))
    patterns = Patterns()
    for entry in entries:
        problems += _entry_problems(entry, patterns)
    if repeated := repeated_ids(entries):
        problems.append(f"rule ids repeat: {repeated}")
    return problems


def _entry_problems(entry: Entry, patterns: Patterns) -> list[str]:
    fields, where = entry.fields, entry.where
    problems = field_problems(entry, _TYPES, ("id", "name", "category"))
    if fields.get("id") in _RESERVED:
        problems.append(f"{where}: this id marks activities that no rule claims; choose another")
    for key in ("category", "after", "before"):
        value = fields.get(key)
        if isinstance(value, str) and value not in categories():
            problems.append(f"{where}: {key} {value!r} is none of {', '.join(sorted(categories()))}")
    for key in ("name", "op"):
        problems += patterns.problem(fields.get(key), f"{where}: {key}")
    return problems


def _rule(entry: Entry, origin: str) -> Rule:
    fields = entry.fields
    return Rule(
        id=fields["id"],
        name=fields["name"],
        category=fields["category"],
        subcategory=fields.get("subcategory", UNNAMED),
        op=fields.get("op"),
        after=fields.get("after"),
        before=fields.get("before"),
        is_fused=fields.get("fused", False),
        origin=origin,
        example=fields.get("example"),
        example_op=fields.get("example_op"),
        note=fields.get("note"),
    )


def _first_rule(rules: tuple[Rule, ...]) -> str:
    whens = []
    for rule in rules:
        if rule.is_positional:
            continue
        test = f"regexp_matches(name, {literal(rule.name)})"
        if rule.op is not None:
            test = f"ops IS NOT NULL AND regexp_matches(ops, {literal(ANY_OPERATOR + rule.op)}) AND {test}"
        whens.append(f"WHEN {test} THEN {literal(rule.id)}")
    return f"CASE {' '.join(whens)} END"


def _neighbor_rule(rules: tuple[Rule, ...]) -> str:
    whens = []
    for rule in (r for r in rules if r.is_positional):
        tests = []
        if rule.after is not None:
            tests.append(f"category_before IS NOT DISTINCT FROM {literal(rule.after)}")
        if rule.before is not None:
            tests.append(f"category_after IS NOT DISTINCT FROM {literal(rule.before)}")
        tests.append(f"regexp_matches(name, {literal(rule.name)})")
        whens.append(f"WHEN {' AND '.join(tests)} THEN {literal(rule.id)}")
    return (
        f"CASE {' '.join(whens)} END"
        if whens
        else "CASE WHEN name IS NULL THEN category_before || category_after END"
    )
