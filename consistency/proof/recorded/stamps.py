"""Checks the times that a source logged: computes them again from the raw event times by rule S1.

    time = max(event time, largest event time before − disorder, promise)

The promise counts for live sources only: a replay's promises lie below all of its remaining tuples (S2).  A
source without a ``time`` stamps by arrival, and the log has only the stamp: then only the order can be checked.

One pass: a task reads one segment and does not know the earlier ones, but their effect is one number, C: no time lies
below C, and a time above what its own segment requires is C.  So a few numbers of each segment decide.  Where earlier
segments were deleted, C is any value that explains the first ones, up to the largest deleted time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from consistency.proof.comparing.digests import COMPARED, Digester, digests_of, halves
from consistency.proof.recorded.query_file import SourceEntry
from consistency.proof.recorded.recording import over_stretches
from consistency.proof.recorded.records import Stretch, Table, TimedStretch, scan_stretch
from consistency.proof.recorded.run import Run
from consistency.proof.recorded.table_source import all_stretches, source_table
from consistency.proof.report.words import moment
from spe.log.source_log import decode_source_batch, decode_source_state
from spe.stream.batch import Int64Array
from spe.stream.names import StreamId
from spe.stream.strings import StringPool
from spe.stream.times import BEFORE_TIME

_FIELDS: Final = (
    "piece", "tuples", "peak", "promise", "low", "high",
    "below", "below_id", "below_time", "below_expected",
    "above", "least_id", "least_time", "most_id", "most_time",
    "lowest_id", "lowest_time", "highest_id", "highest_time",
)  # fmt: skip


@dataclass(frozen=True)
class Stamping:
    """The stamping rule of a source.

    Attributes:
      at: place of the attribute with the event time; None: the time of arrival.
      promises: earlier promises count.
      digests: contents are summed, to be compared with the input (``consistency.proof.comparing.source_contents``).
    """

    at: int | None
    disorder_us: int
    promises: bool
    digests: bool = False


class Looked(NamedTuple):
    """Results of reading a source's log.

    Attributes:
      flaws: wrong times; a sentence for the first tuple of the first wrong segment.
      segments: in order; one without tuples has a time of the one before it.
      content: sums of digests of all tuples, as ``contents.halves`` returns them.
    """

    flaws: list[str]
    segments: list[TimedStretch]
    content: tuple[int, int] = (0, 0)


def look_through(spark: SparkSession, run: Run, stream: StreamId, source: SourceEntry) -> Looked:
    """Reads the times in a source's log.

    Raises:
      SpeError: segments are missing.  A damaged log is an error of Spark.
    """
    table = source_table(run, stream)
    pieces, how = all_stretches(table), replace(stamping(source, table), digests=source.kind in COMPARED)

    def look(number: int, stretch: Stretch, content: memoryview | None) -> Iterator[pa.RecordBatch]:
        numbers = summary(table, stretch, how, content)
        yield pa.RecordBatch.from_pydict({name: pa.array([numbers.get(name, number)], pa.int64()) for name in _FIELDS})

    schema = pa.schema([(name, pa.int64()) for name in _FIELDS])
    rows = over_stretches(spark, run, table, look, schema, pieces).collect()
    parts = [row.asDict() for row in sorted(rows, key=lambda row: int(row["piece"]))]
    timed: list[TimedStretch] = []
    for part in parts:
        at = timed[-1].most_us if timed else 0
        times = (part["lowest_time"], part["highest_time"]) if part["tuples"] else (at, at)
        timed.append(TimedStretch(pieces[part["piece"]], *times))
    content = sum(part["low"] for part in parts), sum(part["high"] for part in parts)
    return Looked(judged(parts, how), timed, content)


def stamping(source: SourceEntry, table: Table) -> Stamping:
    """Returns how a source stamps the tuples of its log."""
    names = table.schema.names
    return Stamping(None if source.time is None else names.index(source.time), source.disorder_us, source.live)


def summary(table: Table, stretch: Stretch, how: Stamping, content: memoryview | None = None) -> dict[str, int | None]:
    """Returns the numbers that decide about a segment, by the names of ``_FIELDS`` (but the first)."""
    numbers: dict[str, int | None] = dict.fromkeys(_FIELDS[1:])
    tuples, below, above, peak, promise = 0, 0, 0, BEFORE_TIME, BEFORE_TIME
    pool, digester, sums = StringPool(), Digester(table.schema), (0, 0)
    for record in scan_stretch(Path(table.folders[stretch.partition]), stretch, content):
        batch = decode_source_batch(record.body, table.schema, pool)
        if batch is not None and len(batch):
            ids, time = batch.row_ids(), batch.rows.time
            event = time if how.at is None else batch.rows.columns[how.at].values
            if how.digests:
                more = halves(digests_of(digester, batch.rows))
                sums = sums[0] + more[0], sums[1] + more[1]
            expected, peak = _stamped(event, peak, how.disorder_us, promise)
            tuples += len(batch)
            low, high = np.flatnonzero(time < expected), np.flatnonzero(time > expected)
            if len(low) and not below:
                first = int(low[0])
                numbers |= _row("below", ids, time, first) | {"below_expected": int(expected[first])}
            below, above = below + len(low), above + len(high)
            if len(high):
                numbers |= _extreme("least", ids, time, high[np.argmin(time[high])], numbers["least_time"], -1)
                numbers |= _extreme("most", ids, time, high[np.argmax(time[high])], numbers["most_time"], 1)
            numbers |= _extreme("lowest", ids, time, np.argmin(time), numbers["lowest_time"], -1)
            numbers |= _extreme("highest", ids, time, np.argmax(time), numbers["highest_time"], 1)
        if how.promises:
            promise = decode_source_state(record.body).bound_us
    counts = {"tuples": tuples, "below": below, "above": above, "low": sums[0], "high": sums[1]}
    return numbers | counts | {"peak": peak, "promise": promise}


def judged(
    segments: list[dict[str, int]],
    how: Stamping,
    peak: int = BEFORE_TIME,
    promise: int = BEFORE_TIME,
    most: int = BEFORE_TIME,
) -> list[str]:
    """Returns a sentence for the first wrong tuple of the log, if there is one.

    Args:
      segments: results of :func:`summary`, in order.
      peak, promise: the largest event time and promise before them.
      most: deleted earlier segments require no time above this.
    """
    for segment in segments:
        if segment["tuples"]:
            least = max(peak - how.disorder_us, promise)
            wrong = _wrong(segment, least, most)
            if wrong is not None:
                id_, time, expected = wrong
                return [
                    f"tuple {id_:,} has the time {moment(time)}; by its event time, those before it and the disorder "
                    f"it is {expected}"
                ]
        peak, promise = max(peak, segment["peak"]), max(promise, segment["promise"])
    return []


def _wrong(segment: dict[str, int], least: int, most: int) -> tuple[int, int, str] | None:
    """Returns (id, time, expected time) of a wrong tuple of a segment.

    The known earlier segments require ``least``, and deleted ones at most ``most``, where that is larger.
    """
    if segment["below"]:
        return segment["below_id"], segment["below_time"], moment(max(segment["below_expected"], least))
    if segment["above"] and least < most:
        least = max(least, min(most, segment["least_time"]))
    if segment["lowest_time"] < least:
        return segment["lowest_id"], segment["lowest_time"], moment(least)
    for which in ("least", "most") if segment["above"] else ():
        if segment[f"{which}_time"] != least:
            return segment[f"{which}_id"], segment[f"{which}_time"], "earlier"
    return None


def _stamped(event: Int64Array, peak: int, disorder_us: int, promise: int) -> tuple[Int64Array, int]:
    """Returns the times of consecutive tuples by S1, and the largest event time after them."""
    before = np.empty_like(event)
    before[0] = peak
    np.maximum(np.maximum.accumulate(event[:-1]), peak, out=before[1:])
    floor = np.where(before > BEFORE_TIME, before - disorder_us, BEFORE_TIME)
    return np.maximum(np.maximum(event, floor), promise), max(peak, int(event.max()))


def _row(name: str, ids: Int64Array, time: Int64Array, at: int) -> dict[str, int | None]:
    return {f"{name}_id": int(ids[at]), f"{name}_time": int(time[at])}


def _extreme(
    name: str, ids: Int64Array, time: Int64Array, at: np.intp, known: int | None, sign: int
) -> dict[str, int | None]:
    """Returns the row at ``at`` if it is more extreme than the known one."""
    return {} if known is not None and sign * int(time[at]) <= sign * known else _row(name, ids, time, int(at))
