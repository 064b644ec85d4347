"""Macros of sql/macros.sql: kernel names in one spelling, whichever profiler wrote them."""

from __future__ import annotations

import pytest

from tests.support.tables import evaluate

LAMBDA = "at::native::copy_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda(int)#1}"

NSYS_LAMBDA = (
    "at::native::copy_cuda(at::TensorIteratorBase &)::[lambda() (instance 3)]::operator ()() "
    "const::[lambda(int) (instance 1)]"
)


@pytest.mark.parametrize(
    ("kineto", "nsys"),
    [
        ("void f<int>(int const*, int*)", "void f<int>(const T1 *, T1 *)"),
        ("void f<128, 4, 2ul, -1l>(int)", "void f<(int)128, (int)4, (unsigned long)2, (long)-1>(int)"),
        ("void f<true, false>(x)", "void f<(bool)1, (bool)0>(x)"),
        ("void f<a<b<1> > >(x)", "void f<a<b<(int)1>>>(T1)"),
        ("void f<char const*, float*, x&>(y)", "void f<const char *, float *, x &>(y)"),
        (f"void f<{LAMBDA}>(int)", f"void f<{NSYS_LAMBDA}>(T1)"),
        ("void g<at::h<at::i<2> >(x&, long)::{lambda(char*, char const*, long)#1}>(x&)",
         ("void g<void at::h<void at::i<(int)2>>(x &, long)::[lambda(char *, const char *, long) (instance "
         "1)]>(x &)")),
        (("void vllm::act<b, &(c10::B vllm::silu<c10::B>(c10::B const&)), &(n vllm::packed<n>(n const&)), "
         "true>(b*)"),
         "void vllm::act<b, &vllm::silu<c10::B>, &vllm::packed<n>, (bool)1>(T1 *)"),
        ("void moe::topk<(moe::Scoring)1, 128>(x)", "void moe::topk<(moe::Scoring)1, (int)128>(x)"),
        ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"),
    ],
    ids=["parameters", "numbers", "booleans", "brackets", "pointers", "lambdas", "void_inside", "functions",
        "enums", "bare"],
)  # fmt: skip
def test_both_spellings_have_one_short_name(kineto: str, nsys: str) -> None:
    """What Kineto and nsys call the same kernel joins on short_name."""
    assert evaluate("short_name(?)", kineto) == evaluate("short_name(?)", nsys)


@pytest.mark.parametrize(
    ("one", "other"),
    [("f<1>(x)", "f<2>(x)"), ("f<int>(x)", "f<long>(x)"), ("f<(a::E)1>(x)", "f<(a::F)1>(x)"), ("f<void>(x)",
     "f<int>(x)"),
     (f"f<{LAMBDA}>(x)", f"f<{LAMBDA.replace('#1', '#2')}>(x)"), ("f<void const*>(x)", "f<char const*>(x)")],
)  # fmt: skip
def test_different_kernels_keep_different_short_names(one: str, other: str) -> None:
    """Numbers, types, enums and the number of a lambda tell kernels apart."""
    assert evaluate("short_name(?)", one) != evaluate("short_name(?)", other)
