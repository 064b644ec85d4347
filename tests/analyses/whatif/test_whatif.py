"""Expert parallelism in a run, as printed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.analyses.report import Report
from pipeline.analyses.whatif.ep import Mode, communication
from pipeline.analyses.whatif.whatif import counted_note, ep_reports
from pipeline.errors import UsageError
from pipeline.lake.home import Home
from pipeline.lake.reading import reading
from tests.analyses.whatif.test_ep import CAMPAIGN, FLAT, curve
from tests.support.served import TABLE, serve

CLIFF = (
    "op,ranks,input_bytes,us\nall_reduce,2,14336,14\nall_reduce,2,14680064,14\n"
    "all_to_all,2,14336,2\nall_to_all,2,229376,106\nall_to_all,2,14680064,6784\n"
)


def report_of(
    home: Home, mode: Mode, run: str = "x", table: str | None = None, **options: Any
) -> list[Report]:
    """The reports."""
    with reading(home) as con:
        return ep_reports(con, run, mode, table, **options)


def row(report: Report, tokens: int) -> dict[str, Any]:
    """The row of some tokens per rank."""
    found = next(values for values in report.rows if values[0] == tokens)
    return dict(zip(report.columns, found, strict=True))


def test_the_moe_layers_all_reduce_for_two_exchanges(served: Home) -> None:
    """5 all-reduces of 7 us: one of them out, two all-to-alls in, each 12 us in the table and 6 as a kernel
    here."""
    first, second = report_of(served, "tp_attn_a2a")
    found = row(first, 1)
    assert (found["now_ms"], found["removed_ms"], found["added_ms_low"], found["added_ms_high"]) == (
        0.035,
        0.007,
        0.012,
        0.012,
    )
    assert (
        found["after_ms_low"],
        found["after_ms_high"],
        found["verdict"],
        found["after_us_per_token_low"],
    ) == (0.04, 0.04, "EP loses", 40.0)
    assert (row(first, 8)["global_tokens"], row(first, 8)["now_us_per_token"]) == (8, round(35 / 8, 3))
    assert first.title.endswith("COMMUNICATION ALONE")
    assert any("a dispatch needs no bytes" in note for note in first.notes)
    assert "crossover: none in the measured range (EP loses throughout)" in first.notes
    assert row(second, 1)["now_ms"] > 0.035
    assert any("sum of GPU time" in note for note in second.notes)


def test_all_all_reduces_for_a_gather_and_a_scatter(served: Home) -> None:
    """5 us each in; per global token of two ranks."""
    found = row(report_of(served, "dp_ep")[0], 1)
    assert (found["global_tokens"], found["removed_ms"], found["after_ms_low"], found["verdict"]) == (
        2,
        0.035,
        0.01,
        "EP wins",
    )
    assert (found["now_us_per_token"], found["after_us_per_token_high"]) == (17.5, 5.0)
    exchanged = row(report_of(served, "dp_ep", exchange="a2a")[0], 1)
    assert exchanged["after_ms_high"] == 0.012


def test_outside_the_table_is_refused_row_by_row(served: Home) -> None:
    """1024 tokens on each of two ranks reduce 2048: beyond the table, unless extrapolated."""
    refused = row(report_of(served, "dp_ep")[0], 1024)
    assert (refused["verdict"], refused["now_ms"]) == (
        "refused: all_reduce of that size is outside the table",
        None,
    )
    first, _ = report_of(served, "dp_ep", extrapolate=True)
    assert row(first, 1024)["now_ms"] == 0.07
    assert any(note.startswith("EXTRAPOLATED") for note in first.notes)


def test_experts_shared_out_alone_change_balance_alone(served: Home) -> None:
    """No call changes; the fullest rank's load is the given one, or the rule's."""
    first, second = report_of(served, "tp_ep", load=2.0)
    assert row(first, 1)["verdict"] == "same"
    found = row(second, 1)
    assert found["after_ms_low"] == found["now_ms"]
    assert found["after_ms_high"] == pytest.approx(found["now_ms"] + 0.008)
    assert any("2 (given)" in note for note in second.notes)


def test_a_cliff_is_named_and_expert_parallelism_loses_there(served: Home, tmp_path: Path) -> None:
    """2 us at 1 token, 106 at 16: 3.3 times faster growth than bytes."""
    (tmp_path / "cliff.csv").write_text(CLIFF, encoding="utf-8")
    first, _ = report_of(served, "tp_attn_a2a", table=str(tmp_path / "cliff.csv"))
    assert any(
        note.startswith("CLIFF: all_to_all takes 2 us at 14336 bytes and 106 us at 229376: 3.3 times")
        for note in first.notes
    )
    marked = [(row(first, tokens)["verdict"], row(first, tokens)["remark"]) for tokens in (1, 16)]
    assert marked == [("EP wins", ""), ("EP loses", "on the cliff of all_to_all")]
    assert any(note.startswith("crossover: from ") and note.endswith("EP loses") for note in first.notes)


def test_the_campaigns_own_answer_stands_beside_ours() -> None:
    """Starting from 127 x 78 us it gave 7.6 to 8.2 ms; the 1.26 ms that are not in it make 8.89 to 9.49 of
    it."""
    curves = {"all_reduce": FLAT, "all_to_all": curve("all_to_all", (1, 25), (1024, 25))}
    (note,) = counted_note(
        CAMPAIGN, [communication(CAMPAIGN, 1, curves, ("all_to_all", "all_to_all"), extrapolate=False)]
    )
    for part in ("127 x 78.00 us = 9.91 ms", "7.63 to 8.23 ms", "leaves out the 1.26 ms", "8.89 to 9.49 ms"):
        assert part in note
    assert counted_note(replace(CAMPAIGN, mode="dp_ep"), []) == []


def test_a_table_without_ranks_is_said(tmp_path: Path, home: Home) -> None:
    """It is taken to be of as many as the trace's group."""
    serve(tmp_path, home, "late", table=TABLE.replace(",2,", ",,"))
    with reading(home) as con:
        first, _ = ep_reports(con, "late", "tp_attn_a2a")
    assert any(note == "the table does not give the number of ranks: assuming 2" for note in first.notes)


