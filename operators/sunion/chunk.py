"""Rows that an SUnion holds: as they arrived, with what is needed to place them without looking inside."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from spe.stream.batch import Int64Array, Rows, concat_rows

#: Chunks with fewer rows are small: what Python and NumPy take for each would be as much as its rows or more.
_SMALL_ROWS: Final = 1024
#: So many small ones are put together.  Where slices are released in time there are never so many.
_SMALL_CHUNKS: Final = 64


class Chunk:
    """Rows as they arrived, with what is needed to place them without looking inside.

    ``floor`` is the input's stable frontier on arrival: no later chunk holds a smaller time, so a scan over chunks
    can stop at the first whose floor is past its end.  ``first_id`` is no larger than any row's id; ``ids`` are in the
    order of the rows, None where they count up from ``first_id``.  ``nbytes`` is what they are counted as.
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
        """Chunks that follow each other as one, in order of (time, id)."""
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
        """Rows with low ≤ time < high."""
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
        """The ids of rows, given by number among those that :meth:`select` gives."""
        time = self.rows.time
        if self.sorted:
            rows = rows + int(time.searchsorted(low))
        elif self.min < low or self.max >= high:
            rows = ((time >= low) & (time < high)).nonzero()[0][rows]
        return self.first_id + rows if self.ids is None else self.ids[rows]

    def from_time(self, low: int) -> Chunk | None:
        """What has time ≥ low, or None.  What is cut once is in order of time from then on: the next cut is a view."""
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
        """What a part of our rows is counted as."""
        return self.nbytes * len(rows.time) // len(self.rows.time)

    def times(self, low: int, high: int) -> Int64Array:
        """Of the rows with low ≤ time < high, in any order."""
        time = self.rows.time
        if self.min >= low and self.max < high:
            return time
        if self.sorted:
            return time[time.searchsorted(low) : time.searchsorted(high)]
        return time[(time >= low) & (time < high)]

    def smallest_id(self, low: int) -> int | None:
        """Smallest id among the rows with time ≥ low."""
        if self.max < low:
            return None
        if self.ids is None:
            return self.first_id + (0 if self.min >= low else int(np.argmax(self.rows.time >= low)))
        return int((self.ids if self.min >= low else self.ids[self.rows.time >= low]).min())


def _continues(chunk: Chunk, following: Chunk) -> bool:
    """Both are in order of time, and of ids that count up, also from one to the other."""
    plain = chunk.ids is None and following.ids is None and chunk.sorted and following.sorted
    return plain and chunk.max <= following.min and chunk.first_id + len(chunk) == following.first_id


def put_together(chunks: list[Any]) -> None:
    """Joins the small chunks at the end of a list, now and then, if they are many; call it after each that comes.

    A chunk of a few rows takes about 2 KB, whatever is counted for it: a long failure, on streams with a few tuples a
    second, must not take fifty times the memory that limits speak of.
    """
    start = len(chunks)
    if start % _SMALL_CHUNKS:
        return
    while start and isinstance(chunks[start - 1], Chunk) and len(chunks[start - 1]) < _SMALL_ROWS:
        start -= 1
    if len(chunks) - start >= _SMALL_CHUNKS:
        chunks[start:] = [Chunk.merged(chunks[start:])]
