"""Where the project's files are, for tests."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
GOLDEN = ROOT / "tests" / "golden"
SHARED_TRACES = Path(os.environ.get("STEPLEDGER_SHARED_TRACES", ROOT.parent / "shared" / "traces"))
"""Real traces, where they are at hand."""
