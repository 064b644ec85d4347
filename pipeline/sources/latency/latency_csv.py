"""Latency tables as CSV: a header names the columns; commas, semicolons or tabs; # begins a comment line."""

from __future__ import annotations

import csv
import re

import orjson

from pipeline.sources.latency.cells import COMPUTE, Problems, Rows, clean, has_two_sizes, mode_of, operation

_SAME = {
    "op": ("op", "operation", "collective"),
    "mode": ("mode",),
    "measured": ("measured", "clock"),
    "bytes": ("bytes", "size", "size_bytes", "message_bytes"),
    "input": ("input_bytes", "bytes_input", "in_bytes"),
    "output": ("output_bytes", "bytes_output", "out_bytes"),
    "per_rank": ("bytes_per_rank", "per_rank_bytes"),
    "bytes_of": ("bytes_of",),
    "tokens": ("tokens", "tokens_per_rank"),
    "ranks": ("ranks", "world_size", "nranks", "n_ranks", "gpus", "ngpus"),
    "dtype": ("dtype", "type"),
    "us": ("us", "time_us", "latency_us", "time(us)"),
    "median": ("median_us", "p50_us"),
    "mean": ("mean_us", "avg_us"),
    "kernel": ("kernel_us",),
    "us_min": ("min_us", "us_min"),
    "us_max": ("max_us", "us_max"),
    "algbw_gbps": ("algbw", "algbw_gbps", "algbw(gb/s)"),
    "busbw_gbps": ("busbw", "busbw_gbps", "busbw(gb/s)"),
}
_MEANING = {name: meaning for meaning, names in _SAME.items() for name in names}
_BYTES = ("bytes", "input", "output", "per_rank")
_TIMES = ("us", "median", "mean", "kernel")
_WANTED = (
    "a header with op, us (or median_us, mean_us, kernel_us) and bytes (or input_bytes, output_bytes, "
    "bytes_per_rank, tokens)"
)
_LONGEST_FIELD = 10_000


def lines_of(text: str, problems: Problems) -> Rows:
    """One row per line. Raises TraceError for a header that lacks a column and a line that does not fit."""
    numbered = [
        (number, line)
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not numbered:
        raise problems.at(1, "no header", _WANTED)
    first, header = numbered[0]
    delimiter = max("\t;,", key=header.count)
    names = [clean(cell).lower() for cell in _cells(header, delimiter, first, problems)]
    meanings = [_MEANING.get(name) for name in names]
    known = [meaning for meaning in meanings if meaning]
    twice = sorted(
        {meaning for meaning in known if known.count(meaning) > 1}
        | ({"bytes"} if sum(b in known for b in _BYTES) > 1 else set())
    )
    if twice:
        raise problems.at(
            first, f"more than one column of {', '.join(twice)}", "one column each", "Remove one of them."
        )
    if (
        "op" not in known
        or not any(time in known for time in _TIMES)
        or not any(size in known for size in (*_BYTES, "tokens"))
    ):
        raise problems.at(
            first,
            f"the columns {', '.join(names)[:200]}",
            _WANTED,
            "If the file is not a latency table, remove it from the run's folder.",
        )
    for number, line in numbered[1:]:
        cells = [clean(cell) for cell in _cells(line, delimiter, number, problems)]
        if len(cells) != len(names):
            raise problems.at(number, f"{len(cells)} fields", f"{len(names)} as in the header (line {first})")
        values = {meaning: cell for meaning, cell in zip(meanings, cells, strict=True) if meaning and cell}
        others = {
            name: cell
            for name, meaning, cell in zip(names, meanings, cells, strict=True)
            if not meaning and cell
        }
        yield _row(number, values, others, problems)


def _cells(line: str, delimiter: str, number: int, problems: Problems) -> list[str]:
    try:
        (cells,) = csv.reader([line], delimiter=delimiter, strict=True)
    except (csv.Error, ValueError) as error:
        raise problems.at(number, f"no fields ({error})", "quotes that close, and one line a row") from error
    if any(len(cell) > _LONGEST_FIELD for cell in cells):
        raise problems.at(number, f"a field longer than {_LONGEST_FIELD}", "short fields")
    return cells


def _row(
    number: int, values: dict[str, str], others: dict[str, str], problems: Problems
) -> dict[str, object]:
    op = operation(values.get("op", ""))
    if op is None:
        raise problems.at(
            number,
            f"op = {values.get('op', '')!r}",
            "a collective (all_reduce, all_to_all, ...), gemm, moe_gemm or attention",
        )
    time = next((name for name in _TIMES if name in values), None)
    if time is None:
        raise problems.at(number, "no latency", "a number of microseconds")
    size = next((name for name in _BYTES if name in values), None)
    if size is None and not (op in COMPUTE and "tokens" in values):
        raise problems.at(number, "no message size", "bytes (tokens are enough for compute only)")
    bytes_of = values.get("bytes_of", "").lower() or (size if size != "bytes" else None)
    if bytes_of is None and size is not None and not has_two_sizes(op):
        bytes_of = "input"
    if bytes_of not in {None, "input", "output", "per_rank"}:
        raise problems.at(number, f"bytes_of = {bytes_of!r}", "input, output or per_rank")
    mode = mode_of(values["mode"]) if "mode" in values else None
    if "mode" in values and mode is None:
        raise problems.at(number, f"mode = {values['mode']!r}", "eager or graph")
    measured = values.get("measured", "kernel" if time == "kernel" else "wall").lower()
    if measured not in {"wall", "kernel"}:
        raise problems.at(number, f"measured = {measured!r}", "wall or kernel")
    return {
        "line": number,
        "op": op,
        "op_name": values["op"],
        "mode": mode,
        "measured": measured,
        "bytes": problems.count(number, size, values[size]) if size else None,
        "bytes_of": bytes_of,
        "tokens": problems.count(number, "tokens", values["tokens"]) if "tokens" in values else None,
        "ranks": _ranks(number, values, problems),
        "dtype": values.get("dtype"),
        "us": problems.latency(number, time, values[time]),
        "statistic": time if time in {"median", "mean"} else None,
        **{
            name: problems.number(number, name, values[name])
            for name in ("us_min", "us_max", "algbw_gbps", "busbw_gbps")
            if name in values
        },
        "other": orjson.dumps(others, option=orjson.OPT_SORT_KEYS).decode() if others else None,
    }


def _ranks(number: int, values: dict[str, str], problems: Problems) -> int | None:
    if "ranks" not in values:
        return None
    if not re.fullmatch(r"0*[1-9]\d{0,6}", values["ranks"]):
        raise problems.at(number, f"ranks = {values['ranks']!r}", "a whole number of ranks")
    return int(values["ranks"])
