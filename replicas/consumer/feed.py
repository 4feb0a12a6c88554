"""The data of one input of a consumer: its producers, its subscriptions, and the connection work on them.

Plain values: :mod:`replicas.consumer.selection` decides with them, :mod:`replicas.consumer.input` takes elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from spe.errors import RemoteProtocolError
from spe.stream.batch import Batch, Boundary, Element, RecDone, Undo
from spe.stream.names import Kind, NodeState
from spe.stream.times import BEFORE_TIME
from spe.wire.fields import Mode
from spe.wire.messages.feeds import OutputStatus, Subscribed

MAIN: Final[Mode] = "main"
CORRECTIONS: Final[Mode] = "corrections"

#: Wait before a producer that refused or broke a connection is tried again, at first.
RETRY_US: Final = 50_000
#: The same for a producer of another log than we have read (S6): that does not change while it runs.
FOREIGN_RETRY_US: Final = 10_000_000


class Port(Protocol):
    """Takes the elements of an input."""

    position: int
    frontier: int
    held: bool

    def t_star(self) -> int: ...
    def add_stable(self, batch: Batch, now: int) -> None: ...
    def add_tentative(self, batch: Batch, now: int) -> None: ...
    def add_boundary(self, boundary: Boundary, now: int) -> None: ...
    def undo(self) -> None: ...
    def rec_done(self, element: RecDone) -> None: ...
    def main_changed(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Open:
    """Connect to ``producer`` and subscribe from our position."""

    generation: int
    producer: str
    mode: Mode
    position: int
    frontier: int
    held: bool
    t_star: int


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection; later elements of this generation are dropped (F1)."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class SwitchMode:
    """Tell the producer that this subscription is MAIN now (F5)."""

    generation: int
    mode: Mode


Action = Open | Close | SwitchMode

#: Status of a producer's output, in a heartbeat answer or in the first frame of a subscription.
ProducerStatus = OutputStatus | Subscribed


@dataclass(slots=True)
class Producer:
    """State of one replica of the upstream partition, from heartbeats and its feeds."""

    name: str
    alive: bool = False
    incarnation: int = 0
    #: Number of the last known change of state (F4).
    sequence: int = 0
    state: NodeState = NodeState.RECOVERING
    fresh: bool = False
    #: Has it new results, whatever its state?  A replica that suspends has none (K6).
    stands_in: bool = True
    last_id: int = 0
    frontier: int = BEFORE_TIME
    tentative_frontier: int = BEFORE_TIME
    first: int = 1
    #: The incarnation that has truncated what follows our position (F8).
    lost_start: int = -1
    #: Share of its output buffer in use.
    fill: float = 0.0
    #: Largest frontier of each kind in this incarnation, and when each last advanced (F4).
    stable_reach: int = BEFORE_TIME
    tentative_reach: int = BEFORE_TIME
    stable_at: int = 0
    tentative_at: int = 0
    retry_at: int = 0
    retry_us: int = RETRY_US
    quarantined: int = -1
    #: The incarnation with another log than we have read, how often it was found, and the reason (S6).
    foreign: int = -1
    foreign_count: int = 0
    foreign_why: str = ""

    @property
    def full(self) -> bool:
        """Is its output buffer full?  Then it is silent, but neither dead nor disconnected (A2)."""
        return self.fill >= 1.0

    def take(self, incarnation: int, status: ProducerStatus, now: int) -> None:
        """Takes the producer's status; an older one than ours changes nothing (F4)."""
        known = (self.incarnation, self.sequence) if self.alive else (-1, -1)
        self.alive = True
        if isinstance(status, OutputStatus):
            self.fill = status.fill
        if (incarnation, status.sequence) < known:
            return
        last_id, first = status.last_id, status.first
        frontier, tentative_frontier = status.frontier, status.tentative_frontier
        if (incarnation, status.sequence) == known:  # within one state frontiers only grow
            last_id, first = max(last_id, self.last_id), max(first, self.first)
            frontier = max(frontier, self.frontier)
            tentative_frontier = max(tentative_frontier, self.tentative_frontier)
        self.incarnation, self.sequence = incarnation, status.sequence
        self.state, self.fresh = NodeState(status.state), status.fresh
        if isinstance(status, OutputStatus):
            self.stands_in = status.stands_in
        self.last_id, self.first = last_id, first
        self.frontier, self.tentative_frontier = frontier, tentative_frontier
        self.reached(frontier, tentative_frontier, now)

    def reached(self, stable: int, tentative: int, now: int) -> None:
        """Takes its frontiers, from a heartbeat or an element.  An older message changes nothing."""
        if stable > self.stable_reach:
            self.stable_reach, self.stable_at = stable, now
        if tentative > self.tentative_reach:
            self.tentative_reach, self.tentative_at = tentative, now

    @property
    def advanced_at(self) -> int:
        """Returns when it last showed results of the kind that its state promises (F4)."""
        if self.state is NodeState.UP_FAILURE:
            return max(self.stable_at, self.tentative_at)
        if self.state is NodeState.STABILIZATION and self.fresh:
            return self.tentative_at
        return self.stable_at

    def begins(self, now: int) -> None:
        """Resets its results after a restart; unknown results are no reason to avoid it."""
        self.retry_at, self.retry_us = 0, RETRY_US
        self.stable_reach = self.tentative_reach = BEFORE_TIME
        self.stable_at = self.tentative_at = now

    def shift(self, gap_us: int, now: int) -> None:
        """Discounts ``gap_us`` during which this process was frozen: the producer was not silent (T1)."""
        self.stable_at = min(self.stable_at + gap_us, now)
        self.tentative_at = min(self.tentative_at + gap_us, now)


