"""Kernel rules and step markers: data in schemas/*.toml (and the home's kernel_rules.toml) as SQL that DuckDB
runs.

Patterns become constants of one CASE expression, so that DuckDB compiles each once and stops at the first
that matches.
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import duckdb

from pipeline.duck import literal
from pipeline.errors import UsageError
from pipeline.resources import resource

ANY_OPERATOR = "(?m)"
"""Before a rule's operator pattern: operators stand one a line, outermost first, and ^ and $ hold for
each."""

_COUNTS = (
    "graph_tokens",
    "context_requests",
    "scheduled_context_tokens",
    "generation_requests",
    "generation_tokens",
    "kv_tokens",
)
_FIELDS = {"id", "name", "op", "after", "before", "category", "subcategory", "fused", "example", "example_op", "example_after",
           "example_before", "note"}  # fmt: skip

UNNAMED = "other"
"""Subcategory of a user's rule that names none. Never NULL: `subcategory NOT IN (...)` would be NULL too, and
models would take an attention kernel for none."""
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
        """Does it ask for a neighbour on the stream?"""
        return self.after is not None or self.before is not None


@dataclass(frozen=True)
class RuleSet:
    """The rules in force, in the order in which they are tried: the user's before ours, of each those by
    place before those by name."""

    rules: tuple[Rule, ...]
    sha: str

    def install(self, con: duckdb.DuckDBPyConnection) -> None:
        """Create the macros and tables that models use: those of kernel rules, of step markers (and their
        scopes and drafts), and of categories."""
        con.execute(f"CREATE MACRO first_rule(name, ops) AS {_first_rule(self.rules)}")
        con.execute(
            "CREATE MACRO neighbour_rule(name, category_before, category_after) AS "
            f"{_neighbour_rule(self.rules)}"
        )
        con.execute(f"CREATE MACRO parse_step_marker(name) AS {_parse_step_marker()}")
        for kind in ("scope", "draft"):
            con.execute(f"CREATE MACRO is_step_{kind}(name) AS {_matches_any(kind)}")
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


@cache
def step_markers() -> tuple[dict[str, Any], ...]:
    """schemas/step_markers.toml."""
    return tuple(tomllib.loads(_schema("step_markers.toml"))["marker"])


def _matches_any(kind: str) -> str:
    entries = tomllib.loads(_schema("step_markers.toml"))[kind]
    return " OR ".join(f"regexp_matches(name, {literal(entry['pattern'])})" for entry in entries)


def load_rules(user_file: Path | None = None) -> RuleSet:
    """The rules in force. Raises UsageError if the user's file is not what it should be."""
    own = _own_rules()
    user: tuple[Rule, ...] = ()
    text = ""
    if user_file is not None and user_file.is_file():
        try:
            text = user_file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(f"{user_file.name}: not UTF-8 text: {error}") from error
        user = _parse(text, "home", user_file.name)
    taken = {r.id for r in user}
    rules = (*_tried_order(user), *_tried_order(tuple(r for r in own if r.id not in taken)))
    digest = hashlib.sha256(
        (
            text + _schema("kernel_rules.toml") + _schema("categories.toml") + _schema("step_markers.toml")
        ).encode()
    )
    return RuleSet(rules, digest.hexdigest()[:16])


def _tried_order(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    return (*(r for r in rules if r.is_positional), *(r for r in rules if not r.is_positional))


@cache
def _own_rules() -> tuple[Rule, ...]:
    return _parse(_schema("kernel_rules.toml"), "built-in", "schemas/kernel_rules.toml")


def _schema(name: str) -> str:
    return (resource("schemas") / name).read_text(encoding="utf-8")


def _parse(text: str, origin: str, file: str) -> tuple[Rule, ...]:
    try:
        entries = tomllib.loads(text).get("rule", [])
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file}: not valid TOML: {error}") from error
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(f"{file}: rules are written as [[rule]] tables")
    rules = []
    for number, entry in enumerate(entries, start=1):
        where = f"{file}: rule {number} ({entry.get('id', 'without id')})"
        _check_entry(entry, where, origin)
        rules.append(
            Rule(
                id=entry["id"],
                name=entry["name"],
                category=entry["category"],
                subcategory=entry.get("subcategory", UNNAMED),
                op=entry.get("op"),
                after=entry.get("after"),
                before=entry.get("before"),
                is_fused=entry.get("fused", False),
                origin=origin,
                example=entry.get("example"),
                example_op=entry.get("example_op"),
                note=entry.get("note"),
            )
        )
    ids = [r.id for r in rules]
    if repeated := {i for i in ids if ids.count(i) > 1}:
        raise UsageError(f"{file}: rule ids repeat: {sorted(repeated)}")
    return tuple(rules)


def _check_entry(entry: dict[str, Any], where: str, origin: str) -> None:
    if unknown := entry.keys() - _FIELDS:
        raise UsageError(f"{where}: unknown fields {sorted(unknown)}; known are {sorted(_FIELDS)}")
    if missing := {"id", "name", "category"} - entry.keys():
        raise UsageError(f"{where}: {sorted(missing)} missing")
    if wrong := sorted(
        field for field, value in entry.items() if not isinstance(value, bool if field == "fused" else str)
    ):
        raise UsageError(f"{where}: {wrong} must be text (fused: true or false)")
    if entry["id"] in _RESERVED:
        raise UsageError(f"{where}: the id is taken by what no rule claims; choose another")
    for field in ("category", "after", "before"):
        if (value := entry.get(field)) is not None and value not in categories():
            raise UsageError(f"{where}: {field} {value!r} is none of {sorted(categories())}")
    if origin == "home":  # a test holds ours to their examples
        for field in ("name", "op"):
            _check_pattern(entry.get(field), f"{where}: {field}")


def _check_pattern(pattern: str | None, where: str) -> None:
    if pattern is None:
        return
    try:
        duckdb.execute("SELECT regexp_matches('', ?)", [pattern]).fetchall()
    except duckdb.Error as error:
        raise UsageError(f"{where}: not a regular expression (RE2): {error}") from error


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


def _neighbour_rule(rules: tuple[Rule, ...]) -> str:
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


def _parse_step_marker() -> str:
    whens = []
    for marker in step_markers():
        pattern = literal(marker["pattern"])
        counts = ", ".join(
            f"{c}: "
            + (
                f"try_cast(nullif(regexp_extract(name, {pattern}, {marker[c]}), '') AS BIGINT)"
                if c in marker
                else "NULL::BIGINT"
            )
            for c in _COUNTS
        )
        facts = (
            f"marker_id: {literal(marker['id'])}, engine: {literal(marker['engine'])}, level: "
            f"{marker['level']}, "
            f"confidence: {marker['confidence']}::DOUBLE, phase_rule: {literal(marker['phase'])}, part: "
            f"{literal(marker.get('part'))}::VARCHAR"
        )
        whens.append(f"WHEN regexp_matches(name, {pattern}) THEN {{{facts}, {counts}}}")
    return f"CASE {' '.join(whens)} END"
