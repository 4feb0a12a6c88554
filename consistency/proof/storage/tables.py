"""Frames that the proof stores: as tables, and on disk during the proof, freed at its end.

Nothing else of the session's cache is freed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


#: Applied to the batches of a partition in a task.
OfBatches = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


@dataclass(frozen=True)
class MadeByTasks:
    """A frame computed in Arrow by tasks over another frame; stored as a table it need not become rows of Spark.

    Attributes:
      each: applied to the batches of a partition.
      schema: of the result.
    """

    frame: DataFrame
    each: OfBatches
    schema: StructType


def over_numbers(
    spark: SparkSession, count: int, each: Callable[[int], Iterator[pa.RecordBatch]], made: StructType | str, tasks: int
) -> DataFrame:
    """Applies ``each`` to the numbers below ``count``, within so many tasks."""

    def of_numbers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from each(number)

    return spark.range(0, count, 1, tasks).mapInArrow(of_numbers, made)


#: Writes a frame as a named table and returns the stored one.
Keep = Callable[[str, "DataFrame | MadeByTasks"], "DataFrame"]


def frame_of(frame: DataFrame | MadeByTasks) -> DataFrame:
    """Returns a frame of Spark."""
    return frame.frame.mapInArrow(frame.each, frame.schema) if isinstance(frame, MadeByTasks) else frame


_kept: ContextVar[list[DataFrame] | None] = ContextVar("kept", default=None)


@contextmanager
def freed_at_the_end() -> Iterator[None]:
    """Frees at the end of the block the frames that :func:`on_disk` stored inside."""
    frames: list[DataFrame] = []
    token = _kept.set(frames)
    try:
        yield
    except BaseException:
        with suppress(Exception):  # Spark may have died; that error is reported instead
            _free(frames)
        raise
    finally:
        _kept.reset(token)
    _free(frames)


def _free(frames: list[DataFrame]) -> None:
    for frame in frames:
        frame.unpersist()


def on_disk(frame: DataFrame) -> DataFrame:
    """Stores the frame on disk, so that it is computed once."""
    from pyspark import StorageLevel

    stored = frame.persist(StorageLevel.DISK_ONLY)
    frames = _kept.get()
    if frames is not None:
        frames.append(stored)
    return stored
