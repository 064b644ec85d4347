"""Kernels of the usual step by place."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.analyses.compare.positions import (
    AFTER_LAYERS,
    BEFORE_LAYERS,
    WHOLE_STEP,
    Kernel,
    kernels_of,
    where,
)
from pipeline.analyses.compare.sample import sample_of
from pipeline.lake.home import Home
from pipeline.lake.reading import reading
from tests.support.compared import CAST, STEP, put, write
from tests.support.known_answer import ARGMAX, MLA
from tests.support.planted_ranks import EMBED


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A run of six steps, of which two hold a cast more."""
    folder = tmp_path_factory.mktemp("places")
    home = Home(folder / "home")
    home.ensure()
    odd = [*STEP[:3], (CAST, 9_000), *STEP[3:]]
    put(home, write(folder, [STEP, odd, STEP, STEP, odd, STEP]), "x")
    return home


def kernels(home: Home, *, is_whole: bool = False) -> list[Kernel]:
    """Those of the usual step."""
    with reading(home) as con:
        return kernels_of(con, sample_of(con, "x", "kineto", "decode"), is_whole=is_whole)


def test_each_kernel_has_its_layer_or_its_side_of_them(home: Home) -> None:
    """The embedding before the layers, sampling behind."""
    found = kernels(home)
    assert {k.position for k in found if k.name == EMBED} == {BEFORE_LAYERS}
    assert {k.position for k in found if k.name.startswith("at::native::reduce_kernel<512")} == {AFTER_LAYERS}
    assert ARGMAX.startswith("void at::native::reduce_kernel<512")
    assert sorted(k.position for k in found if "FlashAttnFwdSm90" in k.name) == [0, 1]
    assert "FlashAttnFwdSm90" in MLA


def test_calls_are_those_of_the_usual_step(home: Home) -> None:
    """Integers for each place and role; what most steps lack is not in it."""
    found = kernels(home)
    assert sum(k.calls for k in found if k.category == "gemm") == 8
    assert CAST not in {k.name for k in found}


def test_the_time_is_that_of_one_call(home: Home) -> None:
    """2.327 ms of each all-reduce, within what the steps vary by."""
    assert [k.ms for k in kernels(home) if k.category == "allreduce"] == pytest.approx(
        [2.327, 2.327], rel=0.002
    )


def test_the_whole_step_can_be_one_place(home: Home) -> None:
    """Where layers are not proven."""
    found = kernels(home, is_whole=True)
    assert {k.position for k in found} == {WHOLE_STEP}
    assert [k.calls for k in found if k.category == "allreduce"] == [4]


@pytest.mark.parametrize(
    ("places", "text"),
    [
        ([3], "layer 3"),
        ([1, 2, 3, 5, 7, 8], "layers 1-3, 5, 7-8"),
        ([BEFORE_LAYERS, 0, AFTER_LAYERS], "layer 0, before the first layer, after the layers"),
        ([WHOLE_STEP, WHOLE_STEP], "whole step"),
    ],
)
def test_places_are_said_in_words(places: list[int], text: str) -> None:
    """Layers as ranges."""
    assert where(places) == text


def test_another_run_has_no_part_in_it(home: Home, tmp_path: Path) -> None:
    """A second run in the same lake changes nothing."""
    before = kernels(home)
    put(home, write(tmp_path, [[(CAST, 5_000), *STEP]] * 5, seed=3), "y")
    assert kernels(home) == before
