"""The events of a simulated run, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from replicas.client.view import CurrentView
from replicas.faults.model import Fault
from replicas.testing.blame import wrong
from replicas.testing.queries import layout_of_output
from replicas.testing.tables import GivenTable, Layout, Record, compare, records, seconds
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.problems import did_you_mean, one_of
from spe.stream.batch import Batch, Element, Undo
from spe.stream.change import Change
from spe.stream.history import Delivered, History, StateChanged
from spe.stream.names import Kind, NodeState, StreamId


@dataclass(frozen=True)
class ClientChange:
    """A change that a client received.

    Attributes:
      at_s: seconds since the sources began.
      rows: stable or tentative tuples; or those that an undo withdraws.
    """

    at_s: float
    output: str
    kind: Literal["stable", "tentative", "undone"]
    rows: list[Record]


@dataclass(frozen=True)
class ReplicaState:
    """A change of a replica's state.

    Attributes:
      at_s: seconds since the sources began.
      replica: ``unit/partition@node``.
    """

    at_s: float
    replica: str
    state: NodeState


@dataclass(frozen=True)
class SimulatedRun:
    """A run that kept every promise.

    Rows are dicts; timestamps are ISO text, null is None.  Times of the run are ``"5s"`` or seconds.

    Attributes:
      seed: seed that repeats it.
      faults: faults that happened.
    """

    seed: int
    faults: tuple[Fault, ...]
    _history: History
    _plan: Plan
    _directory: Directory

    @property
    def length_s(self) -> float:
        """Seconds of virtual time."""
        return self._history.end_us / 1e6

    def stable(self, output: str, *, at: str | float | None = None, client: str | None = None) -> list[Record]:
        """Returns the final results that a client holds, in order of time.

        Args:
          at: time; None: the end.
          client: by default the first one that reads the output.

        Raises:
          ConfigError: there is no such output or client.
        """
        return self._held(output, at, client, tentative=False)

    def tentative(self, output: str, *, at: str | float | None = None, client: str | None = None) -> list[Record]:
        """Returns the results that a client holds and that will be withdrawn; none in the end.  As :meth:`stable`."""
        return self._held(output, at, client, tentative=True)

    def expect(self, output: str, rows: GivenTable, *, at: str | float | None = None) -> None:
        """Compares final results with a table; columns that the table lacks may have any value.

        Raises:
          PromiseBroken: an AssertionError with both tables.
        """
        layout = layout_of_output(self._plan, output)
        compare(self._held(output, at, None, tentative=False, time=True), rows, layout)

    def changes(self, output: str, *, client: str | None = None) -> list[ClientChange]:
        """Returns all changes of an output that a client received, in order."""
        layout, live = layout_of_output(self._plan, output), dict[object, list[Record]]()
        received = []
        for at_us, change in self._delivered(layout, client):
            element, channel = change.element, change.channel
            if isinstance(element, Undo):
                received.append(ClientChange(at_us / 1e6, output, "undone", live.pop(channel, [])))
            elif isinstance(element, Batch) and len(element):
                rows = records(element.rows, layout.schema)
                if element.kind is Kind.TENTATIVE:
                    live.setdefault(channel, []).extend(rows)
                kind: Literal["stable", "tentative"] = "stable" if element.kind is Kind.STABLE else "tentative"
                received.append(ClientChange(at_us / 1e6, output, kind, rows))
        return received

    def states(self, node: str | None = None) -> list[ReplicaState]:
        """Returns the states of replicas, of one node or of all, in order."""
        known = [str(n) for n in self._directory.nodes]
        if node is not None and node not in known:
            raise wrong(f"no node {node!r}{did_you_mean(node, known)}; expected {one_of(known)}")
        return [s for s in self._states if node is None or s.replica.endswith(f"@{node}")]

    @cached_property
    def _states(self) -> list[ReplicaState]:
        events = [e for e in self._history if isinstance(e, StateChanged)]
        return [ReplicaState(e.at_us / 1e6, e.replica, e.state) for e in events]

    def _held(
        self, output: str, at: str | float | None, client: str | None, *, tentative: bool, time: bool = False
    ) -> list[Record]:
        layout, view = layout_of_output(self._plan, output), CurrentView()
        upto_us = self._history.end_us if at is None else round(seconds(at) * 1e6)
        for at_us, change in self._delivered(layout, client):
            if at_us > upto_us:
                break
            view.apply(change)
        rows, marks = view.rows(StreamId(output))
        if rows is None:
            return []
        return records(rows.select(marks if tentative else ~marks), layout.schema, time=time)

    def _delivered(self, layout: Layout, client: str | None) -> Iterator[tuple[int, Change]]:
        consumer = f"client:{self._reader(layout.name, client)}"
        for event in self._history:
            if isinstance(event, Delivered) and event.consumer == consumer and event.channel.stream == layout.name:
                element: Element = event.element
                yield event.at_us, Change(event.channel, element, event.at_us)

    def _reader(self, output: str, client: str | None) -> str:
        readers = [str(c.name) for c in self._directory.clients.values() if output in c.reads]
        if client is None:
            return readers[0]
        if client not in readers:
            raise wrong(f"no client {client!r} reads {output}{did_you_mean(client, readers)}; {one_of(readers)} does")
        return client
