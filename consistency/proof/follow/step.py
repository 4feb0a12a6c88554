"""One step of the proof: the truth of a range of tuple time, by Spark, and what clients received of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from consistency.proof.comparing import comparison
from consistency.proof.comparing.offenders import first_offenders
from consistency.proof.comparing.received_types import settled
from consistency.proof.follow.readers import ChannelProgress, ChannelTaken
from consistency.proof.recorded.elements import STABLE, elements
from consistency.proof.recorded.received_output import ReceivedStream, records_of
from consistency.proof.recorded.run import Run
from consistency.proof.report.model import Flaw, Offender
from consistency.proof.storage.tables import frame_of, on_disk
from spe.stream.names import StreamId
from spe.stream.times import END_OF_TIME

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from consistency.proof.truth import TruthNetwork


@dataclass(frozen=True)
class StepFound:
    """What a step found of one output at one client.

    Attributes:
      received: stable tuples of the range.
      flaws: by flaw: how many tuples have it, the first ones, and the smallest tuple time.
      to_come: true tuples beyond what the client has for final, not received.
    """

    received: int
    flaws: Mapping[Flaw, tuple[int, list[Offender], int]]
    to_come: int
    mistyped: Sequence[str]


@dataclass(frozen=True)
class ClientPortion:
    """What is to be judged of one output at one client.

    Attributes:
      known: of each partition, as it was before the step.
      taken: of each partition.
      places: tuples of each partition before the range.
      known_us: how far the logs tell the truth.
      is_source: it is a source's own stream, whose order is that of arrival.
      begun_us: wall time from which offenders count.
    """

    client: str
    output: StreamId
    known: Sequence[ChannelProgress]
    taken: Sequence[ChannelTaken]
    places: Sequence[int]
    known_us: int
    is_source: bool
    begun_us: int


def truth_of(network: TruthNetwork, output: StreamId, places: Sequence[int]) -> tuple[DataFrame, list[int]]:
    """TRUTH of the range, and how many tuples each partition has in it."""
    from pyspark.sql import functions as F

    from consistency.proof.truth import truth

    found = truth(network, output, lambda _, frame: on_disk(frame_of(frame)))
    rows = found.rows
    if output not in network.plan.sources:
        rows = rows.withColumn("place", F.col("place") + _each(places))
    return rows, [found.counts.get(p, 0) for p in range(len(places))]


def judge(spark: SparkSession, run: Run, network: TruthNetwork, truth: DataFrame, asked: ClientPortion) -> StepFound:
    """What a client received of an output in the range, against the truth of it."""
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    from consistency.proof.recorded.recording import changes, summary

    assert network.part is not None
    pieces = [one for taken in asked.taken for one in taken.read]
    records = records_of(on_disk(summary(spark, run, asked.client, asked.output, pieces)))
    everything = ReceivedStream(records, changes(spark, run, asked.client, asked.output, pieces))
    truth, everything, schema, mistyped = settled(truth, everything, run.plan.query.schema_of(asked.output))
    received = _of_the_range(everything.rows, asked, network.part.since_us, network.part.until_us)
    rest = comparison.unplaced(truth, ReceivedStream(records, received), schema)
    found: list[DataFrame] = []
    to_come = 0
    if rest is not None:
        rest = on_disk(rest)
        rest = rest.withColumn("open", F.col("received").isNull() & (F.col("time_us") >= _each(_frontiers(asked))))
        rest = rest.withColumn("unfounded", F.col("received").isNotNull() & (F.col("time_us") >= asked.known_us))
        to_come, wrong, early = comparison.sorted_out(rest)
        if wrong is not None:
            gapped = [partition for partition, one in enumerate(asked.taken) if one.gap]
            flaws = comparison.misplaced(wrong, truth, schema, gapped)
            found.append(_duplicates(flaws, network.part.since_us, asked))
        if early is not None:
            found.append(comparison.unfounded(early))
    parts = elements(records)
    if any(one.behind for one in asked.taken):
        passed = F.greatest("passed_id", _each([one.track.passed_id for one in asked.known]))
        new = parts.withColumn("passed_id", passed).where(F.col("sequence") >= _first_new(asked))
        inside = received.where(F.col("time_us") >= network.part.since_us)
        found.append(comparison.late(inside, new))
    tuples = sum(t.known.track.stable - k.track.stable for t, k in zip(asked.taken, asked.known))
    if not found:
        return StepFound(tuples, {}, to_come, mistyped)
    flaws = on_disk(reduce(DataFrame.unionByName, found))
    rows = flaws.groupBy("flaw").agg(F.count(F.lit(1)).alias("count"), F.min("time_us").alias("first_us")).collect()
    offenders = first_offenders(flaws, parts, schema, asked.begun_us)
    by_flaw = {Flaw(r["flaw"]): (int(r["count"]), offenders[Flaw(r["flaw"])], int(r["first_us"])) for r in rows}
    return StepFound(tuples, by_flaw, to_come, mistyped)


def _of_the_range(everything: DataFrame, asked: ClientPortion, since_us: int, until_us: int) -> DataFrame:
    """Without stable tuples that earlier steps judged, or later ones will.

    New ones from before the range are wrong, since the client had it for final; so are those from beyond what it has
    for final now, but of a source's own stream, which has no order in time.
    """
    from pyspark.sql import functions as F

    if until_us >= END_OF_TIME and not any(one.done.sequence > 1 for one in asked.known):
        return everything
    time, new = F.col("time_us"), F.col("sequence") >= _first_new(asked)
    due = time < until_us
    if not asked.is_source:
        due |= new & (time >= _each(_frontiers(asked)))
    return everything.where((F.col("kind") != STABLE) | ((new | (time >= since_us)) & due))


def _duplicates(wrong: DataFrame, since_us: int, asked: ClientPortion) -> DataFrame:
    """A tuple from before the range that has the id of one there came twice, whatever its contents."""
    from pyspark.sql import functions as F

    again = (F.col("flaw") == Flaw.EXTRA.value) & (F.col("time_us") < since_us)
    again &= F.col("place") <= _each(asked.places)
    return wrong.withColumn("flaw", F.when(again, Flaw.DUPLICATED.value).otherwise(F.col("flaw")))


def _frontiers(asked: ClientPortion) -> list[int]:
    return [one.known.track.frontier_us for one in asked.taken]


def _first_new(asked: ClientPortion) -> Column:
    """The first record that no earlier step read."""
    return _each([one.done.sequence for one in asked.known])


def _each(values: Sequence[int]) -> Column:
    """A value by ``partition``."""
    from pyspark.sql import functions as F

    if len(set(values)) == 1:
        return F.lit(values[0]).cast("long")
    return F.element_at(F.array(*[F.lit(v).cast("long") for v in values]), F.col("partition") + 1)
