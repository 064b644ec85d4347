"""Formulas of the analyses: known answers."""

from __future__ import annotations

import pytest

from pipeline.analyses import formulas
from pipeline.analyses.formulas import Interval


def test_one_token_meets_its_k_experts() -> None:
    """8 of 384 for one token; never more than there are."""
    assert formulas.distinct_experts(384, 8, 1) == pytest.approx(8)
    assert formulas.distinct_experts(384, 8, 16) == pytest.approx(384 * (1 - (376 / 384) ** 16))
    assert formulas.distinct_experts(64, 8, 10_000) == pytest.approx(64)


def test_remote_ranks_by_counting() -> None:
    """4 experts on 2 ranks, 2 chosen: of 6 pairs, 1 has no expert on the other rank; with one expert chosen 1
    in N stays at home."""
    assert formulas.remote_ranks(2, 4, 2) == pytest.approx(5 / 6)
    assert formulas.remote_ranks(8, 384, 1) == pytest.approx(7 / 8)
    assert formulas.remote_ranks(8, 384, 8) == pytest.approx(4.63, abs=0.01)
    with pytest.raises(ValueError, match="not the same number"):
        formulas.remote_ranks(7, 384, 8)


def test_dispatch_sends_nothing_where_every_rank_holds_the_token() -> None:
    """After tensor-parallel attention every rank has every token; else one copy for each distinct remote
    rank."""
    assert formulas.dispatch_bytes(16, 14336, 8, 384, 8, is_replicated=True) == 0
    assert formulas.dispatch_bytes(2, 1000, 2, 4, 2, is_replicated=False) == pytest.approx(2 * 1000 * 5 / 6)


def test_balance_grows_with_choices() -> None:
    """Few choices are uneven, many are even; one rank is always even, and no rank has more than
    everything."""
    assert formulas.load_factor(8, 1) == 1
    assert formulas.load_factor(1, 8) == pytest.approx(8, abs=1.7)
    assert formulas.load_factor(1, 2) == 2
    assert formulas.load_factor(8, 8) > formulas.load_factor(800, 8) > 1
    assert formulas.load_factor(8e6, 8) == pytest.approx(1, abs=0.01)


def test_the_campaigns_arithmetic_is_reproduced() -> None:
    """60 x 78 us out, 120 x 20 to 25 us in: 11.17 ms become 8.89 to 9.49; its own 7.6 to 8.2 started from 127
    x 78 us."""
    removed = 60 * 78 / 1e3
    added = Interval(120 * 20 / 1e3, 120 * 25 / 1e3)
    after = formulas.replaced(11.17, removed, added)
    assert removed == pytest.approx(4.68)
    assert (round(after.low, 2), round(after.high, 2)) == (8.89, 9.49)
    own = formulas.replaced(127 * 78 / 1e3, removed, added)
    assert (round(own.low, 1), round(own.high, 1)) == (7.6, 8.2)
    assert round(11.17 - 127 * 78 / 1e3, 2) == 1.26


def test_emitted_tokens_of_a_verify_pass() -> None:
    """One without acceptance, all with certainty, the geometric sum between."""
    assert formulas.emitted_tokens(0, 3) == 1
    assert formulas.emitted_tokens(1, 3) == 4
    assert formulas.emitted_tokens(0.5, 2) == pytest.approx(1 + 0.5 + 0.25)


def test_break_even_is_where_emitted_tokens_pay_the_cost() -> None:
    """Twice a step with one draft needs certainty; more never pays; a pass no dearer than a step always
    does."""
    assert formulas.breakeven_acceptance(2, 1) == pytest.approx(1)
    assert formulas.breakeven_acceptance(1.5, 1) == pytest.approx(0.5)
    assert formulas.breakeven_acceptance(2.1, 1) is None
    assert formulas.breakeven_acceptance(0.9, 3) == 0
    found = formulas.breakeven_acceptance(1.75, 2)
    assert found is not None
    assert formulas.emitted_tokens(found, 2) == pytest.approx(1.75)


def test_overlap_is_bound_by_the_dearer_half() -> None:
    """Two half-batches take at least twice the dearer of compute and communication."""
    assert formulas.overlap_ceiling(3, 4) == 8
    assert formulas.overlap_ceiling(5, 4) == 10


def test_a_cliff_is_latency_that_outgrows_bytes() -> None:
    """19 us at 1 token and 1007 us at 16 grow 3.3 times faster than bytes; a stretch within that is worse is
    named instead."""
    found = formulas.cliff([(14336, 19), (16 * 14336, 1007)])
    assert found is not None
    assert found[:2] == (14336, 16 * 14336)
    assert found[2] == pytest.approx(1007 / 19 / 16)
    steeper = formulas.cliff([(1, 19), (2, 20), (4, 22), (8, 400), (16, 1007)])
    assert steeper is not None
    assert steeper == pytest.approx((4, 16, 1007 / 22 / 4))
    assert formulas.cliff([(1, 10), (2, 20), (4, 40), (8, 80)]) is None
    assert formulas.cliff([(1, 10)]) is None


def test_a_crossover_is_where_the_verdict_changes() -> None:
    """The first decided size is no crossover, and undecided ones are none either."""
    verdicts = {1: True, 2: True, 4: None, 8: False, 16: False, 32: True}
    assert formulas.crossover(list(verdicts), verdicts.__getitem__) == [(8, False), (32, True)]
    assert formulas.crossover([1, 2, 4], lambda _size: True) == []
    assert formulas.crossover([1, 2, 4], lambda size: None if size < 4 else True) == []


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("bfloat16", 2),
        ("int4", 0.5625),
        ("int4_g128", 0.515625),
        ("mxfp4", 0.53125),
        ("nvfp4", 0.5625),
        ("fp8", 1 + 4 / 16384),
        ("int8_g128", 1.015625),
    ],
)
def test_scales_are_part_of_a_weight(dtype: str, size: float) -> None:
    """A quantised weight is read with its share of a scale."""
    assert formulas.weight_bytes(dtype) == size


@pytest.mark.parametrize("dtype", ["int3", "int4_gx", "w4a16"])
def test_an_unknown_type_has_no_size(dtype: str) -> None:
    """Nothing is guessed from a name that is not known."""
    assert formulas.weight_bytes(dtype) is None


def test_intervals_add_and_scale() -> None:
    """Ends with ends."""
    assert Interval(1, 2) + Interval(3, 5) == Interval(4, 7)
    assert Interval(1, 2).times(2) == Interval(2, 4)
    assert Interval(1, 2).times(2, 3) == Interval(2, 6)
