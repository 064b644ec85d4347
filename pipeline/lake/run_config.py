"""What a trace cannot tell of its run: facts from run.toml or `stepledger describe`, kept in lake/config."""

from __future__ import annotations

import re
import shutil
import tomllib
import uuid
from pathlib import Path
from typing import Any

from pipeline import duck
from pipeline.contracts import contracts
from pipeline.duck import literal
from pipeline.errors import TraceError, UsageError
from pipeline.lake.atomic import exchange_folder
from pipeline.lake.damage import damage_of
from pipeline.lake.home import Home

RUN_TOML = "run.toml"
"""Name of the file beside traces that says facts about their run."""

_KINDS: dict[str, tuple[type, ...]] = {
    "INTEGER": (int,),
    "DOUBLE": (int, float),
    "VARCHAR": (str,),
    "BOOLEAN": (bool,),
}

_MAY_BE_0 = {"dense_layers", "shared_experts"}
"""Counts of what a model may lack."""

_GROUPS = re.compile(r"(tp|ep|dp|pp):\d{1,6}(,\d{1,6})*(;(tp|ep|dp|pp):\d{1,6}(,\d{1,6})*)*")

_LARGEST_TOML = 1 << 16
"""Bytes of a run.toml: some thirty facts fit into a few hundred."""
_LARGEST = 2**31 - 1
"""The largest number of the contract's INTEGER; no fact comes near it. What is not a number is no fact
either."""


def fields() -> dict[str, str]:
    """Names and types of what can be said of a run."""
    return {c.name: c.type for c in contracts("config")["run_config"].columns if c.name != "run_id"}


def read_run_toml(path: Path) -> dict[str, Any]:
    """The facts of a run.toml. Raises TraceError for what is no TOML, an unknown key or a value of the wrong
    type."""
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_TOML + 1)
        if len(text) > _LARGEST_TOML:
            raise TraceError(
                path.name,
                where="the file",
                found=f"more than {_LARGEST_TOML} bytes",
                wanted="key = value lines",
            )
        values = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TraceError(
            path.name, where="the file", found=f"no TOML ({error})", wanted="key = value lines"
        ) from error
    except RecursionError as error:
        raise TraceError(
            path.name, where="the file", found="values nested too deep", wanted="key = value lines"
        ) from error
    except OSError as error:
        raise TraceError(
            path.name, where="opening it", found=str(error.strerror), wanted="a readable file"
        ) from error
    try:
        return checked(values)
    except UsageError as error:
        raise TraceError(
            path.name,
            where="its keys",
            found=str(error),
            wanted="facts about a run",
            advice="Correct the line.",
        ) from error


def checked(values: dict[str, Any]) -> dict[str, Any]:
    """The values, if every one is known and of its type. Raises UsageError."""
    known = fields()
    for key, value in values.items():
        if key not in known:
            raise UsageError(f"unknown fact {key!r}; known facts: {', '.join(known)}")
        if isinstance(value, bool) != (known[key] == "BOOLEAN") or not isinstance(value, _KINDS[known[key]]):
            raise UsageError(f"{key} = {value!r} is not a {known[key]}")
        if (
            isinstance(value, (int, float))
            and known[key] != "BOOLEAN"
            and not (0 < value <= _LARGEST or (value == 0 and key in _MAY_BE_0))
        ):
            raise UsageError(f"{key} = {value!r} is not above 0, or larger than {_LARGEST}")
    if "groups" in values:
        _check_groups(values["groups"])
    return values


def _check_groups(text: str) -> None:
    """Raises UsageError unless the text names groups of ranks, and no rank twice for one purpose."""
    if not _GROUPS.fullmatch(text):
        raise UsageError(
            f"groups = {text!r} does not read like tp:0,1;tp:2,3;ep:0,1,2,3 (tp, ep, dp or pp, and its ranks)"
        )
    seen: set[tuple[str, int]] = set()
    for part in text.split(";"):
        purpose, ranks = part.split(":")
        for member in ((purpose, int(rank)) for rank in ranks.split(",")):
            if member in seen:
                raise UsageError(f"groups = {text!r} has rank {member[1]} twice in {purpose}")
            seen.add(member)


def describe(home: Home, run_id: str, values: dict[str, Any]) -> None:
    """Add facts to a run; those said before stay unless said anew. Where they cannot be read any more, they
    are given again whole."""
    target = home.config_run(run_id)
    staged = home.staging / uuid.uuid4().hex
    staged.mkdir(parents=True)
    try:
        is_lost = damage_of(home, run_id, layers=["config"]) is not None
        said = (
            {}
            if is_lost
            else {key: value for key, value in config_of(home, run_id).items() if value is not None}
        )
        said |= checked(values)
        contract = contracts("config")["run_config"]
        row = ", ".join(
            f'{literal(run_id if c.name == "run_id" else said.get(c.name))}::{c.type} AS "{c.name}"'
            for c in contract.columns
        )
        with duck.in_memory() as con:
            con.execute(f"COPY (SELECT {row}) TO {literal(staged / 'run_config.parquet')} (FORMAT parquet)")
        exchange_folder(staged, target, home.staging)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def config_of(home: Home, run_id: str) -> dict[str, Any]:
    """What has been said of a run, without its id; empty if nothing."""
    file = home.config_run(run_id) / "run_config.parquet"
    if not file.is_file():
        return {}
    with duck.in_memory() as con:
        return duck.dicts(
            con,
            (
                f"SELECT * EXCLUDE (run_id) FROM read_parquet({duck.files(file.parent, file.name)}, "
                "hive_partitioning = false)"
            ),
        )[0]
