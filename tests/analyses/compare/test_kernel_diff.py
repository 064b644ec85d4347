"""What is another kernel at the same place."""

from __future__ import annotations

from typing import Any

from pipeline.analyses.compare.kernel_diff import Changed, changes, kind_sentences
from pipeline.analyses.compare.positions import Kernel


def step(*kernels: str, place: int = 0) -> list[Kernel]:
    """Kernels in order, as `name category role calls`: role `-` for none, and one call by default."""
    made = []
    for pos, text in enumerate(kernels):
        name, category, role, calls = (*text.split(), *("-", "1")[len(text.split()) - 2 :])
        kind = "custom" if name.startswith("own") else "nccl"
        made.append(Kernel(place, name, category, kind, None if role == "-" else role, pos, int(calls), 0.5))
    return made


def summary(found: list[Changed]) -> list[tuple[Any, ...]]:
    """(what, name before, name after)."""
    return [(one.what, one.before and one.before.name, one.after and one.after.name) for one in found]


BASE = ("norm_1 norm", "q gemm q_a", "attend attention", "o gemm o_proj", "reduce allreduce", "norm_2 norm")


def with_other(old: str, new: str) -> tuple[str, ...]:
    """The base with another kernel in the place of one."""
    return tuple(new if text.startswith(f"{old} ") else text for text in BASE)


def test_the_same_step_has_no_change() -> None:
    """Nor has one whose concurrent kernels start in another order."""
    assert changes(step(*BASE), step(*BASE)) == []
    assert changes(step(*BASE), step(*reversed(BASE))) == []


def test_another_name_of_the_same_kind_at_its_place_is_renamed() -> None:
    """By kind, role and neighbors."""
    assert summary(changes(step(*BASE), step(*with_other("o", "o_new gemm o_proj")))) == [
        ("renamed", "o", "o_new")
    ]


def test_roles_tell_two_gemms_apart() -> None:
    """Both changed, and took each other's place in time: each is still paired with its role."""
    after = step(
        "norm_1 norm",
        "o_new gemm o_proj",
        "attend attention",
        "q_new gemm q_a",
        "reduce allreduce",
        "norm_2 norm",
    )
    assert sorted(summary(changes(step(*BASE), after))) == [
        ("renamed", "o", "o_new"),
        ("renamed", "q", "q_new"),
    ]


def test_a_kernel_of_another_kind_in_the_same_place_is_renamed() -> None:
    """A cast in the place of a norm: the neighbors tell."""
    assert summary(changes(step(*BASE), step(*with_other("norm_1", "to_copy cast")))) == [
        ("renamed", "norm_1", "to_copy")
    ]


def test_what_has_no_partner_appeared_or_vanished() -> None:
    """Each on its own."""
    assert summary(changes(step(*BASE), step(*BASE, "top_k routing"))) == [("appeared", None, "top_k")]
    assert summary(changes(step(*BASE, "top_k routing"), step(*BASE))) == [("vanished", "top_k", None)]


def test_names_that_stay_but_are_called_more_or_less_are_said_so() -> None:
    """Two calls more; one less."""
    more = with_other("reduce", "reduce allreduce - 3")
    assert summary(changes(step(*BASE), step(*more))) == [("more calls", None, "reduce")] * 2
    assert summary(changes(step(*more), step(*with_other("reduce", "reduce allreduce - 2")))) == [
        ("fewer calls", "reduce", None)
    ]


def test_a_role_that_is_proven_on_one_side_only_is_no_change() -> None:
    """The same name at the same place."""
    assert changes(step(*BASE), step(*with_other("o", "o gemm -"))) == []
    assert changes(step(*with_other("o", "o gemm -")), step(*BASE)) == []


def test_a_name_that_took_another_role_is_a_change_of_both() -> None:
    """The kernel of one GEMM now serves the other, which gave way."""
    after = step(
        "norm_1 norm",
        "q_new gemm q_a",
        "attend attention",
        "q gemm o_proj",
        "reduce allreduce",
        "norm_2 norm",
    )
    assert sorted(summary(changes(step(*BASE), after))) == [("renamed", "o", "q"), ("renamed", "q", "q_new")]


def test_of_several_partners_the_most_similar_name_is_taken() -> None:
    """Template arguments of the same kernel rather than another kernel."""
    before, after = step("tile<1> gemm", "split<1> gemm"), step("split<2> gemm", "tile<2> gemm")
    assert sorted(summary(changes(before, after))) == [
        ("renamed", "split<1>", "split<2>"),
        ("renamed", "tile<1>", "tile<2>"),
    ]


def test_places_are_compared_each_with_itself() -> None:
    """A kernel that moved from one layer to another vanished there and appeared here."""
    before, after = (
        step("x norm", place=0) + step("y norm", place=1),
        step("x norm", place=1) + step("y norm", place=0),
    )
    assert summary(changes(before, after)) == [("renamed", "x", "y"), ("renamed", "y", "x")]


def test_all_reduces_of_another_kind_are_counted_in_a_sentence() -> None:
    """Only custom ones that became NCCL's fell back; other changes of kind are named, and none of
    name alone."""
    own, nccl = step("own allreduce - 2"), step("reduce allreduce - 2")
    assert kind_sentences(changes(own, nccl)) == ["custom all-reduce fell back to NCCL in 2 calls per step"]
    assert kind_sentences(changes(nccl, own)) == ["NCCL all-reduce became custom in 2 calls per step"]
    assert kind_sentences(changes(nccl, step("reduce_2 allreduce - 2"))) == []
