"""Judges and measures one output at one client: from the frames of the proof to the figures of the report.

Large results stay in Spark and go to Parquet; one row of sums, the first offenders, and a bounded number of bins and
windows are collected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from consistency.proof.comparing import comparison, experience
from consistency.proof.comparing.delay import judge_delay
from consistency.proof.comparing.measures import operator_of
from consistency.proof.comparing.offenders import first_offenders
from consistency.proof.comparing.received_types import settled
from consistency.proof.comparing.tentative import judge_tentative
from consistency.proof.decision import Circumstances, decide
from consistency.proof.prediction import Prediction
from consistency.proof.recorded.elements import (
    REC_DONE,
    STABLE,
    STABLE_BOUNDARY,
    UNDO,
    elements,
    episodes,
    is_behind,
    is_belated,
    is_gap,
)
from consistency.proof.recorded.received_output import ReceivedStream
from consistency.proof.report.model import Bin, Delay, Flaw, FlawCount, Gaps, Healing, OutputReport, Verdict
from consistency.proof.scene import ReceivedTables, Scene, Tables
from consistency.proof.session.parallel import BackgroundWork, at_once
from consistency.proof.storage.tables import Keep
from consistency.proof.truth import Truth
from spe.plan.delays import epochs, longest_path
from spe.plan.plan import Plan
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from spe.stream.times import BEFORE_TIME

#: As in the evaluation of DPC: a starting cluster is late without having failed.
SKIP_US: Final = 2_000_000
_BINS: Final = 120
_NICE_US: Final = tuple(n * unit for unit in (1_000, 10_000, 100_000) for n in (10, 20, 50)) + tuple(
    n * 1_000_000 for n in (10, 20, 30, 60, 120, 300, 600, 1_200, 3_600)
)


def judge_output(
    scene: Scene,
    client: str,
    output: StreamId,
    truth: Truth,
    received: ReceivedStream,
    keep: Keep,
    heard: ReceivedTables,
    background: BackgroundWork = at_once,
) -> OutputReport:
    """Returns the verdict on one output at one client, and its figures.

    Args:
      keep: stores each table of findings.
      heard: the result of :func:`received_tables` for ``received``.
    """
    plan = scene.plan
    tables = tables_of(truth, received, plan.query.schema_of(output), heard)
    stable = background(partial(judge_stable, scene, output, tables, keep))
    over_time = background(partial(_over_time, scene, client, output, tables, truth.count))
    tentative, accuracy = judge_tentative(
        scene, output, tables, keep, lambda: not (stable()[2] or tables.mistyped), background
    )
    (verdict, reasons, findings), time = stable(), over_time()
    return OutputReport(
        client=client,
        output=str(output),
        operator=operator_of(plan, output),
        partitions=plan.partitions_of(output),
        k=longest_path(plan, output),
        verdict=verdict,
        reasons=reasons,
        truth=truth.count,
        stable=sum(s["stable"] for s in tables.sums),
        findings=findings,
        delay=time.delay,
        tentative=tentative.model_copy(update={"predicted": time.expected.tentative}),
        gaps=time.gaps,
        healing=_healing(scene, tables.sums),
        accuracy=accuracy,
        bin_us=time.bin_us,
        bins=time.bins,
    )


@dataclass(frozen=True)
class _OverTime:
    """Figures over time, and the model's prediction of them."""

    delay: Delay
    expected: Prediction
    gaps: Gaps
    bin_us: int
    bins: list[Bin]


def _over_time(scene: Scene, client: str, output: StreamId, tables: Tables, true_count: int) -> _OverTime:
    epoch = epochs(scene.plan, scene.begun_us).get(str(output))
    bin_us = _bin_us(scene.plan, output, scene.duration_us, None if epoch is None else epoch.speed)
    counted_from_us = tables.first_arrival_us + SKIP_US
    delays = None if epoch is None else experience.delays(tables, epoch, scene.data_until_us[output])
    delay, expected = judge_delay(scene, client, output, delays, counted_from_us, true_count)
    silence = experience.gaps(tables.parts, SKIP_US).first()
    assert silence is not None
    gaps = Gaps(any_us=silence["any_us"] or 0, stable_us=silence["stable_us"] or 0)
    known = None if delays is None or delay.max_us is None else delays.where(f"arrived_us >= {counted_from_us}")
    return _OverTime(delay, expected, gaps, bin_us, _bins(tables, known, scene.begun_us, bin_us))


