"""Selects the replicas of one upstream partition that a consumer reads (rules F1-F5).

Pure: heartbeat answers and first frames of subscriptions come in; :class:`replicas.consumer.input.Input` asks for the
best producer, and opens and closes feeds by it.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection
from typing import Final, Protocol

from replicas.consumer.feed import Feed, Port, Producer, ProducerStatus
from spe.stream.names import NodeState
from spe.stream.times import BEFORE_TIME, END_OF_TIME
from spe.wire.fields import Start

#: How often the patience with a silent producer doubles while all are silent.
_DOUBLED_MOST: Final = 2


class ReadFeeds(Protocol):
    """The present feeds of a consumer for a channel.

    Attributes:
      main, corr: its feeds.
      port: takes the elements.
      start: a client that holds nothing begins where its producer says; "" once that is known (F8).
    """

    main: Feed | None
    corr: Feed | None
    port: Port
    start: Start


class ProducerSelector:
    """Knows the producers of one channel, and ranks them.

    Args:
      reading: the consumer's present feeds.
      consumer: our name; spreads consumers over equally good producers.
      stall_us: silence after which a feed is suspect (T7).
      useless_us: a producer that shows no new results for this long ranks below those that do (F4).
      corrections: whether a second feed may be opened for corrections (a client takes MAIN only, F7).

    Attributes:
      producers: all replicas of the upstream partition by name, in our order.
    """

    def __init__(
        self, reading: ReadFeeds, *, consumer: str, stall_us: int, useless_us: int, corrections: bool = True
    ) -> None:
        self._reading = reading
        self._consumer = consumer
        self.stall_us = stall_us
        self.corrections = corrections
        self.producers: dict[str, Producer] = {}
        self.news_at = 0
        #: Producers that were tried since an element last came.
        self._in_vain = 0
        self.set_useless(useless_us)

    def set_useless(self, useless_us: int) -> None:
        """Sets how long a producer may show no new results."""
        self._useless_us = max(useless_us, self.stall_us)

    def set_producers(self, names: Collection[str]) -> None:
        """Changes the producers of the channel; new ones are not heard yet."""
        # Each consumer orders equal producers differently, so that consumers spread over them.
        order = sorted(names, key=lambda p: (zlib.crc32(f"{self._consumer}|{p}".encode()), p))
        self.producers = {name: self.producers.get(name) or Producer(name) for name in order}
        self._in_vain = 0

    # --- news ---

    def heard(self, name: str, incarnation: int, status: ProducerStatus, now: int) -> None:
        """Takes the status in a heartbeat answer, or in the first frame of a subscription, for our channel.

        The two come over different connections, in any order: an older status changes nothing (F4).
        """
        self.note_news(now)
        producer = self.producers[name]
        if producer.alive and incarnation < producer.incarnation:
            return
        if incarnation != producer.incarnation:
            producer.begins(now)
            self._in_vain = 0
        producer.take(incarnation, status, now)

    def note_news(self, now: int) -> None:
        """Notes an event.  If none came from any producer for a while, this process may have been frozen."""
        gap_us = now - self.news_at
        if gap_us > self.stall_us:
            self._shift_producers(gap_us, now)
        self.news_at = now

    def shift(self, gap_us: int, now: int) -> None:
        """Discounts ``gap_us`` during which this process was frozen (T1)."""
        assert gap_us >= 0, "T1: a standstill has a length"
        self._shift_producers(gap_us, now)
        self.news_at = now

    def _shift_producers(self, gap_us: int, now: int) -> None:
        for producer in self.producers.values():
            producer.shift(gap_us, now)

    def element_came(self, now: int) -> None:
        """Notes that an element came: no producer was tried in vain."""
        self.note_news(now)
        self._in_vain = 0

    def turned(self) -> None:
        """Notes that MAIN is opened to another producer."""
        self._in_vain += 1

    @property
    def all_in_vain(self) -> bool:
        """Was each producer tried in vain?"""
        return self._in_vain > len(self.producers) + _DOUBLED_MOST

    def state_changed(self, name: str, state: NodeState, fresh: bool, *, incarnation: int, sequence: int) -> None:
        """Takes a change of state of a producer, in the subscribed incarnation."""
        producer = self.producers[name]
        if (incarnation, sequence) > (producer.incarnation, producer.sequence):
            producer.incarnation, producer.sequence = incarnation, sequence
            producer.state, producer.fresh = state, fresh

    # --- the producer to read (F4) ---

    def best(self, now: int) -> Producer | None:
        """Returns the producer to read; None: there is none."""
        stalled = self._stalled(now)
        usable = [p for p in self.producers.values() if self.is_usable(p, now)]
        return max(usable, key=lambda p: self.rank(p, now, stalled=stalled), default=None)

    def rank(self, producer: Producer, now: int, *, stalled: bool) -> tuple[int, ...]:
        """Returns the rank of a producer: larger is better, and of equal producers the first in our order wins.

        A producer that continues our log comes first, then one that gives results; then its state decides; then the
        present producer comes first.

        Args:
          stalled: MAIN is silent though another producer has more.
        """
        continues = producer.foreign != producer.incarnation
        return (continues, self._useful(producer, now), *self._rank_by_state(producer, stalled=stalled))

    def _rank_by_state(self, producer: Producer, *, stalled: bool) -> tuple[int, int, int]:
        is_main, corr = self._is_main(producer), self._reading.corr
        is_corr = corr is not None and corr.producer == producer.name
        state = producer.state
        if state is NodeState.STABLE and not (stalled and is_main):
            return 5, 2 * is_main + is_corr, producer.frontier
        if not self.corrections and self._waits_for_us(producer):
            return 4, 0, 0
        if state is NodeState.UP_FAILURE:
            return 3 if producer.stands_in else 1, is_main, 0
        if state is NodeState.STABILIZATION:
            return (2, is_main, 0) if producer.fresh else (0, is_main + 2 * is_corr, 0)
        return -1, 0, 0

    def _waits_for_us(self, producer: Producer) -> bool:
        """Does it correct, and is its output full until we read it?

        If we read another producer, we never get the corrections.  Only for consumers with one feed (F7), which keep
        it until the correction ends.
        """
        main = self._reading.main
        if main is not None and main.relieves and self.state(main) is NodeState.STABILIZATION:
            return producer.name == main.producer
        is_full = producer.state is NodeState.STABILIZATION and producer.full
        return is_full and producer.last_id > self._reading.port.position

    def state(self, feed: Feed) -> NodeState:
        return self.producers[feed.producer].state

    def _is_main(self, producer: Producer) -> bool:
        """Is it the producer of MAIN?"""
        main = self._reading.main
        return main is not None and main.producer == producer.name

    def is_usable(self, producer: Producer, now: int) -> bool:
        if not producer.alive or producer.state is NodeState.RECOVERING:
            return False
        if producer.quarantined == producer.incarnation:
            return False
        reading = self._reading
        if producer.lost_start == producer.incarnation if reading.start else producer.first > reading.port.position + 1:
            return False
        return producer.retry_at <= now or (
            self._reading.main is not None and self._reading.main.producer == producer.name
        )

    def _stalled(self, now: int) -> bool:
        """Is MAIN silent while another STABLE replica has more?  Then its producer is cut off and does not know it.

        If all were tried in vain, they may have had too little time: the patience doubles.
        """
        main = self._reading.main
        if main is None or main.paused:
            return False
        full = self.producers[main.producer].full  # another full producer is no better
        if not any(
            p.name != main.producer
            and p.state is NodeState.STABLE
            and p.frontier > self._reading.port.frontier
            and not (full and p.full)
            for p in self.producers.values()
            if self.is_usable(p, now)
        ):
            main.behind_since = None
            return False
        if main.behind_since is None:
            main.behind_since = now
        doubled = min(max(0, self._in_vain - len(self.producers)), _DOUBLED_MOST)
        return now - main.behind_since > self.stall_us << doubled

    def _useful(self, producer: Producer, now: int) -> bool:
        """F4: does it show new results, or is its silence no fault of its own?"""
        live = producer.state is NodeState.UP_FAILURE or producer.fresh
        if producer.frontier >= END_OF_TIME or (live and producer.tentative_frontier >= END_OF_TIME):
            return True
        main = self._reading.main
        if main is not None and main.paused and self._is_main(producer):
            return True  # we do not read it
        if producer.full:
            # Full because of us: it has no room until we have read its output.  Else other producers get full too.
            return producer.last_id > self._reading.port.position or (
                main is not None and main.producer == producer.name
            )
        return now - producer.advanced_at <= self._useless_us

    # --- feeds that cannot go on, and corrections (F5) ---

    def hopeless(self, feed: Feed, now: int) -> str:
        """Returns why this feed cannot continue; "" if it can."""
        producer = self.producers[feed.producer]
        if not producer.alive:
            return "no heartbeat"
        if producer.quarantined == producer.incarnation:
            return "quarantined"
        # A heartbeat does not prove that the data connection works: more is announced, and nothing comes (F4).
        # Time runs from the announcement: after a pause of the producer, its heartbeat may overtake its data.
        if not feed.opened or feed.paused or not self._has_more(feed, producer):
            feed.ahead_since = None
            return ""
        if feed.ahead_since is None:
            feed.ahead_since = now
        return "half open" if now - feed.ahead_since > self.stall_us else ""

    def _has_more(self, feed: Feed, producer: Producer) -> bool:
        """Has its producer announced more than this feed has brought?"""
        port, fresh = self._reading.port, producer.state is NodeState.STABILIZATION and producer.fresh
        if feed is self._reading.main and (producer.state is NodeState.UP_FAILURE or fresh):
            arrived = max(port.frontier, port.t_star() + 1 if port.held else BEFORE_TIME)
            if producer.tentative_frontier > arrived:
                return True
        if feed is self._reading.main and fresh:
            return False  # corrections are held back until it has caught up (V4)
        return producer.frontier > port.frontier and producer.last_id >= port.position

    def corrector(self, now: int) -> str | None:
        """Returns the producer to read CORRECTIONS from; None: there is none."""
        main, corr = self._reading.main, self._reading.corr
        if not self.corrections or main is None:
            return None
        state = self.state(main)
        if state is NodeState.UP_FAILURE:
            if corr is not None and self._corrects(corr):
                return corr.producer
            correcting = [p for p in self.producers.values() if p.state is NodeState.STABILIZATION]
            return next((p.name for p in correcting if self.is_usable(p, now)), None)
        is_fresh = state is NodeState.STABILIZATION and self.producers[main.producer].fresh
        return main.producer if is_fresh else None

    def _corrects(self, corr: Feed) -> bool:
        """Will the producer of a feed still send corrections, or their rec_done?"""
        state = self.state(corr)
        return state is NodeState.STABILIZATION or (
            state is not NodeState.RECOVERING and (corr.owes or not corr.opened)
        )

    # --- questions of the consumer ---

    def lost(self, name: str) -> None:
        """Notes that a producer is lost: three heartbeats were missed, or its connection broke (F3)."""
        self.producers[name].alive = False

    def refused(self, name: str, incarnation: int, first: int) -> None:
        """Notes that a producer begins only at id ``first``, behind our position."""
        producer = self.producers[name]
        producer.first = first
        if self._reading.start:
            producer.lost_start = incarnation

    def truncated(self) -> bool:
        """Has every reachable producer truncated what we need next (A3, F8)?"""
        if self._reading.start:
            return all(p.lost_start == p.incarnation for p in self.serving()) and bool(self.serving())
        return self.forgotten(self._reading.port.position)

    def serving(self) -> list[Producer]:
        """Returns reachable producers that are not recovering themselves."""
        return [p for p in self.producers.values() if p.alive and p.state is not NodeState.RECOVERING]

    def forgotten(self, position: int) -> bool:
        """Has every reachable producer truncated what follows ``position`` (A3)?"""
        reachable = self.serving()
        return bool(reachable) and all(p.first > position + 1 for p in reachable)

    def other_logs(self) -> dict[str, str]:
        """Returns the producers that do not continue our log, with the reasons."""
        foreign = (p for p in self.producers.values() if p.foreign == p.incarnation)
        return {p.name: f"{p.foreign_why} ({p.foreign_count} times)" for p in foreign}
