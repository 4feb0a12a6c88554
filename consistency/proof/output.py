"""One output at one client, judged and measured: the frames of the proof to the report's figures.

What is large stays in Spark and goes to Parquet; what is collected is one row of sums, the first offenders, and a
bounded number of bins and windows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from consistency.proof import accuracy as wrongness
from consistency.proof import comparison, experience
from consistency.proof.decision import Circumstances, decide
from consistency.proof.elements import REC_DONE, STABLE, STABLE_BOUNDARY, elements, episodes
from consistency.proof.measures import Measured, measured, operator_of
from consistency.proof.offenders import first_offenders
from consistency.proof.prediction import predict
from consistency.proof.promises import Step, as_announced, bounds
from consistency.proof.report.model import (
    Accuracy,
    Bin,
    Delay,
    FaultSpan,
    Flaw,
    FlawCount,
    Gaps,
    Healing,
    OutputReport,
    Tentative,
    Verdict,
    WindowAccuracy,
)
from consistency.proof.report.words import moment, seconds
from consistency.proof.settling import settled
from spe.log.announced import RecordedAnnouncement
from spe.plan.delays import delay_bound_us, epochs, longest_path
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from spe.stream.times import BEFORE_TIME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

#: As in the evaluation of DPC: a starting cluster is late without having failed.
SKIP_US: Final = 2_000_000
_BINS: Final = 120
_WINDOWS: Final = 240
_WORST: Final = 5
_NICE_US: Final = tuple(n * unit for unit in (1_000, 10_000, 100_000) for n in (10, 20, 50)) + tuple(
    n * 1_000_000 for n in (10, 20, 30, 60, 120, 300, 600, 1_200, 3_600)
)


#: Why it is not known whether X was kept, where the recording is of an earlier version.
NOT_ANNOUNCED: Final = "no node announced its X to this client; allowed is what the copy of the configuration says"


@dataclass(frozen=True)
class Scene:
    """What the outputs of a run have in common.

    Attributes:
      begun_us: wall time at which the sources began.
      duration_us: from then to the end.
      known_us: by output: how far in tuple time the logs of its sources tell the truth.
      data_until_us: by output: no tuple of its sources has a later time, or ever will; END_OF_TIME where one may come.
      announced: by client: what it recorded of X and waits.
      failed, cause: as in ``decision.Circumstances``.
    """

    plan: Plan
    directory: Directory
    begun_us: int
    duration_us: int
    faults: Sequence[FaultSpan]
    known_us: dict[StreamId, int]
    data_until_us: dict[StreamId, int]
    announced: Mapping[str, Sequence[RecordedAnnouncement]]
    failed: bool
    cause: str


#: Writes a frame as the table of a name and gives it back as it was written.
Keep = Callable[[str, "DataFrame"], "DataFrame"]


def judge_output(
    scene: Scene, client: str, output: StreamId, truth: DataFrame, received: DataFrame, keep: Keep
) -> OutputReport:
    """The verdict and the figures.

    Args:
      truth, received: TRUTH and RECEIVED (consistency.proof.elements), which are read several times.
      keep: where what was found goes.
    """
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    plan = scene.plan
    directory = scene.directory
    truth, received, schema, mistyped = settled(truth, received, plan.query.schema_of(output))
    parts = keep("elements", elements(received))
    stretches = keep("episodes", episodes(parts))
    sums = _sums(parts)
    known_us = scene.known_us[output]
    frontier = min((s["frontier_us"] for s in sums), default=BEFORE_TIME)
    reached = max((s["frontier_us"] for s in sums), default=BEFORE_TIME)
    if len(sums) < plan.partitions_of(output):
        frontier = BEFORE_TIME  # a partition from which nothing ever came

    rest = _judged(keep("unplaced", comparison.unplaced(truth, received, schema)), parts, known_us)
    open_ = rest.agg(
        F.count(F.when(F.col("open"), 1)).alias("to_come"),
        F.count(F.when(F.col("unfounded"), 1)).alias("unfounded"),
        F.count(F.when(~F.col("open") & ~F.col("unfounded"), 1)).alias("wrong"),
    ).first()
    corrections = _corrections(stretches)
    assert open_ is not None
    found: list[DataFrame] = []
    if open_["wrong"]:
        found.append(
            comparison.misplaced(rest.where("not open and not unfounded").drop("open", "unfounded"), truth, schema)
        )
    if open_["unfounded"]:
        found.append(comparison.unfounded(rest.where("unfounded")))
    if any(s["behind"] for s in sums):
        found.append(comparison.late(received, parts))
    if corrections["wrong"]:
        found += [comparison.undone(received, stretches), comparison.unresolved(received, stretches)]
    flaws = keep("flaws", reduce(DataFrame.unionByName, found)) if found else None
    counted = [] if flaws is None else flaws.groupBy("flaw").count().collect()
    counts = {Flaw(r["flaw"]): int(r["count"]) for r in counted}
    failed = scene.failed or any(s["tentative"] for s in sums)
    now = Circumstances(known_us, frontier, reached, failed, scene.cause)
    verdict, reasons = decide(counts, to_come=open_["to_come"], now=now)
    if mistyped:
        verdict, reasons = Verdict.INCONSISTENT, [*mistyped, *(reasons if verdict is Verdict.INCONSISTENT else [])]
    offenders = {} if flaws is None else first_offenders(flaws, parts, schema, scene.begun_us)

    epoch = epochs(plan, scene.begun_us).get(str(output))
    delays = None if epoch is None else experience.delays(received, parts, epoch, scene.data_until_us[output])
    why = "tuple time does not follow the clock" if delays is None else _implausible(delays)
    delays = None if why or delays is None else delays.where(F.col("arrived_us") >= _first_arrival(sums) + SKIP_US)
    bin_us = _bin_us(plan, output, scene.duration_us, None if epoch is None else epoch.speed)
    true_count = truth.count()
    heard = scene.announced.get(client, ())
    steps = bounds(plan, directory, output, heard) or [(0, delay_bound_us(plan, directory, output))]
    if not heard:
        why = why or NOT_ANNOUNCED
    delay = _delay(delays, steps)
    expected = predict(
        plan,
        as_announced(directory, heard),
        output,
        scene.faults,
        results_per_s=true_count / max(scene.duration_us / 1e6, 1e-9),
        ordinary_us=None if delay is None else delay["median"],
        ended_us=scene.duration_us,
    )
    longest = None if delay is None else delay["most"]
    silence = experience.gaps(parts, SKIP_US).first()
    assert silence is not None
    tentative, accurate = _tentative(
        scene, truth, received, schema, parts, stretches, corrections, output, keep, expected.tentative
    )
    return OutputReport(
        client=client,
        output=str(output),
        operator=operator_of(plan, output),
        partitions=plan.partitions_of(output),
        k=longest_path(plan, output),
        verdict=verdict,
        reasons=reasons,
        truth=true_count,
        stable=sum(s["stable"] for s in sums),
        findings=[FlawCount(flaw=f, count=counts[f], offenders=offenders[f]) for f in Flaw if counts.get(f)],
        delay=Delay(
            max_us=longest,
            p99_us=None if delay is None else delay["p99"],
            median_us=None if delay is None else delay["median"],
            bound_us=steps[-1][1] if delay is None else delay["bound"],
            predicted_us=expected.delay_us,
            kept=None if why or delay is None else not delay["late"],
            why=why,
        ),
        tentative=tentative,
        gaps=Gaps(any_us=silence["any_us"] or 0, stable_us=silence["stable_us"] or 0),
        healing=_healing(scene, sums),
        accuracy=accurate,
        bin_us=bin_us,
        bins=[
            Bin(
                at_us=int(r["bin"]) * bin_us,
                stable=r["stable"],
                tentative=r["tentative"],
                undone=r["undone"],
                delay_max_us=r["delay_max_us"],
            )
            for r in experience.bins(parts, stretches, delays, scene.begun_us, bin_us).limit(4 * _BINS).collect()
        ],
    )


def _sums(parts: DataFrame) -> list[Row]:
    """A row per partition."""
    from pyspark.sql import functions as F

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
            F.max(F.when(kind == "undo", F.col("arrived_us"))).alias("undone_at_us"),
            F.max(F.when(corrected, F.col("arrived_us"))).alias("corrected_at_us"),
            F.min("arrived_us").alias("first_arrival_us"),
            F.count(F.when((kind == STABLE) & (F.col("first_id") <= F.col("passed_id")), 1)).alias("behind"),
        )
        .collect()
    )


def _corrections(stretches: DataFrame) -> Row:
    """One row: tentative tuples, those taken back and how often, and stretches in which a flaw is."""
    from pyspark.sql import functions as F

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
    """What did not meet.

    With ``open``: may the client still get it?  And ``unfounded``: was it received beyond what the logs tell?
    """
    from pyspark.sql import functions as F

    stable = parts.where(F.col("kind") == STABLE_BOUNDARY)
    final = stable.groupBy("partition").agg(F.max("last_us").alias("final_us"))
    come = F.col("received").isNull() & (F.col("time_us") >= F.coalesce("final_us", F.lit(BEFORE_TIME)))
    placed = rest.join(F.broadcast(final), "partition", how="left")
    unfounded = F.col("received").isNotNull() & (F.col("time_us") >= known_us)
    return placed.withColumn("open", come).withColumn("unfounded", unfounded).drop("final_us")


def _first_arrival(sums: Sequence[Row]) -> int:
    return min((s["first_arrival_us"] for s in sums), default=0)


def _implausible(delays: DataFrame) -> str:
    """Why nothing is known of delays: results that came before their data.  "" where none did."""
    from pyspark.sql import functions as F

    row = delays.agg(F.max("early_us").alias("early")).first()
    early = None if row is None else row["early"]
    if early is None or early <= experience.CLOCK_SKEW_US:
        return ""
    allowed = seconds(experience.CLOCK_SKEW_US)
    return f"results came up to {seconds(early)} before their data: the clocks differ by more than {allowed}"


def _delay(delays: DataFrame | None, steps: Sequence[Step]) -> dict[str, Any] | None:
    """The longest delay and others, how many were more than kX at that time, and the kX that was kept least."""
    from pyspark.sql import functions as F

    if delays is None:
        return None
    bound = F.lit(steps[0][1])
    for from_us, bound_us in steps[1:]:
        bound = F.when(F.col("arrived_us") >= from_us, F.lit(bound_us)).otherwise(bound)
    row = (
        delays.withColumn("bound_us", bound)
        .agg(
            F.max("delay_us").alias("most"),
            F.percentile_approx("delay_us", 0.99, 10_000).alias("p99"),
            F.percentile_approx("delay_us", 0.5, 10_000).alias("median"),
            F.count(F.when(F.col("delay_us") > F.col("bound_us"), 1)).alias("late"),
            F.max_by("bound_us", F.col("delay_us") / F.col("bound_us")).alias("bound"),
        )
        .first()
    )
    return None if row is None or row["most"] is None else row.asDict()


def _tentative(
    scene: Scene,
    truth: DataFrame,
    received: DataFrame,
    schema: Schema,
    parts: DataFrame,
    stretches: DataFrame,
    corrections: Row,
    output: StreamId,
    keep: Keep,
    predicted: int | None,
) -> tuple[Tentative, Accuracy | None]:
    from pyspark.sql import functions as F

    total = corrections["tentative"] or 0
    none = Tentative(
        count=0,
        right=0,
        wrong=0,
        undone=0,
        corrections=0,
        stood_median_us=None,
        stood_max_us=None,
        predicted=predicted,
    )
    if not total:
        return none, None
    how = measured(scene.plan, output)
    met = keep("tentative", wrongness.against_truth(truth, received, parts, stretches, schema, how))
    by_window = keep("accuracy", wrongness.windows(met, how))
    row = wrongness.overall(met, how).first()
    assert row is not None
    found = Tentative(
        count=total,
        right=row["right_count"],
        wrong=total - row["right_count"],
        undone=corrections["undone"] or 0,
        corrections=corrections["corrections"],
        stood_median_us=row["stood_median_us"],
        stood_max_us=row["stood_max_us"],
        predicted=predicted,
    )
    shown = by_window.orderBy("at_us", "window_us").limit(_WINDOWS + 1).collect()
    order = [F.col(f"`{name}`").asc_nulls_last() for name in how.names[:1]]
    if len(shown) > _WINDOWS:
        worst = by_window.orderBy(*order, "window_us").limit(_WORST).collect()
        shown = _merged(by_window, how)
    else:
        worst = sorted(shown, key=lambda r: tuple(2 if r[n] is None else r[n] for n in how.names[:1]))[:_WORST]
    accurate = Accuracy(
        key=list(how.key) if how.key != schema.names else [],
        measures=how.names,
        overall={name: row[name] for name in how.names},
        worst=[_window(r, how, scene.begun_us) for r in worst],
        windows=[_window(r, how, scene.begun_us) for r in shown if r["at_us"] is not None],
    )
    return found, accurate


def _merged(by_window: DataFrame, how: Measured) -> list[Row]:
    """Windows over time where there are too many: neighbours by their mean."""
    from pyspark.sql import functions as F

    seen = by_window.where(F.col("at_us").isNotNull())
    span = seen.agg(F.min("at_us").alias("first"), F.max("at_us").alias("last")).first()
    assert span is not None
    width = (span["last"] - span["first"]) // _WINDOWS + 1
    means = [F.avg(f"`{name}`").alias(name) for name in how.names]
    counts = [F.sum(name).cast("long").alias(name) for name in ("tentative", "truth")]
    return (
        seen.groupBy(F.floor((F.col("at_us") - span["first"]) / width).alias("_part"))
        .agg(F.min("window_us").alias("window_us"), F.min("at_us").alias("at_us"), *counts, *means)
        .orderBy("at_us")
        .collect()
    )


def _window(row: Row, how: Measured, begun_us: int) -> WindowAccuracy:
    return WindowAccuracy(
        time=moment(row["window_us"]),
        at_us=None if row["at_us"] is None else row["at_us"] - begun_us,
        tentative=row["tentative"],
        truth=row["truth"],
        measures={name: row[name] for name in how.names},
    )


def _healing(scene: Scene, sums: Sequence[Row]) -> Healing:
    """The last correction, and the end of the last fault before it."""
    done = [s["corrected_at_us"] or s["undone_at_us"] for s in sums if s["undone_at_us"] and s["tentative"]]
    if not done:
        return Healing(healed_us=None, corrected_us=None, took_us=None)
    corrected = max(done) - scene.begun_us
    ends = [f.until_us for f in scene.faults if f.until_us is not None and f.until_us <= corrected]
    healed = max(ends, default=None)
    return Healing(healed_us=healed, corrected_us=corrected, took_us=None if healed is None else corrected - healed)


def _bin_us(plan: Plan, output: StreamId, duration_us: int, speed: float | None) -> int:
    """Not more than some bins, and none shorter than the time between two results of a window."""
    cadence = plan.query.traits_of(output).cadence_us / (speed or 1.0) * 0.999
    wanted = max(duration_us / _BINS, cadence)
    return next((n for n in _NICE_US if n >= wanted), round(wanted))
