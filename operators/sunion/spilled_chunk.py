"""Chunks of an SUnion in a spill file, which only a redo will need."""

from __future__ import annotations

from typing import Final

import numpy as np

from operators.sunion.chunk import Chunk
from spe.runtime.spill import Handle, Spill
from spe.stream.batch import Batch, Int64Array, Rows, concat_rows
from spe.stream.names import Kind

#: A piece ends after this many rows, even narrow ones: it is released in a slice or two.
PIECE_ROWS: Final = 10_000


class SpilledChunk:
    """Consecutive chunks as one piece: its bounds stay in memory, its rows are read when needed."""

    __slots__ = ("_count", "_handle", "_rows_bytes", "_spill", "first_id", "floor", "max", "min")

    #: Counted bytes in memory: its data are on disk.
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
        """Loads the rows; the file keeps them until :meth:`forget`.  Raises SpillDamaged."""
        batch = self._spill.read(self._handle)
        return Chunk(batch.rows, self.first_id, batch.ids, self.floor, self._rows_bytes)

    def forget(self) -> None:
        self._spill.forget(self._handle)

    def select(self, low: int, high: int) -> Rows | None:
        """Returns rows with low ≤ time < high.  Raises SpillDamaged."""
        return self.loaded().select(low, high)

    def from_time(self, low: int) -> Chunk | SpilledChunk | None:
        """Returns the rows with time ≥ low, or None, and forgets the rest.  Raises SpillDamaged."""
        if self.min >= low:
            return self
        rest = self.loaded().from_time(low) if self.max >= low else None
        self.forget()
        return rest

    def times(self, low: int, high: int) -> Int64Array:
        """Returns times of the rows with low ≤ time < high, or smaller times, without reading a piece unless ``low``
        divides it.  Raises SpillDamaged.
        """
        return np.full(self._count, self.min) if self.min >= low else self.loaded().times(low, high)

    def smallest_id(self, low: int) -> int | None:
        """Returns the smallest id among the rows with time ≥ low, or a smaller one: an acknowledgement may be low."""
        return None if self.max < low else self.first_id


def spill_oldest(
    chunks: list[Chunk | SpilledChunk], spill: Spill, released: int, piece_bytes: int, *, wanted: int
) -> int:
    """Spills about ``piece_bytes`` of the oldest chunks in memory wholly before ``released``, as one piece.

    Chunks that begin before ``wanted`` stay: they were just loaded.

    Returns:
      Bytes that were spilled; 0 when there are fewer, or no room on disk.
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
    if (ids[1:] < ids[:-1]).any():  # a chunk that was cut is sorted by time
        order = ids.argsort()
        ids, rows = ids.take(order), rows.take(order)
    first, last = int(ids[0]), int(ids[-1])
    gapless = last - first + 1 == len(ids)
    return Batch(Kind.STABLE, first - 1, last, None if gapless else ids, rows)
