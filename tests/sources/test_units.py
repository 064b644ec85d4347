"""Microseconds to nanoseconds: SQL and Python give the same, exactly."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Decimal

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.sources import units


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """A plain connection."""
    with duckdb.connect() as made:
        yield made


def _sql_ns(con: duckdb.DuckDBPyConnection, text: str, kind: str = units.WIDE) -> int:
    value: int = con.sql(f"SELECT {units.sql_ns('v')} FROM (SELECT '{text}'::{kind} AS v)").fetchall()[0][0]
    return value


def _exact_ns(text: str) -> int:
    kept = Decimal(text).quantize(Decimal("0.00001"), ROUND_HALF_UP)
    return int((kept * 1000).quantize(Decimal(1), ROUND_HALF_UP))


def _decimals(places: int, limit: int) -> st.SearchStrategy[str]:
    whole = st.integers(-limit * 10**places, limit * 10**places)
    return whole.map(lambda n: format(Decimal(n).scaleb(-places), "f"))


@given(_decimals(3, 9 * 10**15))
def test_up_to_three_decimals_are_exact(con: duckdb.DuckDBPyConnection, text: str) -> None:
    """Up to three decimals, negative and absolute epoch times too, become nanoseconds without any
    rounding."""
    assert (
        _sql_ns(con, text)
        == units.decimal_to_ns(units.us_to_decimal(Decimal(text)))
        == int(Decimal(text) * 1000)
    )


@given(_decimals(5, 10**13) | _decimals(9, 9 * 10**15))
def test_more_decimals_round_alike(con: duckdb.DuckDBPyConnection, text: str) -> None:
    """More decimals are rounded half away from zero, by SQL and by Python alike."""
    assert _sql_ns(con, text) == units.decimal_to_ns(units.us_to_decimal(Decimal(text))) == _exact_ns(text)


@given(_decimals(5, 9 * 10**12))
def test_narrow_and_wide_agree(con: duckdb.DuckDBPyConnection, text: str) -> None:
    """The 64-bit type gives what the wide one gives, wherever it can hold the value."""
    assert _sql_ns(con, text, units.NARROW) == _sql_ns(con, text)


@given(st.integers(-9 * 10**15, 9 * 10**15))
def test_integers_are_exact(con: duckdb.DuckDBPyConnection, number: int) -> None:
    """Whole microseconds, as torch up to 2.2 writes them, are exact."""
    assert (
        _sql_ns(con, str(number))
        == units.decimal_to_ns(units.us_to_decimal(Decimal(number)))
        == number * 1000
    )


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1790857026000000.123", 1790857026000000123),
        ("0.0005", 1),
        ("-0.0005", -1),
        ("0.0004", 0),
        ("0", 0),
        ("9223372036854775.807", 2**63 - 1),
    ],
)
def test_known_values(con: duckdb.DuckDBPyConnection, text: str, wanted: int) -> None:
    """Values at the edges: absolute times, halves, the largest BIGINT."""
    assert _sql_ns(con, text) == units.decimal_to_ns(units.us_to_decimal(Decimal(text))) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"), [("1.123", False), ("1.1234", True), ("-1.00001", True), ("5", False)]
)
def test_digits_below_a_nanosecond_are_seen(con: duckdb.DuckDBPyConnection, text: str, wanted: bool) -> None:
    """A value with more than three decimals is marked."""
    assert con.sql(
        f"SELECT {units.sql_is_sub_ns('v')} FROM (SELECT '{text}'::{units.WIDE} AS v)"
    ).fetchall() == [(wanted,)]
