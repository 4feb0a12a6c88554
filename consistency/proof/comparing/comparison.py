"""Compares each stable tuple of a client with the truth, and checks what became of each tentative one.

Three stages, so that a right stream costs one pass over each side: digests of blocks of places; then, by place (a
stable id is an ordinal), the tuples of blocks whose digests differ; then, by content, the tuples that do not match at
their place.  Nothing is collected; errors come out as a frame of FLAWS:

    flaw string, partition int, place long, time_us long, sequence long, row int, arrived_us long,
    received struct<attributes>, expected struct<attributes>
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from consistency.proof.comparing.definition import not_in_place
from consistency.proof.comparing.digests import BLOCK, BLOCKS, BlockDigests, block_digests, summed
from consistency.proof.comparing.values import FLOAT_TOLERANCE, content
from consistency.proof.recorded.elements import STABLE, TENTATIVE, is_behind, is_belated
from consistency.proof.recorded.received_output import ReceivedStream
from consistency.proof.report.model import Flaw
from consistency.proof.storage.files import TruthFiles
from consistency.proof.storage.tables import on_disk
from spe.stream.schema import Schema


def tolerance_text() -> str:
    """Returns the tolerance as a sentence of the report."""
    return f"Floats may differ by a share of {FLOAT_TOLERANCE:.0e}, everything else not at all.".replace("e-0", "e-")


def unplaced(
    truth: DataFrame, received: ReceivedStream, schema: Schema, files: TruthFiles | None = None
) -> DataFrame | None:
    """Runs stages one and two: ``definition.not_in_place`` of the blocks whose digests differ; None if none does.

    Args:
      files: of the truth, if tasks can read them.
    """
    if files is None:
        theirs = truth.select("partition", "place", F.col("time_us").alias("true_us"), F.col("tuple").alias("expected"))
        digests = block_digests(theirs, "expected", "true_us", schema, "their")
    else:
        digests = summed(files.through(BlockDigests(schema), BLOCKS), "their")
    wrong = _differing(digests, received, schema)
    if wrong.isEmpty():
        return None
    block = F.floor(F.col("place") / BLOCK)
    true = truth.withColumn("block", block).join(F.broadcast(wrong), ["partition", "block"], how="left_semi")
    return not_in_place(true, received.of_blocks(F.broadcast(wrong)), schema)


def _differing(theirs: DataFrame, received: ReceivedStream, schema: Schema) -> DataFrame:
    """Returns ``partition, block`` of the blocks of places whose two sides differ in any bit."""
    key = ["partition", "block"]
    same = [F.col(f"their_{what}").eqNullSafe(F.col(f"our_{what}")) for what in ("count", "digest")]
    return on_disk(
        theirs.join(received.digests(schema), key, how="full_outer").where(~(same[0] & same[1])).select(*key)
    )


def sorted_out(rest: DataFrame) -> tuple[int, DataFrame | None, DataFrame | None]:
    """Splits the result of :func:`unplaced`: count of tuples that may still come, wrong tuples, early tuples.

    Args:
      rest: with ``open``: the tuple may still come; ``unfounded``: it was received beyond the end of the logs.

    Returns:
      The count and two frames; None in place of an empty frame.
    """
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
    """Runs stage three: FLAWS of the tuples that :func:`unplaced` returned, in an order of blame.

    The n-th of equal received tuples is paired with the n-th of equal true ones.  A pair was moved: REORDERED if other
    tuples overtook it, MISNUMBERED if ids were left out. Of the rest, a tuple in the place of a lost one is ALTERED;
    other lost tuples are MISSING; other received tuples are DUPLICATED if the truth has an equal tuple, else EXTRA.

    Args:
      gapped: partitions with a gap in their ids; in others, moved tuples follow from missing or extra ones.
    """
    met = _paired_by_content(rest, schema)
    moved = _moved(met.where(F.col("expected").isNotNull() & F.col("received").isNotNull()), gapped)
    gone = met.where(F.col("received").isNull()).select("partition", "time_us", "true_place", "expected")
    come = met.where(F.col("expected").isNull()).select(
        "partition", "place", F.col("time_us").alias("odd_us"), "content", "sequence", "row", "arrived_us", "received"
    )
    return moved.unionByName(
        _replaced(gone, come, truth.select("partition", "time_us", content("tuple", schema).alias("content")))
    )


def _paired_by_content(rest: DataFrame, schema: Schema) -> DataFrame:
    """Pairs lost tuples with equal ones that were received: a full outer join."""
    lost = rest.where(F.col("expected").isNotNull()).withColumn("content", content("expected", schema))
    odd = rest.where(F.col("received").isNotNull()).withColumn("content", content("received", schema))
    key = ["partition", "time_us", "content"]
    lost = lost.withColumn("nth", F.row_number().over(Window.partitionBy(*key).orderBy("place")))
    odd = odd.withColumn("nth", F.row_number().over(Window.partitionBy(*key).orderBy("sequence", "row")))
    lost = lost.select(*key, "nth", F.col("place").alias("true_place"), "expected")
    odd = odd.select(*key, "nth", "place", "sequence", "row", "arrived_us", "received")
    return lost.join(odd, [*key, "nth"], how="full_outer")


def _moved(pairs: DataFrame, gapped: Sequence[int]) -> DataFrame:
    """Returns FLAWS of tuples that were received elsewhere than in their place."""
    arrival = Window.partitionBy("partition").orderBy("sequence", "row")
    earlier = arrival.rowsBetween(Window.unboundedPreceding, -1)
    later = arrival.rowsBetween(1, Window.unboundedFollowing)
    overtaken = (F.max("true_place").over(earlier) > F.col("true_place")) | (
        F.min("true_place").over(later) < F.col("true_place")
    )
    flaw = F.when(overtaken, Flaw.REORDERED.value)
    if gapped:
        flaw = flaw.when(F.col("partition").isin(*gapped), Flaw.MISNUMBERED.value)
    return _flaws(pairs.withColumn("flaw", flaw).where("flaw is not null").withColumn("place", F.col("true_place")))


def _replaced(gone: DataFrame, come: DataFrame, truth: DataFrame) -> DataFrame:
    """Returns FLAWS of lost tuples, and of received ones in their places or elsewhere; ``truth`` has all contents."""
    first = Window.partitionBy("partition", "place").orderBy("sequence", "row")
    come = come.withColumn("copy", F.row_number().over(first))
    paired = gone.withColumn("place", F.col("true_place")).withColumn("copy", F.lit(1))
    paired = paired.join(come, ["partition", "place", "copy"], how="full_outer")
    known = truth.distinct().withColumnRenamed("time_us", "odd_us").withColumn("known", F.lit(True))
    judged = paired.join(known, ["partition", "odd_us", "content"], how="left")
    flaw = (
        F.when(F.col("received").isNull(), Flaw.MISSING.value)
        .when(F.col("expected").isNotNull(), Flaw.ALTERED.value)
        .when(F.col("known"), Flaw.DUPLICATED.value)
        .otherwise(Flaw.EXTRA.value)
    )
    return _flaws(judged.withColumn("flaw", flaw).withColumn("time_us", F.coalesce("time_us", "odd_us")))


def unfounded(rest: DataFrame) -> DataFrame:
    """Returns FLAWS of the unplaced stable tuples that lie beyond what the sources' logs imply (S3)."""
    return _flaws(rest.withColumn("flaw", F.lit(Flaw.UNFOUNDED.value)))


