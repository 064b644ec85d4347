"""The demo: real traces that ship with stepledger, processed like any others."""

from __future__ import annotations

from pathlib import Path

from pipeline.ingest.inbox import InboxItem

DEMO_RUN = "demo"
DEMO_TRACES = Path(__file__).parent / "demo_traces"


def demo_items() -> list[InboxItem]:
    """The demo traces: two ranks of a vLLM decode, taken from a recording (see demo_traces/README.md)."""
    files = sorted(DEMO_TRACES.glob("*.json.gz"))
    return [InboxItem(path, DEMO_RUN, Path(DEMO_RUN) / path.name) for path in files]
