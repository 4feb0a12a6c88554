"""Which values and tuples are equal, as expressions of Spark."""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING, Final

from consistency.proof.comparing.digests import null_masks
from spe.stream.schema import AttributeType, Schema

if TYPE_CHECKING:
    from pyspark.sql import Column

#: Two floats are equal when they differ by at most this share of the larger one: Spark adds up in another order than
#: the engine does.  All else is exact.
FLOAT_TOLERANCE: Final = 1e-9
#: Floats are paired by their value in single precision where tuples are not at their places; beyond these magnitudes,
#: which single precision does not have, by so many digits after the first (twenty times slower).
_SINGLE: Final = (1e-30, 1e30)
_DIGITS: Final = 7


def alike(one: Column, other: Column, type_: AttributeType, tolerance: float = FLOAT_TOLERANCE) -> Column:
    """Are two values of an attribute equal, within the tolerance?  Null equals null, NaN equals NaN."""
    from pyspark.sql import functions as F

    if type_ is not AttributeType.FLOAT64:
        return one.eqNullSafe(other)
    larger = F.greatest(F.abs(one), F.abs(other))
    # To Spark NaN is larger than all else, and the infinities are as near to a number as their share of infinity.
    near = (larger < F.lit(math.inf)) & (F.abs(one - other) <= F.lit(tolerance) * larger)
    return one.eqNullSafe(other) | F.coalesce(near, F.lit(False))


def all_alike(one: str, other: str, schema: Schema, tolerance: float = FLOAT_TOLERANCE) -> Column:
    """Are the structs in two columns the same tuple?"""
    from pyspark.sql import functions as F

    same = [alike(F.col(f"{one}.`{a.name}`"), F.col(f"{other}.`{a.name}`"), a.type, tolerance) for a in schema]
    return reduce(lambda a, b: a & b, same, F.lit(True))


def content(column: str, schema: Schema) -> Column:
    """A number that is equal for equal tuples of a struct column; floats count by their first digits.

    Two floats within the tolerance may, once in some millions, differ in it, and two tuples, once in 2^64, may not:
    what rests on it may name a tuple wrongly, and must not decide whether there is one to name.
    """
    from pyspark.sql import functions as F

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
