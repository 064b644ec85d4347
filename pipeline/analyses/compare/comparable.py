"""Did two runs do the same work under the same measurement? Fact by fact, with what each difference means
for a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.analyses.compare.sample import Sample
from pipeline.analyses.compare.workload import Spread, Workload
from pipeline.analyses.report import Report

Verdict = Literal["same", "differs", "unknown"]
COLUMNS = ("fact", "before", "after", "verdict", "means")
REFUSED = "different work: refused without --anyway"
CARE = "read with care"
CONTEXT_TOLERANCE = 0.05
"""Context grows while a run decodes, so two captures of one configuration are not at the same token."""
BATCH_TOLERANCE = 0.02
INFLATION_TOLERANCE = 0.05
MODEL_FACTS = (
    "model", "layers", "dense_layers", "draft_layers", "hidden_size", "experts", "experts_per_token",
    "shared_experts", "moe_intermediate_size", "intermediate_size", "heads", "kv_lora_rank", "q_lora_rank",
    "vocab_size", "dtype", "weight_dtype",
)  # fmt: skip
LAYOUT_FACTS = ("tp", "dp", "ep", "pp", "sequence_parallel")


@dataclass(frozen=True)
class Fact:
    """One fact on both sides. `means`: what follows where it differs or is unknown; empty where it is the
    same."""

    name: str
    before: Any
    after: Any
    verdict: Verdict
    means: str = ""


def facts(before: Sample, after: Sample, was: Workload, now: Workload) -> list[Fact]:
    """Every fact of the verdict, in the order of the question: hardware, work, model, measurement."""
    found = [
        _equal("GPU", was.gpu, now.gpu, CARE),
        _equal("world size", was.world, now.world, REFUSED),
        _equal("ranks recorded", was.ranks, now.ranks, CARE),
        _equal("source", before.source, after.source, REFUSED),
        _equal("phase", before.phase, after.phase, REFUSED),
        _numbers("global batch", was.requests, now.requests),
        _graph(was, now),
        _context(was.context, now.context),
    ]
    if was.prompt_tokens and now.prompt_tokens and max(was.prompt_tokens[2], now.prompt_tokens[2]):
        found.insert(6, _numbers("prompt tokens", was.prompt_tokens, now.prompt_tokens))
    found += _given("model", MODEL_FACTS, was.config, now.config)
    found += _given("layout", LAYOUT_FACTS, was.config, now.config)
    for name, one, other in (
        ("layers seen", was.layers, now.layers),
        ("expert layers seen", was.expert_layers, now.expert_layers),
    ):
        found.append(_equal(name, one, other, REFUSED))
    found.append(
        _equal(
            "kernels of a step", was.kernels, now.kernels, "different kernels: another build or another model"
        )
    )
    found.append(_inflation(was.inflation, now.inflation))
    return found


def _equal(name: str, before: Any, after: Any, means: str) -> Fact:
    if before is None or after is None:
        return Fact(name, before, after, "unknown")
    return (
        Fact(name, before, after, "same") if before == after else Fact(name, before, after, "differs", means)
    )


def _numbers(name: str, before: Spread | None, after: Spread | None) -> Fact:
    """Steps of several sizes are the same work where the sizes and, within 2 %, their mean agree."""
    if before is None or after is None:
        return Fact(name, _shown(before), _shown(after), "unknown")
    is_same = before[:3] == after[:3] and _near(before[3], after[3], BATCH_TOLERANCE)
    texts = (_shown(before), _shown(after))
    if texts[0] == texts[1] and not is_same:
        texts = (f"{texts[0]}, mean {before[3]:.2f}", f"{texts[1]}, mean {after[3]:.2f}")
    return Fact(name, *texts, "same") if is_same else Fact(name, *texts, "differs", REFUSED)


def _graph(was: Workload, now: Workload) -> Fact:
    """No graph on either side is the same; on one side only, launches differ but not the work (padding
    aside)."""
    if was.graph_tokens is None and now.graph_tokens is None:
        return Fact("graph tokens", "no graph", "no graph", "same")
    if was.graph_tokens is None or now.graph_tokens is None:
        one, other = (_shown(work.graph_tokens) or "no graph" for work in (was, now))
        return Fact("graph tokens", one, other, "differs", CARE)
    return _numbers("graph tokens", was.graph_tokens, now.graph_tokens)


def _context(before: float | None, after: float | None) -> Fact:
    one, other = (None if value is None else round(value) for value in (before, after))
    if before is None or after is None:
        return Fact(
            "context",
            one,
            other,
            "unknown",
            "give context_tokens (`stepledger describe`): attention grows with it",
        )
    is_same = _near(before, after, CONTEXT_TOLERANCE)
    return Fact("context", one, other, "same") if is_same else Fact("context", one, other, "differs", REFUSED)


def _inflation(before: float | None, after: float | None) -> Fact:
    one, other = (None if value is None else f"{value:.2f}x" for value in (before, after))
    if before is None or after is None:
        return Fact(
            "inflation",
            one,
            other,
            "unknown",
            "give measured_tpot_ms: profiling may have slowed one side more than the other",
        )
    if _near(before, after, INFLATION_TOLERANCE):
        return Fact("inflation", one, other, "same")
    return Fact("inflation", one, other, "differs", "the profiler slowed one side more: read with care")


def _given(what: str, names: Sequence[str], before: dict[str, Any], after: dict[str, Any]) -> list[Fact]:
    """A row for each fact that differs or is given for one run only; one row for those that agree; one where
    nothing is given."""
    given = [name for name in names if before.get(name) is not None or after.get(name) is not None]
    rows = [_equal(f"{what}: {name}", before.get(name), after.get(name), REFUSED) for name in given]
    same = [name for name in given if before.get(name) == after.get(name)]
    found = [row for row in rows if row.verdict != "same"]
    if same:
        text = ", ".join(f"{name} {before[name]}" for name in same)
        found.append(Fact(f"{what}: as given", text, text, "same"))
    if not given:
        found.append(
            Fact(
                f"{what} facts",
                None,
                None,
                "unknown",
                "give them (`stepledger describe`): a difference may be the model's",
            )
        )
    return found


def _near(one: float, other: float, tolerance: float) -> bool:
    return abs(one - other) <= tolerance * max(abs(one), abs(other))


def _shown(numbers: Spread | None) -> str | None:
    if numbers is None:
        return None
    low, mid, high, _ = numbers
    return f"{mid:g}" if low == high else f"{mid:g} ({low:g}-{high:g})"


def is_other_work(found: Sequence[Fact]) -> bool:
    """Is there a difference that makes the comparison one of different work?"""
    return any(fact.means == REFUSED for fact in found)


def in_words(found: Sequence[Fact]) -> str:
    """The verdict in one line, with its reasons."""
    other = [fact for fact in found if fact.means == REFUSED]
    care = [fact for fact in found if fact.verdict == "differs" and fact.means != REFUSED]
    unknown = [fact.name for fact in found if fact.verdict == "unknown"]
    if other:
        text = "different work: " + _list(other)
    elif care:
        text = "no known difference in work; read with care: " + _list(care)
    else:
        text = "no known difference in work" if unknown else "the same work"
    return text + (f". Unknown: {', '.join(unknown)}" if unknown else "")


def _list(found: Sequence[Fact]) -> str:
    return "; ".join(f"{fact.name} {fact.before} vs {fact.after}" for fact in found)


def verdict_report(found: Sequence[Fact]) -> Report:
    """All facts as a table."""
    rows = [[fact.name, fact.before, fact.after, fact.verdict, fact.means] for fact in found]
    notes = [
        (
            f"the same: context within {CONTEXT_TOLERANCE:.0%}, mean batch within "
            f"{BATCH_TOLERANCE:.0%}, inflation within {INFLATION_TOLERANCE:.0%}"
        ),
        "inflation: median wall of a decode step in the trace / measured_tpot_ms",
    ]
    return Report(f"Comparable? {in_words(found)}", COLUMNS, rows, notes)