def received_tables(received: ReceivedStream, keep: Keep, background: BackgroundWork = at_once) -> ReceivedTables:
    """Computes the tables that need no truth, from which all others are computed."""
    parts = keep("elements", elements(received.records))
    sums = background(partial(_sums, parts))
    stretches = keep("episodes", episodes(parts))
    return ReceivedTables(parts, stretches, sums(), _corrections(stretches))


def tables_of(truth: Truth, received: ReceivedStream, schema: Schema, heard: ReceivedTables) -> Tables:
    """Returns the tables from which everything else is computed.

    Args:
      schema: of the tuples, as they were recorded.
    """
    true, received, schema, mistyped = settled(truth.rows, received, schema)
    return Tables(
        parts=heard.parts,
        stretches=heard.stretches,
        sums=heard.sums,
        corrections=heard.corrections,
        truth=true,
        files=truth.files if true is truth.rows else None,
        true_count=truth.count,
        true_last_us=truth.last_us,
        received=received,
        schema=schema,
        mistyped=mistyped,
    )


def judge_stable(
    scene: Scene, output: StreamId, tables: Tables, keep: Keep
) -> tuple[Verdict, list[str], list[FlawCount]]:
    """Returns the verdict, its reasons, and the flaws with their first offenders."""
    known_us, sums = scene.known_us[output], tables.sums
    flaws, to_come = _flaws(tables, known_us, keep)
    counted = [] if flaws is None else flaws.groupBy("flaw").count().collect()
    counts = {Flaw(r["flaw"]): int(r["count"]) for r in counted}
    frontiers = [s["frontier_us"] for s in sums]
    if len(sums) < scene.plan.partitions_of(output):
        frontiers.append(BEFORE_TIME)  # a partition without any element
    now = Circumstances(
        known_us=known_us,
        received_us=min(frontiers, default=BEFORE_TIME),
        reached_us=max(frontiers, default=BEFORE_TIME),
        failed=scene.failed or any(s["tentative"] for s in sums),
        cause=scene.cause,
    )
    verdict, reasons = decide(counts, to_come=to_come, now=now, mistyped=tables.mistyped)
    offenders = {} if flaws is None else first_offenders(flaws, tables.parts, tables.schema, scene.begun_us)
    findings = [FlawCount(flaw=f, count=counts[f], offenders=offenders[f]) for f in Flaw if counts.get(f)]
    return verdict, reasons, findings


def _flaws(tables: Tables, known_us: int, keep: Keep) -> tuple[DataFrame | None, int]:
    """Returns FLAWS (consistency.proof.comparing.comparison) of all kinds, or None; and the count to come."""
    truth, received, schema = tables.truth, tables.received, tables.schema
    rest = comparison.unplaced(truth, received, schema, tables.files)
    flawed: list[DataFrame] = []
    to_come = 0
    if rest is not None:
        to_come, wrong, early = comparison.sorted_out(_judged(keep("unplaced", rest), tables.parts, known_us))
        if wrong is not None:
            gapped = [s["partition"] for s in tables.sums if s["gaps"]]
            flawed.append(comparison.misplaced(wrong, truth, schema, gapped))
        if early is not None:
            flawed.append(comparison.unfounded(early))
    if any(s["behind"] for s in tables.sums):
        flawed.append(comparison.late(received.rows, tables.parts))
    if any(s["belated"] for s in tables.sums):
        flawed.append(comparison.belated(received.rows, tables.parts))
    if tables.corrections["wrong"]:
        flawed.append(comparison.undone(received.rows, tables.stretches))
        flawed.append(comparison.unresolved(received.rows, tables.stretches))
    return (keep("flaws", reduce(DataFrame.unionByName, flawed)) if flawed else None), to_come


