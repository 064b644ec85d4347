"""A stepledger of another contract version, for tests."""

from __future__ import annotations

import sys

import pytest


def set_contract_version(patch: pytest.MonkeyPatch, version: int) -> None:
    """Let every module of the package that knows the version of the tables hold this one."""
    for name, module in [*sys.modules.items()]:
        if name.startswith("pipeline") and hasattr(module, "CONTRACT_VERSION"):
            patch.setattr(module, "CONTRACT_VERSION", version)
