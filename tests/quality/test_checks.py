"""The checks of sql/checks: a good run fails none, and each fails for what it checks, alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import duckdb
import pytest

from pipeline import duck
from pipeline.contracts import contracts
from pipeline.lake.home import Home
from pipeline.quality import checks as module
from pipeline.quality.checks import SAMPLE_ROWS, Check, CheckError, ask, checks
from pipeline.quality.verdicts import open_run
from pipeline.resources import resource
from tests.support.builders import (
    ALL_REDUCE,
    DECODE,
    GEMM,
    MARLIN_MOE,
    StepBuilder,
    header,
    ingest_into,
    write_trace,
)
from tests.support.homes import PREFILL

KERNELS = [(GEMM, 20_000), (ALL_REDUCE, 30_000), (MARLIN_MOE, 25_000)] * 8
BY_NAME = {check.name: check for check in checks()}
ONE_STEP = "trace_id = (SELECT min(trace_id) FROM good.steps) AND step = 3"
FIRST = "(SELECT min(trace_id) FROM good.raw_trace)"
LAST = "activity_id = (SELECT max(activity_id) FROM good.activity)"
BESIDE = "'all_reduce' AS op, 'b' AS bench_id, 2 AS line, NULL::BOOLEAN AS is_in_place, 100.0 AS trace_us_p50"


@dataclass(frozen=True)
class Broken:
    """A good run in which one thing is wrong: the relations that say so, and the checks that must see it.

    `fails` holds more than one check only where one fault is two by definition; `why` then says so.
    """

    relations: dict[str, str]
    fails: frozenset[str]
    why: str = ""


def broken(
    check: str, relation: str, select: str, *also: str, why: str = "", more: dict[str, str] | None = None
) -> tuple[str, Broken]:
    """One row of the table: `relation` is replaced by `select`, and exactly `check` (and `also`, for the
    reason `why`) fails."""
    return check, Broken({relation: select, **(more or {})}, frozenset({check, *also}), why)


def issue(code: str, severity: str) -> str:
    """The good run's issues and one more."""
    return (
        "FROM good.raw_issue UNION ALL BY NAME SELECT min(run_id) AS run_id, min(trace_id) AS trace_id, "
        f"'{code}' AS code, 'kernel' AS event_class, '{severity}' AS severity, 1 AS count FROM good.raw_trace"
    )


def unclassified(share: float) -> str:
    """Activities of which about this share of the time has a name that no rule claims."""
    return (
        f"SELECT * REPLACE (CASE WHEN activity_id % 100 < {share * 100} THEN 'unclassified' ELSE "
        "category "
        "END AS category) FROM good.activity"
    )


def all_in_the_last(part: str) -> str:
    """Activities in which the last one of `part` has all its time but a nanosecond each, with the sums of
    before."""
    whole = f"SELECT *, {part} AS is_part FROM good.activity"
    return (
        "SELECT * EXCLUDE (is_part) REPLACE (CASE WHEN NOT is_part THEN dur_ns "
        "WHEN row_number() OVER w = 1 THEN (sum(dur_ns) OVER p - count(*) OVER p + 1)::BIGINT ELSE 1 END AS "
        "dur_ns) "
        f"FROM ({whole}) WINDOW p AS (PARTITION BY trace_id, is_part), w AS (PARTITION BY trace_id, is_part "
        "ORDER BY activity_id DESC)"
    )


