"""Every tuple that a client received as stable against the truth, and every tentative one against its fate.

Three stages, so that a right stream costs one pass over each side: digests of some thousand places each, then by place
(a stable id is an ordinal) what has another digest, and then by content what does not match at its place.  Nothing is
collected; what is wrong comes out as a frame of FLAWS:

    flaw string, partition int, place long, time_us long, sequence long, row int, arrived_us long,
    received struct<attributes>, expected struct<attributes>
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Final

from consistency.proof.comparing.digests import BLOCK, BLOCKS, BlockDigests, block_digests, null_masks, summed
from consistency.proof.recorded.elements import STABLE, TENTATIVE, is_behind, is_belated
from consistency.proof.recorded.received_output import ReceivedStream
from consistency.proof.report.model import Flaw
from consistency.proof.storage.tables import on_disk
from spe.stream.schema import AttributeType, Schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from consistency.proof.truth import TruthFiles

#: Two floats are equal when they differ by at most this share of the larger one: Spark adds up in another order than
#: the engine does.  All else is exact.
FLOAT_TOLERANCE: Final = 1e-9
#: Floats are paired by their value in single precision where tuples are not at their places; beyond these magnitudes,
#: which single precision does not have, by so many digits after the first (twenty times slower).
_SINGLE: Final = (1e-30, 1e30)
_DIGITS: Final = 7

_PLACE: Final = ("partition", "place")


def tolerance_text() -> str:
    """For the report."""
    return f"Floats may differ by a share of {FLOAT_TOLERANCE:.0e}, everything else not at all.".replace("e-0", "e-")


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


def unplaced(
    truth: DataFrame, received: ReceivedStream, schema: Schema, files: TruthFiles | None = None
) -> DataFrame | None:
    """Stages one and two: true and received tuples that do not meet at their place; None where digests say that all do.

    Columns: ``partition, place, time_us, sequence, row, arrived_us, received, expected``; one of the last two is null.
    A true tuple that was received several times at its place leaves the later copies over.

    Args:
      files: of the truth, where tasks can read it themselves.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    theirs = truth.select("partition", "place", F.col("time_us").alias("true_us"), F.col("tuple").alias("expected"))
    if files is None:
        digests = block_digests(theirs, "expected", "true_us", schema, "their")
    else:
        digests = summed(files.through(BlockDigests(schema), BLOCKS), "their")
    wrong = _differing(digests, received, schema)
    if wrong.isEmpty():
        return None
    block = F.floor(F.col("place") / BLOCK)
    theirs = theirs.withColumn("block", block).join(F.broadcast(wrong), ["partition", "block"], how="left_semi")
    ours = received.of_blocks(F.broadcast(wrong)).select(
        "partition",
        F.col("id").alias("place"),
        "time_us",
        "sequence",
        "row",
        "arrived_us",
        F.col("tuple").alias("received"),
    )
    theirs = theirs.drop("block")
    same = F.col("time_us").eqNullSafe(F.col("true_us")) & all_alike("received", "expected", schema)
    same = same & F.col("expected").isNotNull() & F.col("received").isNotNull()
    copies = Window.partitionBy(*_PLACE).orderBy(F.col("same").desc(), "sequence", "row")
    met = theirs.join(ours, list(_PLACE), how="full_outer").withColumn("same", same)
    met = met.withColumn("copy", F.row_number().over(copies))
    rest = met.where(~F.col("same") | (F.col("copy") > 1))
    arrival = [F.col(name) for name in ("sequence", "row", "arrived_us")]
    nothing = [F.lit(None).cast(type_) for type_ in ("long", "int", "long")]
    lost = rest.where(F.col("expected").isNotNull() & (F.col("copy") == 1)).select(
        *_PLACE,
        F.col("true_us").alias("time_us"),
        *(n.alias(name) for n, name in zip(nothing, ("sequence", "row", "arrived_us"))),
        F.lit(None).cast(theirs.schema["expected"].dataType).alias("received"),
        "expected",
    )
    odd = rest.where(F.col("received").isNotNull()).select(
        *_PLACE, "time_us", *arrival, "received", F.lit(None).cast(ours.schema["received"].dataType).alias("expected")
    )
    return lost.unionByName(odd)


def _differing(theirs: DataFrame, received: ReceivedStream, schema: Schema) -> DataFrame:
    """``partition, block`` of the blocks of places that are not the same on both sides to the last bit."""
    from pyspark.sql import functions as F

    key = ["partition", "block"]
    same = [F.col(f"their_{what}").eqNullSafe(F.col(f"our_{what}")) for what in ("count", "digest")]
    return on_disk(
        theirs.join(received.digests(schema), key, how="full_outer").where(~(same[0] & same[1])).select(*key)
    )


