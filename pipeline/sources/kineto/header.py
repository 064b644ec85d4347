"""The metadata around traceEvents: before the events (since 2025) or after them, and maybe broken JSON."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import orjson

from pipeline.errors import TraceError, UnfinishedFile
from pipeline.sources.issues import IssueBook

EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BLANK = b"\0 \t\r\n"
_NUMBER_KEYS = ("baseTimeNanoseconds", "cuda_runtime_version", "hip_runtime_version", "roctracer_version")
_OTHER_TOOLS = {
    "nodes": "a PyTorch execution trace (Chakra)",
    "rocprofiler-sdk-tool": "rocprofv3 output of ROCm, not a chrome trace of torch.profiler",
    "snapshots": "a PyTorch memory snapshot",
    "segments": "a PyTorch memory snapshot",
}
_ADVICE = (
    "Record with torch.profiler and export_chrome_trace (vLLM: VLLM_TORCH_PROFILER_DIR or profiler_config)."
)


@dataclass
class Header:
    """Top-level keys of a trace, without its events; `is_truncated`: the file ends inside them."""

    values: dict[str, Any] = field(default_factory=dict)
    is_truncated: bool = False

    def integer(self, key: str) -> int | None:
        """An integer key (given as number or digits), or None."""
        return _integer(self.values.get(key))

    def distributed(self, key: str) -> int | None:
        """A count or ordinal in distributedInfo (`rank`, `world_size`), or None.

        Some writers put "" or -1 for an unknown one.
        """
        info = self.values.get("distributedInfo")
        value = _integer(info.get(key)) if isinstance(info, dict) else None
        return value if value is not None and 0 <= value < 2**31 else None

    @property
    def host(self) -> str | None:
        """host_name, or None."""
        value = self.values.get("host_name")
        return value if isinstance(value, str) and value else None

    @property
    def device_names(self) -> dict[int, str]:
        """Names in deviceProperties by device id, without empty ones."""
        found = self.values.get("deviceProperties")
        devices = [d for d in found if isinstance(d, dict)] if isinstance(found, list) else []
        named = [(d.get("id"), d.get("name")) for d in devices]
        return {
            number: name
            for number, name in named
            if isinstance(number, int) and isinstance(name, str) and name
        }


def _integer(value: object) -> int | None:
    try:
        return int(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        return None


def parse(head: bytes, tail: bytes, file: str, book: IssueBook) -> Header:
    """Parse the text before the events' `[` (head) and after their `]` (tail).

    Raises TraceError if data follows the end of the document: several writers wrote into one file.
    """
    if head.removeprefix(b"\xef\xbb\xbf").strip() == b"[":
        if tail.strip(_BLANK):
            raise several(file, "after the end of traceEvents", tail)
        return Header()
    text = head.removeprefix(b"\xef\xbb\xbf") + b"]" + tail.strip(_BLANK)
    try:
        return Header(orjson.loads(text))
    except orjson.JSONDecodeError as error:
        if EVENTS_KEY.search(tail) or _goes_on(text):
            raise several(file, "after the end of traceEvents", tail) from None
        is_truncated = not text.endswith(b"}") or "end of data" in error.msg
    book.add(
        "unreadable_header", "header", example=(head[:80] + b" ... " + tail[:80]).decode("utf-8", "replace")
    )
    values: dict[str, Any] = {}
    for key in _NUMBER_KEYS:
        if match := re.search(rb'"' + key.encode() + rb'"\s*:\s*"?(\d+)', head + b"\n" + tail):
            values[key] = int(match.group(1))
    if match := re.search(rb'"distributedInfo"\s*:\s*\{[^{}\[\]]*?"rank"\s*:\s*(\d+)', head + b"\n" + tail):
        values["distributedInfo"] = {"rank": int(match.group(1))}
    return Header(values, is_truncated)


def _goes_on(text: bytes) -> bool:
    """Does another document follow the first one?"""
    document = text.decode("utf-8", "replace").lstrip()
    try:
        _, end = json.JSONDecoder(strict=False).raw_decode(document)
    except (ValueError, RecursionError):
        return False
    return document[end:].lstrip("\0 \t\r\n")[:1] in ("{", "[")


def several(file: str, where: str, more: bytes) -> TraceError:
    """The refusal of a file into which several writers wrote."""
    return TraceError(
        file,
        where=where,
        found=f"more data: {more[:60].decode('utf-8', 'replace')!r}",
        wanted="the end of one JSON document",
        advice="Several processes wrote into one file: record again with one file per rank.",
    )


def unfinished(file: str, at_byte: int, inside: str) -> UnfinishedFile:
    """The refusal of a truncated file."""
    return UnfinishedFile(
        file,
        where=f"byte {at_byte} of the JSON text",
        found=f"the end of the file {inside}" if at_byte else "nothing",
        wanted="the rest of the trace",
        advice="The profiler was still writing, or the copy is truncated: copy or record it again.",
    )


def is_unfinished(start: bytes) -> bool:
    """May this beginning of a file, which has no traceEvents, be the beginning of a trace?"""
    text = start.removeprefix(b"\xef\xbb\xbf").strip(_BLANK)
    return text in (b"", b"[") or (text[:1] == b"{" and not text.endswith(b"}"))


def no_events(file: str, start: bytes, *, is_truncated: bool = False) -> TraceError:
    """The refusal of a file without traceEvents, with what it looks like."""
    text = start.removeprefix(b"\xef\xbb\xbf").strip(_BLANK)
    if not text:
        return TraceError(file, where="start of the file", found="nothing", wanted="a trace", advice=_ADVICE)
    if text[:1] == b"[":
        return TraceError(
            file,
            where="start of the file",
            found="a JSON list of items that are not events (a memory timeline?)",
            wanted="a chrome trace",
            advice=_ADVICE,
        )
    if text[:1] != b"{":
        return TraceError(
            file,
            where="start of the file",
            found=f"{text[:24]!r}, which is not JSON",
            wanted="a chrome trace",
            advice=_ADVICE,
        )
    for key, looks_like in _OTHER_TOOLS.items():
        if re.search(rb'"' + key.encode() + rb'"\s*:', start):
            return TraceError(
                file,
                where=f"top-level key {key!r}",
                found=looks_like,
                wanted="a chrome trace with traceEvents",
                advice=_ADVICE,
            )
    if is_truncated:
        return TraceError(
            file,
            where=f"byte {len(start)} of the JSON text",
            found="the end of the file before its events",
            wanted="traceEvents",
            advice="The copy is truncated: copy or record it again.",
        )
    keys = [k.decode("utf-8", "replace") for k in re.findall(rb'"([^"\\]{1,40})"\s*:', start[:4000])[:5]]
    return TraceError(
        file,
        where="top level",
        found=f"a JSON object with keys {keys}",
        wanted="a key traceEvents",
        advice=_ADVICE,
    )
