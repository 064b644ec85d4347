"""The demo: real traces that ship with stepledger, through the same walk as anybody's."""

from __future__ import annotations

from pathlib import Path

from pipeline.inbox import Waiting
from pipeline.resources import resource

DEMO_RUN = "demo"


def demo_items() -> list[Waiting]:
    """The demo traces: two ranks of a vLLM decode, cut from a recording (see pipeline/demo_traces/README.md)."""
    files = sorted(Path(resource("demo_traces")).glob("*.json.gz"))
    return [Waiting(path, DEMO_RUN, Path(DEMO_RUN) / path.name) for path in files]
