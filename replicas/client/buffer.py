"""Changes of an output that wait to be taken in portions, by somebody who may ask for the same portion again.  Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from spe.stream.batch import Batch, Boundary, Undo
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind

#: Boundaries that nothing else came with make a portion of their own after this time, microseconds.
QUIET_US = 1_000_000


class Numbered(NamedTuple):
    """A change, by its number in the session; of boundaries of a partition in succession only the newest is there."""

    number: int
    change: Change


class Portion(NamedTuple):
    """Where a portion ends: the number of its last change, and the last stable id of each partition."""

    number: int
    ids: dict[int, int]


class ChangeBuffer:
    """The changes of one session of a client, from the first one that is not committed on.

    It begins with an undo of each partition: what an earlier session has passed on as tentative is withdrawn.

    Args:
      channels: of the output, by partition.
      ids: last stable id of each partition before this session.
      number: of the last change before it.
      rows_max: beyond so many rows and changes that no portion has, nothing more is to be taken in.
    """

    def __init__(
        self, channels: tuple[Channel, ...], ids: Mapping[int, int], number: int, rows_max: int, now_us: int
    ) -> None:
        self._number = number
        self._rows_max = rows_max
        self._ids = dict(ids)
        self._waiting: deque[Numbered] = deque()
        #: Last change that a portion has, and when it was made.
        self._portioned, self._portioned_us = number, now_us
        #: Rows and changes that are kept, and those of them that no portion has.
        self._kept = self._new = 0
        #: Number of the newest boundary of a partition and kind, where no other change of the partition came after it.
        self._boundaries: dict[tuple[int, Kind], int] = {}
        #: Tentative tuples passed on in this session, and those of them that were withdrawn.
        self.tentative = self.undone = 0
        self._open: dict[int, int] = {}
        for channel in channels:
            self.add(Change(channel, Undo(ids[channel.partition]), now_us))

    @property
    def full(self) -> bool:
        """Nothing more is to be taken in until another portion is asked for.

        What portions have does not count: it is dropped when the one behind them is asked for, so this would never end.
        """
        return self._new >= self._rows_max

    def add(self, change: Change) -> None:
        """Takes what came next."""
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
        """Where the next portion after change ``after`` ends; None: there is nothing that is worth one.

        Args:
          rows: about so many rows at most, but at least one change; None: all.
        """
        ids, found, count, worth, weight = dict(self._ids), after, 0, False, 0
        for number, change in self._waiting:
            size = len(change.element) if isinstance(change.element, Batch) else 0
            if number > after:
                if rows is not None and count and size and count + size > rows:
                    break
                found, count = number, count + size
                worth = worth or not isinstance(change.element, Boundary)
            weight += _weight(change)
            _advance(ids, change)
        if found == after or not (worth or now_us - self._portioned_us >= QUIET_US):
            return None
        self._portioned, self._portioned_us = found, now_us
        self._new = self._kept - weight
        return Portion(found, ids)

    def backlog(self) -> int:
        """Rows that no portion has yet."""
        return sum(len(c.element) for n, c in self._waiting if n > self._portioned and isinstance(c.element, Batch))

    def changes(self, after: int, upto: int) -> list[Numbered]:
        """What a portion has."""
        return [one for one in self._waiting if after < one.number <= upto]

    def drop(self, upto: int) -> None:
        """What was committed is not asked for again."""
        while self._waiting and self._waiting[0].number <= upto:
            change = self._waiting.popleft().change
            _advance(self._ids, change)
            self._kept -= _weight(change)


def _weight(change: Change) -> int:
    return 1 + (len(change.element) if isinstance(change.element, Batch) else 0)


def _advance(ids: dict[int, int], change: Change) -> None:
    """Last stable id of each partition, once a change is counted in."""
    element, partition = change.element, change.channel.partition
    if isinstance(element, Batch | Boundary) and element.kind is Kind.STABLE:
        ids[partition] = max(ids[partition], element.upto_id)
