"""Batches and the boundaries between them, in order: what both the stable log and a tentative suffix consist of."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from spe.batch import Batch, BoolArray, Int64Array, concat_rows
from spe.hashing import partition_of
from spe.times import BEFORE_TIME

#: Rows after which small batches are not joined any more when a backlog is read; from 1,000 on more gains little.
COALESCE_ROWS: Final = 4_096

#: What an entry takes beside its arrays' contents: the objects, and per column an array's header.
ENTRY_BYTES: Final = 512
COLUMN_BYTES: Final = 192

#: (index, count, columns of the key): one consumer partition's share of a stream.
Substream = tuple[int, int, tuple[int, ...]]


class Entry:
    """A batch, with the last boundary before the next one.

    Attributes:
      boundary: microseconds of tuple time; BEFORE_TIME when none followed.  Consecutive boundaries with nothing in
        between are one: the last says everything.
      nbytes: what this is counted as.
    """

    __slots__ = ("_partitions", "batch", "boundary", "nbytes")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.boundary = BEFORE_TIME
        self.nbytes = batch.rows.nbytes + ENTRY_BYTES + COLUMN_BYTES * len(batch.rows.columns)
        self._partitions: dict[tuple[int, tuple[int, ...]], npt.NDArray[np.int32]] = {}

    def share(self, substream: Substream) -> BoolArray:
        """Mask of the rows of a substream.  Rows are hashed once, however many consumers read."""
        index, count, key = substream
        partitions = self._partitions.get((count, key))
        if partitions is None:
            columns = self.batch.rows.columns
            partitions = partition_of([columns[k] for k in key], count).astype(np.int32)
            self._partitions[count, key] = partitions
        mask: BoolArray = partitions == index
        return mask


class ElementLog:
    """Entries in order, appended at the end and dropped from the front.  Numbered since the beginning.

    Args:
      last_id: id before the first batch.
      frontier: boundary before the first batch.
    """

    __slots__ = ("_base_id", "_entries", "frontier", "last_id", "nbytes", "start")

    def __init__(self, last_id: int = 0, frontier: int = BEFORE_TIME) -> None:
        self._entries: list[Entry] = []
        self._base_id = last_id
        #: Number of the first entry that is still here.
        self.start = 0
        #: Id of the last tuple appended.
        self.last_id = last_id
        #: Last boundary appended, microseconds of tuple time; never decreases.
        self.frontier = frontier
        self.nbytes = 0

    @property
    def end(self) -> int:
        """Number that the next entry will have."""
        return self.start + len(self._entries)

    @property
    def first(self) -> int:
        """Smallest id that is still here, or that the next tuple will have."""
        return self._base_id + 1

    @property
    def untouched(self) -> bool:
        """Nothing was ever appended."""
        return self.end == 0 and self.frontier == BEFORE_TIME

    def __getitem__(self, number: int) -> Entry:
        return self._entries[number - self.start]

    def append(self, batch: Batch) -> None:
        entry = Entry(batch)
        self._entries.append(entry)
        self.last_id = batch.upto_id
        self.nbytes += entry.nbytes

    def advance(self, boundary: int) -> None:
        """A boundary after everything so far."""
        self.frontier = boundary
        if self._entries:
            self._entries[-1].boundary = boundary

    def drop_first(self) -> Batch:
        """Forgets the first entry and returns its batch."""
        entry = self._entries.pop(0)
        self.start += 1
        self._base_id = entry.batch.upto_id
        self.nbytes -= entry.nbytes
        return entry.batch

    def drop_through(self, last_id: int) -> None:
        """Forgets every entry that lies wholly at or below an id."""
        count = self._after(last_id)
        if count:
            self.nbytes -= sum(e.nbytes for e in self._entries[:count])
            self._base_id = self._entries[count - 1].batch.upto_id
            self.start += count
            del self._entries[:count]

    def number_after(self, last_id: int) -> int:
        """Number of the first entry that reaches beyond an id."""
        return self.start + self._after(last_id)

    def entries_after(self, last_id: int) -> list[Entry]:
        return self._entries[self._after(last_id) :]

    def _after(self, last_id: int) -> int:
        return bisect_right(self._entries, last_id, key=lambda e: e.batch.upto_id)

    def boundary_before(self, number: int) -> tuple[int, int]:
        """(time, last id) of the promise that stands between two entries; BEFORE_TIME when there is none."""
        if number == self.end:
            return self.frontier, self.last_id
        if number == self.start:
            return BEFORE_TIME, self._base_id
        entry = self[number - 1]
        return entry.boundary, entry.batch.upto_id


class Cursor:
    """A place in an ElementLog.

    Attributes:
      number: the entry that comes next.
      done: everything up to this id has been taken (or is of no use).
    """

    __slots__ = ("done", "number")

    def __init__(self, number: int, done: int) -> None:
        self.number = number
        self.done = done

    def take(
        self, log: ElementLog, max_bytes: int, mask_of: Callable[[Entry], BoolArray | None]
    ) -> tuple[Batch | None, int]:
        """Moves on by about ``max_bytes``; returns what lay there: (the rows in one batch, boundary after them).

        Small batches are joined, and only the boundary after the last is returned: a later boundary promises all that
        an earlier one did, and rows sorted by time are promises themselves.  On the live path there is one batch and
        one boundary, and nothing is copied.  Progress is made even when one row exceeds ``max_bytes``.

        Args:
          mask_of: which rows of an entry are wanted; None: all.

        Returns:
          None when no wanted row was passed; BEFORE_TIME when no boundary stands where the cursor is now.  The batch's
          ``from_id`` is that of its first part.
        """
        parts: list[Batch] = []
        size = count = 0
        while self.number < log.end and count < COALESCE_ROWS:
            entry = log[self.number]
            batch = entry.batch
            if batch.upto_id > self.done:
                mask = mask_of(entry)
                if mask is not None:
                    batch = batch.select(mask)
                batch = batch.after(self.done)
                nbytes = batch.rows.nbytes
                if size + nbytes > max_bytes:
                    if parts:
                        break
                    fit = max(1, len(batch) * max_bytes // nbytes)
                    if fit < len(batch):
                        head = _head(batch, fit)
                        self.done = head.upto_id
                        return head, BEFORE_TIME
                if len(batch):
                    parts.append(batch)
                    size += nbytes
                    count += len(batch)
                self.done = batch.upto_id
            self.number += 1
        boundary, upto = log.boundary_before(self.number)
        # A consumer that is ahead of this log has tuples which the boundary says nothing about yet.
        return _join(parts), boundary if upto >= self.done else BEFORE_TIME


def _head(batch: Batch, count: int) -> Batch:
    last = batch.from_id + count if batch.ids is None else int(batch.ids[count - 1])
    ids = None if batch.ids is None else batch.ids[:count]
    return Batch(batch.kind, batch.from_id, last, ids, batch.rows.slice(0, count))


def _join(parts: list[Batch]) -> Batch | None:
    if len(parts) < 2:
        return parts[0] if parts else None
    rows = concat_rows([p.rows for p in parts])
    first, last = parts[0].from_id, parts[-1].upto_id
    ids: Int64Array | None = None
    if len(rows) != last - first or any(p.ids is not None for p in parts):
        ids = np.concatenate([p.row_ids() for p in parts])
    return Batch(parts[0].kind, first, last, ids, rows)
