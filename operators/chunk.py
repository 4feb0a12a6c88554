"""Rows that an SUnion holds: as they arrived, with what is needed to place them without looking inside."""

from __future__ import annotations

import numpy as np

from spe.batch import Int64Array, Rows
from spe.times import END_OF_TIME


class Chunk:
    """Rows as they arrived, with what is needed to place them without looking inside.

    ``floor`` is the input's stable frontier on arrival: no later chunk holds a smaller time, so a scan over chunks
    can stop at the first whose floor is past its end.
    """

    __slots__ = ("first_id", "floor", "ids", "max", "min", "nbytes", "rows", "sorted", "width")

    def __init__(self, rows: Rows, first_id: int, ids: Int64Array | None, floor: int, width: int) -> None:
        self.rows = rows
        self.first_id = first_id
        self.ids = ids
        self.floor = floor
        self.sorted, self.min, self.max = rows.span()
        self.width = width
        self.nbytes = len(rows.time) * width

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
        time = self.rows.time
        if self.sorted:
            start, stop = time.searchsorted(low), time.searchsorted(high)
            return self.rows.slice(int(start), int(stop)) if start < stop else None
        mask = (time >= low) & (time < high)
        return self.rows.select(mask) if mask.any() else None

    def from_time(self, low: int) -> Chunk | None:
        """What has time ≥ low, or None."""
        if self.min >= low:
            return self
        if self.max < low:
            return None
        if self.sorted:
            start = int(self.rows.time.searchsorted(low))
            ids = None if self.ids is None else self.ids[start:]
            return Chunk(self.rows.slice(start, len(self.rows)), self.first_id + start, ids, self.floor, self.width)
        index = np.flatnonzero(self.rows.time >= low)
        ids = index + self.first_id if self.ids is None else self.ids.take(index)
        return Chunk(self.rows.take(index), self.first_id, ids, self.floor, self.width)

    def time_after(self, low: int, rows: int) -> int:
        """A time such that at most ``rows`` rows lie in [low, time); END_OF_TIME if there are no more of them."""
        time = self.rows.time
        if self.sorted:
            at = int(time.searchsorted(low)) + rows
            return int(time[at]) if at < len(time) else END_OF_TIME
        later = time[time >= low] if self.min < low else time
        return int(np.partition(later, rows)[rows]) if rows < len(later) else END_OF_TIME

    def smallest_id(self, low: int) -> int | None:
        """Smallest id among the rows with time ≥ low (ids ascend within a chunk)."""
        if self.max < low:
            return None
        at = 0 if self.min >= low else int(np.argmax(self.rows.time >= low))
        return self.first_id + at if self.ids is None else int(self.ids[at])
