"""What analyses need to know of a run's usual step."""

from __future__ import annotations

import pytest

from pipeline.analyses.step_facts import config_of, main_allreduce, step_facts
from pipeline.errors import UsageError
from pipeline.lake.home import Home
from pipeline.lake.reading import reading


def test_the_usual_step_of_a_run(served: Home) -> None:
    """Tokens (padded), requests, complete steps, and time by row of the table; a row that is not there takes
    none."""
    with reading(served) as con:
        facts = step_facts(con, "two")
    assert (facts.source, facts.tokens, facts.global_tokens, facts.requests, facts.steps, facts.gpu_name) == (
        "kineto",
        2,
        2,
        2,
        3,
        "NVIDIA H200",
    )
    assert facts.ms("AllReduce") == pytest.approx(0.035)
    assert facts.ms("AllReduce", "MoE dispatch and combine") == facts.ms("AllReduce")


def test_the_given_facts_of_a_run(served: Home) -> None:
    """All facts of it; none of a run without given facts."""
    with reading(served) as con:
        assert (config_of(con, "bare")["tp"], config_of(con, "bare")["layers"]) == (2, None)
        assert config_of(con, "nothing") == {}


def test_the_most_frequent_all_reduce_must_have_a_size(served: Home) -> None:
    """Without hidden size, or without all-reduces, there is nothing to start from."""
    with reading(served) as con:
        assert main_allreduce(con, step_facts(con, "x"))["size_bytes"] == 14336
        with pytest.raises(UsageError, match="give hidden_size and dtype"):
            main_allreduce(con, step_facts(con, "bare"))
        with pytest.raises(UsageError, match="no complete prefill step"):
            step_facts(con, "x", "prefill")
