"""What is wrong in a file of kernel rules or step markers, all of it at once."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline import duck
from pipeline.errors import UsageError
from pipeline.models.entries import read_text
from pipeline.models.markers import KINDS, Markers, marker_problems, own_markers
from pipeline.models.markers import with_users as with_users_markers
from pipeline.models.rules import RuleSet, rule_problems, with_users


@dataclass(frozen=True)
class Checked:
    """Everything that is wrong with a file; `summary`: one line, of a file without problems."""

    summary: str
    problems: tuple[str, ...]


def check_rules(file: Path) -> Checked:
    """Check a user's file; its tables show whether it holds rules or markers.

    Beyond what a build refuses, every example must be claimed first by its own entry.
    """
    try:
        text = read_text(file)
        kinds = _kinds(text)
    except UsageError as error:
        return Checked("", (str(error).removeprefix(f"{file.name}: "),))
    problems, found = _check_rules(text) if kinds == {"rule"} else _check_markers(text)
    return Checked(f"{file}: {found}, no problems", tuple(problems))


def _check_rules(text: str) -> tuple[list[str], str]:
    if problems := rule_problems(text):
        return problems, ""
    rules = with_users(text, own_markers())
    users = sum(rule.origin == "home" for rule in rules.rules)
    return [*_rule_examples(rules)], _count(users, "rule")


def _check_markers(text: str) -> tuple[list[str], str]:
    if problems := marker_problems(text):
        return problems, ""
    markers, ours = with_users_markers(text), own_markers()
    counts = {
        "marker": sum(marker.origin == "home" for marker in markers.markers),
        "scope": len(markers.scopes) - len(ours.scopes),
        "draft": len(markers.drafts) - len(ours.drafts),
    }
    return [*_marker_examples(markers)], ", ".join(_count(n, word) for word, n in counts.items() if n)


def _kinds(text: str) -> set[str]:
    """{"rule"} or some of the kinds of markers. Raises UsageError for a file with both, or neither."""
    try:
        keys = tomllib.loads(text).keys()
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"not valid TOML: {error}") from error
    rules, markers = keys & {"rule"}, keys & {*KINDS}
    if rules and markers:
        raise UsageError(
            "holds [[rule]] tables (for kernel_rules.toml) and markers (for step_markers.toml): split it"
        )
    if not rules and not markers:
        raise UsageError(
            f"holds neither [[rule]] tables nor {', '.join(f'[[{kind}]]' for kind in KINDS)} tables"
            + (f", but {sorted(keys)}" if keys else "")
        )
    return {*rules, *markers}


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _rule_examples(rules: RuleSet) -> Iterator[str]:
    """Examples of a user's rules that another rule, or none, claims."""
    with duck.in_memory() as con:
        con.execute(rules.macros())
        for rule in rules.rules:
            if rule.origin != "home" or rule.example is None:
                continue
            if rule.is_positional:
                call = "neighbor_rule(?, ?, ?)"
                params = [rule.example, rule.after, rule.before]
            else:
                call, params = "first_rule(?, ?)", [rule.example, rule.example_op]
            claimed = duck.scalar(con, f"SELECT {call}", params)
            if claimed != rule.id:
                yield f"rule {rule.id}: its example is claimed by {_name(claimed, 'rule')}"


def _marker_examples(markers: Markers) -> Iterator[str]:
    with duck.in_memory() as con:
        con.execute(markers.macros())
        for marker in markers.markers:
            if marker.origin != "home" or marker.example is None:
                continue
            found = duck.scalar(con, "SELECT parse_step_marker(?)", [marker.example])
            claimed = None if found is None else found["marker_id"]
            if claimed != marker.id:
                yield f"marker {marker.id}: its example is claimed by {_name(claimed, 'marker')}"


def _name(claimed: str | None, word: str) -> str:
    return f"no {word}" if claimed is None else f"{word} {claimed}"
