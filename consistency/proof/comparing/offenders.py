"""The first tuples with each flaw, and the elements that the client received around them."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from consistency.proof.recorded.elements import REC_DONE, STABLE, STABLE_BOUNDARY, TENTATIVE, TENTATIVE_BOUNDARY, UNDO
from consistency.proof.report.model import Flaw, Offender
from consistency.proof.report.words import moment, plural, seconds
from spe.stream.schema import AttributeType, Schema

#: Number of tuples shown of each flaw; the others are in the table.
FIRST: Final = 10
#: Elements shown before and behind an offender.
_AROUND: Final = 3


def first_offenders(flaws: DataFrame, parts: DataFrame, schema: Schema, begun_us: int) -> dict[Flaw, list[Offender]]:
    """Returns the first tuples with each flaw, in the order of the stream."""
    order = Window.partitionBy("flaw").orderBy("partition", "place", "sequence", "row")
    first = flaws.withColumn("_n", F.row_number().over(order)).where(F.col("_n") <= FIRST).drop("_n")
    first = first.withColumns({name: in_micros(first, name, schema) for name in ("received", "expected")})
    # A tuple that was never received is shown where the next stable tuple came.
    ahead = parts.where(F.col("kind") == STABLE).select(
        F.col("partition").alias("p"), F.col("id").alias("last"), "sequence"
    )
    never = first.where(F.col("sequence").isNull()).select("flaw", "partition", "place").distinct()
    near = (
        ahead.withColumnRenamed("sequence", "near")
        .join(F.broadcast(never), (F.col("partition") == F.col("p")) & (F.col("last") >= F.col("place")))
        .groupBy("flaw", "partition", "place")
        .agg(F.min("near").alias("near"))
    )
    rows = first.join(near, ["flaw", "partition", "place"], how="left").orderBy("flaw", "partition", "place").collect()
    places = {(r["partition"], _where(r)) for r in rows if _where(r) is not None}
    surroundings = _around(parts, places)
    offenders: dict[Flaw, list[Offender]] = {}
    for row in rows:
        offenders.setdefault(Flaw(row["flaw"]), []).append(_offender(row, schema, begun_us, surroundings))
    return offenders


def in_micros(frame: DataFrame, column: str, schema: Schema) -> Column:
    """Returns a struct with its timestamps as numbers: when collected, they would turn into local time."""
    struct = F.col(column)
    type_ = frame.schema[column].dataType
    assert isinstance(type_, T.StructType)
    for name in schema.names:
        if isinstance(type_[name].dataType, T.TimestampType):
            struct = struct.withField(f"`{name}`", F.unix_micros(F.col(f"{column}.`{name}`")))
    return struct


def _where(row: Row) -> int | None:
    """Returns the record that a tuple came with, or at which it should have come."""
    sequence: int | None = row["sequence"] if row["sequence"] is not None else row["near"]
    return sequence


def _around(parts: DataFrame, places: set[tuple[int, int | None]]) -> dict[int, list[Row]]:
    """Returns elements near the places, by partition."""
    if not places:
        return {}
    near = [
        (F.col("partition") == p) & F.col("sequence").between(s - _AROUND, s + _AROUND)
        for p, s in places
        if s is not None
    ]
    rows = parts.where(reduce(lambda a, b: a | b, near)).orderBy("partition", "sequence").collect()
    by_partition: dict[int, list[Row]] = {}
    for row in rows:
        by_partition.setdefault(row["partition"], []).append(row)
    return by_partition


def _offender(row: Row, schema: Schema, begun_us: int, surroundings: dict[int, list[Row]]) -> Offender:
    received, expected = (plain_row(row[name], schema) for name in ("received", "expected"))
    at = _where(row)
    near = [r for r in surroundings.get(row["partition"], ()) if at is not None and abs(r["sequence"] - at) <= _AROUND]
    return Offender(
        partition=row["partition"],
        place=row["place"],
        time=moment(row["time_us"]),
        tuple=(received if received is not None else expected) or {},
        expected=expected if received is not None else None,
        at_us=None if row["arrived_us"] is None else row["arrived_us"] - begun_us,
        around=[("▸ " if r["sequence"] == at else "") + _described(r, begun_us) for r in near],
    )


def plain_row(row: Row | None, schema: Schema) -> dict[str, Any] | None:
    if row is None:
        return None
    values: dict[str, Any] = {}
    for attribute in schema:
        value = row[attribute.name]
        if attribute.type is AttributeType.TIMESTAMP and isinstance(value, int):
            value = moment(value)
        plain = isinstance(value, int | str | None) or (isinstance(value, float) and math.isfinite(value))
        values[attribute.name] = value if plain else str(value)  # JSON has no NaN
    return values


def _described(part: Row, begun_us: int) -> str:
    """Describes an element: ``3.2 s  stable 16 to 23, times until 08:37:35``."""
    kind, at = part["kind"], seconds(part["arrived_us"] - begun_us)
    if kind in (STABLE, TENTATIVE):
        which = f"{part['first_id']}" if part["first_id"] == part["id"] else f"{part['first_id']} to {part['id']}"
        return f"{at}  {kind} {which} ({plural(part['count'], 'tuple')}, until {moment(part['last_us'])})"
    if kind == UNDO:
        return f"{at}  undo to {part['id']}"
    if kind == REC_DONE:
        return f"{at}  rec_done"
    words = {STABLE_BOUNDARY: "boundary", TENTATIVE_BOUNDARY: "tentative boundary"}
    return f"{at}  {words[kind]} {moment(part['last_us'])}"
