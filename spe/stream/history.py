"""The history of a run for the checkers: a list of events, each with its time.

Consumers report received elements (``replicas/consumer/upstream.py``, ``replicas/client/client.py``), sources report
available tuples, replicas their states, and fault injectors processes and faults.  Times are microseconds of one clock
that all processes of the run share, and events are in chronological order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from spe.stream.batch import Element
from spe.stream.ids import Channel
from spe.stream.names import NodeState

#: The mode of a subscription; "" if the consumer has closed it.
FeedMode = Literal["main", "corrections", ""]


@dataclass(frozen=True, slots=True)
class Received:
    """An element arrived at a consumer, which has not yet processed it.

    Attributes:
      consumer: ``unit/partition@node``, or ``client:NAME``.
      generation: number of the subscription of this consumer to this channel; restarts with the process.
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
    """A consumer subscribed, with its position and holdings (Subscribe of docs/internals/protocol.md)."""

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
    """A subscription changed its mode."""

    at_us: int
    consumer: str
    channel: Channel
    generation: int
    mode: FeedMode


@dataclass(frozen=True, slots=True)
class Closed:
    """A subscription ended: closed, or lost."""

    at_us: int
    consumer: str
    channel: Channel
    generation: int
    why: str


@dataclass(frozen=True, slots=True)
class StateChanged:
    """A replica announced a state.  RECOVERING is always a restart without any earlier state.

    Attributes:
      runs: False: it became a standby, or has left.
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
      high_us: largest time of the newly available tuples; BEFORE_TIME if only the boundary is new.
      frontier_us: boundary available now.
    """

    at_us: int
    channel: Channel
    upto_id: int
    high_us: int
    frontier_us: int


@dataclass(frozen=True, slots=True)
class ProcessUp:
    """A process started.  ``host``: a node, ``source:NAME`` or ``client:NAME``; ``incarnation`` counts starts."""

    at_us: int
    host: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class ProcessDown:
    """A process ended; its later actions do not count."""

    at_us: int
    host: str


@dataclass(frozen=True, slots=True)
class DirectoryApplied:
    """A process applied another version of the directory, or started with one from its disk.

    Attributes:
      host: as in ``ProcessUp``.
      epoch, number: the version.
      kept: the version is on the disk of the process, if the disk tells the truth.
      file: path of the version on the disk; depends on the plan.
    """

    at_us: int
    host: str
    epoch: int
    number: int
    kept: bool
    file: str = ""


@dataclass(frozen=True, slots=True)
class FaultBegan:
    """A fault began, with its actual targets.

    Attributes:
      number: identifies the fault in its ``FaultEnded``.
      hosts: affected processes.
      links: (from, to) of each affected direction of a link.
      amount: strength: microseconds (delay with its jitter, lag, skew), bytes per second (slow), share of sends
        (loss), slow-down factor (busy).
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
    """The buffers of a replica.

    Attributes:
      held_bytes: stable tuples in its SUnion.
      tentative: does it hold tentative tuples, of inputs or outputs?
      log_entries: stable elements beyond the acknowledgements of all consumers, in its largest output.
      digests: per output channel, number and digest of the tuples made so far.
    """

    at_us: int
    replica: str
    held_bytes: int
    tentative: bool
    log_entries: int
    digests: tuple[tuple[Channel, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SchedulerRounds:
    """Rounds of the scheduler in the past second of virtual time; in each round all runnable tasks run once."""

    at_us: int
    count: int


@dataclass(frozen=True, slots=True)
class LogHeld:
    """The synced checkpoint log of a killed replica.

    Attributes:
      acknowledged: per input, the id up to which upstream may have deleted tuples.
      positions: per input, the id from which it is replayed; shorter if the log cannot be loaded.
      trouble: the reason why no state can be restored; "" if it can.
    """

    at_us: int
    replica: str
    acknowledged: tuple[int, ...]
    positions: tuple[int, ...]
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class LogAcknowledged:
    """A source with ``retain`` received a consumer's acknowledgement for its log (E2)."""

    at_us: int
    channel: Channel
    consumer: str
    incarnation: int
    id: int


@dataclass(frozen=True, slots=True)
class LogReleased:
    """A source began to delete everything up to a tuple (E4): no consumer may need it any more."""

    at_us: int
    channel: Channel
    last_id: int


@dataclass(frozen=True, slots=True)
class LogBehind:
    """A consumer requested a source's tuples after ``position``, of which those up to ``last_id`` are deleted."""

    at_us: int
    channel: Channel
    consumer: str
    position: int
    last_id: int


@dataclass(frozen=True, slots=True)
class Note:
    """A line of a process's trace: ``name`` of the event, and ``text`` with its fields."""

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
    """The events of a run, in order.  Also the receiver of events for an ``Env``."""

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
        """Time of the last event; 0 if there is none."""
        return self._events[-1].at_us if self._events else 0


def host_of(consumer: str) -> str:
    """The process of a consumer or replica: ``n1`` of ``unit/0@n1``; a client is its own process."""
    return consumer if consumer.startswith("client:") else consumer.rpartition("@")[2]