def _bins(tables: Tables, delays: DataFrame | None, begun_us: int, bin_us: int) -> list[Bin]:
    """Counts the tuples of each interval of wall time."""
    rows = experience.bins(tables.parts, tables.stretches, delays, begun_us, bin_us).limit(4 * _BINS).collect()
    return [
        Bin(
            at_us=int(r["bin"]) * bin_us,
            stable=r["stable"],
            tentative=r["tentative"],
            undone=r["undone"],
            delay_max_us=r["delay_max_us"],
        )
        for r in rows
    ]


def _sums(parts: DataFrame) -> list[Row]:
    """Returns a row per partition."""
    kind, tuples = F.col("kind"), F.col("count")
    corrected = (kind == REC_DONE) & (F.col("episode") > 0)
    return (
        parts.groupBy("partition")
        .agg(
            F.sum(F.when(kind == STABLE, tuples).otherwise(0)).alias("stable"),
            F.sum(F.when(kind == STABLE, 0).otherwise(tuples)).alias("tentative"),
            F.coalesce(F.max(F.when(kind == STABLE_BOUNDARY, F.col("last_us"))), F.lit(BEFORE_TIME)).alias(
                "frontier_us"
            ),
            F.max(F.when(kind == UNDO, F.col("arrived_us"))).alias("undone_at_us"),
            F.max(F.when(corrected, F.col("arrived_us"))).alias("corrected_at_us"),
            F.min("arrived_us").alias("first_arrival_us"),
            F.count(F.when(is_behind(), 1)).alias("behind"),
            F.count(F.when(is_gap(), 1)).alias("gaps"),
            F.count(F.when(is_belated(), 1)).alias("belated"),
        )
        .collect()
    )


def _corrections(stretches: DataFrame) -> Row:
    """Returns one row: tentative tuples, revoked ones, number of corrections, and stretches with a flaw."""
    tentative, taken_back = F.col("tentative"), F.col("undone_sequence").isNotNull()
    wrong = (
        (F.col("kept_id") < F.col("stable_id"))
        | ((tentative > 0) & ~taken_back)
        | (F.col("tentative_sequence") < F.col("stable_sequence"))
    )
    row = stretches.agg(
        F.sum("tentative").alias("tentative"),
        F.sum(F.when(taken_back, tentative)).alias("undone"),
        F.count(F.when(taken_back & (tentative > 0), 1)).alias("corrections"),
        F.count(F.when(wrong, 1)).alias("wrong"),
    ).first()
    assert row is not None
    return row


def _judged(rest: DataFrame, parts: DataFrame, known_us: int) -> DataFrame:
    """Returns the unmatched tuples with two flags.

    ``open``: the client may still receive it.  ``unfounded``: it was received beyond the end of the logs.
    """
    stable = parts.where(F.col("kind") == STABLE_BOUNDARY)
    final = stable.groupBy("partition").agg(F.max("last_us").alias("final_us"))
    come = F.col("received").isNull() & (F.col("time_us") >= F.coalesce("final_us", F.lit(BEFORE_TIME)))
    placed = rest.join(F.broadcast(final), "partition", how="left")
    unfounded = F.col("received").isNotNull() & (F.col("time_us") >= known_us)
    return placed.withColumn("open", come).withColumn("unfounded", unfounded).drop("final_us")


def _healing(scene: Scene, sums: Sequence[Row]) -> Healing:
    """Returns the last correction, and the end of the last fault before it."""
    done = [s["corrected_at_us"] or s["undone_at_us"] for s in sums if s["undone_at_us"] and s["tentative"]]
    if not done:
        return Healing(healed_us=None, corrected_us=None, took_us=None)
    corrected = max(done) - scene.begun_us
    ends = [f.until_us for f in scene.faults if f.until_us is not None and f.until_us <= corrected]
    healed = max(ends, default=None)
    return Healing(healed_us=healed, corrected_us=corrected, took_us=None if healed is None else corrected - healed)


def _bin_us(plan: Plan, output: StreamId, duration_us: int, speed: float | None) -> int:
    """Returns the width of a bin: few bins in all, none shorter than the time between two results of a window."""
    cadence = plan.query.traits_of(output).cadence_us / (speed or 1.0) * 0.999
    wanted = max(duration_us / _BINS, cadence)
    return next((n for n in _NICE_US if n >= wanted), round(wanted))
