"""Build the marts of one run and put them in place; which runs need it."""

from __future__ import annotations

import uuid
from typing import Any

import duckdb

from pipeline.contracts import CONTRACT_VERSION, Layer
from pipeline.errors import ModelError, UsageError, home_trouble
from pipeline.lake.atomic import replacing, staging_folder
from pipeline.lake.builds import built_facts, inputs_sha
from pipeline.lake.damage import BUILT, Damage, damage_of, damaged_runs, unreadable_file
from pipeline.lake.dropped import mode_of, same_mode
from pipeline.lake.home import Home
from pipeline.lake.manifest import Manifest
from pipeline.lake.settings import Settings
from pipeline.lake.versions import of_version, refuse_newer, version_of
from pipeline.models import engine
from pipeline.models.rules import RuleSet

_INPUTS: tuple[Layer, ...] = ("raw", "config")
"""Layers that marts are built from."""


def build_run(home: Home, run_id: str, rules: RuleSet, settings: Settings) -> str:
    """(Re)build the marts of one run and put them in place in one step. Returns the build's id.

    Raises ModelError, with the name of the file where a raw table cannot be read; UsageError for a run that a
    newer version built.
    """
    _refuse_damaged_inputs(damage_of(home, run_id, layers=_INPUTS))
    if (version := version_of(home, run_id)) > CONTRACT_VERSION:
        raise UsageError(f"{of_version(version)}: upgrade stepledger")
    build_id = uuid.uuid4().hex[:12]
    try:
        with (
            staging_folder(settings.spill or home.staging, "spill-") as spill,
            replacing(home.mart_run(run_id), home.staging) as out,
        ):
            engine.build_marts(
                home.raw_run(run_id),
                run_id,
                out,
                rules,
                build_id,
                inputs_sha(home, run_id),
                home.config_run(run_id) / "run_config.parquet",
                spill=spill,
                threads=settings.threads,
                memory_limit=settings.memory_limit,
            )
            same_mode(out, mode_of(home.raw_run(run_id)))
    except (ModelError, duckdb.Error, OSError) as error:
        if home_trouble(error) is not None:
            raise
        _refuse_damaged_inputs(unreadable_file(home, run_id, _INPUTS), error)
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"its tables cannot be read or written: {error}") from error
    return build_id


def _refuse_damaged_inputs(damage: Damage | None, cause: Exception | None = None) -> None:
    if damage is not None:
        raise ModelError(str(damage)) from cause


def stale_runs(home: Home, rules: RuleSet) -> list[str]:
    """Runs whose marts are missing or damaged, or were built from other files, by other models or rules, or
    to an older contract.

    Raises UsageError for a home of a newer version.
    """
    refuse_newer(home)
    built: dict[str, set[tuple[Any, ...]]] = {}
    for facts in built_facts(home):
        made_by = tuple(
            facts.get(name) for name in ("inputs_sha", "models_sha", "rules_sha", "contract_version")
        )
        built.setdefault(str(facts["run_id"]), set()).add(made_by)
    newer = {
        run_id
        for run_id, made in built.items()
        if any((version or 0) > CONTRACT_VERSION for *_, version in made)
    }
    made_now = engine.models_sha(), rules.sha, CONTRACT_VERSION
    damaged = damaged_runs(home, Manifest.load(home).serves, BUILT)
    return [
        run_id
        for run_id in home.run_ids()
        if run_id not in newer
        and (run_id in damaged or built.get(run_id) != {(inputs_sha(home, run_id), *made_now)})
    ]
