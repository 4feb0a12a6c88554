"""Finds rows of two sides that are missing, added, or differ.

Rows that are equal in all attributes are paired first, each as often as both sides have it.  The rest is paired by key;
if several rows have one key, the n-th of one side is paired with the n-th of the other, in the order of their values.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from consistency.proof.comparing.values import alike, all_alike
from consistency.proof.truth.stream import TIME, quoted
from consistency.proof.two_runs.model import DifferenceKind
from spe.stream.schema import AttributeType, Schema

#: Columns of the result: kind of the difference, and the two rows.
KIND: Final = "__kind"
RUN: Final = "__run"
OTHER: Final = "__other"
_NTH: Final = "__nth"
_MORE: Final = "__more"


def left_over(run: DataFrame, other: DataFrame, schema: Schema) -> DataFrame:
    """Returns rows that one side has more often: the attributes, TIME, and the surplus of each side (RUN, OTHER)."""
    names = [quoted(n) for n in schema.names]
    both = run.select(TIME, *names, F.lit(1).alias(RUN)).unionByName(other.select(TIME, *names, F.lit(-1).alias(RUN)))
    surplus = both.groupBy(*names).agg(F.sum(RUN).alias(_MORE), F.min(TIME).alias(TIME)).where(F.col(_MORE) != 0)
    return surplus.select(
        TIME,
        *names,
        F.greatest(_MORE, F.lit(0)).cast("int").alias(RUN),
        F.greatest(-F.col(_MORE), F.lit(0)).cast("int").alias(OTHER),
    )


def differences(surplus: DataFrame, schema: Schema, key: Sequence[str], tolerance: float) -> DataFrame:
    """Returns a row for each difference: KIND, TIME, and the two rows as structs, one of which may be null.

    Args:
      surplus: result of :func:`left_over`.
    """
    ours = _by_key(surplus, RUN, schema, key)
    theirs = _by_key(surplus, OTHER, schema, key)
    same = [F.col(f"r.{name}").eqNullSafe(F.col(f"o.{name}")) for name in _keys(key)]
    met = ours.alias("r").join(theirs.alias("o"), reduce(lambda a, b: a & b, same), how="full_outer")
    run, other = F.col(RUN), F.col(OTHER)
    kind = F.when(run.isNull(), DifferenceKind.MISSING.value).when(other.isNull(), DifferenceKind.ADDED.value)
    equal = run.isNotNull() & other.isNotNull() & all_alike(RUN, OTHER, schema, tolerance)
    unequal = met.where(~equal).select(
        kind.otherwise(DifferenceKind.DIFFERS.value).alias(KIND),
        F.coalesce(F.col(f"r.{TIME}"), F.col(f"o.{TIME}")).alias(TIME),
        RUN,
        OTHER,
    )
    return unequal


def _keys(key: Sequence[str]) -> list[str]:
    return [*(f"__key{n}" for n in range(len(key))), _NTH]


def _by_key(surplus: DataFrame, side: str, schema: Schema, key: Sequence[str]) -> DataFrame:
    """Returns the rows of one side, as a struct with its name, with their key, and numbered in it."""
    rows = surplus.where(F.col(side) > 0)
    rows = rows.withColumn("__copy", F.explode(F.sequence(F.lit(1), F.col(side))))
    rest = [a for a in schema if a.name not in key]
    exact = [quoted(a.name) for a in rest if a.type is not AttributeType.FLOAT64]
    floats = [quoted(a.name) for a in rest if a.type is AttributeType.FLOAT64]
    order: list[Column | str] = [*exact, *floats] or [F.lit(0)]
    number = F.row_number().over(Window.partitionBy(*[quoted(n) for n in key]).orderBy(*order))
    return rows.select(
        TIME,
        *[F.col(quoted(name)).alias(f"__key{n}") for n, name in enumerate(key)],
        number.alias(_NTH),
        F.struct(*[quoted(n) for n in schema.names]).alias(side),
    )


def in_columns(schema: Schema, tolerance: float) -> list[Column]:
    """Counts for each attribute the pairs of rows in which it differs."""
    both = F.col(KIND) == DifferenceKind.DIFFERS.value
    counts = []
    for at, attribute in enumerate(schema):
        same = alike(
            F.col(f"{RUN}.{quoted(attribute.name)}"),
            F.col(f"{OTHER}.{quoted(attribute.name)}"),
            attribute.type,
            tolerance,
        )
        counts.append(F.count(F.when(both & ~same, 1)).alias(f"_{at}"))
    return counts
