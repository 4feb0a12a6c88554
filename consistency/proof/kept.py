"""Frames that the proof keeps on disk while it works: freed at its end, and nothing else of the session's cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
