"""Changes of output streams as a program gets them: iterators of stable, tentative and withdrawn rows."""

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
    """What happened to one partition of a stream.

    Attributes:
      change: as :meth:`Client.changes` gives it; what a :class:`replicas.client.view.CurrentView` takes.
      schema: of the stream.
    """

    change: Change
    schema: Schema

    @property
    def names(self) -> tuple[str, ...]:
        """Of the stream's attributes."""
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
        """As columns."""
        return self.batch.rows

    @property
    def table(self) -> ResultTable:
        """With ``to_pandas()`` and ``to_arrow()``."""
        return ResultTable(self.schema, self.rows)

    def records(self) -> list[dict[str, Any]]:
        """As dicts: timestamps are int microseconds since the epoch, null is None.  For few rows."""
        return self.table.records()


class StableRows(ReceivedRows):
    """Final tuples: they are never withdrawn, and none comes twice."""

    __slots__ = ()


class TentativeRows(ReceivedRows):
    """The best results of the input that can be reached; an :class:`UndoneRows` withdraws them later."""

    __slots__ = ()


class UndoneRows(ReceivedChange):
    """All tentative tuples of this partition are withdrawn; what they should have been follows."""

    __slots__ = ()


#: What iteration over changes gives.
Item = StableRows | TentativeRows | UndoneRows


class Changes:
    """An asynchronous iterator of changes; what was taken from it is acknowledged when the next one is asked for.

    Attributes:
      plan: of the cluster.
      client: the client that receives them; its ``status()`` says whom it reads.
      received: what :meth:`collect` took.
    """

    def __init__(self, plan: Plan, client: Client) -> None:
        self.plan = plan
        self.client = client
        self.received = ResultTables(plan)

    def __aiter__(self) -> Changes:
        return self

    async def __anext__(self) -> Item:
        """Until all streams have ended.  Raises SpeError as :meth:`Client.changes` does."""
        while (change := await self.client.next_change()) is not None:
            if (item := item_of(self.plan, change)) is not None:
                return item
        raise StopAsyncIteration

    def stable(self, stream: str) -> AsyncIterator[Rows]:
        """Instead of all changes: the final tuples of one stream, merged over its partitions in time order."""
        return self.client.stable(stream)

    async def collect(self, seconds: float = math.inf) -> ResultTables:
        """Takes all changes that come within a time, or until all streams have ended; adds them to ``received``."""
        with trio.move_on_after(seconds):
            while (change := await self.client.next_change()) is not None:
                self.received.apply(change)
        return self.received


def item_of(plan: Plan, change: Change) -> Item | None:
    """A change for a program; None: it is a boundary, or another mark."""
    element, schema = change.element, plan.query.schema_of(change.channel.stream)
    if isinstance(element, Undo):
        return UndoneRows(change, schema)
    if isinstance(element, Batch) and len(element):
        return (StableRows if element.kind is Kind.STABLE else TentativeRows)(change, schema)
    return None
