"""What is read of an nsys export: tables and columns by name. Nothing else, such as environments, is read.

Columns are looked up in each file, and an absent one is NULL: schemas differ by version (see README).
"""

from __future__ import annotations

from typing import Literal

Kind = Literal["int", "text"]

_LANE: dict[str, Kind] = {
    "start": "int",
    "end": "int",
    "deviceId": "int",
    "contextId": "int",
    "streamId": "int",
    "correlationId": "int",
    "globalPid": "int",
}

TABLES: dict[str, dict[str, Kind]] = {
    "CUPTI_ACTIVITY_KIND_KERNEL": {
        **_LANE, "demangledName": "int", "shortName": "int", "graphNodeId": "int", "graphId": "int",
        "gridX": "int", "gridY": "int", "gridZ": "int", "blockX": "int", "blockY": "int", "blockZ": "int",
    },
    "CUPTI_ACTIVITY_KIND_MEMCPY": {
        **_LANE, "bytes": "int", "copyKind": "int", "srcKind": "int", "dstKind": "int", "graphNodeId": "int",
    },
    "CUPTI_ACTIVITY_KIND_MEMSET": {**_LANE, "bytes": "int", "memKind": "int", "graphNodeId": "int"},
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": {**_LANE, "graphId": "int"},
    "CUPTI_ACTIVITY_KIND_RUNTIME": {
        "start": "int", "end": "int", "globalTid": "int", "correlationId": "int", "nameId": "int",
    },
    "NVTX_EVENTS": {
        "start": "int", "end": "int", "eventType": "int", "text": "text", "textId": "int", "globalTid": "int",
        "domainId": "int",
    },
    "TARGET_INFO_SESSION_START_TIME": {"utcEpochNs": "int"},
    "ANALYSIS_DETAILS": {"duration": "int"},
    "PROCESSES": {"globalPid": "int", "name": "text"},
    "ThreadNames": {"globalTid": "int", "nameId": "int"},
    "TARGET_INFO_GPU": {"id": "int", "name": "text", "cuDevice": "int"},
    "TARGET_INFO_CUDA_DEVICE": {"gpuId": "int", "cudaId": "int", "pid": "int"},
    "META_DATA_EXPORT": {"name": "text", "value": "text"},
    "EXPORT_META_DATA": {"name": "text", "value": "text"},
    "DIAGNOSTIC_EVENT": {"severity": "int"},
    "StringIds": {"id": "int", "value": "text"},
}  # fmt: skip
"""Read where present, in this order: StringIds last, when the strings that rows refer to are known."""

STRINGS_OF = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ("demangledName", "shortName"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("nameId",),
    "NVTX_EVENTS": ("textId",),
    "ThreadNames": ("nameId",),
}
"""Columns that refer to StringIds. No other string of a report is read: some are environments or command
lines."""

EXPORT_FACTS = (
    "EXPORT_SCHEMA_VERSION",
    "EXPORT_PRODUCT_VERSION",
    "EXPORT_PARAM_TIME_NORMALIZE",
    "EXPORT_PARAM_TIME_SHIFT",
    "EXPORT_PARAM_TABLES_TO_EXPORT",
    "EXPORT_PARAM_TIMES_TO_EXPORT",
)
"""Facts of the export that are read; all others stay where they are."""

REQUIRED = {
    "StringIds": ("id", "value"),
    "CUPTI_ACTIVITY_KIND_KERNEL": ("start", "end", "deviceId", "streamId", "correlationId"),
}
"""The minimum of a report with kernels; the kernel table also needs shortName or demangledName."""

GPU_TABLES = {
    "kernel": "CUPTI_ACTIVITY_KIND_KERNEL",
    "memcpy": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memset": "CUPTI_ACTIVITY_KIND_MEMSET",
    "graph": "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
}

COUNTED = {
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "sync",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "sync",
    "PROFILER_OVERHEAD": "overhead",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": "overhead",
    "CUDA_GRAPH_NODE_EVENTS": "graph_record",
    "CUDA_GRAPH_EVENTS": "graph_record",
    "CUDA_GPU_MEMORY_USAGE_EVENTS": "other_record",
    "OSRT_API": "other_record",
    "CUPTI_ACTIVITY_KIND_HOST_CALLBACK": "other_record",
}
"""Event tables that are not landed; their rows are counted by this issue code."""
