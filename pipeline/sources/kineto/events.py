"""What an event of a chrome trace is, and the columns in which staged events wait for landing.

Both paths (DuckDB's reader for whole stretches, the exact scan for broken ones) write these columns.
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
"""Arguments that are read, by their key in the file (`external id`, torch 1.8, is rewritten to `External id`)."""

OLD_KEYS = ((b'"external id":', b'"External id":'),)
"""Older spellings, rewritten in the bytes before parsing (same length; an escaped quote cannot match)."""

KINDS = ("kernel", "memcpy", "memset", "launch", "cpu_op", "annotation_cpu", "annotation_gpu")
"""Kinds that land in a raw table; every other kind is the issue code under which its events are counted."""

GPU_KINDS = ("kernel", "memcpy", "memset")

KIND_OF_CATEGORY = {
    "kernel": "kernel",
    "concurrent_kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
    "cuda_runtime": "launch",
    "cuda_driver": "launch",
    "runtime": "launch",
    "cpu_op": "cpu_op",
    "operator": "cpu_op",
    "user_annotation": "annotation_cpu",
    "gpu_user_annotation": "annotation_gpu",
    "python_function": "python_function",
    "overhead": "overhead",
    "trace": "profiler_span",
    "cuda_sync": "sync",
    "cuda_event": "sync",
}
"""Lower-case category of a complete event (ph X) to kind; torch 1.8 to 1.13 spelled Kernel, Memcpy, Runtime, Operator."""

KIND_OF_PHASE = {"M": "metadata", "s": "flow", "t": "flow", "f": "flow", "i": "instant", "I": "instant", "C": "counter"}
"""Phase of an event that is not complete to the code under which it is counted."""

MERGED_PID = r"^\[([^\]]+)\] *(.*)$"
"""SGLang's merged files prefix every pid with the rank's coordinates: `[TP00-DP01-PP00-EP00] 83`."""

STAGED = (
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
"""Staged columns. `dur_us` (GPU kinds only) keeps the exact duration for the books; text columns are typed on landing."""


def kind_of(phase: str | None, category: str | None, name: str | None) -> str:
    """Kind of an event; the same rule as sql_kind."""
    if phase == "X":
        kind = KIND_OF_CATEGORY.get((category or "").lower(), "other_event")
        return "annotation_cpu" if kind == "cpu_op" and (name or "").startswith("ProfilerStep#") else kind
    return KIND_OF_PHASE.get(phase or "", "other_event")


def sql_kind() -> str:
    """SQL: kind of an event from ph, cat and name (old files write ProfilerStep as an operator)."""
    by_category = " ".join(f"WHEN '{cat}' THEN '{kind}'" for cat, kind in KIND_OF_CATEGORY.items() if kind != "cpu_op")
    by_phase = " ".join(f"WHEN '{phase}' THEN '{code}'" for phase, code in KIND_OF_PHASE.items())
    operators = ", ".join(f"'{cat}'" for cat, kind in KIND_OF_CATEGORY.items() if kind == "cpu_op")
    return (
        f"CASE WHEN ph = 'X' THEN CASE lower(cat) {by_category} ELSE "
        f"CASE WHEN lower(cat) IN ({operators}) THEN "
        "CASE WHEN starts_with(name, 'ProfilerStep#') THEN 'annotation_cpu' ELSE 'cpu_op' END "
        f"ELSE 'other_event' END END ELSE CASE ph {by_phase} ELSE 'other_event' END END"
    )