def late(received: DataFrame, parts: DataFrame) -> DataFrame:
    """Returns FLAWS of tuples with the right id that came after a larger id; copies of earlier tuples are excluded."""
    behind = parts.where(is_behind())
    rows = received.where(F.col("kind") == STABLE)
    first = Window.partitionBy("partition", "id").orderBy("sequence", "row")
    rows = rows.join(behind.select("partition", "sequence", "passed_id"), ["partition", "sequence"], how="left")
    rows = rows.withColumn("copy", F.row_number().over(first))
    flawed = rows.where((F.col("id") <= F.col("passed_id")) & (F.col("copy") == 1))
    return _of_received(flawed, Flaw.REORDERED)


def belated(received: DataFrame, parts: DataFrame) -> DataFrame:
    """Returns FLAWS of new stable tuples from below an earlier stable boundary (B1, B7)."""
    which = parts.where(is_belated()).select("partition", "sequence", "final_us", "passed_id")
    rows = received.where(F.col("kind") == STABLE).join(F.broadcast(which), ["partition", "sequence"])
    new = F.col("id") > F.coalesce("passed_id", F.lit(0))
    return _of_received(rows.where(new & (F.col("time_us") < F.col("final_us"))), Flaw.BELATED)


def undone(received: DataFrame, stretches: DataFrame) -> DataFrame:
    """Returns FLAWS of stable tuples that an undo reached behind (P4)."""
    wrong = stretches.where(F.col("kept_id") < F.col("stable_id")).select(
        F.col("partition").alias("p"), "undone_sequence", "kept_id"
    )
    reached = (F.col("partition") == F.col("p")) & (F.col("sequence") < F.col("undone_sequence"))
    rows = received.where(F.col("kind") == STABLE)
    flawed = rows.join(F.broadcast(wrong), reached & (F.col("id") > F.col("kept_id")), how="left_semi")
    return _of_received(flawed, Flaw.UNDONE)


def unresolved(received: DataFrame, stretches: DataFrame) -> DataFrame:
    """Returns FLAWS of tentative tuples that no undo revoked, or that stable tuples followed before the undo."""
    open_ = stretches.where((F.col("tentative") > 0) & F.col("undone_sequence").isNull())
    uncorrected = _tentative_from(received, open_.withColumn("until", F.lit(2**62)), Flaw.UNCORRECTED)
    passed = stretches.where(
        F.col("undone_sequence").isNotNull() & (F.col("tentative_sequence") < F.col("stable_sequence"))
    )
    return uncorrected.unionByName(
        _tentative_from(received, passed.withColumn("until", F.col("stable_sequence")), Flaw.OVERTAKEN)
    )


def _tentative_from(received: DataFrame, stretches: DataFrame, flaw: Flaw) -> DataFrame:
    """Returns FLAWS of the tentative tuples from the first one of a stretch up to a record."""
    which = stretches.select(F.col("partition").alias("p"), "tentative_sequence", "until")
    inside = (F.col("partition") == F.col("p")) & (F.col("sequence") < F.col("until"))
    rows = received.where(F.col("kind") == TENTATIVE)
    flawed = rows.join(F.broadcast(which), inside & (F.col("sequence") >= F.col("tentative_sequence")), how="left_semi")
    return _of_received(flawed, flaw)


def _of_received(rows: DataFrame, flaw: Flaw) -> DataFrame:
    named = rows.withColumn("flaw", F.lit(flaw.value)).withColumn("place", F.col("id"))
    nothing = F.lit(None).cast(rows.schema["tuple"].dataType)
    return _flaws(named.withColumn("received", F.col("tuple")).withColumn("expected", nothing))


def _flaws(frame: DataFrame) -> DataFrame:
    return frame.select(
        "flaw", "partition", "place", "time_us", "sequence", "row", "arrived_us", "received", "expected"
    )
