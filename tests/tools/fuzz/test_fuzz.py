"""A few hundred mutants of every kind of trace: landed with closed books, refused by name, or left for later;
nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.homes import HANG_S
from tests.tools.fuzz.mutate import mutant
from tests.tools.fuzz.seeds import own_seeds, real_seeds
from tests.tools.fuzz.trial import GOOD, Result
from tests.tools.fuzz.worker import Worker

CHUNKS, OWN, REAL = 8, 25, 20
SEED = 1


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """A worker on traces of our own."""
    made = Worker(own_seeds(), SEED, seconds=HANG_S)
    yield made
    made.close()


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_mutants_of_our_own_traces_are_landed_or_refused(worker: Worker, chunk: int) -> None:
    """No traceback, hang, crash, debris or broken books; `python -m tests.tools.fuzz.run --no-real --seed 1
    --only N` tries one again."""
    assert _findings(worker, range(OWN * chunk, OWN * (chunk + 1))) == {}


def test_mutants_of_real_traces_are_landed_or_refused(shared_traces: Path) -> None:
    """The same of cuts of real traces, which hold what no builder thinks of."""
    worker = Worker(real_seeds(shared_traces), SEED, seconds=HANG_S)
    try:
        assert _findings(worker, range(REAL)) == {}
    finally:
        worker.close()


def test_every_seed_lands_as_it_is(worker: Worker) -> None:
    """A seed that a reader refuses would make all of its mutants prove nothing."""
    assert {
        name: result
        for name in range(len(worker.seeds))
        if (result := worker.run_seed(name)).outcome != "landed"
    } == {}


def test_a_number_gives_the_same_mutant_again() -> None:
    """A finding can be tried again by its number alone, in another process with seeds made anew."""
    one, again = own_seeds(), own_seeds()
    assert [mutant(one, SEED, n) for n in range(40)] == [mutant(again, SEED, n) for n in range(40)]


def test_a_worker_outlives_what_hangs(worker: Worker) -> None:
    """A mutant without an outcome in time is a hang, and the next one is tried by a new process."""
    hasty = Worker(worker.seeds, SEED, seconds=0)
    assert hasty.run(0).outcome == "hang"
    hasty.close()


def _findings(worker: Worker, numbers: range) -> dict[int, Result]:
    return {number: result for number in numbers if (result := worker.run(number)).outcome not in GOOD}
