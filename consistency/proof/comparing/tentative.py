"""Judges the tentative tuples of one output at one client: how wrong they were, and how long they stood."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from consistency.proof.comparing import accuracy
from consistency.proof.comparing.measures import Measured, measured
from consistency.proof.comparing.values import content
from consistency.proof.report.model import Accuracy, Tentative, WindowAccuracy
from consistency.proof.report.words import moment
from consistency.proof.scene import Scene, Tables
from consistency.proof.session.parallel import BackgroundWork
from consistency.proof.storage.tables import Keep
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from spe.stream.times import END_OF_TIME

#: The counts where nothing was tentative.
_NOTHING: Final = Tentative(
    count=0, right=0, wrong=0, undone=0, corrections=0, stood_median_us=None, stood_max_us=None, predicted=None
)
_WINDOWS: Final = 240
_WORST: Final = 5


def judge_tentative(
    scene: Scene, output: StreamId, tables: Tables, keep: Keep, right: Callable[[], bool], background: BackgroundWork
) -> tuple[Tentative, Accuracy | None]:
    """Returns the counts, without the model's prediction, and the accuracy if anything was tentative.

    Args:
      right: waits until it is known whether all stable tuples are right, and returns it.
      background: runs a function in parallel.
    """
    corrections = tables.corrections
    total = corrections["tentative"] or 0
    if not total:
        return _NOTHING, None
    how = measured(scene.plan, output)
    in_order = output not in scene.plan.sources
    met = keep("tentative", accuracy.against_truth(tables, how, in_order=in_order, right=right()))
    tallies = accuracy.tallies(met, how)
    row = accuracy.overall(tallies, how).first()
    assert row is not None
    worst, shown = _windows(keep("accuracy", accuracy.windows(tallies, how)), how, background)
    tentative = Tentative(
        count=total,
        right=row["right_count"],
        wrong=total - row["right_count"],
        undone=corrections["undone"] or 0,
        corrections=corrections["corrections"],
        stood_median_us=row["stood_median_us"],
        stood_max_us=row["stood_max_us"],
        predicted=None,
        impossible=_impossible(scene, output, tables, met, how) if row["wrong_key"] else _known(scene, output),
    )
    accurate = Accuracy(
        key=list(how.key) if how.key != tables.schema.names else [],
        measures=how.names,
        overall={name: row[name] for name in how.names},
        worst=[_window(r, how, scene.begun_us) for r in worst],
        windows=[_window(r, how, scene.begun_us) for r in shown if r["at_us"] is not None],
    )
    return tentative, accurate


def _known(scene: Scene, output: StreamId) -> int | None:
    """Returns 0 if the logs and the query tell which tuples are impossible, else None."""
    return 0 if output in scene.keys_from_logs and scene.known_us[output] >= END_OF_TIME else None


def _impossible(scene: Scene, output: StreamId, tables: Tables, met: DataFrame, how: Measured) -> int | None:
    """Counts tentative tuples with a time and key that no true tuple has."""
    if _known(scene, output) is None:
        return None
    key = Schema(tuple(attribute for attribute in tables.schema if attribute.name in how.key))
    time, width = F.col("time_us"), how.window_us
    window = time - F.pmod(time, F.lit(width)) if width else time
    true = tables.truth.select("partition", window.alias("window_us"), content("tuple", key).alias("content"))
    odd = met.where(F.col("true").isNull() & F.col("tentative").isNotNull())
    odd = odd.select("partition", "window_us", content("tentative", key).alias("content"))
    return odd.join(true, ["partition", "window_us", "content"], how="left_anti").count()


def _windows(by_window: DataFrame, how: Measured, background: BackgroundWork) -> tuple[list[Row], list[Row]]:
    """Returns the worst windows by the first measure, and the windows to be drawn, in order."""
    shown = by_window.orderBy("at_us", "window_us").limit(_WINDOWS + 1).collect()
    first = how.names[:1]
    if len(shown) <= _WINDOWS:
        return sorted(shown, key=lambda r: tuple(2 if r[n] is None else r[n] for n in first))[:_WORST], shown
    order = [F.col(f"`{name}`").asc_nulls_last() for name in first]
    worst = background(by_window.orderBy(*order, "window_us").limit(_WORST).collect)
    drawn = _merged(by_window, how)
    return worst(), drawn


def _merged(by_window: DataFrame, how: Measured) -> list[Row]:
    """Merges neighbouring windows into their mean where there are too many."""
    arrived = by_window.where(F.col("at_us").isNotNull())
    span = arrived.agg(F.min("at_us").alias("first"), F.max("at_us").alias("last")).first()
    assert span is not None
    width = (span["last"] - span["first"]) // _WINDOWS + 1
    means = [F.avg(f"`{name}`").alias(name) for name in how.names]
    counts = [F.sum(name).cast("long").alias(name) for name in ("tentative", "truth")]
    return (
        arrived.groupBy(F.floor((F.col("at_us") - span["first"]) / width).alias("_part"))
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
