"""Cut the demo traces from a recording: `python -m tests.tools.demo RECORDED.json.gz ... --into
pipeline/ingest/demo_traces`.

The recordings are of vLLM 0.22 serving a 61-layer DeepSeek-V3-shaped W4A16 mixture-of-experts model with
tensor parallel 2, batch 1, CUDA graphs (folder A_nccl_graph_b1 of the captures made for this project). A few
whole decode steps are kept, with every event that the tables are made from: annotations, launches, operators,
GPU work and the names of processes. Python frames and flow arrows, nine tenths of the file, are left out.
Numbers are written with the digits they were read with.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any, Self

FIRST_STEP, STEPS = 1, 5
_KEPT = {
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "cuda_runtime",
    "cuda_driver",
    "cpu_op",
    "user_annotation",
    "gpu_user_annotation",
}


class Verbatim(float):
    """A number that is written as it was read."""

    text: str

    def __new__(cls, text: str) -> Self:
        """The number that `text` says."""
        made = super().__new__(cls, text)
        made.text = text
        return made

    def __repr__(self) -> str:
        return self.text


def cut(recorded: Path) -> bytes:
    """The JSON text of steps FIRST_STEP to FIRST_STEP + STEPS - 1 of a recording."""
    data: dict[str, Any] = json.loads(gzip.decompress(recorded.read_bytes()), parse_float=Verbatim)
    events: list[dict[str, Any]] = data.pop("traceEvents")
    begins = sorted(
        e["ts"] for e in events if e.get("cat") == "user_annotation" and e["name"].startswith("execute_")
    )
    first, last = begins[FIRST_STEP], begins[FIRST_STEP + STEPS]
    on_cpu = [
        e
        for e in events
        if e.get("cat") in _KEPT and not e["cat"].startswith(("kernel", "gpu_")) and first <= e["ts"] < last
    ]
    linked = {e["args"]["correlation"] for e in on_cpu if "correlation" in e.get("args", {})}
    outer = {e["args"]["External id"] for e in on_cpu if e["cat"] == "user_annotation"}
    on_gpu = [
        e
        for e in events
        if e.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"} and e["args"]["correlation"] in linked
    ]
    twins = [e for e in events if e.get("cat") == "gpu_user_annotation" and e["args"]["External id"] in outer]
    named = [e for e in events if e.get("ph") == "M" and e["name"] == "process_name"]
    data["traceName"] = "demo"
    head = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in data.items())
    lines = ",\n".join(json.dumps(e, separators=(",", ":")) for e in (*named, *on_cpu, *on_gpu, *twins))
    return f'{{\n{head},\n"traceEvents": [\n{lines}\n]}}\n'.encode()


def main() -> None:
    """Write one cut per recording, under its name without the time stamp."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recorded", nargs="+", type=Path)
    parser.add_argument("--into", type=Path, required=True)
    options = parser.parse_args()
    for recorded in options.recorded:
        target = options.into / f"{recorded.name.split('.')[0]}.pt.trace.json.gz"
        target.write_bytes(gzip.compress(cut(recorded), compresslevel=9, mtime=0))


if __name__ == "__main__":
    main()
