"""Variants of slow tests: `make soak` runs them all, the default run a selection with each behavior."""

from __future__ import annotations

import os

import pytest

IS_THOROUGH = bool(os.environ.get("STEPLEDGER_SOAK"))
thorough = pytest.mark.skipif(not IS_THOROUGH, reason="one more variant of a slow test: `make soak` runs it")
