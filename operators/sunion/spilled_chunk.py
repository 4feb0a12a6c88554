"""Chunks of an SUnion that lie in a spill file: what only a redo will need, once memory is short."""

from __future__ import annotations

from typing import Final

import numpy as np

from operators.sunion.chunk import Chunk
from spe.runtime.spill import Handle, Spill
from spe.stream.batch import Batch, Int64Array, Rows, concat_rows
from spe.stream.names import Kind

#: Rows after which a piece is large enough, however narrow they are: it is released in a slice or two.
PIECE_ROWS: Final = 10_000


class SpilledChunk:
    """Consecutive chunks as one piece: what places it stays here, the rows are read when they are asked for."""

    __slots__ = ("_count", "_handle", "_rows_bytes", "_spill", "first_id", "floor", "max", "min")

    #: What it takes of memory beside the data, which is what is counted of chunks.
    nbytes = 0

    def __init__(self, spill: Spill, handle: Handle, chunks: list[Chunk]) -> None:
        assert chunks, "B6: a piece on disk has rows"
        self._spill = spill
        self._handle = handle
        self._count = sum(len(c) for c in chunks)
        self._rows_bytes = sum(c.nbytes for c in chunks)
        self.first_id = chunks[0].first_id
        self.floor = chunks[0].floor
        self.min = min(c.min for c in chunks)
        self.max = max(c.max for c in chunks)

    def __len__(self) -> int:
        return self._count

    def loaded(self) -> Chunk:
        """The rows in memory again; the file keeps them until :meth:`forget`.  Raises SpillDamaged."""
        batch = self._spill.read(self._handle)
        return Chunk(batch.rows, self.first_id, batch.ids, self.floor, self._rows_bytes)

    def forget(self) -> None:
        self._spill.forget(self._handle)

    def select(self, low: int, high: int) -> Rows | None:
        """Rows with low ≤ time < high.  Raises SpillDamaged."""
        return self.loaded().select(low, high)

    def from_time(self, low: int) -> Chunk | SpilledChunk | None:
        """What has time ≥ low, or None; the rest is forgotten.  Raises SpillDamaged."""
        if self.min >= low:
            return self
        rest = self.loaded().from_time(low) if self.max >= low else None
        self.forget()
        return rest

    def times(self, low: int, high: int) -> Int64Array:
        """Of the rows with low ≤ time < high, or smaller ones: only a piece that ``low`` divides is read for it.
        Raises SpillDamaged."""
        return np.full(self._count, self.min) if self.min >= low else self.loaded().times(low, high)

    def smallest_id(self, low: int) -> int | None:
        """Smallest id among the rows with time ≥ low, or one below it: an acknowledgement may be too small."""
        return None if self.max < low else self.first_id


def spill_oldest(
    chunks: list[Chunk | SpilledChunk], spill: Spill, released: int, piece_bytes: int, *, wanted: int
) -> int:
    """Puts about ``piece_bytes`` of the oldest chunks in memory that lie wholly before ``released`` into one piece.

    Those that begin before ``wanted`` stay: they were loaded a moment ago.

    Returns:
      Bytes that went; 0 when so much is not there, or there is no room for it.
    """
    start = len(chunks)
    while start and isinstance(chunks[start - 1], Chunk):
        start -= 1
    while start < len(chunks) and chunks[start].min < wanted:
        start += 1
    picked: list[Chunk] = []
    size = count = 0
    for chunk in chunks[start:]:
        if size >= piece_bytes or count >= PIECE_ROWS or chunk.max >= released or not isinstance(chunk, Chunk):
            break
        picked.append(chunk)
        size += chunk.nbytes
        count += len(chunk)
    if size < piece_bytes and count < PIECE_ROWS:
        return 0
    handle = spill.write(_batch(picked))
    if handle is None:
        return 0
    chunks[start : start + len(picked)] = [SpilledChunk(spill, handle, picked)]
    return size


def _batch(chunks: list[Chunk]) -> Batch:
    ids = np.concatenate([c.row_ids() for c in chunks])
    rows = concat_rows([c.rows for c in chunks])
    if (ids[1:] < ids[:-1]).any():  # one that was cut is in order of time
        order = ids.argsort()
        ids, rows = ids.take(order), rows.take(order)
    first, last = int(ids[0]), int(ids[-1])
    gapless = last - first + 1 == len(ids)
    return Batch(Kind.STABLE, first - 1, last, None if gapless else ids, rows)
