"""One step of the proof: Spark computes the truth of a range of tuple time and compares what clients received."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from consistency.proof.comparing import comparison
from consistency.proof.comparing.offenders import first_offenders
from consistency.proof.comparing.received_types import settled
from consistency.proof.follow.readers import ChannelProgress, ChannelTaken
from consistency.proof.recorded.elements import STABLE, elements
from consistency.proof.recorded.received_output import ReceivedStream, records_of
from consistency.proof.recorded.recording import changes, summary
from consistency.proof.recorded.run import Run
from consistency.proof.report.model import Flaw, Offender
from consistency.proof.storage.tables import frame_of, on_disk
from consistency.proof.truth import TruthNetwork, truth
from spe.stream.names import StreamId
from spe.stream.times import END_OF_TIME


@dataclass(frozen=True)
class StepFound:
    """Results of a step for one output at one client.

    Attributes:
      received: number of stable tuples in the range.
      flaws: by flaw: how many tuples have it, the first ones, and the smallest tuple time.
      to_come: number of true tuples beyond the client's final output, not received.
    """

    received: int
    flaws: Mapping[Flaw, tuple[int, list[Offender], int]]
    to_come: int
    mistyped: Sequence[str]


@dataclass(frozen=True)
class ClientPortion:
    """The portion of one output at one client that a step judges.

    Attributes:
      known: per partition, the position before the step.
      taken: per partition, the portion.
      places: per partition, number of tuples before the range.
      known_us: tuple time up to which the logs tell the truth.
      is_source: it is a source's own stream, whose order is that of arrival.
      begun_us: wall time from which times of offenders are counted.
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
    """Returns TRUTH of the range, and the number of tuples per partition."""
    result = truth(network, output, lambda _, frame: on_disk(frame_of(frame)))
    rows = result.rows
    if output not in network.plan.sources:
        rows = rows.withColumn("place", F.col("place") + _each(places))
    return rows, [result.counts.get(p, 0) for p in range(len(places))]


def judge(spark: SparkSession, run: Run, network: TruthNetwork, truth: DataFrame, asked: ClientPortion) -> StepFound:
    """Compares what a client received of an output in the range with the truth."""
    assert network.part is not None
    pieces = [stretch for taken in asked.taken for stretch in taken.read]
    records = records_of(on_disk(summary(spark, run, asked.client, asked.output, pieces)))
    everything = ReceivedStream(records, changes(spark, run, asked.client, asked.output, pieces))
    truth, everything, schema, mistyped = settled(truth, everything, run.plan.query.schema_of(asked.output))
    received = _of_the_range(everything.rows, asked, network.part.since_us, network.part.until_us)
    rest = comparison.unplaced(truth, ReceivedStream(records, received), schema)
    flawed: list[DataFrame] = []
    to_come = 0
    if rest is not None:
        to_come, wrong, early = comparison.sorted_out(_marked(on_disk(rest), asked))
        if wrong is not None:
            gapped = [partition for partition, stretch in enumerate(asked.taken) if stretch.gap]
            flaws = comparison.misplaced(wrong, truth, schema, gapped)
            flawed.append(_duplicates(flaws, network.part.since_us, asked))
        if early is not None:
            flawed.append(comparison.unfounded(early))
    parts = elements(records)
    if any(stretch.behind for stretch in asked.taken):
        passed = F.greatest("passed_id", _each([stretch.track.passed_id for stretch in asked.known]))
        new = parts.withColumn("passed_id", passed).where(F.col("sequence") >= _first_new(asked))
        inside = received.where(F.col("time_us") >= network.part.since_us)
        flawed.append(comparison.late(inside, new))
    tuples = sum(t.known.track.stable - k.track.stable for t, k in zip(asked.taken, asked.known))
    if not flawed:
        return StepFound(tuples, {}, to_come, mistyped)
    flaws = on_disk(reduce(DataFrame.unionByName, flawed))
    rows = flaws.groupBy("flaw").agg(F.count(F.lit(1)).alias("count"), F.min("time_us").alias("first_us")).collect()
    offenders = first_offenders(flaws, parts, schema, asked.begun_us)
    by_flaw = {Flaw(r["flaw"]): (int(r["count"]), offenders[Flaw(r["flaw"])], int(r["first_us"])) for r in rows}
    return StepFound(tuples, by_flaw, to_come, mistyped)


def _of_the_range(everything: DataFrame, asked: ClientPortion, since_us: int, until_us: int) -> DataFrame:
    """Drops stable tuples that earlier steps judged or later steps will judge.

    New tuples from before the range are wrong, since the client had it as final; so are tuples from beyond the part
    that is final now, except in a source's own stream, which has no order in time.
    """
    if until_us >= END_OF_TIME and not any(progress.done.sequence > 1 for progress in asked.known):
        return everything
    time, new = F.col("time_us"), F.col("sequence") >= _first_new(asked)
    due = time < until_us
    if not asked.is_source:
        due |= new & (time >= _each(_frontiers(asked)))
    return everything.where((F.col("kind") != STABLE) | ((new | (time >= since_us)) & due))


def _marked(rest: DataFrame, asked: ClientPortion) -> DataFrame:
    """Marks tuples that may still come, and those that were received beyond the end of the logs."""
    rest = rest.withColumn("open", F.col("received").isNull() & (F.col("time_us") >= _each(_frontiers(asked))))
    return rest.withColumn("unfounded", F.col("received").isNotNull() & (F.col("time_us") >= asked.known_us))


def _duplicates(wrong: DataFrame, since_us: int, asked: ClientPortion) -> DataFrame:
    """Marks a tuple from before the range as a duplicate where its id was known, whatever its contents."""
    again = (F.col("flaw") == Flaw.EXTRA.value) & (F.col("time_us") < since_us)
    again &= F.col("place") <= _each(asked.places)
    return wrong.withColumn("flaw", F.when(again, Flaw.DUPLICATED.value).otherwise(F.col("flaw")))


def _frontiers(asked: ClientPortion) -> list[int]:
    return [portion.known.track.frontier_us for portion in asked.taken]


def _first_new(asked: ClientPortion) -> Column:
    """Returns the first record that no earlier step read."""
    return _each([progress.done.sequence for progress in asked.known])


def _each(values: Sequence[int]) -> Column:
    """Maps ``partition`` to its value."""
    if len(set(values)) == 1:
        return F.lit(values[0]).cast("long")
    return F.element_at(F.array(*[F.lit(v).cast("long") for v in values]), F.col("partition") + 1)
