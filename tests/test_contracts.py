"""Contracts: the one description of every table, and what it finds wrong with a real one."""

from __future__ import annotations

import hashlib
import tomllib
from collections import Counter
from collections.abc import Iterator
from typing import Any, get_args

import duckdb
import orjson
import pytest

from pipeline.contracts import CONTRACT_VERSION, Column, Contract, Layer, Shared, contracts
from pipeline.errors import ContractError, ExitCode
from pipeline.resources import resource
from tests.support.paths import GOLDEN

LAYERS: tuple[Layer, ...] = get_args(Layer)
ALL = [contract for layer in LAYERS for contract in contracts(layer).values()]

CONTRACT = Contract(
    "sample", "marts", "A table.", ("trace_id", "step"),
    (
        Column("trace_id", "VARCHAR", "trace"),
        Column("step", "BIGINT", "step"),
        Column("rank", "INTEGER", "rank", null=True),
    ),
)  # fmt: skip
GOOD = "SELECT 't' AS trace_id, 0::BIGINT AS step, 3::INTEGER AS rank"


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """An empty database."""
    with duckdb.connect() as made:
        yield made


@pytest.mark.parametrize("layer", LAYERS)
def test_every_file_is_read_under_its_own_name(layer: Layer) -> None:
    """Each TOML of a layer describes the table that it is named after."""
    assert contracts(layer).keys() == {path.stem for path in (resource("schemas") / layer).glob("*.toml")}
    assert all(c.layer == layer for c in contracts(layer).values())


@pytest.mark.parametrize("contract", ALL, ids=lambda c: f"{c.layer}.{c.table}")
def test_every_table_and_column_is_described(contract: Contract) -> None:
    """Users read the description of a column in the catalog: none is empty, and no column is there twice."""
    assert contract.doc.endswith(".")
    assert [c.name for c in contract.columns if not c.doc.strip()] == []
    assert len({c.name for c in contract.columns}) == len(contract.columns)


@pytest.mark.parametrize("contract", ALL, ids=lambda c: f"{c.layer}.{c.table}")
def test_units_stand_in_the_names(contract: Contract) -> None:
    """Times in whole nanoseconds end in _ns and are exact; a DOUBLE is in ms, us, GB/s or a share."""
    for column in contract.columns:
        if column.name.endswith("_ns"):
            assert column.type == "BIGINT" or column.type.startswith("DECIMAL"), column.name
        if column.name in {"start", "end", "dur", "duration", "wall", "busy", "exposed", "idle", "ts"}:
            pytest.fail(f"{column.name} has no unit")
        if column.type == "DOUBLE":
            assert {"ms", "us", "gbps", "share", "confidence", "ratio"} & set(column.name.split("_")), (
                column.name
            )


@pytest.mark.parametrize("contract", ALL, ids=lambda c: f"{c.layer}.{c.table}")
def test_duckdb_knows_every_type_under_its_own_name(
    contract: Contract, con: duckdb.DuckDBPyConnection
) -> None:
    """The type in the contract is the one that DESCRIBE returns."""
    contract.check(con, f"({contract.empty_query()})", strict_nulls=False)


@pytest.mark.parametrize("contract", [c for c in ALL if c.layer == "marts"], ids=lambda c: c.table)
def test_the_key_of_a_mart_is_made_of_its_columns(contract: Contract) -> None:
    """Every mart has a grain, and it names columns of the mart."""
    assert contract.grain
    assert set(contract.grain) <= {c.name for c in contract.columns}


def test_a_table_that_fits_passes(con: duckdb.DuckDBPyConnection) -> None:
    """Also with NULL where the contract allows it, and without any row."""
    CONTRACT.check(con, f"({GOOD} UNION ALL SELECT 't', 1, NULL)")
    CONTRACT.check(con, f"({CONTRACT.empty_query()})")


def test_the_select_list_makes_a_table_fit(con: duckdb.DuckDBPyConnection) -> None:
    """It casts and orders the columns and leaves others out."""
    CONTRACT.check(
        con,
        (
            f"(SELECT {CONTRACT.select_list()} FROM (SELECT 3 AS rank, 'x' AS other, 0 AS step, 't' AS "
            "trace_id))"
        ),
    )


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (
            GOOD.replace("0::BIGINT", "0::INTEGER"),
            r"marts\.sample: columns differ from schemas/: .*'step', 'INTEGER'",
        ),
        (
            "SELECT 't' AS trace_id, 0::BIGINT AS step",
            r"marts\.sample: columns differ from schemas/: .*'rank', 'INTEGER'",
        ),
        (f"{GOOD}, 1 AS extra", r"marts\.sample: columns differ from schemas/: .*'extra'"),
        (
            "SELECT 0::BIGINT AS step, 't' AS trace_id, 3::INTEGER AS rank",
            r"marts\.sample: columns differ from schemas/: the order of columns",
        ),
        (
            GOOD.replace("0::BIGINT", "NULL::BIGINT"),
            r"marts\.sample: NULL in columns that are never NULL: {'step': 1}",
        ),
        (f"{GOOD} UNION ALL {GOOD}", r"marts\.sample: \"trace_id\", \"step\" is not unique: \('t', 0, 2\)"),
    ],
    ids=["a wrong type", "a missing column", "one too many", "another order", "a NULL", "a repeated key"],
)
def test_the_first_difference_is_named(con: duckdb.DuckDBPyConnection, query: str, message: str) -> None:
    """The error gives the table, the column and what is wrong with it; its exit code is that of a model."""
    with pytest.raises(ContractError, match=message) as raised:
        CONTRACT.check(con, f"({query})")
    assert raised.value.exit_code is ExitCode.MODEL