MUTATIONS = [
    # The books.
    broken("booked_once", "step_breakdown", ("SELECT * REPLACE (calls + (category = 'gemm')::INT AS calls) "
                                            "FROM good.step_breakdown")),
    broken("booked_once", "step_breakdown", ("SELECT * REPLACE (busy_ns - (step = 0 AND category = "
                                            "'gemm')::INT AS busy_ns) FROM good.step_breakdown")),
    broken(
        "booked_once", "activity", f"FROM good.activity WHERE NOT ({LAST})", "timeline_closes",
        "decode_kernels_agree",
        why=("an activity that is missing takes its exposed time with it, and its step ran other kernels "
             "than "
            "its peers"),
    ),
    broken(
        "booked_once", "activity", ("SELECT * REPLACE (dur_ns + (activity_id = 5)::INT AS dur_ns) FROM "
                                   "good.activity"),
    ),
    broken("conservation_events", "raw.trace", ("SELECT * REPLACE (events_read + 1 AS events_read) FROM "
                                               "good.raw_trace")),
    broken("conservation_events", "raw.trace", ("SELECT * REPLACE (events_kept + 1 AS events_kept) FROM "
                                               "good.raw_trace")),
    broken("conservation_gpu_time", "raw.trace", ("SELECT * REPLACE (gpu_ns_read + 1 AS gpu_ns_read) FROM "
                                                 "good.raw_trace")),
    broken("shares_sum_to_one", "run_breakdown", ("SELECT * REPLACE (share * 0.99 AS share) FROM "
                                                 "good.run_breakdown")),
    broken("shares_sum_to_one", "step_breakdown", ("SELECT * REPLACE (busy_share + 0.01 AS busy_share) FROM "
                                                  "good.step_breakdown")),
    broken("step_identity", "steps", (f"SELECT * REPLACE (wall_ns + ({ONE_STEP})::INT AS wall_ns) FROM "
                                     "good.steps")),
    broken("step_identity", "steps", (f"SELECT * REPLACE (CASE WHEN {ONE_STEP} THEN NULL ELSE idle_inside_ns "
                                     "END AS idle_inside_ns) FROM good.steps")),
    broken("timeline_closes", "timeline", "SELECT * REPLACE (idle_ns - 1 AS idle_ns) FROM good.timeline"),
    broken("timeline_closes", "timeline", ("SELECT * REPLACE (exposed_ns - 1 AS exposed_ns, idle_ns + 1 AS "
                                          "idle_ns) FROM good.timeline")),
    broken("timeline_closes", "timeline", "FROM good.timeline LIMIT 1"),
    broken("utilisation", "timeline", "SELECT * REPLACE (exposed_ns - 1 AS busy_ns) FROM good.timeline"),
    # The recording.
    broken("burst", "activity", "SELECT * REPLACE (min(start_ns) OVER (PARTITION BY trace_id, step) AS "
                                "start_ns) FROM good.activity WHERE step > 0 "
           "UNION ALL FROM good.activity WHERE step = 0"),
    broken("clock_jump", "gaps", "SELECT * REPLACE (dur_ns + 600000000000 AS dur_ns) FROM good.gaps"),
    broken(
        "impossible_durations", "activity",
        ("SELECT * REPLACE (CASE activity_id WHEN 0 THEN start_ns + 350000 ELSE start_ns END AS start_ns) "
        "FROM good.activity"),
    ),
    broken("launch_before_kernel", "raw.launch", ("SELECT * REPLACE (start_ns + 1000000 AS start_ns) FROM "
                                                 "good.raw_launch")),
    broken(
        "one_activity_dominates", "activity", all_in_the_last("TRUE"), "one_activity_dominates_step",
        why="what is most of a device is most of its step",
    ),
    broken(
        "one_activity_dominates_step", "activity",
        (f"SELECT * REPLACE (CASE WHEN {LAST} THEN 'allreduce' ELSE category END AS category) FROM "
        f"({all_in_the_last('TRUE')})"),
    ),
    broken("one_activity_dominates_step", "activity", ("SELECT * REPLACE (nullif(step, 8) AS step) FROM "
                                                      f"({all_in_the_last('step = 8')})")),
    broken("one_activity_dominates_step", "activity", all_in_the_last("step = 8")),
    broken("opaque_graphs", "activity", ("SELECT * REPLACE (CASE WHEN step = 3 THEN 'opaque' ELSE category "
                                        "END AS category) FROM good.activity")),
    broken("records_lost", "steps", (f"SELECT * REPLACE (CASE WHEN {ONE_STEP} THEN 'records_lost' END AS "
                                    "incomplete_reason) FROM good.steps")),
    broken("truncated_file", "raw.trace", "SELECT * REPLACE (rank = 1 AS is_truncated) FROM good.raw_trace"),
    broken(
        "file_issues_fail", "raw.issue", issue("no_timestamp", "fail"),
        more={"raw.trace": (f"SELECT * REPLACE (events_read + (trace_id = {FIRST})::INT AS events_read) FROM "
                           "good.raw_trace")},
    ),
    broken("file_issues_warn", "raw.issue", issue("bad_value", "warn")),
    # The steps.
    broken("capture_start_skew", "steps", ("SELECT * REPLACE (CASE step WHEN 0 THEN 'capture_start_skew' END "
                                          "AS incomplete_reason) FROM good.steps")),
    broken(
        "decode_kernels_agree", "activity",
        (f"SELECT * REPLACE (CASE WHEN {ONE_STEP} AND category = 'gemm' THEN name || '_other' ELSE name END "
        "AS name) FROM good.activity"),
    ),
    broken("empty_steps", "steps", ("SELECT * REPLACE (CASE WHEN step > 3 THEN 'empty' ELSE phase END AS "
                                   "phase) FROM good.steps")),
    broken("step_methods_agree", "step_methods", ("SELECT * REPLACE (method <> 'graph' AS is_agreed) FROM "
                                                 "good.step_methods")),
    broken(
        "unannotated_passes", "steps",
        f"SELECT * REPLACE (CASE WHEN {ONE_STEP} THEN 'dummy' ELSE phase END AS phase, CASE WHEN {ONE_STEP} "
        "THEN NULL ELSE label END AS label) "
        "FROM good.steps",
    ),
    # The ranks.
    broken("duplicate_ranks", "raw.trace", "SELECT * REPLACE (0 AS rank) FROM good.raw_trace"),
    broken("ranks_present", "run_facts", "SELECT * REPLACE (1 AS ranks) FROM good.run_facts"),
    broken(
        "ranks_asked_for", "run_facts", "SELECT * REPLACE (1 AS ranks) FROM good.run_facts", "ranks_present",
        why="a rank that was asked for and is missing is missing",
        more={"run_config": "SELECT NULL::VARCHAR AS run_id, 'all' AS ranks"},
    ),
    broken("same_steps_on_ranks", "steps", f"FROM good.steps WHERE NOT ({ONE_STEP})"),
    broken(
        "same_collectives_on_ranks", "step_breakdown",
        f"SELECT * REPLACE (CASE WHEN {ONE_STEP} THEN calls + CASE category WHEN 'gemm' THEN 1 WHEN "
        "'allreduce' THEN -1 ELSE 0 END "
        "ELSE calls END AS calls) FROM good.step_breakdown", "audit_counts",
        why="the audit counts the collectives that the breakdown has lost",
    ),
    broken("audit_counts", "allreduce_audit", ("SELECT * REPLACE (kernels + (phase = 'decode')::INT AS "
                                              "kernels) FROM good.allreduce_audit")),
    broken("audit_counts", "allreduce_audit", ("SELECT * REPLACE (busy_ns - 1 AS busy_ns) FROM "
                                              "good.allreduce_audit")),
    broken("audit_counts", "allreduce_audit", "FROM good.allreduce_audit WHERE rank = 0"),
    broken("messages_counted", "bandwidth", "SELECT * REPLACE (calls + 1 AS calls) FROM good.bandwidth"),
    broken("messages_counted", "bandwidth", "FROM good.bandwidth WHERE op <> 'all_reduce'"),
    broken("bandwidth_adds_up", "bandwidth", ("SELECT * REPLACE (1000000 AS size_bytes, 2e9 / floor_us / 1e6 "
                                             "AS algbw_gbps) FROM good.bandwidth")),
    broken("bandwidth_adds_up", "bandwidth", ("SELECT * REPLACE (1.0 AS algbw_gbps, 0.5 AS wire_ratio, 2.0 "
                                              "AS "
                                             "busbw_gbps) FROM good.bandwidth")),
    broken("bandwidth_possible", "bandwidth", "SELECT * REPLACE (2.1 AS link_share) FROM good.bandwidth"),
    broken("bench_from_table", "bench_vs_trace", f"SELECT {BESIDE}, 20.0 AS table_us, 5.0 AS ratio"),
    broken(
        "bench_from_table", "bench_vs_trace", f"SELECT {BESIDE}, 20.0 AS table_us, 4.0 AS ratio",
        more={"raw.microbench": ("SELECT 'b' AS bench_id, 2 AS line, 'all_reduce' AS op, NULL::BOOLEAN AS "
                                "is_in_place, 20.0 AS us")},
    ),
    broken("waiting_adds_up", "collectives", ("SELECT * REPLACE (wait_ns + (place = 2)::INT AS wait_ns) FROM "
                                             "good.collectives")),
    broken("waiting_adds_up", "collectives", ("SELECT * REPLACE (CASE step WHEN 3 THEN NULL ELSE wait_ns END "
                                             "AS wait_ns) FROM good.collectives")),
    broken("waiting_adds_up", "collectives", ("SELECT * REPLACE (CASE step WHEN 3 THEN 'kind' END AS "
                                              "refusal) "
                                             "FROM good.collectives")),
    broken("waiting_adds_up", "step_waiting", (f"SELECT * REPLACE (jitter_ns - ({ONE_STEP})::INT AS "
                                              "jitter_ns) FROM good.step_waiting")),
    # The rules.
    broken("unclassified_share", "activity", unclassified(0.03)),
    broken(
        "unclassified_share_high", "activity", unclassified(0.5), "unclassified_share",
        why="more than 20 % is more than 1 %",
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def con(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """What checks see of a good run of two ranks: a prefill and eight decode steps; its relations are also in
    schema `good`."""
    folder = tmp_path_factory.mktemp("good")
    home = Home(folder / "home")
    paths = []
    for rank in range(2):
        made = StepBuilder().step([(GEMM, 400_000), (ALL_REDUCE, 200_000)], PREFILL)
        for number in range(8):
            made.step([(name, dur_ns + 100 * number + rank) for name, dur_ns in KERNELS], DECODE, graph=True)
        paths.append(write_trace(folder / f"serve-rank-{rank}.json", made.events, header(rank, 2)))
    assert ingest_into(home, *paths).verdicts == {"run": "pass"}
    with duck.working(folder / "spill", threads=2, memory_limit="1GB") as made_con:
        open_run(made_con, home, "run")
        made_con.execute("CREATE SCHEMA good")
        for table in (*contracts("marts"), *(f"raw.{t}" for t in contracts("raw")), "run_config"):
            made_con.execute(f"CREATE TABLE good.{table.replace('.', '_')} AS FROM {table}")
        made_con.execute("DROP TABLE run_config")
        made_con.execute("CREATE VIEW run_config AS FROM good.run_config")
        yield made_con


def failing(con: duckdb.DuckDBPyConnection, relations: dict[str, str]) -> set[str]:
    """The checks that fail while these relations are replaced."""
    con.execute("BEGIN")
    try:
        for relation, select in relations.items():
            con.execute(f"CREATE OR REPLACE VIEW {relation} AS {select}")
        return {check.name for check in checks() if not ask(con, check).is_passed}
    finally:
        con.execute("ROLLBACK")


@pytest.mark.parametrize(
    "path", sorted((resource("sql") / "checks").glob("*.sql")), ids=lambda p: str(p.stem)
)
def test_every_check_has_severity_meaning_and_remedy(path: Path) -> None:
    """A header of three parts, each a sentence, before the statement; indented lines continue a part."""
    check = BY_NAME[path.stem]
    lines = path.read_text(encoding="utf-8").splitlines()
    header = list(takewhile(lambda line: line.startswith("--"), lines))
    assert [line.split(":")[0] for line in header if not line.startswith("--  ")] == [
        "-- severity",
        "-- means",
        "-- do",
    ]
    assert "\n" not in check.means + check.todo
    assert header[-1].endswith(check.todo.split()[-1])
    assert check.severity in {"fail", "warn", "info"}
    assert check.means.endswith(".")
    assert check.todo.endswith(".")
    assert not any(line.startswith("--") for line in lines[len(header) :])


def test_checks_are_the_files_of_sql_checks_by_name() -> None:
    """None is left out, and their order is fixed."""
    assert [c.name for c in checks()] == sorted(p.stem for p in (resource("sql") / "checks").iterdir())


@pytest.mark.parametrize(
    "header", ["", "-- severity: fail\n-- means: x\n", "-- severity: bad\n-- means: x\n-- do: y\n"]
)
def test_a_file_without_a_full_header_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: str
) -> None:
    """A check that does not say what it means cannot be acted upon."""
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "x.sql").write_text(f"{header}SELECT 1")
    monkeypatch.setattr(module, "resource", lambda _name: tmp_path)
    with pytest.raises(CheckError, match=r"sql/checks/x\.sql"):
        checks.__wrapped__()


def test_a_good_run_passes_every_check(con: duckdb.DuckDBPyConnection) -> None:
    """Two ranks, graphs, eight decode steps: nothing to say, not even for information."""
    assert [(r.check, r.sample) for r in (ask(con, check) for check in checks()) if not r.is_passed] == []


@pytest.mark.parametrize(
    ("check", "case"), MUTATIONS, ids=[f"{check}-{number}" for number, (check, _) in enumerate(MUTATIONS)]
)
def test_what_a_check_asks_about_makes_it_fail_and_no_other(
    con: duckdb.DuckDBPyConnection, check: str, case: Broken
) -> None:
    """One wrong thing in a good run is seen by the check that asks about it, and by no other but those that
    the table names."""
    assert check in case.fails
    assert failing(con, case.relations) == case.fails


def test_every_check_is_broken_on_purpose() -> None:
    """A new check needs a row in the table, and a row with more than one failing check needs its reason."""
    assert {check for check, _ in MUTATIONS} == set(BY_NAME)
    assert [check for check, case in MUTATIONS if (len(case.fails) > 1) != bool(case.why)] == []


@pytest.mark.parametrize(
    ("relation", "select"),
    [
        ("activity", ("SELECT * REPLACE (CASE activity_id WHEN 0 THEN start_ns + 250000 ELSE start_ns END AS "
                     "start_ns) FROM good.activity")),
        ("activity", ("SELECT * REPLACE (dur_ns - 300000 * (activity_id = 0)::INT + 300000 * (activity_id = "
                     "20)::INT AS dur_ns) FROM good.activity")),
        ("activity", ("SELECT * REPLACE (CASE activity_id WHEN 30 THEN 'opaque' ELSE category END AS "
                     "category) FROM good.activity")),
        ("activity", ("SELECT * REPLACE (CASE activity_id WHEN 30 THEN 'unclassified' ELSE category END AS "
                     "category) FROM good.activity")),
        ("activity", "SELECT * REPLACE (start_ns - start_ns % 20000 AS start_ns) FROM good.activity"),
        ("gaps", "SELECT * REPLACE (60000000000 AS dur_ns) FROM good.gaps"),
        ("run_facts", "SELECT * REPLACE (NULL AS ranks_expected) FROM good.run_facts"),
        ("raw.trace", "SELECT * REPLACE (NULL AS rank) FROM good.raw_trace"),
        ("raw.issue", issue("sub_ns_time", "info")),
        ("steps", ("SELECT * REPLACE (CASE WHEN step > 4 THEN 'empty' ELSE phase END AS phase) FROM "
                  "good.steps")),
        ("step_methods", ("SELECT * REPLACE (CASE method WHEN 'pattern' THEN FALSE ELSE is_agreed END AS "
                         "is_agreed) FROM good.step_methods")),
    ],
    ids=[
        "an early launch overlaps the activity before it",
        "nodes of one graph replay run side by side",
        "one small opaque graph",
        "one unknown kernel",
        "a coarse clock",
        "a minute without work",
        "a file that does not give the number of ranks",
        "unknown ranks",
        "an issue for information",
        "fewer than half of the steps are empty",
        "kernel order sees something else",
    ],
)  # fmt: skip
def test_honest_traces_raise_nothing(con: duckdb.DuckDBPyConnection, relation: str, select: str) -> None:
    """What real recordings hold is no reason to cry wolf."""
    assert failing(con, {relation: select}) == set()


def test_a_result_counts_all_rows_and_shows_a_few(con: duckdb.DuckDBPyConnection) -> None:
    """The sample is JSON, the same rows every time."""
    check = Check("x", "warn", "Many.", "Nothing.", "SELECT 100 - range AS n FROM range(100)")
    found = ask(con, check)
    assert (found.failing_rows, found.is_passed, found.severity, found.means, found.todo) == (
        100,
        False,
        "warn",
        "Many.",
        "Nothing.",
    )
    assert json.loads(found.sample or "") == [{"n": n} for n in range(1, SAMPLE_ROWS + 1)]


def test_no_row_is_a_pass_without_a_sample(con: duckdb.DuckDBPyConnection) -> None:
    """Nothing wrong, nothing shown."""
    found = ask(con, Check("x", "fail", "None.", "Nothing.", "SELECT 1 AS n WHERE FALSE"))
    assert (found.failing_rows, found.sample, found.is_passed) == (0, None, True)


@pytest.mark.parametrize(
    "sql", ["SELECT nothing FROM nowhere", "not SQL at all", "SELECT 1 // 0 AS n", "SELECT 'x'::INT AS n"]
)
def test_a_check_that_cannot_be_carried_out_is_an_error_and_no_finding(
    con: duckdb.DuckDBPyConnection, sql: str
) -> None:
    """A fault of the check never becomes a statement about the data."""
    with pytest.raises(CheckError, match=r"sql/checks/broken\.sql cannot be run"):
        ask(con, Check("broken", "fail", "It.", "That.", sql))
