"""Frames that the proof keeps: as tables, and on disk while it works, which is freed at its end.

Nothing else of the session's cache is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


#: What a task makes of the batches of a partition.
OfBatches = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


@dataclass(frozen=True)
class MadeByTasks:
    """What tasks make of a frame's partitions in Arrow; written as a table it need not become rows of Spark's.

    Attributes:
      each: what is made of the batches of a partition.
      schema: of that.
    """

    of: DataFrame
    each: OfBatches
    schema: StructType


#: Writes a frame as the table of a name and gives it back as it was written.
Keep = Callable[[str, "DataFrame | MadeByTasks"], "DataFrame"]


def frame_of(one: DataFrame | MadeByTasks) -> DataFrame:
    """As a frame of Spark's."""
    return one.of.mapInArrow(one.each, one.schema) if isinstance(one, MadeByTasks) else one


_kept: ContextVar[list[DataFrame] | None] = ContextVar("kept", default=None)


@contextmanager
def freed_at_the_end() -> Iterator[None]:
    """What :func:`on_disk` keeps inside is freed with the block."""
    frames: list[DataFrame] = []
    token = _kept.set(frames)
    try:
        yield
    except BaseException:
        with suppress(Exception):  # Spark may have died, which is what is told
            _free(frames)
        raise
    finally:
        _kept.reset(token)
    _free(frames)


def _free(frames: list[DataFrame]) -> None:
    for frame in frames:
        frame.unpersist()


def on_disk(frame: DataFrame) -> DataFrame:
    """The frame, computed once."""
    from pyspark import StorageLevel

    kept = frame.persist(StorageLevel.DISK_ONLY)
    frames = _kept.get()
    if frames is not None:
        frames.append(kept)
    return kept
