"""nccl-tests' text output, in every version, and with other text around it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.latencies import NEW, OLD, OLDEST, read, refused


def test_current_nccl_tests(tmp_path: Path) -> None:
    """Out of place and in place, with the ranks that took part, the graph flag, and the number of wrong
    elements as given."""
    found = read(tmp_path, "$ ./build/all_reduce_perf -b 8 -G 1\n" + NEW, "log.txt")
    assert [(r["is_in_place"], r["us"], r["algbw_gbps"], r["busbw_gbps"], r["wrong"]) for r in found] == [
        (False, 37.05, 0.39, 0.68, "0"),
        (True, 36.77, 0.39, 0.68, "N/A"),
    ]
    first = found[0]
    keys = ("op", "mode", "ranks", "bytes", "bytes_of", "dtype", "statistic", "format")
    assert tuple(first[key] for key in keys) == (
        "all_reduce", "graph", 8, 14336, "input", "bfloat16", "mean", "nccl_tests",
    )  # fmt: skip


def test_older_columns_are_read_by_their_names(tmp_path: Path) -> None:
    """Without redop and root; `size` of an all-gather is its output; the file's name gives the operation."""
    first, _ = read(tmp_path, OLD, "all_gather_perf.txt")
    keys = ("op", "bytes", "bytes_of", "ranks", "mode", "us", "wrong")
    assert tuple(first[key] for key in keys) == ("all_gather", 64, "output", 2, "eager", 28.99, "0e+00")
    (oldest, _) = read(tmp_path, OLDEST, "reduce_scatter.log")
    assert (oldest["op"], oldest["bytes"], oldest["us"], oldest["wrong"], oldest["ranks"]) == (
        "reduce_scatter",
        8,
        0.037,
        "0e+00",
        None,
    )


def test_two_programs_in_one_log(tmp_path: Path) -> None:
    """Each table has the operation, ranks and graph flag of its own program; a launcher's tags and NCCL's
    messages are passed over."""
    log = (
        "# Collective test starting: alltoall_perf\n"
        + NEW
        + "node:1:1 [0] NCCL INFO ready\n# Collective test starting: all_gather_perf\n"
        + OLD
    )
    tagged = "".join(f"[1,0]<stdout>:{line}\n" for line in log.splitlines())
    found = read(tmp_path, tagged, "job.out")
    assert [(r["op"], r["ranks"], r["mode"]) for r in found[::2]] == [
        ("all_to_all", 8, "graph"),
        ("all_gather", 2, "eager"),
    ]


def test_a_time_stamp_behind_the_numbers_is_passed_over(tmp_path: Path) -> None:
    """Some versions print one, of two words."""
    stamped = OLD.replace("busbw  error\n", "busbw  error  timestamp\n").replace(
        "0e+00\n", "0e+00  2026-01-01 12:00:00\n"
    )
    assert [r["us"] for r in read(tmp_path, stamped, "all_gather_perf.txt")] == [28.99, 28.84]


def test_what_was_not_measured_is_no_row(tmp_path: Path) -> None:
    """Where an operation has no in-place form, there is one row."""
    text = OLD.replace("28.84    0.01    0.00  0e+00\n", "N/A    N/A     N/A    N/A\n")
    assert [r["is_in_place"] for r in read(tmp_path, text, "alltoall_perf.txt")] == [False]


def test_groups_of_different_sizes_have_no_number_of_ranks(tmp_path: Path) -> None:
    """A split job runs several communicators at once: their size counts, where it is one size."""
    split = NEW.replace("Rank  7 Group  0", "Rank  7 Group  1")
    assert [r["ranks"] for r in read(tmp_path, split, "all_reduce_perf.txt")] == [None, None]
    halves = NEW
    for rank in range(4):
        halves = halves.replace(f"Rank  {rank} Group  0", f"Rank  {rank} Group  1")
    assert [r["ranks"] for r in read(tmp_path, halves, "all_reduce_perf.txt")] == [4, 4]


@pytest.mark.parametrize(
    ("text", "name", "line", "found"),
    [
        (NEW, "log.txt", 16, "a table that does not name its operation"),
        (NEW.replace("   0.68    N/A\n", "   0.68\n"), "all_reduce_perf.txt", 16, "12 fields"),
        (NEW.replace("37.05", "37,05"), "all_reduce_perf.txt", 16, "time = '37,05'"),
        (
            NEW.replace("#wrong     time   algbw   busbw #wrong", "#wrong"),
            "all_reduce_perf.txt",
            16,
            "the columns size",
        ),
    ],
)
def test_a_bad_line_of_nccl_tests_is_named(
    tmp_path: Path, text: str, name: str, line: int, found: str
) -> None:
    """A line of numbers that is truncated, mixed with another or of an unknown table is refused."""
    error = refused(tmp_path, text, name)
    assert (error.where, error.found[: len(found)]) == (f"line {line}", found)
