"""The delay of one output's new tuples at one client, held against what was allowed and what the model expects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from consistency.proof.comparing.experience import CLOCK_SKEW_US
from consistency.proof.prediction import Prediction, predict
from consistency.proof.recorded.promises import Step, as_announced, bounds
from consistency.proof.report.model import Delay
from consistency.proof.report.words import seconds
from consistency.proof.scene import Scene
from spe.plan.delays import delay_bound_us
from spe.stream.names import StreamId

#: Reason why it is unknown whether X held: no announcement was recorded.
NOT_ANNOUNCED: Final = "no node announced its X to this client; allowed is what the copy of the configuration says"


def judge_delay(
    scene: Scene,
    client: str,
    output: StreamId,
    delays: DataFrame | None,
    counted_from_us: int,
    true_count: int,
) -> tuple[Delay, Prediction]:
    """Judges whether X held, and predicts the delays by the model of DPC.

    Args:
      delays: result of ``experience.delays``; None where tuple time does not follow the clock.
      counted_from_us: wall time; what arrived earlier does not count, since a starting cluster is late.
      true_count: tuples of the output's truth.
    """
    heard = scene.announced.get(client, ())
    steps = bounds(scene.plan, output, heard) or [(0, delay_bound_us(scene.plan, scene.directory, output))]
    figures = {} if delays is None else _figures(delays, steps, counted_from_us)
    why = "tuple time does not follow the clock" if delays is None else _implausible(figures["early"])
    median = figures["median"] if (known := not why and figures["most"] is not None) else None
    expected = predict(
        scene.plan,
        as_announced(scene.directory, heard),
        output,
        scene.faults,
        results_per_s=true_count / max(scene.duration_us / 1e6, 1e-9),
        ordinary_us=median,
        ended_us=scene.duration_us,
    )
    why = why if why or heard else NOT_ANNOUNCED
    delay = Delay(
        max_us=figures["most"] if known else None,
        p99_us=figures["p99"] if known else None,
        median_us=median,
        bound_us=figures["bound"] if known else steps[-1][1],
        predicted_us=expected.delay_us,
        kept=not figures["late"] if known and not why else None,
        why=why,
    )
    return delay, expected


def _figures(delays: DataFrame, steps: Sequence[Step], counted_from_us: int) -> dict[str, Any]:
    """Returns delay figures: the maximum and others, how many exceeded the kX of their path, and the kX kept least.

    ``early`` is the largest ``early_us`` of all delays; the other figures are of those that count.
    """
    bound = F.lit(steps[0][1])
    for from_us, bound_us in steps[1:]:
        entered = F.col("arrived_us") - F.col("delay_us")
        bound = F.when(entered >= from_us, F.lit(bound_us)).otherwise(bound)
    counted = F.when(F.col("arrived_us") >= counted_from_us, F.col("delay_us"))
    row = (
        delays.withColumns({"bound_us": bound, "counted_us": counted})
        .agg(
            F.max("early_us").alias("early"),
            F.max("counted_us").alias("most"),
            F.percentile_approx("counted_us", 0.99, 10_000).alias("p99"),
            F.percentile_approx("counted_us", 0.5, 10_000).alias("median"),
            F.count(F.when(F.col("counted_us") > F.col("bound_us"), 1)).alias("late"),
            F.max_by("bound_us", F.col("counted_us") / F.col("bound_us")).alias("bound"),
        )
        .first()
    )
    assert row is not None
    return row.asDict()


def _implausible(early_us: int | None) -> str:
    """Returns the reason why delays are unknown: results came before their data; "" if none did."""
    if early_us is None or early_us <= CLOCK_SKEW_US:
        return ""
    allowed = seconds(CLOCK_SKEW_US)
    return f"results came up to {seconds(early_us)} before their data: the clocks differ by more than {allowed}"
