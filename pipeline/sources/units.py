"""The only time conversions: microseconds with a decimal fraction, as written in the file, to whole
nanoseconds.

Chrome traces hold microseconds, always (displayTimeUnit is a hint for viewers). Absolute epoch times need
more digits than a double has, so values are parsed as decimals with DIGITS fractional digits, then rounded
half away from zero.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

DIGITS = 5
NARROW = f"DECIMAL(18,{DIGITS})"
"""Fits times relative to a base (up to 10^13 us); stored in 64 bits, so it is the fast one."""
WIDE = f"DECIMAL(38,{DIGITS})"
"""Fits absolute times."""
FARTHEST_NS = 2**62
"""Times beyond it (before 1823, after 2116) are invalid; sums and differences of valid times fit 64 bits."""
LONGEST_NS = 10**14
"""Longer durations (over a day) are invalid; a sum of 92,000 valid ones fits 64 bits."""

_STEP = Decimal(1).scaleb(-DIGITS)


def sql_ns(column: str) -> str:
    """SQL: a NARROW or WIDE column of microseconds as BIGINT nanoseconds (split so that 64 bits never
    overflow)."""
    return f"(trunc({column})::BIGINT * 1000 + round(({column} - trunc({column})) * 1000)::BIGINT)"


def sql_is_sub_ns(column: str) -> str:
    """SQL: does the value have digits below one nanosecond?"""
    return f"({column} <> round({column}, 3))"


def us_to_decimal(value: Decimal) -> Decimal:
    """Microseconds with DIGITS fractional digits, rounded as DuckDB rounds."""
    return value.quantize(_STEP, ROUND_HALF_UP)


def decimal_to_ns(us: Decimal) -> int:
    """Nanoseconds of a value from us_to_decimal."""
    return int((us * 1000).quantize(Decimal(1), ROUND_HALF_UP))
