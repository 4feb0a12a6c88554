"""Arithmetic with Spark's rules (ANSI off) on whole columns.

Arguments are arrays or Python scalars, at least one an array.  Each function is total: if Spark gives NULL, the
function returns a second array that is False there.  NumPy's warnings are off while these run.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]
#: Any array, or a Python scalar.
Values = Any

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1


# Division.  A zero divisor is replaced, and the result marked as null.


def divide(a: Values, b: Values) -> tuple[Values, BoolArray]:
    some = np.not_equal(b, 0)
    return a / np.where(some, b, 1.0), some


def remainder(a: Values, b: Values) -> tuple[Values, BoolArray]:
    """Remainder with the sign of the dividend."""
    some = np.not_equal(b, 0)
    return np.fmod(a, np.where(some, b, 1)), some


def int_divide(a: Values, b: Values) -> tuple[Values, BoolArray]:
    """Divides, truncating towards zero; −2⁶³ div −1 wraps."""
    some = np.not_equal(b, 0)
    return int_divide_by(a, np.where(some, b, 1)), some


def int_divide_by(a: Values, b: Values) -> Values:
    """Divides as :func:`int_divide`, with no zero in ``b``."""
    return (a - np.fmod(a, b)) // b


def positive_remainder(a: Values, b: Values) -> tuple[Values, BoolArray]:
    """Remainder as in Java: (a % b + b) % b if a % b is negative, so a negative divisor gives a negative result."""
    some = np.not_equal(b, 0)
    return positive_remainder_by(a, np.where(some, b, 1)), some


def positive_remainder_by(a: Values, b: Values) -> Values:
    r = np.fmod(a, b)
    return np.where(r < 0, np.fmod(r + b, b), r)


# Order of floats: NaN equals NaN and is larger than everything (else the operators do).


def float_equal(a: Values, b: Values) -> Values:
    return (a == b) | ((a != a) & (b != b))


def float_less(a: Values, b: Values) -> Values:
    return ~(a >= b) & (a == a)


def float_less_equal(a: Values, b: Values) -> Values:
    return (a <= b) | (b != b)


# Rounding.


def ceil_to_int(a: Values) -> Values:
    return float_to_int(np.ceil(a))


def floor_to_int(a: Values) -> Values:
    return float_to_int(np.floor(a))


def float_to_int(a: Values) -> Values:
    """Truncates towards zero; clips to the range; NaN becomes 0."""
    inside = (a < 2.0**63) & (a >= -(2.0**63))
    whole = np.where(inside, a, 0.0).astype(np.int64)
    if inside.all():
        return whole
    return np.where(inside, whole, np.where(a > 0, INT64_MAX, np.where(a < 0, INT64_MIN, 0)))


def round_half_up(a: Values, digits: int = 0) -> Values:
    """Rounds halves away from zero, by the shortest decimal of the number: round(1.005, 2) is 1.01.

    If the scaled number is further from a half than its error, binary arithmetic gives the same; only the rest uses
    decimals.
    """
    size = np.abs(a)
    scaled = size * 10.0**digits
    whole = np.floor(scaled)
    over = scaled - whole
    result = np.where(over >= 0.5, whole + 1.0, whole) / 10.0**digits
    clear = (np.abs(over - 0.5) > scaled * 2.0**-51) & (scaled < 2.0**52)
    result = np.where(scaled < 2.0**52, result, size)
    # from 2⁶⁰ on the 17 digits of a float64 end before the rounded place
    unclear = np.flatnonzero(~clear & (scaled < 2.0**60)) if digits else np.empty(0, np.int64)
    for i in unclear.tolist():
        exact = Decimal(repr(float(size[i])))
        result[i] = float(exact.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))
    return np.copysign(result, a)


# Casts.


def int_to_timestamp(a: Values) -> Values:
    """Converts seconds to microseconds, clipped to the range."""
    limit = INT64_MAX // 1_000_000
    inside = (a <= limit) & (a >= -limit)
    return np.where(inside, np.where(inside, a, 0) * 1_000_000, np.where(a > 0, INT64_MAX, INT64_MIN))


def float_to_timestamp(a: Values) -> tuple[Values, BoolArray]:
    return float_to_int(a * 1e6), np.isfinite(a)


def checked_product(factor: int) -> Any:
    """Returns a function: ``a * factor``, null out of range."""
    limit = INT64_MAX // factor

    def product(a: Values) -> tuple[Values, BoolArray]:
        inside = (a <= limit) & (a >= -limit)
        return np.where(inside, a, 0) * factor, inside

    return product