def test_without_strict_nulls_only_columns_are_compared(con: duckdb.DuckDBPyConnection) -> None:
    """The columns of a table can be checked before its rows."""
    CONTRACT.check(con, f"({GOOD.replace('0::BIGINT', 'NULL::BIGINT')})", strict_nulls=False)


COLUMNS = tomllib.loads((resource("schemas") / "columns.toml").read_text(encoding="utf-8"))
ENTRIES: list[tuple[str, dict[str, Any]]] = [
    (f"{layer}/{path.name}", {"name": entry} if isinstance(entry, str) else entry)
    for layer in LAYERS
    for path in sorted((resource("schemas") / layer).glob("*.toml"))
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["columns"]
]
"""Every column entry of every table, as written: the file, and its fields."""


def test_a_column_of_three_tables_is_described_once() -> None:
    """A name with one type in three tables or more is in columns.toml."""
    tables = Counter((column.name, column.type) for contract in ALL for column in contract.columns)
    assert {name for (name, _), count in tables.items() if count > 2} <= COLUMNS["columns"].keys()


def test_a_table_says_only_what_differs() -> None:
    """No entry repeats a field of the shared column."""
    shared = COLUMNS["columns"]
    repeated = [
        f"{file}: {entry['name']}.{field}"
        for file, entry in ENTRIES
        for field, value in entry.items()
        if shared.get(entry["name"], {}).get(field) == value
    ]
    assert repeated == []


def test_what_is_shared_is_used_by_several_tables() -> None:
    """A column of one table is described there; a list of values that no column uses is deleted."""
    tables = Counter(entry["name"] for _, entry in ENTRIES)
    assert [name for name in COLUMNS["columns"] if tables[name] < 2] == []
    described = [*COLUMNS["columns"].values(), *(entry for _, entry in ENTRIES)]
    assert COLUMNS["values"].keys() <= {entry.get("values_from") for entry in described}


SHARED = Shared(
    values={"sources": ["kineto", "nsys"]},
    columns={"source": {"type": "VARCHAR", "values_from": "sources", "doc": "source"}},
)


@pytest.mark.parametrize(
    ("entry", "column"),
    [
        ("source", Column("source", "VARCHAR", "source", values=("kineto", "nsys"))),
        (
            {"name": "source", "null": True, "doc": "its source"},
            Column("source", "VARCHAR", "its source", null=True, values=("kineto", "nsys")),
        ),
        (
            {"name": "source", "more_values": ["csv"]},
            Column("source", "VARCHAR", "source", values=("kineto", "nsys", "csv")),
        ),
        (
            {"name": "kind", "type": "VARCHAR", "values_from": "categories", "doc": "kind"},
            Column("kind", "VARCHAR", "kind", values_from="categories"),
        ),
        (
            {"name": "n", "type": "BIGINT", "min": 0, "doc": "a number"},
            Column("n", "BIGINT", "a number", min=0),
        ),
    ],
    ids=["by name", "with what differs", "with more values", "with categories", "of one table"],
)
def test_an_entry_adds_to_the_shared_column(entry: str | dict[str, Any], column: Column) -> None:
    """A name alone is the shared column; fields of the entry replace its fields."""
    assert SHARED.column(entry) == column


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("speed", r"speed: .*missing .*'type' and 'doc'"),
        ({"name": "source", "values_from": "engines"}, r"source: values_from = 'engines' is not in"),
        ({"name": "source", "nul": True}, r"source: .*'nul'"),
    ],
    ids=["an unknown column", "an unknown list", "an unknown field"],
)
def test_a_mistake_in_an_entry_is_named(entry: str | dict[str, Any], message: str) -> None:
    """The error gives the column and what is wrong."""
    with pytest.raises(ContractError, match=message):
        SHARED.column(entry)


RECORDED = GOLDEN / "contracts.toml"


def contract_fingerprint() -> str:
    """A hash of names, columns in order, types and grains; descriptions are not part of it."""
    shapes = [
        [c.layer, c.table, list(c.grain), [[column.name, column.type] for column in c.columns]] for c in ALL
    ]
    return hashlib.sha256(orjson.dumps(sorted(shapes))).hexdigest()[:16]


def test_tables_do_not_change_without_a_new_version() -> None:
    """The version of a home shows whether its marts have the current columns."""
    recorded = tomllib.loads(RECORDED.read_text(encoding="utf-8"))["fingerprints"]
    latest, now = max(map(int, recorded)), contract_fingerprint()
    if recorded[str(latest)] != now:
        pytest.fail(
            f"schemas/ differs from version {latest}: set CONTRACT_VERSION = {latest + 1} in "
            "pipeline/contracts.py "
            f'and add the line `{latest + 1} = "{now}"` to tests/golden/contracts.toml'
        )
    assert latest == CONTRACT_VERSION, (
        f"record the fingerprint of version {CONTRACT_VERSION} in tests/golden/contracts.toml: {now}"
    )
