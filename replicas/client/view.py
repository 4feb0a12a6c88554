"""Turns the elements that a client receives into changes and views.  Pure.

A client is a unit without operators and partner (rule F7): it takes MAIN only, and applies an undo at once.
:class:`ClientPort` turns a channel's feed into changes without duplicates; :class:`StableView` yields the final tuples
only, merged over the partitions of a stream; :class:`CurrentView` is the newest answer.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from operators.sunion.sunion import SUnion
from spe.errors import RemoteProtocolError
from spe.plan.plan import Plan
from spe.stream.batch import Batch, Boundary, Element, RecDone, Rows, Undo, concat_rows
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import Kind, StreamId
from spe.stream.times import BEFORE_TIME, saturating_add


class ClientPort:
    """One channel of a client: a Port (replicas.consumer.feed) that drops elements passed on before.

    Args:
      channel: which channel.
      emit: called with each element to pass on.
    """

    def __init__(self, channel: Channel, emit: Callable[[Channel, Element], None]) -> None:
        self.channel = channel
        self.position = 0
        self.frontier = BEFORE_TIME
        self.held = False
        self.tentative_count = 0
        self.stable_count = 0
        self._last_time = BEFORE_TIME
        self._tentative_seen = BEFORE_TIME
        self._cut_time = BEFORE_TIME
        self._live = False
        #: Id of the last tentative tuple passed on since the last undo.
        self._tentative_id = 0
        self._emit = emit

    def t_star(self) -> int:
        return max(self._tentative_seen, self._cut_time, self._last_time, saturating_add(self.frontier, -1))

    def add_stable(self, batch: Batch, now: int) -> None:
        if batch.from_id < self.position:
            batch = batch.after(min(self.position, batch.upto_id))
        if self._live:
            raise RemoteProtocolError(f"{self.channel}: stable tuples while tentative ones are live (P4)")
        self.position = max(self.position, batch.upto_id)
        if len(batch):
            self._last_time = max(self._last_time, int(batch.rows.time[-1]))
            self.stable_count += len(batch)
            self._emit(self.channel, batch)

    def add_tentative(self, batch: Batch, now: int) -> None:
        self.held = True
        low = max(self.frontier, self._last_time + 1, self._cut_time + 1)
        rows = batch.rows
        if len(rows) and int(rows.time[0]) < low:
            batch = batch.select(rows.time >= low)
            rows = batch.rows
        if len(rows):
            self._live = True
            self._tentative_seen = max(self._tentative_seen, int(rows.time[-1]))
            self.tentative_count += len(rows)
            # A producer that is behind counts from its own last stable id, but an undo to ours must remove all.
            batch = batch.numbered_after(max(self.position, self._tentative_id))
            self._tentative_id = batch.upto_id
            self._emit(self.channel, batch)

    def add_boundary(self, boundary: Boundary, now: int) -> None:
        if boundary.kind is Kind.STABLE:
            self.position = max(self.position, boundary.upto_id)
            if boundary.time <= self.frontier:
                return
            self.frontier = boundary.time
        else:
            self.held = True
            self._tentative_seen = max(self._tentative_seen, saturating_add(boundary.time, -1))
        self._emit(self.channel, boundary)

    def undo(self) -> None:
        self.held = False
        self._tentative_id = 0
        self._tentative_seen = self._cut_time = BEFORE_TIME
        if self._live:
            self._live = False
            self._emit(self.channel, Undo(self.position))

    def rec_done(self, element: RecDone) -> None:
        self._emit(self.channel, element)

    def main_changed(self) -> None:
        self._cut_time = self.t_star()


class StableView:
    """The stable tuples of one stream, merged over its partitions by (time, partition, id).

    Args:
      plan: the cluster; says how many partitions the stream has.
      stream: which stream.
    """

    def __init__(self, plan: Plan, stream: StreamId) -> None:
        count = plan.partitions_of(stream)
        source = stream in plan.sources
        self._sunion = SUnion(inputs=[(0, not source)] * count, streams=1, bucket_us=1)

    def apply(self, change: Change) -> Rows | None:
        """Takes a change; returns the rows that it makes final in the merged order, if any."""
        port = self._sunion.inputs[change.channel.partition]
        element = change.element
        if isinstance(element, Batch) and element.kind is Kind.STABLE:
            port.add_stable(element, 0)
        elif isinstance(element, Boundary) and element.kind is Kind.STABLE:
            port.add_boundary(element, 0)
            released = self._sunion.release_stable(1 << 30)
            return None if released is None else released.merged()[0]
        return None


class CurrentView:
    """The newest answer: stable tuples plus the tentative ones that are not undone.

    Args:
      keep: how many stable tuples to keep per channel, the newest ones.
    """

    def __init__(self, keep: int = 100_000) -> None:
        self._keep = keep
        self._stable: dict[Channel, list[Rows]] = {}
        self._tentative: dict[Channel, list[Rows]] = {}

    def apply(self, change: Change) -> None:
        element, channel = change.element, change.channel
        if isinstance(element, Undo):
            self._tentative.pop(channel, None)
        elif isinstance(element, Batch) and len(element):
            into = self._stable if element.kind is Kind.STABLE else self._tentative
            parts = into.setdefault(channel, [])
            parts.append(element.rows)
            if element.kind is Kind.STABLE:
                while len(parts) > 1 and sum(map(len, parts)) - len(parts[0]) >= self._keep:
                    parts.pop(0)

    def rows(self, stream: StreamId) -> tuple[Rows | None, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
        """Returns the rows of a stream sorted by time, and a mask of shape (n,): True where the row is tentative."""
        parts: list[Rows] = []
        marks: list[np.ndarray[tuple[int], np.dtype[np.bool_]]] = []
        for tentative, table in ((False, self._stable), (True, self._tentative)):
            for channel in sorted(table):
                if channel.stream == stream:
                    parts += table[channel]
                    marks += [np.full(len(rows), tentative) for rows in table[channel]]
        if not parts:
            return None, np.zeros(0, np.bool_)
        rows = concat_rows(parts)
        order = rows.time.argsort(kind="stable")
        return rows.take(order), np.concatenate(marks).take(order)