@pytest.mark.parametrize(
    ("mode", "run", "options", "message"),
    [
        ("dp_ep", "bare", {"table": "x"}, "the size of its all-reduces is unknown"),
        ("dp_ep", "four", {}, "holds no measured latency"),
        ("dp_ep", "x", {"load": 0.5}, "0.5 is below 1"),
        ("dp_ep", "nothing", {}, "no complete decode step"),
    ],
)
def test_what_is_missing_is_a_refusal(
    served: Home, mode: Mode, run: str, options: dict[str, Any], message: str
) -> None:
    """Each names what is missing."""
    with pytest.raises(UsageError, match=message):
        report_of(served, mode, run, **options)


def test_a_table_without_the_operation_is_a_refusal(served: Home, tmp_path: Path) -> None:
    """Nothing is taken from another operation, nor from other ranks."""
    (tmp_path / "few.csv").write_text(
        "op,ranks,bytes,us\nall_reduce,2,14336,14\nall_to_all,8,14336,14\n", encoding="utf-8"
    )
    with pytest.raises(UsageError, match=r"few\.csv has no all_to_all of 2 ranks.*has those of 8 ranks"):
        report_of(served, "tp_attn_a2a", table=str(tmp_path / "few.csv"))
    (tmp_path / "small.csv").write_text("op,bytes,us\nall_reduce,14,14\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"small\.csv: all_reduce of that size is outside the table"):
        report_of(served, "tp_ep", table=str(tmp_path / "small.csv"))


def test_experts_must_divide_and_unknown_ones_leave_communication_alone(tmp_path: Path, home: Home) -> None:
    """63 experts on 2 ranks are refused; without experts there is one report, titled so."""
    serve(tmp_path, home, "odd", facts={"experts": 63})
    serve(tmp_path, home, "unknown", facts={"experts": None})
    with reading(home) as con:
        with pytest.raises(UsageError, match="63 experts cannot be distributed evenly over 2 ranks"):
            ep_reports(con, "odd", "tp_ep")
        (only,) = ep_reports(con, "unknown", "dp_ep")
    assert "COMMUNICATION ALONE" in only.title
    assert only.notes[-1].startswith("compute is left out")
