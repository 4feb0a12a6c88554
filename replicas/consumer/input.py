"""The consumer's side of one input: takes what its producers send, each stable tuple once.

Pure: elements come in and go to a :class:`Port`, an input of an SUnion or a client's view.  Whom to read is decided
in :mod:`replicas.consumer.selection`.  Rules F1, F5, U10 and B7 of docs/internals/rules.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from replicas.consumer.feed import Action, Close, Feed, Port, Producer
from replicas.consumer.selection import Choosing
from spe.errors import RemoteProtocolError
from spe.status import InputStatus
from spe.stream.batch import Batch, Boundary, Element, RecDone, Undo
from spe.stream.ids import Channel
from spe.stream.names import Kind, NodeState
from spe.stream.times import BEFORE_TIME, END_OF_TIME


class Input(Choosing):
    """Follows the producers of one channel; who they are, :class:`Choosing` says, which takes the other arguments.

    Args:
      x_us: X of the node (T2); for a client the longest silence that still counts as connected.
    """

    def __init__(
        self,
        channel: Channel,
        producers: Sequence[str],
        port: Port,
        *,
        consumer: str,
        stall_us: int,
        useless_us: int,
        x_us: int,
        corrections: bool = True,
    ) -> None:
        super().__init__(
            channel,
            producers,
            port,
            consumer=consumer,
            stall_us=stall_us,
            useless_us=useless_us,
            corrections=corrections,
        )
        self._x_us = x_us

    def set_waits(self, *, useless_us: int, x_us: int) -> None:
        """Other waits count from now on."""
        self.set_useless(useless_us)
        self._x_us = x_us

    # --- what the rest of the replica asks ---

    def fresh(self, now: int) -> bool:
        """T2: MAIN is open, its producer sends new data, and something arrived within X or the producer is full."""
        if self.port.frontier >= END_OF_TIME:
            return True
        feed = self.main
        if feed is None or not feed.opened:
            return False
        producer = self.producers[feed.producer]
        sends = producer.state in (NodeState.STABLE, NodeState.UP_FAILURE) or (
            producer.state is NodeState.STABILIZATION and producer.fresh
        )
        return sends and producer.alive and (producer.full or now - feed.last_arrival <= self._x_us)

    def arriving(self, now: int) -> bool:
        """R1: a feed on which something arrived lately."""
        if self.port.frontier >= END_OF_TIME:
            return True
        return any(
            f is not None and f.opened and (f.paused or now - f.last_arrival <= self._stall_us) for f in self._feeds()
        )

    def live(self, now: int) -> bool:
        """S5: it delivers, from a producer that is STABLE."""
        main = self.main
        return main is not None and self.producers[main.producer].state is NodeState.STABLE and self.arriving(now)

    def caught_up(self) -> bool:
        """We hold everything stable that MAIN has told us of.

        MAIN counts, not the furthest of all producers: if MAIN always lags another one, that would never be true.
        """
        if self.port.frontier >= END_OF_TIME:
            return True
        main = self.main
        return main is not None and main.opened and self.port.frontier >= self.producers[main.producer].frontier

    def serving(self) -> list[Producer]:
        """Those that we reach and that are not recovering themselves."""
        return [p for p in self.producers.values() if p.alive and p.state is not NodeState.RECOVERING]

    def forgotten(self, position: int) -> bool:
        """Every producer that we reach has truncated what follows ``position`` (A3)."""
        reachable = self.serving()
        return bool(reachable) and all(p.first > position + 1 for p in reachable)

    def truncated(self) -> bool:
        """The same for what we need next."""
        if self.start:
            return all(p.lost_start == p.incarnation for p in self.serving()) and bool(self.serving())
        return self.forgotten(self.port.position)

    def other_logs(self) -> dict[str, str]:
        """Producers that do not continue what we have read, and why."""
        found = (p for p in self.producers.values() if p.foreign == p.incarnation)
        return {p.name: f"{p.foreign_why} ({p.foreign_count} times)" for p in found}

    def status(self) -> InputStatus:
        return InputStatus(
            channel=str(self.channel),
            main=None if self.main is None else self.main.producer,
            corrections=None if self.corr is None else self.corr.producer,
            position=self.port.position,
            frontier=self.port.frontier,
            switches=self.switches,
            other_logs=self.other_logs(),
        )

    def refused(self, producer: str, incarnation: int, first: int) -> None:
        """A producer begins only at id ``first``, behind what we need."""
        self.producers[producer].first = first
        if self.start:
            self.producers[producer].lost_start = incarnation

    def begin(self, generation: int, position: int) -> None:
        """The producer of a feed has chosen where we begin (F8)."""
        feed = self.feed(generation)
        if feed is not None and self.start:
            self.start = ""
            feed.position = self.port.position = position

    # --- elements ---

    def element(self, generation: int, element: Element, now: int) -> list[Action]:
        """Takes one element of a feed.

        Raises:
          RemoteProtocolError: the producer broke a rule of the stream; the caller quarantines it.
        """
        feed = self.feed(generation)
        if feed is None:
            return []
        self._news(now)
        feed.last_arrival = now
        feed.ahead_since = None
        self._in_vain = 0
        if isinstance(element, Batch):
            self._batch(feed, element, now)
        elif isinstance(element, Boundary):
            self._boundary(feed, element, now)
        elif isinstance(element, Undo):
            if element.upto_id != feed.position:
                raise RemoteProtocolError(
                    f"{self.channel}: undo to {element.upto_id}, but the feed is at {feed.position}"
                )
            feed.tentative = False
            feed.owes = True
            if feed is self.main:
                self.port.undo()
        elif isinstance(element, RecDone):
            return self._rec_done(feed, element)
        return []

    def _batch(self, feed: Feed, batch: Batch, now: int) -> None:
        if batch.kind is Kind.TENTATIVE:
            feed.tentative = True
            if feed is self.main:
                self.port.add_tentative(batch, now)
            return
        if feed.tentative:
            raise RemoteProtocolError(f"{self.channel}: stable tuples after tentative ones without an undo")
        if batch.from_id != feed.position:
            raise RemoteProtocolError(f"{self.channel}: batch from {batch.from_id}, but the feed is at {feed.position}")
        if len(batch) and batch.rows.span()[1] < feed.frontier:
            raise RemoteProtocolError(f"{self.channel}: a tuple below the boundary {feed.frontier} that came before it")
        feed.position = batch.upto_id
        feed.behind_since = None
        self.port.add_stable(batch, now)

    def _boundary(self, feed: Feed, boundary: Boundary, now: int) -> None:
        if boundary.kind is Kind.TENTATIVE:
            feed.tentative = True
            self.producers[feed.producer].reached(BEFORE_TIME, boundary.time, now)
            if feed is self.main:
                self.port.add_boundary(boundary, now)
            return
        if feed.tentative:
            raise RemoteProtocolError(f"{self.channel}: stable boundary after tentative tuples without an undo")
        if boundary.upto_id < feed.position or boundary.time < feed.frontier:
            raise RemoteProtocolError(f"{self.channel}: boundary {boundary!r} goes back")
        feed.position = boundary.upto_id
        feed.frontier = boundary.time
        self.producers[feed.producer].reached(boundary.time, BEFORE_TIME, now)
        feed.behind_since = None
        self.port.add_boundary(boundary, now)

    def _rec_done(self, feed: Feed, element: RecDone) -> list[Action]:
        """R changes no data, and no state, for that was told before it (F2); on CORRECTIONS it moves the feeds (F5)."""
        feed.owes = False
        if feed is not self.corr:
            self.port.rec_done(element)
            return []
        if element.state is NodeState.STABLE:
            return self._promote("corrected")
        self.port.main_changed()
        self.corr = None
        return [Close(feed.generation, "corrected, failing again")]


def choose_among(inputs: Sequence[Input], now: int, peer: str | None) -> list[tuple[int, Action]]:
    """What the inputs of an owner decide, by index: those that may read ``peer``; None: all."""
    return [
        (at, action)
        for at, one in enumerate(inputs)
        if peer is None or peer in one.producers
        for action in one.choose(now)
    ]
