"""A sequence of batches and boundaries, as in the stable log and in a tentative suffix."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final

import numpy as np

from replicas.producer.log_entry import Entry
from replicas.producer.spilled_log import SpilledEntries
from replicas.producer.text_copies import OwnTexts
from spe.runtime.spill import Spill, SpillNotLoaded
from spe.stream.batch import Batch, BoolArray, Int64Array, concat_rows
from spe.stream.text_size import rows_within
from spe.stream.times import BEFORE_TIME

#: Small batches of a backlog are joined up to this many rows; beyond 1,000 more gains little.
COALESCE_ROWS: Final = 4_096
#: A larger batch becomes several entries, bytes: at a cap at least one entry is dropped, and a slice of long texts may
#: be larger than the cap.
ENTRY_BYTES_MAX: Final = 8 << 20


class ElementLog:
    """Entries in order, numbered since the beginning, appended at the end and dropped from the front.

    The oldest may be in spill files, which readers do not notice.

    Args:
      last_id: id before the first batch.
      frontier: boundary before the first batch.
      spill: takes the oldest entries of a stable log; None: all stay in memory.
    """

    __slots__ = (
        "_entries",
        "_memory_base_id",
        "_memory_start",
        "_own",
        "_spilled",
        "frontier",
        "last_id",
        "memory_bytes",
    )

    def __init__(self, last_id: int = 0, frontier: int = BEFORE_TIME, spill: Spill | None = None) -> None:
        self._entries: list[Entry] = []
        self._own = OwnTexts()
        self._spilled = None if spill is None else SpilledEntries(spill)
        #: Number of, and id before, the first entry in memory.
        self._memory_start = 0
        self._memory_base_id = last_id
        #: Id of the last tuple appended.
        self.last_id = last_id
        #: Last boundary appended, microseconds of tuple time; never decreases.
        self.frontier = frontier
        #: Bytes of the entries in memory.
        self.memory_bytes = 0

    @property
    def nbytes(self) -> int:
        """Memory of the log, bytes."""
        return self.memory_bytes + (self._spilled.nbytes if self._spilled else 0)

    def stored_after(self, last_id: int) -> int:
        """Returns the bytes of entries that reach beyond an id, in memory and in spill files (counted as a whole)."""
        in_memory = sum(entry.nbytes for entry in self._entries[self._after(last_id) :])
        return in_memory + (self._spilled.stored_bytes if self._spilled and last_id < self._memory_base_id else 0)

    @property
    def start(self) -> int:
        """Number of the first entry."""
        return self._spilled.start if self._spilled else self._memory_start

    @property
    def end(self) -> int:
        """Number that the next entry will have."""
        return self._memory_start + len(self._entries)

    @property
    def _base_id(self) -> int:
        return self._spilled.base_id if self._spilled else self._memory_base_id

    @property
    def first(self) -> int:
        """Smallest id in the log, or the id of the next tuple."""
        return self._base_id + 1

    @property
    def damaged(self) -> bool:
        """Does the log begin behind a part that was lost to damage?"""
        return self._spilled is not None and self._spilled.lost_id == self._base_id > 0

    @property
    def untouched(self) -> bool:
        """Was nothing ever appended?"""
        return self.end == 0 and self.frontier == BEFORE_TIME

    def __getitem__(self, number: int) -> Entry:
        """Returns an entry.  Raises SpillNotLoaded; SpillDamaged if it is lost, and forgets everything up to it."""
        if number < self._memory_start:
            assert self._spilled is not None, "A9: only an entry that was spilled is not in memory"
            return self._spilled[number]
        return self._entries[number - self._memory_start]

    def validate(self) -> None:
        """Asserts what holds between two events, entry by entry."""
        assert self.memory_bytes == sum(e.nbytes for e in self._entries), "A2: what is kept is counted"
        last_id, boundary = self._memory_base_id, BEFORE_TIME
        for entry in self._entries:
            assert entry.batch.from_id == last_id, "invariant 4: ids are consecutive"
            assert boundary <= (boundary := max(boundary, entry.boundary)) <= self.frontier, "invariant 5: boundaries"
            last_id = entry.batch.upto_id
        assert last_id == self.last_id, "invariant 4: ids are consecutive"

    def append(self, batch: Batch) -> None:
        batch = self._own.freed(batch)
        for entry in _entries(Entry(batch)):
            self._entries.append(entry)
            self.memory_bytes += entry.nbytes
        self.last_id = batch.upto_id

    def advance(self, boundary: int) -> None:
        """Appends a boundary."""
        self.frontier = boundary
        if self._entries:
            self._entries[-1].boundary = boundary

    def drop_first(self) -> Batch:
        """Removes the first entry, of a log without spill files, and returns its batch."""
        assert not self._spilled, "A9: a log that spills keeps its entries in order on the disk"
        batch = self._entries[0].batch
        self._leave_memory(1)
        return batch

    def drop_through(self, last_id: int, down_to: int = 0) -> None:
        """Forgets entries wholly at or below an id; of spilled ones only whole pieces.

        Args:
          down_to: bytes of memory that may stay; the newest of these entries do.
        """
        if self._spilled:
            self._spilled.forget_through(last_id)
        if not self._spilled:
            count, most, size = 0, self._after(last_id), self.memory_bytes
            while count < most and size > down_to:
                size -= self._entries[count].nbytes
                count += 1
            self._leave_memory(count)

    def spill(self, above_bytes: int, piece_bytes: int) -> None:
        """Moves the oldest entries to spill files while more than ``above_bytes`` are in memory and files have room."""
        while self._spilled is not None and self.memory_bytes > above_bytes:
            count = size = 0
            while size < piece_bytes and count < len(self._entries) - 1:  # the last one's boundary may still advance
                size += self._entries[count].nbytes
                count += 1
            if not count or not self._spilled.add(self._memory_start, self._entries[:count]):
                return
            self._leave_memory(count)

    def number_after(self, last_id: int) -> int:
        """Returns the number of the first entry that reaches beyond an id."""
        if self._spilled and last_id < self._memory_base_id:
            return self._spilled.number_after(last_id)
        return self._memory_start + self._after(last_id)

    def spilled_after(self, last_id: int) -> list[Entry]:
        """Returns the entries of the first spilled piece that reaches beyond an id; none: memory has the rest.

        Raises SpillDamaged as above."""
        return self._spilled.piece_after(last_id) if self._spilled else []

    def entries_after(self, last_id: int) -> list[Entry]:
        """Returns the entries that reach beyond an id.  Raises SpillDamaged as above."""
        spilled = list(self._spilled.entries_after(last_id)) if self._spilled else []
        return spilled + self._entries[self._after(last_id) :]

    def _after(self, last_id: int) -> int:
        return bisect_right(self._entries, last_id, key=lambda e: e.batch.upto_id)

    def _leave_memory(self, count: int) -> None:
        """Removes the first ``count`` entries from memory."""
        if count:
            self.memory_bytes -= sum(e.nbytes for e in self._entries[:count])
            self._memory_base_id = self._entries[count - 1].batch.upto_id
            self._memory_start += count
            del self._entries[:count]

    def boundary_before(self, number: int) -> tuple[int, int]:
        """Returns (time, last id) of the boundary between two entries; BEFORE_TIME when there is none."""
        if number == self.end:
            return self.frontier, self.last_id
        if number == self.start:
            return BEFORE_TIME, self._base_id
        if number <= self._memory_start and self._spilled:
            return self._spilled.end_of(number - 1)
        entry = self[number - 1]
        return entry.boundary, entry.batch.upto_id


class Cursor:
    """A position in an ElementLog.

    Attributes:
      number: number of the next entry.
      done: everything up to this id was taken, or is not needed.
      taken_bytes: bytes of the rows that were taken last.
    """

    __slots__ = ("done", "number", "taken_bytes")

    def __init__(self, number: int, done: int) -> None:
        self.number = number
        self.done = done
        self.taken_bytes = 0

    def take(
        self, log: ElementLog, max_bytes: int, mask_of: Callable[[Entry], BoolArray | None]
    ) -> tuple[Batch | None, int]:
        """Advances by about ``max_bytes``; returns (the rows in one batch, boundary after them).

        Small batches are joined, and only the boundary after the last is returned: a later boundary implies the
        earlier ones, as do rows sorted by time.  On the live path there is one batch and one boundary, and nothing is
        copied.  Progress is made even when one row exceeds ``max_bytes``.

        Args:
          mask_of: returns the mask of wanted rows of an entry; None: all.

        Returns:
          None when no wanted row was passed; BEFORE_TIME when no boundary stands where the cursor is now.  The batch's
          ``from_id`` is that of its first part.

        Raises:
          SpillDamaged: the next entry is lost.
          SpillNotLoaded: the next entry is on disk; the previous call took all before it.
        """
        parts: list[Batch] = []
        size = count = 0
        first = self.number
        while self.number < log.end and count < COALESCE_ROWS:
            try:
                entry = log[self.number]
            except SpillNotLoaded:
                if self.number == first:
                    raise
                break
            batch = entry.batch
            if batch.upto_id > self.done:
                mask = mask_of(entry)
                if mask is not None:
                    batch = batch.select(mask)
                batch = batch.after(self.done)
                nbytes = entry.rows_bytes if batch is entry.batch else batch.rows.nbytes
                if size + nbytes > max_bytes:
                    if parts:
                        break
                    fit = rows_within(batch.rows, max_bytes)
                    if fit < len(batch):
                        head = _head(batch, fit)
                        self.done = head.upto_id
                        self.taken_bytes = head.rows.nbytes
                        return head, BEFORE_TIME
                if len(batch):
                    parts.append(batch)
                    size += nbytes
                    count += len(batch)
                self.done = batch.upto_id
            self.number += 1
        self.taken_bytes = size
        boundary, upto = log.boundary_before(self.number)
        # A consumer that is ahead of this log has tuples that the boundary does not cover yet.
        return _join(parts), boundary if upto >= self.done else BEFORE_TIME


def _entries(whole: Entry) -> list[Entry]:
    """Divides an entry into entries of at most ``ENTRY_BYTES_MAX``, as far as that makes them smaller."""
    batch = whole.batch
    if whole.rows_bytes <= ENTRY_BYTES_MAX or len(batch) == 1:
        return [whole]
    head = _head(batch, len(batch) // 2)
    halves = [Entry(head), Entry(batch.after(head.upto_id))]
    if 2 * sum(half.rows_bytes for half in halves) > 3 * whole.rows_bytes:  # the halves share texts
        return [whole]
    return [entry for half in halves for entry in _entries(half)]


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
