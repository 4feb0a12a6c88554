"""Buffers changes of an output, to be taken in portions; a reader may ask for the same portion again.  Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from spe.stream.batch import Batch, Boundary, Undo
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind

#: Boundaries without other changes make a portion of their own after this time, microseconds.
QUIET_US = 1_000_000


class Numbered(NamedTuple):
    """A change with its number in the session; of successive boundaries of a partition only the newest is kept."""

    number: int
    change: Change


class Portion(NamedTuple):
    """The end of a portion: the number of its last change, and the last stable id of each partition."""

    number: int
    ids: dict[int, int]


class ChangeBuffer:
    """The changes of one session of a client, beginning with the first uncommitted one.

    It begins with an undo of each partition, which withdraws the tentative results of an earlier session.

    Args:
      channels: channels of the output, by partition.
      ids: last stable id of each partition before this session.
      number: number of the last change before this session.
      rows_max: the buffer is full when so many rows and changes are in no portion.
    """

    def __init__(
        self, channels: tuple[Channel, ...], ids: Mapping[int, int], number: int, rows_max: int, now_us: int
    ) -> None:
        self._number = number
        self._rows_max = rows_max
        self._ids = dict(ids)
        self._waiting: deque[Numbered] = deque()
        #: Last change in a portion, and when that portion was made.
        self._portioned, self._portioned_us = number, now_us
        #: Number of stored rows and changes, and of those that are in no portion.
        self._kept = self._new = 0
        #: Number of the newest boundary of a partition and kind, if no other change of the partition has followed it.
        self._boundaries: dict[tuple[int, Kind], int] = {}
        #: Tentative tuples passed on in this session, and how many of them were withdrawn.
        self.tentative = self.undone = 0
        self._open: dict[int, int] = {}
        for channel in channels:
            self.add(Change(channel, Undo(ids[channel.partition]), now_us))

    @property
    def full(self) -> bool:
        """No change may be added until another portion is asked for.

        Changes in portions do not count: they are dropped when the next portion is asked for, so the wait would not
        end.
        """
        return self._new >= self._rows_max

    def add(self, change: Change) -> None:
        """Adds the next change."""
        element, partition = change.element, change.channel.partition
        if isinstance(element, Boundary):
            before = self._boundaries.get((partition, element.kind), 0)
            if before > self._portioned:
                self._waiting[before - self._waiting[0].number] = Numbered(before, change)
                return
            self._boundaries[partition, element.kind] = self._number + 1
        else:
            for kind in Kind:
                self._boundaries.pop((partition, kind), None)
        self._number += 1
        self._waiting.append(Numbered(self._number, change))
        self._kept += _weight(change)
        self._new += _weight(change)
        if isinstance(element, Batch):
            if element.kind is Kind.TENTATIVE:
                self.tentative += len(element)
                self._open[partition] = self._open.get(partition, 0) + len(element)
        elif isinstance(element, Undo):
            self.undone += self._open.pop(partition, 0)

    def portion(self, after: int, rows: int | None, now_us: int) -> Portion | None:
        """Returns the end of the portion that follows change ``after``; None: there is not enough for a portion.

        Args:
          rows: largest number of rows, approximately, but at least one change; None: all.
        """
        ids, end, count, worth, weight = dict(self._ids), after, 0, False, 0
        for number, change in self._waiting:
            size = len(change.element) if isinstance(change.element, Batch) else 0
            if number > after:
                if rows is not None and count and size and count + size > rows:
                    break
                end, count = number, count + size
                worth = worth or not isinstance(change.element, Boundary)
            weight += _weight(change)
            _advance(ids, change)
        if end == after or not (worth or now_us - self._portioned_us >= QUIET_US):
            return None
        self._portioned, self._portioned_us = end, now_us
        self._new = self._kept - weight
        return Portion(end, ids)

    def backlog(self) -> int:
        """Number of rows that are in no portion."""
        return sum(len(c.element) for n, c in self._waiting if n > self._portioned and isinstance(c.element, Batch))

    def changes(self, after: int, upto: int) -> list[Numbered]:
        """Returns the changes of a portion."""
        return [numbered for numbered in self._waiting if after < numbered.number <= upto]

    def drop(self, upto: int) -> None:
        """Drops committed changes, which are not asked for again."""
        while self._waiting and self._waiting[0].number <= upto:
            change = self._waiting.popleft().change
            _advance(self._ids, change)
            self._kept -= _weight(change)


def _weight(change: Change) -> int:
    return 1 + (len(change.element) if isinstance(change.element, Batch) else 0)


def _advance(ids: dict[int, int], change: Change) -> None:
    """Updates the last stable id of each partition with a change."""
    element, partition = change.element, change.channel.partition
    if isinstance(element, Batch | Boundary) and element.kind is Kind.STABLE:
        ids[partition] = max(ids[partition], element.upto_id)
