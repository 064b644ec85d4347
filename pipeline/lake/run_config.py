"""Facts about a run that its traces do not hold: from run.toml or `stepledger describe`, in lake/config."""

from __future__ import annotations

import re
import tomllib
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from pipeline import duck
from pipeline.contracts import Column, contracts
from pipeline.duck import literal
from pipeline.errors import TraceError, UsageError
from pipeline.lake.atomic import replacing
from pipeline.lake.damage import damage_of
from pipeline.lake.home import Home
from pipeline.resources import resource

RUN_TOML = "run.toml"
"""Name of the file beside traces that holds facts about their run."""

_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "INTEGER": ((int,), "an integer"),
    "DOUBLE": ((int, float), "a number"),
    "VARCHAR": ((str,), "a text"),
    "BOOLEAN": ((bool,), "true or false"),
}
_NUMBERS: dict[str, type[int | float]] = {"INTEGER": int, "DOUBLE": float}
_YES_NO = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}

_MAY_BE_0 = {"dense_layers", "shared_experts"}
"""Counts of what a model may lack."""

OLD_KEYS = {
    "hidden": "hidden_size",
    "top_k": "experts_per_token",
    "moe_intermediate": "moe_intermediate_size",
    "intermediate": "intermediate_size",
    "vocab": "vocab_size",
    "tpot_ms": "measured_tpot_ms",
}
"""Names that `describe` had as options before 0.3, where they differ from the facts' names."""

_GROUPS = re.compile(r"(tp|ep|dp|pp):\d{1,6}(,\d{1,6})*(;(tp|ep|dp|pp):\d{1,6}(,\d{1,6})*)*")

_LARGEST_TOML = 1 << 16
"""Bytes of a run.toml: some thirty facts fit into a few hundred."""
_LARGEST = 2**31 - 1
"""The largest number of the contract's INTEGER; no fact comes near it."""


def fields() -> dict[str, Column]:
    """What can be recorded about a run, by name."""
    return {c.name: c for c in contracts("config")["run_config"].columns if c.name != "run_id"}


def read_run_toml(path: Path) -> dict[str, Any]:
    """The facts of a run.toml. Raises TraceError for invalid TOML, an unknown key or a refused value."""
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
            path.name, where="the file", found=f"invalid TOML ({error})", wanted="key = value lines"
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
    """The values, if every key is known and every value is allowed; None clears a fact. Raises UsageError."""
    known = fields()
    for key, value in values.items():
        if key not in known:
            raise UsageError(_unknown(key))
        if value is not None:
            _check_value(known[key], value)
    return values


def from_text(key: str, text: str) -> Any:
    """The value that `key=text` gives a fact; an empty text clears it (None). Raises UsageError."""
    if key not in (known := fields()):
        raise UsageError(_unknown(key))
    column = known[key]
    value: Any = text or None
    if value is not None and column.type == "BOOLEAN":
        value = _YES_NO.get(text.lower(), text)
    elif value is not None and column.type in _NUMBERS:
        with suppress(ValueError):  # what is no number is refused below, as it was written
            value = _NUMBERS[column.type](text)
    return checked({key: value})[key]


def _unknown(key: str) -> str:
    """The message for a key that does not exist: what was probably meant, and all keys."""
    close = get_close_matches(key, fields(), n=1)
    meant = OLD_KEYS.get(key) or (close[0] if close else None)
    hint = f"; did you mean {meant}?" if meant else "."
    return f"unknown fact {key!r}{hint} Known facts: {', '.join(fields())}"


def _check_value(column: Column, value: Any) -> None:
    """Raises UsageError for a value of another type, out of range, or not among those allowed."""
    key = column.name
    is_boolean = column.type == "BOOLEAN"
    if isinstance(value, bool) != is_boolean or not isinstance(value, _KINDS[column.type][0]):
        raise UsageError(f"{key} = {value!r} is not {_KINDS[column.type][1]}")
    if isinstance(value, (int, float)) and not is_boolean:
        least = "0 or more" if key in _MAY_BE_0 else "above 0"
        if not (0 < value <= _LARGEST or (value == 0 and key in _MAY_BE_0)):
            raise UsageError(f"{key} = {value!r} is out of range: it must be {least} and at most {_LARGEST}")
    allowed = links() if column.values_from == "interconnects" else column.values
    if allowed and value not in allowed:
        raise UsageError(f"{key} = {value!r} is not known; known values: {', '.join(allowed)}")
    if key == "groups":
        _check_groups(value)


@cache
def links() -> tuple[str, ...]:
    """Names of the links of schemas/interconnects.toml."""
    text = (resource("schemas") / "interconnects.toml").read_text(encoding="utf-8")
    return tuple(entry["name"] for entry in tomllib.loads(text)["link"])


def _check_groups(text: str) -> None:
    """Raises UsageError unless the text lists groups of ranks, with no rank twice for one purpose."""
    if not _GROUPS.fullmatch(text):
        raise UsageError(
            f"groups = {text!r} is not of the form tp:0,1;tp:2,3;ep:0,1,2,3 (tp, ep, dp or pp, and its ranks)"
        )
    seen: set[tuple[str, int]] = set()
    for part in text.split(";"):
        purpose, ranks = part.split(":")
        for member in ((purpose, int(rank)) for rank in ranks.split(",")):
            if member in seen:
                raise UsageError(f"groups = {text!r} has rank {member[1]} twice in {purpose}")
            seen.add(member)


def describe(home: Home, run_id: str, values: dict[str, Any]) -> None:
    """Add facts to a run: earlier ones stay unless given a new value, or cleared with None.

    Where the earlier facts cannot be read any more, they are replaced.
    """
    checked(values)
    is_lost = damage_of(home, run_id, layers=["config"]) is not None
    known = ({} if is_lost else config_of(home, run_id)) | values
    row = ", ".join(
        f'{literal(run_id if c.name == "run_id" else known.get(c.name))}::{c.type} AS "{c.name}"'
        for c in contracts("config")["run_config"].columns
    )
    with replacing(home.config_run(run_id), home.staging) as folder, duck.in_memory() as con:
        con.execute(f"COPY (SELECT {row}) TO {literal(folder / 'run_config.parquet')} (FORMAT parquet)")


def config_of(home: Home, run_id: str) -> dict[str, Any]:
    """The facts recorded about a run, without its id; empty if there are none."""
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