@dataclass(slots=True)
class Feed:
    """A subscription, from the decision to open it until it is closed."""

    generation: int
    producer: str
    mode: Mode
    position: int
    opened: bool = False
    last_arrival: int = 0
    frontier: int = BEFORE_TIME
    tentative: bool = False
    #: Since when its producer has announced more than has arrived.
    ahead_since: int | None = None
    #: Since when another STABLE replica has been ahead.
    behind_since: int | None = None
    #: A rec_done is still to come: the producer was in STABILIZATION since we subscribed, or it sent an undo (V1).
    owes: bool = False
    #: We do not read it because our buffer is full, so its silence does not count.
    paused: bool = False
    #: Its producer was chosen because it corrects and its output is full: only our reading makes room.
    relieves: bool = False

    def shift(self, gap_us: int, now: int) -> None:
        """Discounts ``gap_us`` during which this process was frozen: the producer was not silent (T1)."""
        self.last_arrival = min(self.last_arrival + gap_us, now)
        self.ahead_since = self.behind_since = None

    def take(self, element: Element) -> None:
        """Takes an element (V1).  Raises RemoteProtocolError where it cannot follow the previous ones (U10)."""
        match element:
            case Batch(kind=Kind.TENTATIVE) | Boundary(kind=Kind.TENTATIVE):
                self.tentative = True
            case Batch():
                self._take_stable(element)
            case Boundary(_, time, upto_id):
                if self.tentative:
                    raise RemoteProtocolError("stable boundary after tentative tuples without an undo")
                if upto_id < self.position or time < self.frontier:
                    raise RemoteProtocolError(f"boundary {element!r} goes back")
                self.position, self.frontier = upto_id, time
                self.behind_since = None
            case Undo(upto_id):
                if upto_id != self.position:
                    raise RemoteProtocolError(f"undo to {upto_id}, but the feed is at {self.position}")
                self.tentative, self.owes = False, True
            case RecDone():
                self.owes = False

    def _take_stable(self, batch: Batch) -> None:
        if self.tentative:
            raise RemoteProtocolError("stable tuples after tentative ones without an undo")
        if batch.from_id != self.position:
            raise RemoteProtocolError(f"batch from {batch.from_id}, but the feed is at {self.position}")
        if len(batch) and batch.rows.span()[1] < self.frontier:
            raise RemoteProtocolError(f"a tuple below the boundary {self.frontier} that came before it")
        self.position = batch.upto_id
        self.behind_since = None
