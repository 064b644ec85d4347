"""What an event of a chrome trace is, and the columns of staged events.

Both paths (DuckDB's reader for whole stretches, the exact scan for broken ones) find the same columns, and
one SELECT stages them.
"""

from __future__ import annotations

ARGS = {
    "External id": "external_id",
    "device": "device",
    "context": "context",
    "stream": "stream",
    "correlation": "correlation",
    "grid": "grid",
    "block": "block",
    "graph id": "graph_id",
    "graph node id": "graph_node_id",
    "bytes": "bytes",
    "Collective name": "collective_name",
    "dtype": "dtype",
    "In msg nelems": "in_msg_nelems",
    "Out msg nelems": "out_msg_nelems",
    "Group size": "group_size",
    "Process Group Name": "process_group",
    "Process Group Ranks": "process_group_ranks",
    "Seq": "seq",
    "Input Dims": "input_dims",
    "Input type": "input_types",
    "name": "label",
}
"""Arguments that are read, by their key in the file (`external id`, torch 1.8, is rewritten to `External
id`)."""

OLD_KEYS = ((b'"external id":', b'"External id":'),)
"""Older spellings, rewritten in the bytes before parsing (same length; an escaped quote cannot match)."""

KINDS = ("kernel", "memcpy", "memset", "launch", "cpu_op", "annotation_cpu", "annotation_gpu")
"""Kinds that land in a raw table; every other kind is the issue code that counts its events."""

GPU_KINDS = ("kernel", "memcpy", "memset")

KIND_OF_CATEGORY = {
    "python_function": "python_function",
    "cpu_op": "cpu_op",
    "kernel": "kernel",
    "cuda_runtime": "launch",
    "concurrent_kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
    "cuda_driver": "launch",
    "runtime": "launch",
    "operator": "cpu_op",
    "user_annotation": "annotation_cpu",
    "gpu_user_annotation": "annotation_gpu",
    "overhead": "overhead",
    "trace": "profiler_span",
    "cuda_sync": "sync",
    "cuda_event": "sync",
}
"""Lower-case category of a complete event (ph X) to kind, the most common first. torch 1.8 to 1.13 wrote
Kernel, Memcpy, Runtime, Operator."""

KIND_OF_PHASE = {
    "f": "flow",
    "s": "flow",
    "t": "flow",
    "M": "metadata",
    "i": "instant",
    "I": "instant",
    "C": "counter",
}
"""Phase of an event that is not complete to the code under which it is counted."""

MERGED_PID = r"^\[([^\]]+)\] *(.*)$"
"""SGLang's merged files prefix every pid with the rank's coordinates: `[TP00-DP01-PP00-EP00] 83`."""

SCANNED = (
    ("kind", "VARCHAR"),
    ("event_class", "VARCHAR"),
    ("name", "VARCHAR"),
    ("process", "VARCHAR"),
    ("pid", "VARCHAR"),
    ("tid", "VARCHAR"),
    ("ts_ns", "BIGINT"),
    ("dur_ns", "BIGINT"),
    ("dur_us", "DECIMAL(38,5)"),
    ("is_sub_ns", "BOOLEAN"),
    *((column, "VARCHAR") for column in ARGS.values()),
)
"""What both paths find in an event. `dur_us` (GPU kinds only) is the exact duration, to balance the books."""

NUMBERS = {
    "device": "INTEGER",
    "context": "BIGINT",
    "stream": "BIGINT",
    "correlation": "BIGINT",
    "external_id": "BIGINT",
    "graph_id": "BIGINT",
    "graph_node_id": "BIGINT",
    "bytes": "BIGINT",
    "seq": "BIGINT",
    "in_msg_nelems": "BIGINT",
    "out_msg_nelems": "BIGINT",
    "group_size": "INTEGER",
}
"""Arguments that are numbers, with their type."""

MACROS = """
CREATE TEMP MACRO odd_bigint(t) AS coalesce(
    CASE WHEN try_cast(t AS HUGEINT) BETWEEN 9223372036854775808 AND 18446744073709551615
         THEN (try_cast(t AS HUGEINT) - 18446744073709551616)::BIGINT END,
    try_cast(regexp_extract(t, '^[A-Za-z][A-Za-z ]* (-?[0-9]+)$', 1) AS BIGINT)
);
CREATE TEMP MACRO to_bigint(t) AS
    coalesce(try_cast(t AS BIGINT), CASE WHEN t IS NOT NULL THEN odd_bigint(t) END);
"""
"""SQL: a text as BIGINT, NULL if it is no number; two's complement from 2^63, and "stream 7" is 7."""


def sql_staged(scanned: str) -> str:
    """SQL: staged rows of events given as SCANNED columns: numbers are typed here, once.

    `unread` lists the arguments that are not numbers, as `argument = text`. `events` is the number of events
    in a row: 1, except where skipped events were added up.
    """
    texts = ", ".join(column for column, _ in SCANNED if column not in {"pid", "tid", *NUMBERS})
    typed = ", ".join(f"{_sql_number(column)} AS number_{column}" for column in NUMBERS)
    numbers = ", ".join(f"number_{column} AS {column}" for column in NUMBERS)
    is_lost = {column: f"{column} IS NOT NULL AND number_{column} IS NULL" for column in NUMBERS}
    lost = ", ".join(
        f"CASE WHEN {test} THEN '{column} = ' || {column} END" for column, test in is_lost.items()
    )
    return (
        f"SELECT {texts}, to_bigint(pid) AS pid, to_bigint(tid) AS tid, {numbers}, "
        f"CASE WHEN {' OR '.join(is_lost.values())} THEN [{lost}] END AS unread, 1::BIGINT AS events "
        f"FROM (SELECT *, {typed} FROM ({scanned}))"
    )


def _sql_number(column: str) -> str:
    return (
        f"to_bigint({column})"
        if NUMBERS[column] == "BIGINT"
        else f"try_cast(to_bigint({column}) AS {NUMBERS[column]})"
    )


def kind_of(phase: str | None, category: str | None, name: str | None) -> str:
    """Kind of an event; the same rule as sql_kind."""
    if phase == "X":
        kind = KIND_OF_CATEGORY.get((category or "").lower(), "other_event")
        return "annotation_cpu" if kind == "cpu_op" and (name or "").startswith("ProfilerStep#") else kind
    return KIND_OF_PHASE.get(phase or "", "other_event")


def sql_kind() -> str:
    """SQL: kind of an event from ph, category (cat in lower case) and name; old files write ProfilerStep as
    an operator."""
    step = "CASE WHEN starts_with(name, 'ProfilerStep#') THEN 'annotation_cpu' ELSE 'cpu_op' END"
    kinds = {
        category: step if kind == "cpu_op" else f"'{kind}'" for category, kind in KIND_OF_CATEGORY.items()
    }
    by_category = " ".join(f"WHEN '{category}' THEN {kind}" for category, kind in kinds.items())
    by_phase = " ".join(f"WHEN '{phase}' THEN '{code}'" for phase, code in KIND_OF_PHASE.items())
    return (
        f"CASE WHEN ph = 'X' THEN CASE category {by_category} ELSE 'other_event' END ELSE CASE ph "
        f"{by_phase} ELSE 'other_event' END END"
    )
