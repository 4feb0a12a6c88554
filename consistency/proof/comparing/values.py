"""Equality of values and tuples, as expressions of Spark."""

from __future__ import annotations

import math
from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from consistency.proof.comparing.digests import null_masks
from spe.stream.schema import AttributeType, Schema

#: Two floats are equal when they differ by at most this share of the larger one, since Spark adds in another order
#: than the engine.  Other types are compared exactly.
FLOAT_TOLERANCE: Final = 1e-9
#: Misplaced floats are paired by their value in single precision; beyond these magnitudes, which single precision
#: cannot represent, by their decimal digits (twenty times slower).
_SINGLE: Final = (1e-30, 1e30)
_DIGITS: Final = 7


def alike(left: Column, right: Column, type_: AttributeType, tolerance: float = FLOAT_TOLERANCE) -> Column:
    """Compares two values of an attribute within the tolerance.  Null equals null, NaN equals NaN."""
    if type_ is not AttributeType.FLOAT64:
        return left.eqNullSafe(right)
    larger = F.greatest(F.abs(left), F.abs(right))
    # In Spark NaN is larger than any number; for infinities the share of the larger one would be infinite.
    near = (larger < F.lit(math.inf)) & (F.abs(left - right) <= F.lit(tolerance) * larger)
    return left.eqNullSafe(right) | F.coalesce(near, F.lit(False))


def all_alike(left: str, right: str, schema: Schema, tolerance: float = FLOAT_TOLERANCE) -> Column:
    """Compares the structs in two columns attribute by attribute."""
    same = [alike(F.col(f"{left}.`{a.name}`"), F.col(f"{right}.`{a.name}`"), a.type, tolerance) for a in schema]
    return reduce(lambda a, b: a & b, same, F.lit(True))


def content(column: str, schema: Schema) -> Column:
    """Returns a hash that is equal for equal tuples of a struct column; floats count by their first digits.

    Once in some millions two floats within the tolerance have different hashes, and once in 2^64 two different tuples
    have equal ones: use it to name a tuple, never to decide whether there is an error.
    """
    parts: list[Column] = []
    nulls: list[Column] = []
    for name in schema.names:
        value: Column = F.col(f"{column}.`{name}`")
        nulls.append(value.isNull())
        if schema[name].type is AttributeType.FLOAT64:
            single = (value == 0) | F.abs(value).between(*_SINGLE)
            parts.append(F.when(~single, F.format_string(f"%.{_DIGITS}e", value)))
            value = F.when(single, (value + F.lit(0.0)).cast("float"))
        parts.append(value)
    return F.xxhash64(*null_masks(nulls), *parts) if parts else F.lit(0)