def sorted_out(rest: DataFrame) -> tuple[int, DataFrame | None, DataFrame | None]:
    """Of :func:`unplaced`, with flags: how many may still come, those that are wrong, and those received too early.

    Args:
      rest: with ``open``: it may still come; ``unfounded``: it was received beyond the end of the logs.

    Returns:
      None in place of a frame that is empty.
    """
    from pyspark.sql import functions as F

    open_, unfounded_ = F.col("open"), F.col("unfounded")
    counts = rest.agg(
        F.count(F.when(open_, 1)).alias("to_come"),
        F.count(F.when(unfounded_, 1)).alias("unfounded"),
        F.count(F.when(~open_ & ~unfounded_, 1)).alias("wrong"),
    ).first()
    assert counts is not None
    wrong = rest.where(~open_ & ~unfounded_).drop("open", "unfounded") if counts["wrong"] else None
    return counts["to_come"], wrong, rest.where(unfounded_) if counts["unfounded"] else None


def misplaced(rest: DataFrame, truth: DataFrame, schema: Schema, gapped: Sequence[int] = ()) -> DataFrame:
    """Stage three: FLAWS of what :func:`unplaced` left over, in an order of blame.

    By content, the n-th of equal ones to the n-th: what meets so was only moved, and is REORDERED where others
    overtook it, or MISNUMBERED where ids were left out. Of the rest, what stands in the place of a lost tuple is
    ALTERED; other lost ones are MISSING; other received ones are DUPLICATED where the truth has their like, and EXTRA
    where it has not.

    Args:
      gapped: partitions in whose ids is a gap; in others moved tuples follow from missing or extra ones.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    lost = rest.where(F.col("expected").isNotNull()).withColumn("content", content("expected", schema))
    odd = rest.where(F.col("received").isNotNull()).withColumn("content", content("received", schema))
    key = ["partition", "time_us", "content"]
    lost = lost.withColumn("nth", F.row_number().over(Window.partitionBy(*key).orderBy("place")))
    odd = odd.withColumn("nth", F.row_number().over(Window.partitionBy(*key).orderBy("sequence", "row")))
    lost = lost.select(*key, "nth", F.col("place").alias("true_place"), "expected")
    odd = odd.select(*key, "nth", "place", "sequence", "row", "arrived_us", "received")
    met = lost.join(odd, [*key, "nth"], how="full_outer")

    moved = met.where(F.col("expected").isNotNull() & F.col("received").isNotNull())
    arrival = Window.partitionBy("partition").orderBy("sequence", "row")
    earlier = arrival.rowsBetween(Window.unboundedPreceding, -1)
    later = arrival.rowsBetween(1, Window.unboundedFollowing)
    overtaken = (F.max("true_place").over(earlier) > F.col("true_place")) | (
        F.min("true_place").over(later) < F.col("true_place")
    )
    flaw = F.when(overtaken, Flaw.REORDERED.value)
    if gapped:
        flaw = flaw.when(F.col("partition").isin(*gapped), Flaw.MISNUMBERED.value)
    reordered = moved.withColumn("flaw", flaw).where("flaw is not null")

    gone = met.where(F.col("received").isNull()).select("partition", "time_us", "true_place", "expected")
    come = met.where(F.col("expected").isNull()).select(
        "partition", "place", F.col("time_us").alias("odd_us"), "content", "sequence", "row", "arrived_us", "received"
    )
    first = Window.partitionBy("partition", "place").orderBy("sequence", "row")
    come = come.withColumn("copy", F.row_number().over(first))
    paired = gone.withColumn("place", F.col("true_place")).withColumn("copy", F.lit(1))
    paired = paired.join(come, ["partition", "place", "copy"], how="full_outer")
    known = truth.select("partition", "time_us", content("tuple", schema).alias("content")).distinct()
    known = known.withColumnRenamed("time_us", "odd_us").withColumn("known", F.lit(True))
    judged = paired.join(known, ["partition", "odd_us", "content"], how="left")
    flaw = (
        F.when(F.col("received").isNull(), Flaw.MISSING.value)
        .when(F.col("expected").isNotNull(), Flaw.ALTERED.value)
        .when(F.col("known"), Flaw.DUPLICATED.value)
        .otherwise(Flaw.EXTRA.value)
    )
    judged = judged.withColumn("flaw", flaw).withColumn("time_us", F.coalesce("time_us", "odd_us"))
    return _flaws(reordered.withColumn("place", F.col("true_place"))).unionByName(_flaws(judged))


def unfounded(rest: DataFrame) -> DataFrame:
    """FLAWS of stable tuples that :func:`unplaced` left over and that lie beyond what the sources' logs imply (S3)."""
    from pyspark.sql import functions as F

    return _flaws(rest.withColumn("flaw", F.lit(Flaw.UNFOUNDED.value)))


