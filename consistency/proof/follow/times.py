"""Checks the times in the portion of a source's log that a step reads against rule S1."""

from __future__ import annotations

from typing import Any

from consistency.proof.follow.readers import LogProgress, LogTaken
from consistency.proof.recorded import stamps
from consistency.proof.recorded.run import Run
from consistency.proof.recorded.table_source import source_table
from spe.stream.names import StreamId
from spe.stream.times import BEFORE_TIME


def with_times(
    run: Run, stream: StreamId, known: LogProgress, taken: LogTaken, most_us: int = BEFORE_TIME
) -> tuple[LogProgress, list[str]]:
    """Returns the position after the portion, and a sentence for the first wrong time.

    Args:
      known: position before.
      most_us: as in ``stamps.judged``.
    """
    table = source_table(run, stream)
    how = stamps.stamping(run.reading.sources[stream], table)
    segments: list[Any] = [stamps.summary(table, s, how) for s in taken.new]
    flaws = stamps.judged(segments, how, known.peak_us, known.promise_us, most_us)
    update = {
        "peak_us": max([known.peak_us, *(s["peak"] for s in segments)]),
        "promise_us": max([known.promise_us, *(s["promise"] for s in segments)]),
    }
    return taken.known.model_copy(update=update), flaws
