"""Whom a consumer reads: which replicas of one upstream partition, and in which mode (rules F1-F5).

Pure: heartbeat answers and news of connections come in, :class:`Open` / :class:`Close` / :class:`SwitchMode` come out.
"""

from __future__ import annotations

import zlib
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
from spe.errors import OtherOrigin
from spe.stream.ids import Channel
from spe.stream.names import NodeState
from spe.stream.times import BEFORE_TIME, END_OF_TIME
from spe.wire.messages import Mode, Start

#: The wait before another try doubles up to this.
RETRY_LONGEST_US: Final = 1_000_000
#: How often patience with a producer that gives nothing doubles while none of them gives anything.
_DOUBLED_MOST: Final = 2


class Choosing:
    """Chooses the producers of one channel, and keeps the subscriptions to them.

    Args:
      channel: what is read.
      producers: names of all replicas of the upstream partition.
      port: where elements go.
      consumer: our name; spreads consumers over equally good producers.
      stall_us: silence after which a feed is suspect (T7).
      useless_us: a producer that shows no new results for this long ranks below those that do (F4).
      corrections: whether a second feed may be opened for corrections (a client takes MAIN only, F7).
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
        corrections: bool = True,
    ) -> None:
        self.channel = channel
        self._consumer = consumer
        self.producers: dict[str, Producer] = {}
        self.port = port
        self.main: Feed | None = None
        self.corr: Feed | None = None
        self.switches = 0
        #: A client that holds nothing begins where its producer says; "" once that is known (F8).
        self.start: Start = ""
        #: Of what we have read (S6); "" where that is nothing yet.
        self.origin = ""
        self._stall_us = stall_us
        self._news_at = 0
        self.set_useless(useless_us)
        self._corrections = corrections
        self._generation = 0
        #: Producers that were turned to since something last came.
        self._in_vain = 0
        self.set_producers(producers)

    def set_useless(self, useless_us: int) -> None:
        """How long a producer may show no new results, from now on."""
        self._useless_us = max(useless_us, self._stall_us)

    def set_producers(self, names: Collection[str]) -> list[Action]:
        """Other processes serve the channel from now on: who left is not read any more, new ones are not heard yet."""
        # Each consumer orders equal producers differently, so that consumers spread over them.
        order = sorted(names, key=lambda p: (zlib.crc32(f"{self._consumer}|{p}".encode()), p))
        actions: list[Action] = []
        for feed in self._feeds():
            if feed is not None and feed.producer not in order:
                self._forget(feed)
                actions.append(Close(feed.generation, f"{feed.producer} has left"))
        self.producers = {name: self.producers.get(name) or Producer(name) for name in order}
        self._in_vain = 0
        return actions

    def validate(self) -> None:
        """Asserts what holds between two events."""
        main, corr = self.main, self.corr
        assert corr is None or self._corrections, "F7: a client takes MAIN only"
        assert main is None or main.mode == MAIN, "invariant 6: one MAIN"
        assert corr is None or corr.mode == CORRECTIONS, "invariant 6: one CORRECTIONS"
        for feed in self._feeds():
            if feed is not None:
                assert feed.generation <= self._generation, "F1: generations are given in turn"
                assert feed.position <= self.port.position, "U10: what came counts once, by id"
                assert feed.frontier <= self.port.frontier, "B2: each stable boundary counts"
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

    def heard(
        self,
        name: str,
        now: int,
        *,
        incarnation: int,
        state: NodeState,
        fresh: bool,
        last_id: int,
        frontier: int,
        tentative_frontier: int,
        first: int,
        fill: float | None = None,
        sequence: int = 0,
        stands_in: bool | None = None,
    ) -> None:
        """A heartbeat answer, or the first frame of a subscription, about our channel.

        That frame says no ``fill``, and not whether the producer ``stands_in``.

        The two come over different connections, in any order: what is older than what we know changes nothing (F4).
        """
        self._news(now)
        producer = self.producers[name]
        known = (producer.incarnation, producer.sequence) if producer.alive else (-1, -1)
        if incarnation < known[0]:
            return
        if incarnation != producer.incarnation:
            producer.begins(now)
            self._in_vain = 0
        producer.alive = True
        if fill is not None:
            producer.fill = fill
        if (incarnation, sequence) < known:
            return
        if (incarnation, sequence) == known:  # within one state these only grow
            last_id, first = max(last_id, producer.last_id), max(first, producer.first)
            frontier = max(frontier, producer.frontier)
            tentative_frontier = max(tentative_frontier, producer.tentative_frontier)
        producer.incarnation, producer.sequence = incarnation, sequence
        producer.state, producer.fresh = state, fresh
        if stands_in is not None:
            producer.stands_in = stands_in
        producer.last_id, producer.first = last_id, first
        producer.frontier, producer.tentative_frontier = frontier, tentative_frontier
        producer.reached(frontier, tentative_frontier, now)

    def _news(self, now: int) -> None:
        """Something came.  If nothing came from any producer for a while, we may have been frozen ourselves."""
        gap_us = now - self._news_at
        if gap_us > self._stall_us:
            self._shift_producers(gap_us, now)
        self._news_at = now

    def shift(self, gap_us: int, now: int) -> None:
        """We were not running for the last ``gap_us`` (T1)."""
        assert gap_us >= 0, "T1: a standstill has a length"
        for feed in self._feeds():
            if feed is not None:
                feed.shift(gap_us, now)
        self._shift_producers(gap_us, now)
        self._news_at = now

    def _shift_producers(self, gap_us: int, now: int) -> None:
        for producer in self.producers.values():
            producer.shift(gap_us, now)

    def lost(self, name: str) -> None:
        """More than three heartbeats missed, or the connection to its process is gone (F3)."""
        self.producers[name].alive = False

    def opened(self, generation: int, now: int) -> None:
        feed = self.feed(generation)
        if feed is not None:
            feed.opened = True
            feed.owes = self._state(feed) is NodeState.STABILIZATION
            feed.last_arrival = now
            self.producers[feed.producer].retry_us = RETRY_US

    def closed(self, generation: int, now: int) -> None:
        """The connection broke, or was refused."""
        feed = self.feed(generation)
        if feed is None:
            return
        self._forget(feed)
        producer = self.producers[feed.producer]
        producer.retry_at = now + producer.retry_us
        producer.retry_us = min(2 * producer.retry_us, RETRY_LONGEST_US)

    def greeted(self, producer: str, origin: str) -> None:
        """A producer says where its rows come from, "" where that is not known yet.

        Raises:
          OtherOrigin: from elsewhere than ours (S6).
        """
        if self.origin and origin and origin != self.origin:
            raise OtherOrigin(f"the rows of {producer} come from log {origin}; we have read log {self.origin}")
        self.origin = self.origin or origin

    def foreign(self, generation: int, incarnation: int, why: str, now: int) -> None:
        """The producer of a feed does not continue what we have read: it is asked again if there is nobody else."""
        feed = self.feed(generation)
        if feed is None:
            return
        producer = self.producers[feed.producer]
        producer.foreign, producer.foreign_why = incarnation, why
        producer.foreign_count += 1
        self.closed(generation, now)
        producer.retry_at = now + FOREIGN_RETRY_US

    def quarantine(self, generation: int, incarnation: int, now: int) -> bool:
        """The producer broke the rules: its incarnation is not trusted again (B7).  False: we had closed the feed."""
        feed = self.feed(generation)
        if feed is None:
            return False
        producer = self.producers[feed.producer]
        producer.quarantined = incarnation
        self.closed(generation, now)
        return True

    def paused(self, generation: int, paused: bool) -> None:
        """We stop reading a feed, or go on."""
        feed = self.feed(generation)
        if feed is not None:
            feed.paused = paused
            feed.ahead_since = feed.behind_since = None

    def part_came(self, generation: int) -> None:
        """Something came of a feed, which is no whole frame yet: a large one takes its time over a slow link.

        Where another producer has more it is left all the same, until each was tried in vain.
        """
        feed = self.feed(generation)
        if feed is not None:
            feed.ahead_since = None
            if self._in_vain > len(self.producers) + _DOUBLED_MOST:
                feed.behind_since = None

    def state_changed(self, generation: int, state: NodeState, fresh: bool, *, incarnation: int, sequence: int) -> None:
        """The producer of a feed, in the incarnation that we subscribed to, changed its state."""
        feed = self.feed(generation)
        if feed is None:
            return
        feed.owes |= state is NodeState.STABILIZATION
        producer = self.producers[feed.producer]
        if (incarnation, sequence) > (producer.incarnation, producer.sequence):
            producer.incarnation, producer.sequence = incarnation, sequence
            producer.state, producer.fresh = state, fresh

    # --- choosing (F4) ---

    def choose(self, now: int) -> list[Action]:
        """Decides anew whom to read; called after each piece of news: an answer to a heartbeat is one."""
        assert now >= self._news_at, "F4: time does not go back"
        actions: list[Action] = []
        for feed in self._feeds():
            if feed is not None and (reason := self._hopeless(feed, now)):
                self._forget(feed)
                actions.append(Close(feed.generation, reason))
        main, corr = self.main, self.corr
        if corr is not None and self._state(corr) is NodeState.STABLE and main is None:
            return actions + self._promote("the other feed is gone")
        if corr is not None and corr.opened and main is not None and self._state(corr) is NodeState.STABLE:
            if corr.owes:
                return actions  # its rec_done is on the way
            return actions + self._promote("it is stable")  # it was STABLE when we subscribed, so no rec_done will come
        best = self._best(now)
        if best is not None and (main is None or main.producer != best.name):
            if corr is not None and corr.producer == best.name:
                return actions + self._promote("better than what we had")
            if main is not None:
                actions.append(Close(main.generation, f"{best.name} is better"))
                self.port.main_changed()
            self.switches += 1
            self._in_vain += 1
            self.main = self._new_feed(best.name, MAIN, now)
            self.main.relieves = best.state is NodeState.STABILIZATION and best.full
            actions.append(self._open(self.main))
        return actions + self._choose_corrections(now)

    def _hopeless(self, feed: Feed, now: int) -> str:
        """Why this feed cannot go on; "" if it can."""
        producer = self.producers[feed.producer]
        if not producer.alive:
            return "no heartbeat"
        if producer.quarantined == producer.incarnation:
            return "quarantined"
        # A live heartbeat proves nothing about the data connection: it says it has more, and nothing comes (F4).  The
        # clock runs from when it said so: after a silence of its own its news may overtake its data.
        if not feed.opened or feed.paused or not self._has_more(feed, producer):
            feed.ahead_since = None
            return ""
        if feed.ahead_since is None:
            feed.ahead_since = now
        return "half open" if now - feed.ahead_since > self._stall_us else ""

    def _has_more(self, feed: Feed, producer: Producer) -> bool:
        """Does its producer say that it has made what this feed should have brought?"""
        port, fresh = self.port, producer.state is NodeState.STABILIZATION and producer.fresh
        if feed is self.main and (producer.state is NodeState.UP_FAILURE or fresh):
            seen = max(port.frontier, port.t_star() + 1 if port.held else BEFORE_TIME)
            if producer.tentative_frontier > seen:
                return True
        if feed is self.main and fresh:
            return False  # corrections are held back until it has caught up (V4)
        return producer.frontier > port.frontier and producer.last_id >= port.position

    def _state(self, feed: Feed) -> NodeState:
        return self.producers[feed.producer].state

    def _usable(self, producer: Producer, now: int) -> bool:
        if not producer.alive or producer.state is NodeState.RECOVERING:
            return False
        if producer.quarantined == producer.incarnation:
            return False
        if producer.lost_start == producer.incarnation if self.start else producer.first > self.port.position + 1:
            return False
        return producer.retry_at <= now or (self.main is not None and self.main.producer == producer.name)

    def _stalled(self, now: int) -> bool:
        """Nothing stable came, and another STABLE replica has more: ours is cut off without knowing it.

        Once each was tried in vain, none may have had the time to answer: each gets twice as long as the one before.
        """
        main = self.main
        if main is None or main.paused:
            return False
        full = self.producers[main.producer].full  # another producer that is full as well is no better
        if not any(
            p.name != main.producer
            and p.state is NodeState.STABLE
            and p.frontier > self.port.frontier
            and not (full and p.full)
            for p in self.producers.values()
            if self._usable(p, now)
        ):
            main.behind_since = None
            return False
        if main.behind_since is None:
            main.behind_since = now
        doubled = min(max(0, self._in_vain - len(self.producers)), _DOUBLED_MOST)
        return now - main.behind_since > self._stall_us << doubled

    def _useful(self, producer: Producer, now: int) -> bool:
        """F4: does it show new results, or is its silence no fault of its own?"""
        live = producer.state is NodeState.UP_FAILURE or producer.fresh
        if producer.frontier >= END_OF_TIME or (live and producer.tentative_frontier >= END_OF_TIME):
            return True
        main = self.main
        if main is not None and main.paused and main.producer == producer.name:
            return True  # we do not read it
        if producer.full:
            # Full for us: it has no room until we have read what it has.  Else others are, or will be, full as well.
            return producer.last_id > self.port.position or (main is not None and main.producer == producer.name)
        return now - producer.advanced_at <= self._useless_us

    def _best(self, now: int) -> Producer | None:
        """The best of the producers that give results; if none does, the best of all."""
        usable = [p for p in self.producers.values() if self._usable(p, now)]
        ours = [p for p in usable if p.foreign != p.incarnation] or usable
        return self._best_of([p for p in ours if self._useful(p, now)], now) or self._best_of(ours, now)

    def _best_of(self, usable: list[Producer], now: int) -> Producer | None:
        """The best by state; among equals the one that we read already."""
        current = self.main.producer if self.main is not None else None
        corr = self.corr.producer if self.corr is not None else None
        stalled = self._stalled(now)

        def first(state: NodeState, *names: str | None, fresh: bool = False, new: bool = False) -> Producer | None:
            ranked = [p for p in usable if p.state is state and (p.fresh or not fresh) and (p.stands_in or not new)]
            for name in names:
                for p in ranked:
                    if p.name == name:
                        return p
            return ranked[0] if ranked else None

        stable = [p for p in usable if p.state is NodeState.STABLE and not (stalled and p.name == current)]
        if stable:
            named = {p.name: p for p in stable}
            kept = named.get(current or "") or named.get(corr or "")
            return kept or max(stable, key=lambda p: p.frontier)
        if not self._corrections and (waits := self._waits_for_us(usable)) is not None:
            return waits
        return (
            first(NodeState.UP_FAILURE, current, new=True)
            or first(NodeState.STABILIZATION, current, fresh=True)
            or first(NodeState.UP_FAILURE, current)
            or first(NodeState.STABILIZATION, corr, current)
            or next((p for p in usable if p.name == current), None)
        )

    def _waits_for_us(self, usable: list[Producer]) -> Producer | None:
        """A producer that corrects, and whose output is full until we read it.

        If we read another one, we never get the corrections.  Only for consumers with one feed (F7); it is kept until
        the correction ends.
        """
        main = self.main
        if main is not None and main.relieves and self._state(main) is NodeState.STABILIZATION:
            return next((p for p in usable if p.name == main.producer), None)
        return next(
            (p for p in usable if p.state is NodeState.STABILIZATION and p.full and p.last_id > self.port.position),
            None,
        )

    def _choose_corrections(self, now: int) -> list[Action]:
        main, corr = self.main, self.corr
        wanted: str | None = None
        if self._corrections and main is not None:
            state = self._state(main)
            if state is NodeState.UP_FAILURE:
                if corr is not None and self._corrects(corr):
                    wanted = corr.producer
                else:
                    stabilising = (
                        p.name
                        for p in self.producers.values()
                        if p.state is NodeState.STABILIZATION and self._usable(p, now)
                    )
                    wanted = next(stabilising, None)
            elif state is NodeState.STABILIZATION and self.producers[main.producer].fresh:
                wanted = main.producer
        actions: list[Action] = []
        if corr is not None and corr.producer != wanted:
            self.corr = None
            actions.append(Close(corr.generation, "no more corrections to be had"))
        # This holds also for the producer that we read: it may accept no second connection, though the first one works.
        if wanted is not None and self.corr is None and self.producers[wanted].retry_at <= now:
            self.corr = self._new_feed(wanted, CORRECTIONS, now)
            actions.append(self._open(self.corr))
        return actions

    def _corrects(self, corr: Feed) -> bool:
        """Will the producer of a feed still send corrections, or their rec_done?"""
        state = self._state(corr)
        return state is NodeState.STABILIZATION or (
            state is not NodeState.RECOVERING and (corr.owes or not corr.opened)
        )

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

    def _new_feed(self, producer: str, mode: Mode, now: int) -> Feed:
        self._generation += 1
        return Feed(self._generation, producer, mode, self.port.position, last_arrival=now)

    def _open(self, feed: Feed) -> Open:
        port = self.port
        return Open(feed.generation, feed.producer, feed.mode, feed.position, port.frontier, port.held, port.t_star())
