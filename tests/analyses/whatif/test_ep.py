"""Expert parallelism by arithmetic: known answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest

from pipeline.analyses.formulas import Interval, cliff, remote_ranks
from pipeline.analyses.latency import Curve
from pipeline.analyses.whatif.ep import Case, Compute, Estimate, Mode, communication, messages, with_compute
from pipeline.analyses.whatif.whatif import crossover_note

TOKEN = 14336.0
CAMPAIGN = Case("tp_attn_a2a", 8, 61, 60, TOKEN, 384, 8, 127, 60, 1, 11.17, Interval(62.4, 78))
"""8 GPUs over PCIe, batch 1: 11.17 ms of all-reduces; one takes 78 us, 62.4 without waiting."""


def curve(op: str, *points: tuple[float, float]) -> Curve:
    """A curve in tokens per rank."""
    return Curve(op, tuple((tokens * TOKEN, us) for tokens, us in points), op)


FLAT = curve("all_reduce", (1, 78), (2048, 78))


def test_the_campaigns_arithmetic_comes_out_exactly() -> None:
    """60 x 78 us out, 120 x 20 to 25 us in: 11.17 -> 8.89 to 9.49 ms."""
    curves = {"all_reduce": FLAT, "all_to_all": curve("all_to_all", (1, 25), (1024, 25))}
    row = communication(CAMPAIGN, 1, curves, ("all_to_all", "all_to_all"), extrapolate=False)
    assert (row.now_ms, row.removed_ms) == pytest.approx((11.17, 4.68))
    assert (row.added.low, row.added.high) == pytest.approx((2.4, 3.0))
    assert (round(row.after.low, 2), round(row.after.high, 2)) == (8.89, 9.49)
    assert row.verdict is True


def test_beyond_the_cliff_sharing_experts_out_loses() -> None:
    """All-to-all 19 us at 1 token and 1007 us at 16: EP wins at 1 token and loses at 16."""
    exchange = curve("all_to_all", (1, 19), (16, 1007))
    found = [
        communication(
            CAMPAIGN,
            t,
            {"all_reduce": FLAT, "all_to_all": exchange},
            ("all_to_all", "all_to_all"),
            extrapolate=False,
        )
        for t in (1, 16)
    ]
    assert [row.verdict for row in found] == [True, False]
    assert cliff(list(exchange.points)) is not None
    assert crossover_note(found) == "crossover: from 16 tokens per rank EP loses"
    assert crossover_note([]) == "crossover: none in the measured range (nothing is decided)"
    assert crossover_note(found[:1]) == "crossover: none in the measured range (EP wins throughout)"


def test_data_parallel_attention_removes_every_all_reduce() -> None:
    """Nothing of the 11.17 ms stays; each of 60 MoE layers gathers and scatters."""
    case = replace(CAMPAIGN, mode="dp_ep")
    curves = {
        "all_reduce": FLAT,
        "all_gather": curve("all_gather", (1, 20), (64, 20)),
        "reduce_scatter": curve("reduce_scatter", (1, 30), (64, 30)),
    }
    row = communication(case, 1, curves, ("all_gather", "reduce_scatter"), extrapolate=False)
    assert (row.global_tokens, row.now_ms, row.removed_ms) == (8, 11.17, 11.17)
    assert (row.after.low, row.after.high) == pytest.approx((60 * 50 * 0.8 / 1e3, 60 * 50 / 1e3))


def test_sharing_experts_out_under_tensor_parallelism_changes_no_call() -> None:
    """What is removed and added is nothing."""
    row = communication(replace(CAMPAIGN, mode="tp_ep"), 4, {"all_reduce": FLAT}, (), extrapolate=False)
    assert (row.removed_ms, row.added, row.after, row.is_same) == (
        0,
        Interval(0, 0),
        Interval(11.17, 11.17),
        True,
    )


def test_all_reduces_grow_with_the_message() -> None:
    """Before and removed follow the table from the traced size to the wanted one."""
    curves = {
        "all_reduce": curve("all_reduce", (1, 78), (16, 156)),
        "all_to_all": curve("all_to_all", (1, 25), (16, 25)),
    }
    row = communication(CAMPAIGN, 16, curves, ("all_to_all", "all_to_all"), extrapolate=False)
    assert (row.now_ms, row.removed_ms) == pytest.approx((22.34, 9.36))


@pytest.mark.parametrize(("tokens", "outside"), [(4096, "all_reduce"), (2048, "all_to_all")])
def test_outside_the_table_is_refused(tokens: int, outside: str) -> None:
    """The operation is named; with extrapolation there is an answer."""
    curves = {"all_reduce": FLAT, "all_to_all": curve("all_to_all", (1, 25), (1024, 25))}
    row = communication(CAMPAIGN, tokens, curves, ("all_to_all", "all_to_all"), extrapolate=False)
    assert row.outside == f"{outside} of that size is outside the table"
    assert row.verdict is None
    assert (
        communication(CAMPAIGN, tokens, curves, ("all_to_all", "all_to_all"), extrapolate=True).outside
        is None
    )


def test_what_is_exchanged() -> None:
    """A gather puts in its own tokens, a scatter everybody's; an all-to-all one copy for each distinct remote
    rank at most."""
    case = replace(CAMPAIGN, mode="dp_ep")
    assert messages(case, 2, ("all_gather", "reduce_scatter")) == [
        ("all_gather", Interval(2 * TOKEN, 2 * TOKEN)),
        ("reduce_scatter", Interval(16 * TOKEN, 16 * TOKEN)),
    ]
    ((_, size),) = messages(case, 2, ("all_to_all",))
    assert size.low == 2 * TOKEN
    assert size.high == pytest.approx(2 * TOKEN * remote_ranks(8, 384, 8) * 8 / 7)
    ((_, replicated),) = messages(CAMPAIGN, 2, ("all_to_all",))
    assert replicated == Interval(2 * TOKEN, 2 * TOKEN)


COMPUTE = Compute(moe_ms=2.4, gemm_ms=2.9, attention_ms=3.2, rest_ms=2.0)


def computed(
    mode: Mode, tokens: int, load: float = 2.0, points: Mapping[str, Curve] = MappingProxyType({})
) -> tuple[float, float, float]:
    """Compute alone, now and after: a step whose communication is nothing."""
    case = replace(CAMPAIGN, mode=mode, compute=COMPUTE, load=load)
    row = with_compute(case, Estimate(tokens, case.global_tokens(tokens)), dict(points))
    return row.now_ms, row.after.low, row.after.high


def test_the_fullest_rank_sets_the_experts_time() -> None:
    """Under tensor parallelism only balance changes: experts take 1 to load factor times as long."""
    assert computed("tp_ep", 1) == pytest.approx((10.5, 10.5, 10.5 + 2.4))


def test_whole_weights_cost_up_to_n_times_as_much() -> None:
    """Data parallel: GEMMs 1 to 8 times, attention 1/8 to 1, experts by those of 8 tokens."""
    read = (1 - (1 - 8 / 384) ** 8) / (8 / 384)
    now, low, high = computed("dp_ep", 1, load=1.0)
    assert now == pytest.approx(2.4 * read + 2.9 + 3.2 + 2)
    assert (low, high) == pytest.approx((2.4 * read + 2.9 + 0.4 + 2, 2.4 * read + 8 * 2.9 + 3.2 + 2))


def test_measured_points_replace_the_rules() -> None:
    """us of one layer: 60 MoE layers and 61 of GEMMs."""
    curves = {op: Curve(op, ((1, 10), (64, 10)), op) for op in ("gemm", "moe_gemm")}
    _, low, high = computed("dp_ep", 1, points=curves)
    assert (low, high) == pytest.approx((0.6 + 0.61 + 0.4 + 2, 0.6 + 0.61 + 3.2 + 2))


def test_attention_grows_once_it_fills_the_memory() -> None:
    """At a quarter of its bandwidth, from 4 tokens on; where that is not known it stays."""
    case = replace(
        CAMPAIGN, mode="tp_ep", experts=8, top_k=8, compute=replace(COMPUTE, attention_load=0.25), load=1.0
    )
    assert [with_compute(case, Estimate(t, t), {}).now_ms for t in (1, 4, 8)] == [
        pytest.approx(v) for v in (10.5, 10.5, 10.5 + 3.2)
    ]
    unknown = replace(case, compute=COMPUTE)
    assert with_compute(unknown, Estimate(64, 64), {}).now_ms == pytest.approx(10.5)


def test_without_compute_or_answer_a_row_stays_as_it_is() -> None:
    """A refusal is not made up for, and unknown experts leave communication alone."""
    refused = Estimate(1, 1, outside="no")
    assert with_compute(replace(CAMPAIGN, compute=COMPUTE), refused, {}) is refused
    row = Estimate(1, 1, 1.0)
    assert with_compute(replace(CAMPAIGN, compute=COMPUTE, experts=None), row, {}) is row
