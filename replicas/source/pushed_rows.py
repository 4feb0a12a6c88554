"""The rows of a committed batch, by event time.  They are in memory once, in addition to the chunk that is taken."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

import numpy as np

from replicas.connectors.reader import CHUNK_ROWS, RowChunk
from spe.errors import LogCorrupt
from spe.log.pushed_batches import PartReader, PushedBatch
from spe.runtime.env import Storage
from spe.stream.batch import Int64Array, Rows, concat_rows
from spe.stream.schema import Schema
from spe.stream.strings import StringPool


class PushedRows:
    """The rows of one committed batch.

    Args:
      pieces: rows of the parts in order, which is the order of equal times.
      time: number of the column with event times; None: there is none.
      after: number of rows that the source was given before these.
    """

    def __init__(self, pieces: Sequence[Rows], time: int | None, after: int) -> None:
        self._pieces = [piece for piece in pieces if len(piece)]
        self._begins = np.cumsum([0, *map(len, self._pieces)])
        self._after = after
        self._events: Int64Array | None = None
        self._order: Int64Array = np.arange(len(self), dtype=np.int64)
        if time is not None and self._pieces:
            self._events = np.concatenate([piece.columns[time].values for piece in self._pieces]).astype(np.int64)
            self._order = self._events.argsort(kind="stable")

    def __len__(self) -> int:
        return int(self._begins[-1])

    def chunk(self, at: int) -> RowChunk:
        """Returns the rows from row ``at`` of the batch on, which must exist."""
        assert 0 <= at < len(self), "W2: only rows of the batch are read"
        wanted = self._order[at : at + CHUNK_ROWS]
        events = None if self._events is None else self._events[wanted]
        by_place = wanted.argsort(kind="stable")
        places = wanted[by_place]
        cuts = np.searchsorted(places, self._begins)
        taken = [
            piece.take(places[first:last] - begin)
            for piece, begin, first, last in zip(self._pieces, self._begins, cuts, cuts[1:])
            if first < last
        ]
        back = np.empty_like(by_place)
        back[by_place] = np.arange(len(by_place))
        return RowChunk(self._after + at, len(wanted), events, concat_rows(taken).take(back).columns, [])


def read_batch(
    storage: Storage, folder: PurePosixPath, batch: PushedBatch, sizes: Sequence[int], schema: Schema, time: int | None
) -> PushedRows:
    """Returns the rows of a batch.

    Args:
      folder: folder of the parts.
      sizes: bytes of each part, without its trailer.

    Raises:
      LogCorrupt: a part was damaged since it was written.
    """
    pool = StringPool()
    pieces: list[Rows] = []
    for (name, digest), size in zip(batch.parts, sizes, strict=True):
        file = storage.open(folder / name)
        try:
            reader = PartReader(file.read, size, schema, pool)
            pieces += reader.rows()
        except ValueError as error:
            raise LogCorrupt(f"{folder / name}: {error}") from None
        finally:
            file.close()
        if reader.digest != digest:
            raise LogCorrupt(f"{folder / name}: the checksum of a pushed part does not match")
    return PushedRows(pieces, time, batch.after)
