"""Kernels that appeared, vanished or changed their name at the same position in the step: what an upgrade or
another build did."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import duckdb

from pipeline.analyses.compare.positions import AFTER_LAYERS, BEFORE_LAYERS, Kernel, kernels_of, where
from pipeline.analyses.compare.sample import Sample
from pipeline.analyses.report import Report
from pipeline.text import counted

What = Literal["renamed", "appeared", "vanished", "more calls", "fewer calls"]
COLUMNS = ("what", "category", "role", "where", "calls", "before", "after", "ms_before", "ms_after")
_KINDS = {
    "nccl": "NCCL",
    "custom": "custom",
    "symm_mem": "symmetric memory",
    "nccl_symmetric": "NCCL (symmetric memory)",
}
_Known = tuple[str, str | None]


@dataclass(frozen=True)
class Changed:
    """One change at one position; `before` or `after` is None where there was nothing."""

    what: What
    before: Kernel | None
    after: Kernel | None

    @property
    def kernel(self) -> Kernel:
        """The one that has the position."""
        found = self.after or self.before
        assert found is not None  # noqa: S101 (one of them is there)
        return found


def changes(before: Iterable[Kernel], after: Iterable[Kernel]) -> list[Changed]:
    """What differs, position by position. A name instead of another: first of the same kind and role
    between the same neighbors, then of the same kind and role, then of any kind between the same
    neighbors."""
    was, now = _by_position(before), _by_position(after)
    found: list[Changed] = []
    for position in sorted(was.keys() | now.keys()):
        found += _at_position(was.get(position, []), now.get(position, []))
    return found


def _by_position(kernels: Iterable[Kernel]) -> dict[int, list[Kernel]]:
    found: dict[int, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        found[kernel.position].append(kernel)
    return {position: sorted(those, key=_order) for position, those in found.items()}


def _at_position(was: list[Kernel], now: list[Kernel]) -> list[Changed]:
    calls_was, calls_now = ({(k.name, k.role): k.calls for k in side} for side in (was, now))
    gone = [k for k in was for _ in range(k.calls - calls_now.get((k.name, k.role), 0))]
    come = [k for k in now for _ in range(k.calls - calls_was.get((k.name, k.role), 0))]
    gone, come = _without_unproven(gone, come)
    names_was, names_now = {k.name for k in was}, {k.name for k in now}
    common = calls_was.keys() & calls_now.keys()
    beside = _neighbors(was, common) | _neighbors(now, common)
    keys: tuple[Callable[[Kernel], Hashable], ...] = (
        lambda k: (k.category, k.role, beside[id(k)]),
        lambda k: (k.category, k.role),
        lambda k: beside[id(k)],
    )
    found: list[Changed] = []
    for key in keys:
        gone, come = _pair(gone, come, key, found)
    found += [Changed("fewer calls" if k.name in names_now else "vanished", k, None) for k in gone]
    found += [Changed("more calls" if k.name in names_was else "appeared", None, k) for k in come]
    return found


def _without_unproven(gone: list[Kernel], come: list[Kernel]) -> tuple[list[Kernel], list[Kernel]]:
    """What is left when names whose role is proven on one side only are taken for the same."""
    proven = [k for k in gone if k.role is not None]
    unproven, come = _pair([k for k in gone if k.role is None], come, lambda k: k.name, [])
    settled = [k for k in come if k.role is not None]
    proven, come = _pair(proven, [k for k in come if k.role is None], lambda k: k.name, [])
    return sorted(proven + unproven, key=_order), sorted(settled + come, key=_order)


def _order(kernel: Kernel) -> tuple[float, str]:
    return kernel.pos, kernel.name


def _neighbors(kernels: list[Kernel], common: set[_Known]) -> dict[int, tuple[_Known | None, _Known | None]]:
    """For each kernel (by its id) the nearest ones before and after it that both sides have, by name and
    role."""
    known = [(k.name, k.role) for k in kernels]
    following: list[_Known | None] = [None] * len(known)
    for at in range(len(known) - 2, -1, -1):
        following[at] = known[at + 1] if known[at + 1] in common else following[at + 1]
    found: dict[int, tuple[_Known | None, _Known | None]] = {}
    before: _Known | None = None
    for at, kernel in enumerate(kernels):
        found[id(kernel)] = (before, following[at])
        before = known[at] if known[at] in common else before
    return found


def _pair(
    gone: list[Kernel], come: list[Kernel], key: Callable[[Kernel], Hashable], found: list[Changed]
) -> tuple[list[Kernel], list[Kernel]]:
    """Pair those with equal keys, in order, each with the most similar name left (the longest common
    beginning); returns what is left of both."""
    waiting: dict[Hashable, list[Kernel]] = defaultdict(list)
    for kernel in come:
        waiting[key(kernel)].append(kernel)
    left = []
    for kernel in gone:
        partners = waiting[key(kernel)]
        if partners:
            alike = [_shared(kernel.name, other.name) for other in partners]
            found.append(Changed("renamed", kernel, partners.pop(alike.index(max(alike)))))
        else:
            left.append(kernel)
    return left, sorted((k for those in waiting.values() for k in those), key=_order)


def _shared(one: str, other: str) -> int:
    """Letters at the beginning that both names have."""
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def renamed_report(con: duckdb.DuckDBPyConnection, before: Sample, after: Sample) -> tuple[Report, list[str]]:
    """All changes, layers put together, longest first; and sentences for all-reduces of another kind."""
    was, now = (kernels_of(con, side, is_whole=False) for side in (before, after))
    notes = [
        "usual step: a kernel counts at a position as often as in most steps, on the rank with most of it"
    ]
    unproven = [
        side.run_id
        for side, those in ((before, was), (after, now))
        if not any(BEFORE_LAYERS < k.position < AFTER_LAYERS for k in those)
    ]
    if unproven:
        was, now = (kernels_of(con, side, is_whole=True) for side in (before, after))
        notes.append(
            f"the order of kernels identifies no layers in run {', '.join(unproven)}: kernels are "
            "compared over the whole step"
        )
    found = changes(was, now)
    rows = _rows(found)
    if not rows:
        notes.insert(0, "none: the same kernels, equally often, at the same positions")
    return Report(
        "Kernels that appeared, vanished or changed name at the same position in the step",
        COLUMNS,
        rows,
        notes,
    ), kind_sentences(found)


def _rows(found: list[Changed]) -> list[list[Any]]:
    groups: dict[tuple[Any, ...], list[Changed]] = defaultdict(list)
    for one in found:
        categories = dict.fromkeys(k.category for k in (one.before, one.after) if k)
        key = (
            one.what,
            " -> ".join(categories),
            one.kernel.role,
            one.before and one.before.name,
            one.after and one.after.name,
        )
        groups[key].append(one)
    rows = []
    for (what, category, role, name_was, name_now), those in groups.items():
        ms = [
            round(sum(k.ms for k in side if k), 6) if any(side) else None
            for side in ([c.before for c in those], [c.after for c in those])
        ]
        rows.append(
            [
                what,
                category,
                role,
                where(c.kernel.position for c in those),
                len(those),
                name_was,
                name_now,
                *ms,
            ]
        )
    return sorted(rows, key=lambda row: (-max(row[7] or 0, row[8] or 0), row[0], row[5] or "", row[6] or ""))


def kind_sentences(found: Iterable[Changed]) -> list[str]:
    """All-reduces by another kind of kernel than before: custom ones that fell back to NCCL among them."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for one in found:
        if one.before and one.after and one.before.category == one.after.category == "allreduce":
            counts[one.before.subcategory or "unknown", one.after.subcategory or "unknown"] += 1
    texts = []
    for (was, now), calls in sorted(counts.items()):
        if was == now:
            continue
        verb = "fell back to" if was == "custom" and now == "nccl" else "became"
        texts.append(f"{_kind(was)} all-reduce {verb} {_kind(now)} in {counted(calls, 'call')} per step")
    return texts


def _kind(subcategory: str) -> str:
    return _KINDS.get(subcategory, subcategory.replace("_", " "))
