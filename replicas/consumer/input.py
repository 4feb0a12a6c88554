"""The consumer's side of one input: keeps its subscriptions, and takes each stable tuple once.

Pure: elements and connection events come in; elements go to a :class:`Port`, an input of an SUnion or a client's
view, and :class:`Open` / :class:`Close` / :class:`SwitchMode` come out.  :mod:`replicas.consumer.selection` ranks the
producers.  Rules F1, F5, U10 and B7 of docs/internals/rules.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from replicas.consumer.feed import (
    CORRECTIONS,
    FOREIGN_RETRY_US,
    MAIN,
    RETRY_US,
    Action,
    Close,
    Feed,
    Open,
    Port,
    Producer,
    SwitchMode,
)
from replicas.consumer.selection import ProducerSelector
from spe.errors import OtherOrigin, RemoteProtocolError
from spe.status import InputStatus
from spe.stream.batch import Batch, Boundary, Element, RecDone, Undo
from spe.stream.ids import Channel
from spe.stream.names import Kind, NodeState
from spe.stream.times import BEFORE_TIME, END_OF_TIME
from spe.wire.fields import Mode, Start

#: The wait before the next attempt doubles up to this.
RETRY_LONGEST_US: Final = 1_000_000


class Input:
    """Follows the producers of one channel, and keeps the subscriptions to them.

    Args:
      channel: the channel that is read.
      producers: names of all replicas of the upstream partition.
      port: takes the elements.
      x_us: X of the node (T2); for a client the longest silence of a connected producer.
      the rest: as :class:`ProducerSelector` has them.

    Attributes:
      main, corr: the feeds: new results, and corrections.
      start: a client that holds nothing begins where its producer says; "" once that is known (F8).
      origin: origin of the rows that were read (S6); "" before the first.
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
        self.channel = channel
        self.port = port
        self.main: Feed | None = None
        self.corr: Feed | None = None
        self.start: Start = ""
        self.origin = ""
        self.switches = 0
        self._x_us = x_us
        self._generation = 0
        self.selector = ProducerSelector(
            self, consumer=consumer, stall_us=stall_us, useless_us=useless_us, corrections=corrections
        )
        self.selector.set_producers(producers)

    @property
    def producers(self) -> dict[str, Producer]:
        return self.selector.producers

    def set_waits(self, *, useless_us: int, x_us: int) -> None:
        """Changes the waits."""
        self.selector.set_useless(useless_us)
        self._x_us = x_us

    def set_producers(self, names: Collection[str]) -> list[Action]:
        """Changes the producers of the channel; the feeds of removed producers close."""
        actions: list[Action] = []
        for feed in self._feeds():
            if feed is not None and feed.producer not in names:
                self._forget(feed)
                actions.append(Close(feed.generation, f"{feed.producer} has left"))
        self.selector.set_producers(names)
        return actions

    def validate(self) -> None:
        """Asserts what holds between two events."""
        main, corr = self.main, self.corr
        assert corr is None or self.selector.corrections, "F7: a client takes MAIN only"
        assert main is None or main.mode == MAIN, "invariant 6: one MAIN"
        assert corr is None or corr.mode == CORRECTIONS, "invariant 6: one CORRECTIONS"
        for feed in self._feeds():
            if feed is not None:
                assert feed.generation <= self._generation, "F1: generations are given in turn"
                assert feed.position <= self.port.position, "U10: what came counts once, by id"
                assert feed.frontier <= self.port.frontier, "B1: each stable boundary counts"
                assert feed.producer in self.producers, "D2: who has left is not read"

    def feed(self, generation: int) -> Feed | None:
        assert generation > 0, "F1: what was opened has a generation"
        for feed in (self.main, self.corr):
            if feed is not None and feed.generation == generation:
                return feed
        return None

    def _feeds(self) -> tuple[Feed | None, Feed | None]:
        return (self.main, self.corr)

    # --- news ---

    def shift(self, gap_us: int, now: int) -> None:
        """Discounts ``gap_us`` during which this process was frozen (T1)."""
        for feed in self._feeds():
            if feed is not None:
                feed.shift(gap_us, now)
        self.selector.shift(gap_us, now)

    def opened(self, generation: int, now: int) -> None:
        feed = self.feed(generation)
        if feed is not None:
            feed.opened = True
            feed.owes = self.selector.state(feed) is NodeState.STABILIZATION
            feed.last_arrival = now
            self.producers[feed.producer].retry_us = RETRY_US

    def closed(self, generation: int, now: int) -> None:
        """Notes that the connection of a feed broke or was refused."""
        feed = self.feed(generation)
        if feed is None:
            return
        self._forget(feed)
        producer = self.producers[feed.producer]
        producer.retry_at = now + producer.retry_us
        producer.retry_us = min(2 * producer.retry_us, RETRY_LONGEST_US)

    def greeted(self, producer: str, origin: str) -> None:
        """Takes the origin of a producer's rows, "" if not known yet.

        Raises:
          OtherOrigin: it differs from ours (S6).
        """
        if self.origin and origin and origin != self.origin:
            raise OtherOrigin(f"the rows of {producer} come from log {origin}; we have read log {self.origin}")
        self.origin = self.origin or origin

    def foreign(self, generation: int, incarnation: int, why: str, now: int) -> None:
        """Notes that a feed's producer does not continue our log: it is tried again only if there is no other."""
        feed = self.feed(generation)
        if feed is None:
            return
        producer = self.producers[feed.producer]
        producer.foreign, producer.foreign_why = incarnation, why
        producer.foreign_count += 1
        self.closed(generation, now)
        producer.retry_at = now + FOREIGN_RETRY_US

    def quarantine(self, generation: int, incarnation: int, now: int) -> bool:
        """Bans the incarnation of a producer that broke the protocol (B7).  False: the feed was closed already."""
        feed = self.feed(generation)
        if feed is None:
            return False
        producer = self.producers[feed.producer]
        producer.quarantined = incarnation
        self.closed(generation, now)
        return True

    def paused(self, generation: int, paused: bool) -> None:
        """Notes that reading of a feed pauses or resumes."""
        feed = self.feed(generation)
        if feed is not None:
            feed.paused = paused
            feed.ahead_since = feed.behind_since = None

    def part_came(self, generation: int) -> None:
        """Notes that a part of a frame came: a large frame takes long over a slow link.

        If another producer has more, the feed is still left, until each was tried in vain.
        """
        feed = self.feed(generation)
        if feed is not None:
            feed.ahead_since = None
            if self.selector.all_in_vain:
                feed.behind_since = None

    def state_changed(self, generation: int, state: NodeState, fresh: bool, *, incarnation: int, sequence: int) -> None:
        """Takes a change of state of a feed's producer, in the subscribed incarnation."""
        feed = self.feed(generation)
        if feed is not None:
            feed.owes |= state is NodeState.STABILIZATION
            self.selector.state_changed(feed.producer, state, fresh, incarnation=incarnation, sequence=sequence)

    def begin(self, generation: int, position: int) -> None:
        """Takes the position at which the producer lets us begin (F8)."""
        feed = self.feed(generation)
        if feed is not None and self.start:
            self.start = ""
            feed.position = self.port.position = position

    # --- choosing (F4) ---

    def choose(self, now: int) -> list[Action]:
        """Decides which producers to read; called after each event, such as an answer to a heartbeat."""
        assert now >= self.selector.news_at, "F4: time does not go back"
        actions: list[Action] = []
        for feed in self._feeds():
            if feed is not None and (reason := self.selector.hopeless(feed, now)):
                self._forget(feed)
                actions.append(Close(feed.generation, reason))
        main, corr = self.main, self.corr
        if corr is not None and self.selector.state(corr) is NodeState.STABLE:
            if main is None:
                return actions + self._promote("the other feed is gone")
            if corr.opened:
                if corr.owes:
                    return actions  # its rec_done is on the way
                # The producer was STABLE when we subscribed, so no rec_done will come.
                return actions + self._promote("it is stable")
        best = self.selector.best(now)
        if best is not None and (main is None or main.producer != best.name):
            if corr is not None and corr.producer == best.name:
                return actions + self._promote("better than what we had")
            actions += self._turn_to(best, now)
        return actions + self._choose_corrections(now)

    def _turn_to(self, best: Producer, now: int) -> list[Action]:
        actions: list[Action] = []
        if self.main is not None:
            actions.append(Close(self.main.generation, f"{best.name} is better"))
            self.port.main_changed()
        self.switches += 1
        self.selector.turned()
        self.main, opening = self._open(best.name, MAIN, now)
        self.main.relieves = best.state is NodeState.STABILIZATION and best.full
        return [*actions, opening]

    def _choose_corrections(self, now: int) -> list[Action]:
        wanted, corr = self.selector.corrector(now), self.corr
        actions: list[Action] = []
        if corr is not None and corr.producer != wanted:
            self.corr = None
            actions.append(Close(corr.generation, "no more corrections to be had"))
        # This holds also for the producer of MAIN: it may refuse a second connection though the first works.
        if wanted is not None and self.corr is None and self.producers[wanted].retry_at <= now:
            self.corr, opening = self._open(wanted, CORRECTIONS, now)
            actions.append(opening)
        return actions

    def _promote(self, reason: str) -> list[Action]:
        """CORRECTIONS becomes MAIN on its connection; the old MAIN closes."""
        corr, main = self.corr, self.main
        assert corr is not None
        self.port.main_changed()
        corr.mode = MAIN
        self.main, self.corr = corr, None
        self.switches += 1
        closing: list[Action] = [Close(main.generation, reason)] if main is not None else []
        return [*closing, SwitchMode(corr.generation, MAIN)]

    def _forget(self, feed: Feed) -> None:
        if feed is self.main:
            self.port.main_changed()
            self.main = None
        elif feed is self.corr:
            self.corr = None

    def _open(self, producer: str, mode: Mode, now: int) -> tuple[Feed, Open]:
        """Returns a new feed, and the connection work for it."""
        port = self.port
        self._generation += 1
        feed = Feed(self._generation, producer, mode, port.position, last_arrival=now)
        return feed, Open(feed.generation, producer, mode, port.position, port.frontier, port.held, port.t_star())

    # --- questions of the replica ---

    def fresh(self, now: int) -> bool:
        """T2: is MAIN open, does its producer send new data, and did data arrive within X or is the producer full?"""
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
        """R1: did data arrive on a feed lately?"""
        if self.port.frontier >= END_OF_TIME:
            return True
        return any(
            f is not None and f.opened and (f.paused or now - f.last_arrival <= self.selector.stall_us)
            for f in self._feeds()
        )

    def live(self, now: int) -> bool:
        """S5: does a STABLE producer deliver?"""
        main = self.main
        return main is not None and self.producers[main.producer].state is NodeState.STABLE and self.arriving(now)

    def caught_up(self) -> bool:
        """Do we hold everything stable that the producer of MAIN has announced?

        MAIN counts, not the furthest producer: if MAIN always lags another, the answer would never be yes.
        """
        if self.port.frontier >= END_OF_TIME:
            return True
        main = self.main
        return main is not None and main.opened and self.port.frontier >= self.producers[main.producer].frontier

    def status(self) -> InputStatus:
        return InputStatus(
            channel=str(self.channel),
            main=None if self.main is None else self.main.producer,
            corrections=None if self.corr is None else self.corr.producer,
            position=self.port.position,
            frontier=self.port.frontier,
            switches=self.switches,
            other_logs=self.selector.other_logs(),
        )

    # --- elements ---

    def element(self, generation: int, element: Element, now: int) -> list[Action]:
        """Takes one element of a feed.

        Raises:
          RemoteProtocolError: the producer broke a rule of the stream; the caller quarantines it.
        """
        feed = self.feed(generation)
        if feed is None:
            return []
        self.selector.element_came(now)
        feed.last_arrival = now
        feed.ahead_since = None
        try:
            feed.take(element)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"{self.channel}: {error}") from None
        is_main = feed is self.main
        match element:
            case Batch(kind=Kind.STABLE):
                self.port.add_stable(element, now)
            case Batch() if is_main:
                self.port.add_tentative(element, now)
            case Boundary(kind, time):
                stable, tentative = (time, BEFORE_TIME) if kind is Kind.STABLE else (BEFORE_TIME, time)
                self.producers[feed.producer].reached(stable, tentative, now)
                if is_main or kind is Kind.STABLE:
                    self.port.add_boundary(element, now)
            case Undo() if is_main:
                self.port.undo()
            case RecDone():
                return self._rec_done(feed, element)
        return []

    def _rec_done(self, feed: Feed, element: RecDone) -> list[Action]:
        """Takes a rec_done, which changes neither data nor state (F2); on CORRECTIONS it moves the feeds (F5)."""
        if feed is not self.corr:
            self.port.rec_done(element)
            return []
        if element.state is NodeState.STABLE:
            return self._promote("corrected")
        self.port.main_changed()
        self.corr = None
        return [Close(feed.generation, "corrected, failing again")]


def choose_among(inputs: Sequence[Input], now: int, peer: str | None) -> list[tuple[int, Action]]:
    """Returns the decisions of inputs with their index, for inputs that may read ``peer``; None: for all."""
    return [
        (at, action)
        for at, input in enumerate(inputs)
        if peer is None or peer in input.producers
        for action in input.choose(now)
    ]
