"""Changes of output streams for a program: iterators of stable, tentative and withdrawn rows."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import trio

from replicas.client.client import Client
from replicas.client.tables import ResultTable, ResultTables
from spe.plan.plan import Plan
from spe.stream.batch import Batch, Rows, Undo
from spe.stream.change import Change
from spe.stream.names import Kind
from spe.stream.schema import Schema


@dataclass(frozen=True, slots=True)
class ReceivedChange:
    """A change of one partition of a stream.

    Attributes:
      change: the change as :meth:`Client.changes` yields it and :class:`replicas.client.view.CurrentView` takes it.
      schema: schema of the stream.
    """

    change: Change
    schema: Schema

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the stream's attributes."""
        return self.schema.names

    @property
    def stream(self) -> str:
        return str(self.change.channel.stream)

    @property
    def partition(self) -> int:
        return self.change.channel.partition


class ReceivedRows(ReceivedChange):
    """Tuples, sorted by time except those of a source."""

    __slots__ = ()

    @property
    def batch(self) -> Batch:
        assert isinstance(self.change.element, Batch)
        return self.change.element

    @property
    def rows(self) -> Rows:
        """The tuples as columns."""
        return self.batch.rows

    @property
    def table(self) -> ResultTable:
        """A table with ``to_pandas()`` and ``to_arrow()``."""
        return ResultTable(self.schema, self.rows)

    def records(self) -> list[dict[str, Any]]:
        """Returns dicts: timestamps are int microseconds since the epoch, null is None.  For few rows."""
        return self.table.records()


class StableRows(ReceivedRows):
    """Final tuples: they are never withdrawn, and none comes twice."""

    __slots__ = ()


class TentativeRows(ReceivedRows):
    """The best results of the reachable input; an :class:`UndoneRows` withdraws them later."""

    __slots__ = ()


class UndoneRows(ReceivedChange):
    """All tentative tuples of this partition are withdrawn; their corrections follow."""

    __slots__ = ()


#: An item of an iterator of changes.
Item = StableRows | TentativeRows | UndoneRows


class Changes:
    """An asynchronous iterator of changes; a change is acknowledged when the next one is asked for.

    Attributes:
      plan: plan of the cluster.
      client: the client that receives the changes; its ``status()`` names its producers.
      received: the changes that :meth:`collect` took.
    """

    def __init__(self, plan: Plan, client: Client) -> None:
        self.plan = plan
        self.client = client
        self.received = ResultTables(plan)

    def __aiter__(self) -> Changes:
        return self

    async def __anext__(self) -> Item:
        """Returns the next change, until all streams have ended.  Raises SpeError as :meth:`Client.changes` does."""
        while (change := await self.client.next_change()) is not None:
            if (item := item_of(self.plan, change)) is not None:
                return item
        raise StopAsyncIteration

    def stable(self, stream: str) -> AsyncIterator[Rows]:
        """Yields the final tuples of one stream instead of all changes, merged over its partitions in time order."""
        return self.client.stable(stream)

    async def collect(self, seconds: float = math.inf) -> ResultTables:
        """Takes all changes that arrive within a time, or until all streams have ended; adds them to ``received``."""
        with trio.move_on_after(seconds):
            while (change := await self.client.next_change()) is not None:
                self.received.apply(change)
        return self.received


def item_of(plan: Plan, change: Change) -> Item | None:
    """Converts a change for a program; None for a boundary or another mark."""
    element, schema = change.element, plan.query.schema_of(change.channel.stream)
    if isinstance(element, Undo):
        return UndoneRows(change, schema)
    if isinstance(element, Batch) and len(element):
        return (StableRows if element.kind is Kind.STABLE else TentativeRows)(change, schema)
    return None