def late(received: DataFrame, parts: DataFrame) -> DataFrame:
    """FLAWS of tuples that came, with the right id, after a larger one; copies of earlier ones are not meant."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    behind = parts.where(is_behind())
    rows = received.where(F.col("kind") == STABLE)
    first = Window.partitionBy("partition", "id").orderBy("sequence", "row")
    rows = rows.join(behind.select("partition", "sequence", "passed_id"), ["partition", "sequence"], how="left")
    rows = rows.withColumn("copy", F.row_number().over(first))
    found = rows.where((F.col("id") <= F.col("passed_id")) & (F.col("copy") == 1))
    return _of_received(found, Flaw.REORDERED)


def belated(received: DataFrame, parts: DataFrame) -> DataFrame:
    """FLAWS of new stable tuples from below an earlier stable boundary (B2, B7)."""
    from pyspark.sql import functions as F

    which = parts.where(is_belated()).select("partition", "sequence", "final_us", "passed_id")
    rows = received.where(F.col("kind") == STABLE).join(F.broadcast(which), ["partition", "sequence"])
    new = F.col("id") > F.coalesce("passed_id", F.lit(0))
    return _of_received(rows.where(new & (F.col("time_us") < F.col("final_us"))), Flaw.BELATED)


def undone(received: DataFrame, stretches: DataFrame) -> DataFrame:
    """FLAWS of stable tuples behind which an undo reaches (P4)."""
    from pyspark.sql import functions as F

    wrong = stretches.where(F.col("kept_id") < F.col("stable_id")).select(
        F.col("partition").alias("p"), "undone_sequence", "kept_id"
    )
    reached = (F.col("partition") == F.col("p")) & (F.col("sequence") < F.col("undone_sequence"))
    rows = received.where(F.col("kind") == STABLE)
    found = rows.join(F.broadcast(wrong), reached & (F.col("id") > F.col("kept_id")), how="left_semi")
    return _of_received(found, Flaw.UNDONE)


def unresolved(received: DataFrame, stretches: DataFrame) -> DataFrame:
    """FLAWS of tentative tuples that no undo ever took back, or that stable ones followed before it did."""
    from pyspark.sql import functions as F

    open_ = stretches.where((F.col("tentative") > 0) & F.col("undone_sequence").isNull())
    uncorrected = _tentative_from(received, open_.withColumn("until", F.lit(2**62)), Flaw.UNCORRECTED)
    passed = stretches.where(
        F.col("undone_sequence").isNotNull() & (F.col("tentative_sequence") < F.col("stable_sequence"))
    )
    return uncorrected.unionByName(
        _tentative_from(received, passed.withColumn("until", F.col("stable_sequence")), Flaw.OVERTAKEN)
    )


def _tentative_from(received: DataFrame, stretches: DataFrame, flaw: Flaw) -> DataFrame:
    """The tentative tuples from the first one of a stretch until a record."""
    from pyspark.sql import functions as F

    which = stretches.select(F.col("partition").alias("p"), "tentative_sequence", "until")
    inside = (F.col("partition") == F.col("p")) & (F.col("sequence") < F.col("until"))
    rows = received.where(F.col("kind") == TENTATIVE)
    found = rows.join(F.broadcast(which), inside & (F.col("sequence") >= F.col("tentative_sequence")), how="left_semi")
    return _of_received(found, flaw)


def _of_received(rows: DataFrame, flaw: Flaw) -> DataFrame:
    from pyspark.sql import functions as F

    named = rows.withColumn("flaw", F.lit(flaw.value)).withColumn("place", F.col("id"))
    nothing = F.lit(None).cast(rows.schema["tuple"].dataType)
    return _flaws(named.withColumn("received", F.col("tuple")).withColumn("expected", nothing))


def _flaws(frame: DataFrame) -> DataFrame:
    return frame.select(
        "flaw", "partition", "place", "time_us", "sequence", "row", "arrived_us", "received", "expected"
    )
