"""The text output of nccl-tests: column names, lines of numbers, and messages of NCCL and a launcher.

Columns differ between versions (`bytes N type op time algbw busbw res`; `size count type redop [root] time
algbw busbw error`; `#wrong` for `error`), so the names decide. time, algbw, busbw and the last come twice:
out of place, in place. `size` is the larger of the bytes that a rank sends and receives. The operation is
named by the program's own line, by a command line above the table, or by the file's name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from pipeline.sources.latency.cells import Problems, Rows, clean, operation

_TAG = re.compile(r"^\[[^\]]*\]<std\w+>:\s?")
_NAMES = re.compile(r"^#\s*(?:size|bytes)\s+(?:count|N)\s+type\b")
_RANK = re.compile(r"^#\s+Rank\s+\d+\s+(?:Group\s+(\d+)\s+)?Pid\b")
_PROGRAM = re.compile(r"\b(\w+?)_perf\b")
_GRAPH = re.compile(r"\bgraph:\s*(\d+)")
_OUTPUT_SIZE = frozenset({"all_gather", "scatter"})
"""Operations whose larger buffer is not the input. In a scatter only the root has the larger one."""


@dataclass
class _Table:
    """What the lines above a table say about it; `ranks`: number of ranks by group of the program."""

    op_name: str | None = None
    ranks: dict[str, int] = field(default_factory=dict)
    is_graph: bool = False
    columns: list[str] = field(default_factory=list)


def lines_of(text: str, problems: Problems) -> Rows:
    """Two rows per line of numbers. Raises TraceError for a missing column or an unknown operation."""
    stem = problems.file.split(".", 1)[0]
    table = _Table(op_name=_program(stem) or (stem if operation(stem) else None))
    for number, tagged in enumerate(text.split("\n"), 1):
        line = _TAG.sub("", tagged).strip()
        if program := _program(line):
            table.op_name = program
        if line.startswith("#"):
            _read_comment(line, table)
        elif table.columns and re.match(r"\d+\s", line):
            yield from _rows(number, line.split(), table, problems)


def _program(line: str) -> str | None:
    """The last program of nccl-tests that a line mentions."""
    return next((str(name) for name in reversed(_PROGRAM.findall(line)) if operation(name)), None)


def _read_comment(line: str, table: _Table) -> None:
    if line.startswith("# nThread"):  # the beginning of a program's output
        table.ranks, table.columns = {}, []
        graph = _GRAPH.search(line)
        table.is_graph = graph is not None and int(graph[1]) > 0
    elif rank := _RANK.match(line):
        table.ranks[rank[1] or "0"] = table.ranks.get(rank[1] or "0", 0) + 1
    elif _NAMES.match(line):
        table.columns = line.removeprefix("#").lower().replace("#wrong", "wrong").split()


def _rows(number: int, cells: list[str], table: _Table, problems: Problems) -> Rows:
    op = operation(table.op_name or "")
    if op is None:
        raise problems.at(
            number,
            "a table that does not name its operation",
            "all_reduce, all_to_all, ...",
            "Name the file after the operation: all_reduce_perf.txt.",
        )
    first, second = _times(table.columns)
    width = second - first
    if width < 3 or table.columns[first:second] != table.columns[second : second + width]:
        raise problems.at(
            number,
            f"the columns {' '.join(table.columns)}",
            "time, algbw and busbw, out of place and in place",
        )
    # A time stamp of one or two words may follow the numbers.
    extra = len(cells) - len(table.columns) if len(table.columns) > second + width else 0
    if len(cells) - max(extra, 0) != len(table.columns):
        raise problems.at(
            number,
            f"{len(cells)} fields",
            f"{len(table.columns)}: {' '.join(table.columns)}",
            "Is the output truncated, or are two lines mixed?",
        )
    size = problems.count(number, "size", cells[0])
    ranks = set(table.ranks.values())
    for is_in_place in (False, True):
        at = first + width * is_in_place
        measured: dict[str, str] = dict(
            zip(table.columns[first : first + width], cells[at : at + width], strict=True)
        )
        if measured["time"].upper() == "N/A":  # not measured: some operations have no in-place form
            continue
        yield _row(number, measured, problems) | {
            "op": op,
            "op_name": clean(table.op_name or ""),
            "mode": "graph" if table.is_graph else "eager",
            "bytes": size,
            "bytes_of": "output" if op in _OUTPUT_SIZE else "input",
            "ranks": min(ranks) if len(ranks) == 1 else None,
            "dtype": cells[2],
            "is_in_place": is_in_place,
        }


def _times(columns: list[str]) -> tuple[int, int]:
    """First columns of the numbers out of place and in place; (0, 0) if there are not two groups."""
    found = [place for place, name in enumerate(columns) if name == "time"]
    return (found[0], found[1]) if len(found) == 2 else (0, 0)


def _row(number: int, measured: dict[str, str], problems: Problems) -> dict[str, Any]:
    return {
        "line": number,
        "measured": "wall",
        "us": problems.latency(number, "time", measured["time"]),
        "statistic": "mean",
        "algbw_gbps": problems.number(number, "algbw", measured["algbw"]),
        "busbw_gbps": problems.number(number, "busbw", measured["busbw"]),
        "wrong": next((text for name, text in measured.items() if name in {"error", "wrong", "res"}), None),
    }
