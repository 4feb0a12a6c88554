"""What happened in a run, as the checkers read it: a list of events, each with its time.

Consumers tell what reaches them (``replicas/consumer/upstream.py``, ``replicas/client/client.py``), sources what they
made available, replicas their states; whoever disturbs a run tells of processes and faults.  Times are microseconds of
one clock that all processes of the run share, and events are in the order in which they happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from spe.stream.batch import Element
from spe.stream.ids import Channel
from spe.stream.names import NodeState

#: The mode of a subscription; "" where the consumer has closed it and takes no more of it.
FeedMode = Literal["main", "corrections", ""]


@dataclass(frozen=True, slots=True)
class Received:
    """An element arrived at a consumer's edge, before it did anything with it.

    Attributes:
      consumer: ``unit/partition@node``, or ``client:NAME``.
      generation: which subscription of this consumer to this channel; grows with each, anew with each start.
    """

    at_us: int
    consumer: str
    channel: Channel
    producer: str
    generation: int
    mode: FeedMode
    element: Element


@dataclass(frozen=True, slots=True)
class Delivered:
    """A client handed an element to its application."""

    at_us: int
    consumer: str
    channel: Channel
    element: Element


@dataclass(frozen=True, slots=True)
class Opened:
    """A consumer decided to subscribe, and what it says that it holds (Subscribe of docs/internals/protocol.md)."""

    at_us: int
    consumer: str
    channel: Channel
    producer: str
    generation: int
    mode: FeedMode
    position: int
    frontier: int
    held: bool
    t_star: int


@dataclass(frozen=True, slots=True)
class Promoted:
    """A subscription has another mode from here on."""

    at_us: int
    consumer: str
    channel: Channel
    generation: int
    mode: FeedMode


@dataclass(frozen=True, slots=True)
class Closed:
    """A subscription ended: given up, or lost."""

    at_us: int
    consumer: str
    channel: Channel
    generation: int
    why: str


@dataclass(frozen=True, slots=True)
class StateChanged:
    """A replica announced a state.  RECOVERING is always a new beginning: it holds nothing of what came before.

    Attributes:
      runs: False: it stands by from now on, or has left.
    """

    at_us: int
    replica: str
    state: NodeState
    fresh: bool
    runs: bool = True


@dataclass(frozen=True, slots=True)
class Sent:
    """A source made tuples or a boundary available to its consumers.

    Attributes:
      upto_id: last id available now.
      high_us: largest time among the tuples that are new with this; BEFORE_TIME when only the boundary is.
      frontier_us: boundary available now.
    """

    at_us: int
    channel: Channel
    upto_id: int
    high_us: int
    frontier_us: int


@dataclass(frozen=True, slots=True)
class ProcessUp:
    """A process began.  ``host``: a node, ``source:NAME`` or ``client:NAME``; ``incarnation`` grows with each start."""

    at_us: int
    host: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class ProcessDown:
    """A process ended; nothing that it does afterwards counts."""

    at_us: int
    host: str


@dataclass(frozen=True, slots=True)
class DirectoryApplied:
    """A process goes by another version of the directory from here on, or began with one from its disk.

    Attributes:
      host: as in ``ProcessUp``.
      epoch, number: the version.
      kept: it is on the disk of the process, unless that lied.
      file: where it would be; a process that begins with another plan has another.
    """

    at_us: int
    host: str
    epoch: int
    number: int
    kept: bool
    file: str = ""


@dataclass(frozen=True, slots=True)
class FaultBegan:
    """A fault happens, with its targets as they were found.

    Attributes:
      number: names the fault in its end.
      hosts: processes that it befell.
      links: (from, to) of each direction of a link that it befell.
      amount: how bad it is: microseconds (delay with its jitter, lag, skew), bytes per second (slow), share of sends
        (loss), times slower (busy).
    """

    at_us: int
    number: int
    kind: str
    hosts: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    amount: float = 0.0


@dataclass(frozen=True, slots=True)
class FaultEnded:
    at_us: int
    number: int


@dataclass(frozen=True, slots=True)
class Buffers:
    """What a replica holds.

    Attributes:
      held_bytes: stable tuples in its SUnion.
      tentative: does it hold anything tentative, taken in or made?
      log_entries: stable elements that its outputs keep beyond what all consumers have acknowledged (the largest).
      digests: per output channel, tuples made so far and the digest of them.
    """

    at_us: int
    replica: str
    held_bytes: int
    tentative: bool
    log_entries: int
    digests: tuple[tuple[Channel, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SchedulerRounds:
    """Rounds of the scheduler in the second of virtual time that ends here; in each, who is runnable runs once."""

    at_us: int
    count: int


@dataclass(frozen=True, slots=True)
class LogHeld:
    """What a replica that is killed leaves in its checkpoint log, of what is synced.

    Attributes:
      acknowledged: of each input, what upstream may have forgotten for its sake.
      positions: of each input, from where it is replayed; shorter, where there is trouble.
      trouble: why nothing can be made again; "" where something can.
    """

    at_us: int
    replica: str
    acknowledged: tuple[int, ...]
    positions: tuple[int, ...]
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class LogAcknowledged:
    """A source whose log is not kept for ever heard what a consumer does not need any more (E2)."""

    at_us: int
    channel: Channel
    consumer: str
    incarnation: int
    id: int


@dataclass(frozen=True, slots=True)
class LogReleased:
    """A source begins to delete everything up to a tuple (E4): from here on nobody can hold it."""

    at_us: int
    channel: Channel
    last_id: int


@dataclass(frozen=True, slots=True)
class LogBehind:
    """A consumer asked a source for what follows ``position``, and some of that is deleted, up to ``last_id``."""

    at_us: int
    channel: Channel
    consumer: str
    position: int
    last_id: int


@dataclass(frozen=True, slots=True)
class Note:
    """A line of a process's trace: ``name`` is the event's, ``text`` its fields."""

    at_us: int
    host: str
    name: str
    text: str = ""


Event = (
    Received
    | Delivered
    | Opened
    | Promoted
    | Closed
    | StateChanged
    | Sent
    | ProcessUp
    | ProcessDown
    | DirectoryApplied
    | FaultBegan
    | FaultEnded
    | Buffers
    | SchedulerRounds
    | LogHeld
    | LogAcknowledged
    | LogReleased
    | LogBehind
    | Note
)


class History:
    """The events of a run, in order.  A history is also the sink that an ``Env`` reports to."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._events: list[Event] = list(events)

    def __call__(self, event: Event) -> None:
        self._events.append(event)

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    def __getitem__(self, at: int) -> Event:
        return self._events[at]

    @property
    def end_us(self) -> int:
        """Time of the last event; 0 where there is none."""
        return self._events[-1].at_us if self._events else 0


def host_of(consumer: str) -> str:
    """The process that a consumer or replica lives in: ``n1`` of ``unit/0@n1``; a client is its own."""
    return consumer if consumer.startswith("client:") else consumer.rpartition("@")[2]
