"""Chunks of rows that an SUnion holds, with the data to place them without reading rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from spe.stream.batch import Int64Array, Rows, concat_rows

#: Chunks with fewer rows are small: the overhead of Python and NumPy is as large as their rows, or larger.
_SMALL_ROWS: Final = 1024
#: This many small chunks are joined.  Where slices are released in time there are never so many.
_SMALL_CHUNKS: Final = 64


class Chunk:
    """Rows as they arrived, with the data to place them without reading rows.

    ``floor`` is the input's stable frontier on arrival: no later chunk holds a smaller time, so a scan over chunks
    can stop at the first whose floor is past its end.  ``first_id`` is no larger than any row's id; ``ids`` are in the
    order of the rows, None where they count up from ``first_id``.  ``nbytes`` is the size that they are counted as.
    """

    __slots__ = ("first_id", "floor", "ids", "max", "min", "nbytes", "rows", "sorted")

    def __init__(self, rows: Rows, first_id: int, ids: Int64Array | None, floor: int, nbytes: int) -> None:
        self.rows = rows
        self.first_id = first_id
        self.ids = ids
        self.floor = floor
        self.sorted, self.min, self.max = rows.span()
        self.nbytes = nbytes

    @classmethod
    def merged(cls, chunks: Sequence[Chunk]) -> Chunk:
        """Joins consecutive chunks into one, in order of (time, id)."""
        rows, nbytes = concat_rows([c.rows for c in chunks]), sum([c.nbytes for c in chunks])
        if len(chunks) > 1 and all(_continues(a, b) for a, b in pairwise(chunks)):
            return cls(rows, chunks[0].first_id, None, chunks[0].floor, nbytes)
        order = rows.time.argsort(kind="stable")
        ids = np.concatenate([c.row_ids() for c in chunks]).take(order)
        return cls(rows.take(order), min(c.first_id for c in chunks), ids, chunks[0].floor, nbytes)

    def __len__(self) -> int:
        return len(self.rows)

    def row_ids(self) -> Int64Array:
        if self.ids is not None:
            return self.ids
        return np.arange(self.first_id, self.first_id + len(self.rows), dtype=np.int64)

    def select(self, low: int, high: int) -> Rows | None:
        """Returns rows with low ≤ time < high."""
        if self.min >= low and self.max < high:
            return self.rows
        if self.min >= high:
            return None
        time = self.rows.time
        if self.sorted:
            start, stop = time.searchsorted(low), time.searchsorted(high)
            return self.rows.slice(int(start), int(stop)) if start < stop else None
        mask = (time >= low) & (time < high)
        return self.rows.select(mask) if mask.any() else None

    def ids_in(self, low: int, high: int, rows: Int64Array) -> Int64Array:
        """Returns the ids of rows, numbered as in the result of :meth:`select`."""
        time = self.rows.time
        if self.sorted:
            rows = rows + int(time.searchsorted(low))
        elif self.min < low or self.max >= high:
            rows = ((time >= low) & (time < high)).nonzero()[0][rows]
        return self.first_id + rows if self.ids is None else self.ids[rows]

    def from_time(self, low: int) -> Chunk | None:
        """Returns the rows with time ≥ low, or None.  They are sorted by time, so the next cut is a view."""
        if self.min >= low:
            return self
        if self.max < low:
            return None
        time = self.rows.time
        if self.sorted:
            start = int(time.searchsorted(low))
            rows = self.rows.slice(start, len(time))
            if self.ids is None:
                return Chunk(rows, self.first_id + start, None, self.floor, self._share_of(rows))
            ids = self.ids[start:]
        else:
            index = np.flatnonzero(time >= low)
            index = index[time.take(index).argsort(kind="stable")]
            rows = self.rows.take(index)
            ids = index + self.first_id if self.ids is None else self.ids.take(index)
        return Chunk(rows, int(ids.min()), ids, self.floor, self._share_of(rows))

    def _share_of(self, rows: Rows) -> int:
        """Returns the bytes that a part of the rows is counted as."""
        return self.nbytes * len(rows.time) // len(self.rows.time)

    def times(self, low: int, high: int) -> Int64Array:
        """Returns the times of rows with low ≤ time < high, in any order."""
        time = self.rows.time
        if self.min >= low and self.max < high:
            return time
        if self.sorted:
            return time[time.searchsorted(low) : time.searchsorted(high)]
        return time[(time >= low) & (time < high)]

    def smallest_id(self, low: int) -> int | None:
        """Returns the smallest id among the rows with time ≥ low."""
        if self.max < low:
            return None
        if self.ids is None:
            return self.first_id + (0 if self.min >= low else int(np.argmax(self.rows.time >= low)))
        return int((self.ids if self.min >= low else self.ids[self.rows.time >= low]).min())


def _continues(chunk: Chunk, following: Chunk) -> bool:
    """Are both sorted by time and by consecutive ids, also from one chunk to the other?"""
    plain = chunk.ids is None and following.ids is None and chunk.sorted and following.sorted
    return plain and chunk.max <= following.min and chunk.first_id + len(chunk) == following.first_id


def put_together(chunks: list[Any]) -> None:
    """Joins the small chunks at the end of a list once they are many; call it after each new chunk.

    A chunk of a few rows takes about 2 KB, more than it is counted as: a long failure, on streams with a few tuples a
    second, must not take fifty times the limits.
    """
    start = len(chunks)
    if start % _SMALL_CHUNKS:
        return
    while start and isinstance(chunks[start - 1], Chunk) and len(chunks[start - 1]) < _SMALL_ROWS:
        start -= 1
    if len(chunks) - start >= _SMALL_CHUNKS:
        chunks[start:] = [Chunk.merged(chunks[start:])]
