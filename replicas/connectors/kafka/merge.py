"""Merges rows of several partitions into one order, so that none is late because another partition was read first.

Each partition has its own order, and event times that grow except for the disorder of the source.  While a partition
may give more rows, later rows of others wait; so after a pause, when all catch up, partitions advance together.  A
partition at its end delays no other.  Pure: no client, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np

from replicas.connectors.reader import CHUNK_BYTES, CHUNK_ROWS, Malformed, RowChunk
from spe.stream.batch import BoolArray, Column, Int64Array, concat_columns
from spe.stream.times import BEFORE_TIME, END_OF_TIME


class Arrived(NamedTuple):
    """Messages as received, those of each partition by offset.

    Attributes:
      partition, offset, size: shape (n,): partition, offset and bytes of each message.
      row: shape (n,): the number of its row in ``columns``; -1: it is malformed.
      columns: columns of the good rows.
      events: event times of the good rows; None: the time of arrival.
      malformed: malformed rows by message number.
    """

    partition: Int64Array
    offset: Int64Array
    size: Int64Array
    row: Int64Array
    columns: tuple[Column, ...]
    events: Int64Array | None
    malformed: Mapping[int, Malformed]


class Merged(NamedTuple):
    """Rows in order, and the offsets after them.

    Attributes:
      next_offset: shape (partitions,): next offset of each partition; -1: unknown.
      origin: returns partition and offset of a message, by its place within the chunk.
    """

    chunk: RowChunk
    next_offset: Int64Array
    origin: Callable[[int], tuple[int, int]]


#: Columns of waiting messages: the number of the batch, of the message in it, its partition, and the sort key.
_BATCH, _MESSAGE, _PARTITION, _KEY = range(4)
_NOTHING: Final = np.empty((4, 0), np.int64)


class PartitionMerge:
    """Takes arrived messages, and gives those that need not wait any more.

    Args:
      next_offset: shape (partitions,): offset of the first message that has not been given.

    Attributes:
      next_offset: the same, after all given messages.
      newest: shape (partitions,): largest event time that has arrived, BEFORE_TIME if none has.
      count, size: number of waiting messages, and their bytes.
      taken: number of given messages.
    """

    def __init__(self, next_offset: Int64Array) -> None:
        self.next_offset = next_offset.copy()
        self.newest = np.full(len(next_offset), BEFORE_TIME, np.int64)
        self.size = 0
        self.taken = 0
        self._batches: list[Arrived] = []
        self._waiting = _NOTHING

    @property
    def count(self) -> int:
        return self._waiting.shape[1]

    def waiting(self) -> Int64Array:
        """Returns the partitions with waiting messages."""
        return np.unique(self._waiting[_PARTITION])

    def grow(self, next_offset: Int64Array) -> None:
        """Appends new partitions."""
        self.next_offset = np.concatenate([self.next_offset, next_offset])
        self.newest = np.concatenate([self.newest, np.full(len(next_offset), BEFORE_TIME, np.int64)])

    def add(self, arrived: Arrived, refused_us: int = END_OF_TIME) -> None:
        """Adds arrived messages.

        Args:
          refused_us: rows with later event times are refused, so they do not affect the order.
        """
        n = len(arrived.partition)
        if not n:
            return
        new = np.empty((4, n), np.int64)
        new[_BATCH] = len(self._batches)
        new[_MESSAGE] = np.arange(n)
        new[_PARTITION] = arrived.partition
        new[_KEY] = self._keys(arrived, refused_us)
        self._batches.append(arrived)
        self._waiting = new if not self.count else np.concatenate([self._waiting, new], axis=1)
        self.size += int(arrived.size.sum())

    def _keys(self, arrived: Arrived, refused_us: int) -> Int64Array:
        """Returns the largest event time of the partition so far: it never falls, so messages keep their order."""
        events = np.full(len(arrived.partition), BEFORE_TIME, np.int64)
        if arrived.events is None:
            return events
        good = arrived.row >= 0
        events[good] = arrived.events[arrived.row[good]]
        events[events > refused_us] = BEFORE_TIME
        for partition in np.unique(arrived.partition).tolist():
            own = np.flatnonzero(arrived.partition == partition)
            keys = np.maximum.accumulate(np.maximum(events[own], self.newest[partition]))
            events[own] = keys
            self.newest[partition] = keys[-1]
        return events

    def give(self, ended: BoolArray) -> list[Merged]:
        """Gives messages that need not wait any more, in chunks.

        Args:
          ended: shape (partitions,): partitions without more messages for now.
        """
        if not self.count:
            return []
        keys = self._waiting[_KEY]
        limit = END_OF_TIME if ended.all() else int(self.newest[~ended].min())
        free = np.flatnonzero(keys <= limit)
        if not len(free):
            return []
        free = free[np.argsort(keys[free], kind="stable")]
        merged = []
        ready = self._waiting[:, free]
        for chosen in self._cut(ready):
            merged.append(self._merged(chosen))
        self._keep(np.delete(self._waiting, free, axis=1))
        return merged

    def _cut(self, ready: Int64Array) -> list[Int64Array]:
        """Divides messages into pieces within the limits of rows and bytes."""
        sizes = np.empty(ready.shape[1], np.int64)
        for number in np.unique(ready[_BATCH]).tolist():
            own = ready[_BATCH] == number
            sizes[own] = self._batches[number].size[ready[_MESSAGE, own]]
        self.size -= int(sizes.sum())
        pieces, first, sums = [], 0, np.cumsum(sizes)
        while first < len(sizes):
            before = 0 if first == 0 else int(sums[first - 1])
            stop = int(np.searchsorted(sums, before + CHUNK_BYTES, "right"))
            stop = min(max(stop, first + 1), first + CHUNK_ROWS)
            pieces.append(ready[:, first:stop])
            first = stop
        return pieces

    def _merged(self, chosen: Int64Array) -> Merged:
        numbers = np.unique(chosen[_BATCH]).tolist()
        rows = np.empty(chosen.shape[1], np.int64)
        malformed: list[tuple[int, Malformed]] = []
        for number in numbers:
            batch, own = self._batches[number], np.flatnonzero(chosen[_BATCH] == number)
            messages = chosen[_MESSAGE, own]
            rows[own] = batch.row[messages]
            bad = np.flatnonzero(rows[own] < 0)
            malformed += zip(own[bad].tolist(), [batch.malformed[m] for m in messages[bad].tolist()])
            np.maximum.at(self.next_offset, batch.partition[messages], batch.offset[messages] + 1)
        good = np.flatnonzero(rows >= 0)
        columns, events = self._columns(chosen[_BATCH, good], rows[good], numbers)
        places = None if len(good) == len(rows) else good
        malformed.sort(key=itemgetter(0))  # they came batch by batch
        chunk = RowChunk(self.taken, len(rows), events, columns, [row for _, row in malformed], places)
        self.taken += len(rows)
        return Merged(chunk, self.next_offset.copy(), partial(_origin, self._batches, chosen))

    def _columns(
        self, batch: Int64Array, row: Int64Array, numbers: list[int]
    ) -> tuple[tuple[Column, ...], Int64Array | None]:
        """Brings rows of several batches into one order."""
        if len(numbers) == 1:
            only = self._batches[numbers[0]]
            if len(row) == len(only.columns[0]) and (row == np.arange(len(row))).all():
                return only.columns, only.events
            return tuple(c.take(row) for c in only.columns), None if only.events is None else only.events.take(row)
        places = [np.flatnonzero(batch == number) for number in numbers]
        order = np.argsort(np.concatenate(places), kind="stable")
        parts = [tuple(c.take(row[p]) for c in self._batches[n].columns) for n, p in zip(numbers, places)]
        columns = tuple(concat_columns(column).take(order) for column in zip(*parts))
        if self._batches[numbers[0]].events is None:
            return columns, None
        events = [self._batches[n].events for n in numbers]
        return columns, np.concatenate([e[row[p]] for e, p in zip(events, places) if e is not None]).take(order)

    def _keep(self, waiting: Int64Array) -> None:
        """Drops batches without waiting messages."""
        numbers = np.unique(waiting[_BATCH])
        self._batches = [self._batches[n] for n in numbers.tolist()]
        waiting[_BATCH] = np.searchsorted(numbers, waiting[_BATCH])
        self._waiting = waiting


def _origin(batches: Sequence[Arrived], chosen: Int64Array, place: int) -> tuple[int, int]:
    batch, message = batches[chosen[_BATCH, place]], chosen[_MESSAGE, place]
    return int(batch.partition[message]), int(batch.offset[message])
