"""The table of the campaign that stepledger was born from, planted and found again to the nanosecond."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from pipeline.analyses.breakdown import screens
from pipeline.lake.home import Home
from pipeline.lake.query import run_query
from pipeline.lake.reading import reading
from pipeline.present.show import print_screen
from tests.support import known_answer
from tests.support.builders import header, ingest_into, write_trace

DECODE_STEPS = 4


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with the eight ranks ingested and built."""
    folder = tmp_path_factory.mktemp("known")
    home = Home(folder / "home")
    files = [
        write_trace(
            folder / f"k_rank{rank}.json",
            known_answer.rank_events(rank, DECODE_STEPS),
            header(rank, known_answer.RANKS),
        )
        for rank in range(known_answer.RANKS)
    ]
    outcome = ingest_into(home, *files, run="campaign")
    assert outcome.codes == []
    return home


def test_every_step_of_every_rank_has_the_planted_integers(known: Home) -> None:
    """Calls and nanoseconds of each rollup in each decode step equal what was planted, exactly."""
    _, rows = run_query(
        known,
        (
            "SELECT rank, step, rollup, sum(calls)::BIGINT, sum(busy_ns)::BIGINT FROM step_breakdown WHERE "
            "phase "
            "= 'decode' GROUP BY ALL"
        ),
    )
    assert len(rows) == known_answer.RANKS * DECODE_STEPS * len(known_answer.TABLE)
    for _, _, rollup, calls, busy_ns in rows:
        assert (calls, busy_ns) == (known_answer.TABLE[rollup].calls, known_answer.TABLE[rollup].busy_ns)


def test_all_reduces_are_counted_by_kind(known: Home) -> None:
    """127 NCCL all-reduces a step with a mean of 79.09 us, and one custom one of 1,125 us, are
    distinguished."""
    _, rows = run_query(
        known,
        (
            "SELECT DISTINCT subcategory, calls, busy_ns FROM step_breakdown WHERE phase = 'decode' AND "
            "category "
            "= 'allreduce' ORDER BY subcategory"
        ),
    )
    assert rows == [("custom", 1, 1_125_000), ("nccl", 127, 127 * 79_090)]


def test_the_table_is_the_campaigns_table(known: Home) -> None:
    """The headline column prints 11.17, 3.32, 2.90, 2.40, 0.99 and 0.92 ms, with integer calls and their
    shares."""
    _, rows = run_query(
        known,
        "SELECT rollup, printf('%.2f', ms_p50), calls_min, calls_mode, calls_max, round(100 * share, 1) FROM "
        "run_breakdown "
        "WHERE phase = 'decode' ORDER BY ms_mean DESC",
    )
    assert rows == [
        ("AllReduce", "11.17", 128, 128, 128, 51.5),
        ("Attention", "3.32", 122, 122, 122, 15.3),
        ("GEMM", "2.90", 366, 366, 366, 13.4),
        ("MoE GEMM", "2.40", 120, 120, 120, 11.1),
        ("Routing", "0.99", 180, 180, 180, 4.6),
        ("Everything else", "0.92", 183, 183, 183, 4.2),
    ]


def test_the_prefill_step_is_not_counted_with_decode(known: Home) -> None:
    """The prefill step is a phase of its own and enters no decode figure."""
    _, rows = run_query(known, "SELECT phase, count(*) FROM steps GROUP BY phase ORDER BY phase")
    assert rows == [("decode", known_answer.RANKS * DECODE_STEPS), ("prefill", known_answer.RANKS)]
    _, steps = run_query(known, "SELECT DISTINCT steps, ranks FROM run_breakdown WHERE phase = 'decode'")
    assert steps == [(DECODE_STEPS, known_answer.RANKS)]


def test_more_passes_than_annotations_stay_integers_and_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """160 executed passes of 123 all-reduces under 155 annotations count 123 a step, never 127, and five
    passes are named."""
    home = Home(tmp_path / "home")
    ingest_into(home, write_trace(tmp_path / "a_rank0.json", known_answer.unannotated_events()), run="oddity")
    with reading(home) as con:
        screen = screens(con, "oddity", "decode")[0]
    all_reduce = next(r for r in screen.rollups if r["rollup"] == "AllReduce")
    assert (
        all_reduce["steps"],
        all_reduce["calls_min"],
        all_reduce["calls_mode"],
        all_reduce["calls_max"],
    ) == (155, 123, 123, 123)
    assert screen.no_step == []
    assert {r["phase"]: (r["steps"], r["unmarked"]) for r in screen.steps} == {
        "decode": (155, 0),
        "dummy": (5, 5),
    }
    print_screen(screen)
    assert "5 of these are forward passes that no annotation covers" in capsys.readouterr().out


def test_sampling_after_the_annotation_stays_with_its_step(tmp_path: Path) -> None:
    """Every annotated step keeps its sampling kernel, also where another pass is launched after it."""
    home = Home(tmp_path / "home")
    ingest_into(
        home, write_trace(tmp_path / "a_rank0.json", known_answer.unannotated_events(12, 10)), run="oddity"
    )
    with duckdb.connect(str(home.database), read_only=True) as con:
        rows = con.sql(
            "SELECT activity.phase, count(DISTINCT step), count(*) FROM activity WHERE category = "
            "'sampling' "
            "GROUP BY ALL"
        ).fetchall()
    assert rows == [("decode", 10, 10)]
