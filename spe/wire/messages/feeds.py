"""Messages about streams: subscriptions, heartbeats and acknowledgements, announcements of X."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, NamedTuple

from spe.wire.fields import (
    Amount,
    Count,
    Flag,
    Id,
    Mode,
    Name,
    Policy,
    Reason,
    Reconcile,
    Share,
    Start,
    State,
    Time,
    integer,
    records_of,
)
from spe.wire.messages.message import CONSUMERS, Message


class Ack(NamedTuple):
    """``consumer`` needs nothing with an id ≤ ``id`` of a channel any more (rule A1)."""

    stream: Name
    partition: Count
    consumer: Name
    id: Id


class OutputStatus(NamedTuple):
    """An output channel of a replica, in its heartbeat answer (rule F3).

    Attributes:
      fresh: in STABILIZATION, the replica also makes new tentative data.
      last_id: last stable id (q).
      frontier, tentative_frontier: largest boundary of each kind; microseconds of tuple time.
      first: smallest stable id that is still available.
      fill: share of the output buffer's cap in use, 0 … 1.
      marked_id, digest: newest id at which a digest of the stable tuples was taken, for partners to compare; 0: none.
      lacking: RECOVERING, and no upstream replica has the tuples that it needs (H8).
      sequence: grows with each change of ``state`` or ``fresh`` while the process lives (F4).
      stands_in: it has fresh results for the consumers of a partner that reconciles (K6).
      origin: origin of the stream (S6); "" while unknown.
    """

    stream: Name
    partition: Count
    state: State
    fresh: Flag
    last_id: Id
    frontier: Time
    tentative_frontier: Time
    first: Id
    fill: Share
    marked_id: Id = 0
    digest: Id = 0
    lacking: Flag = False
    sequence: Id = 0
    stands_in: Flag = False
    origin: Name = ""


class Held(NamedTuple):
    """Number of checkpoints of a partition that a standby holds (H2).

    If it runs the partition, the number is 0 until its disk has a state to restart from (M3).
    """

    unit: Name
    partition: Count
    checkpoints: Count


class Load(NamedTuple):
    """Load of a replica during the last sample (L1), as :class:`replicas.planning.load.LoadSample`."""

    unit: Name
    partition: Count
    cpu: Amount
    memory: Amount
    network: Amount
    rows: Amount
    state: Amount


class Announcement(NamedTuple):
    """Settings that limit the wait of a unit on a node, and its longest wait (rule T8).

    Attributes:
      incarnation: of the node's process; announcements of a later process take precedence.
      since_us: wall time from which the settings hold, microseconds; for one process, later ones take precedence.
      x_us: availability threshold X of the node, microseconds of wall time.
      share_us: share of X that the unit may use.
      alpha: share of ``share_us`` that an SUnion may spend waiting.
      waited_us: longest time from the first arrival of a bucket to its release, since ``since_us``.
    """

    node: Name
    unit: Name
    incarnation: Id
    since_us: Id
    x_us: Id
    share_us: Id
    alpha: Share
    during_failure: Policy
    during_stabilization: Policy
    reconcile: Reconcile
    waited_us: Id


#: Most announcements in one message: they fit a control frame, however long the names are.
ANNOUNCEMENTS_MAX: Final = 64


#: Check of a list of announcements.
announcements: Final = records_of(Announcement)


@dataclass(frozen=True, slots=True)
class Subscribe(Message):
    """Opens the only subscription of this connection, MAIN or CORRECTIONS (rule F1).

    Attributes:
      consumer: name in later acknowledgements.
      position: last stable id held (p).
      frontier: largest stable boundary held (sb).
      held: tentative tuples follow the position.
      t_star: time up to which the consumer needs no tentative tuples.  Only compared, and may be just before the
        beginning of time.
      substream_index, substream_count: requested share of the key hash.
      origin: of the stream read so far (rule S6); "" before the first element.
      start: start of a client that holds nothing; the producer chooses the position (rule F8).
    """

    TAG: ClassVar[int] = 4
    SENDERS = CONSUMERS
    stream: Name
    partition: Count
    consumer: Name
    mode: Mode
    position: Id
    frontier: Time
    held: Flag
    t_star: Annotated[int, integer(-(2**63), 2**63 - 1)]
    substream_index: Count
    substream_count: Annotated[int, integer(1, 2**31 - 1)]
    origin: Name
    start: Start = ""

    def __post_init__(self) -> None:
        if not self.substream_index < self.substream_count:
            raise ValueError(f"expected a substream index below {self.substream_count}, got {self.substream_index}")

    def refusal(self, name: str) -> NotReady:
        return NotReady(f"{name} serves no streams")


@dataclass(frozen=True, slots=True)
class Subscribed(Message):
    """First answer to Subscribe: the producer's state, frontiers and origin (rules F2, S6).

    Attributes:
      sequence: as in :class:`OutputStatus`.
      origin: of the stream (rule S6); "" before the first stable tuple of all inputs.
      position: id after which the feed begins.
    """

    TAG: ClassVar[int] = 5
    state: State
    fresh: Flag
    last_id: Id
    frontier: Time
    tentative_frontier: Time
    first: Id
    sequence: Id
    origin: Name
    position: Id = 0


@dataclass(frozen=True, slots=True)
class NotReady(Message):
    """No subscription now: the replica is recovering, or does not serve this channel.

    As the answer to a writer's hello: there are too many connections; the writer may retry.
    """

    TAG: ClassVar[int] = 6
    reason: Reason


@dataclass(frozen=True, slots=True)
class Truncated(Message):
    """No subscription: the requested ids are truncated; ``first`` is the smallest remaining stable id (rule A2)."""

    TAG: ClassVar[int] = 7
    first: Id


@dataclass(frozen=True, slots=True)
class StateChange(Message):
    """The producer's new state, numbered, in-band: elements sent before it belong to the previous state (rule F2).

    Attributes:
      sequence: as in :class:`OutputStatus`.
    """

    TAG: ClassVar[int] = 8
    state: State
    fresh: Flag
    sequence: Id


@dataclass(frozen=True, slots=True)
class SetMode(Message):
    """The consumer makes its CORRECTIONS feed its MAIN feed, or the reverse (rule F5)."""

    TAG: ClassVar[int] = 9
    SENDERS = CONSUMERS
    mode: Mode


@dataclass(frozen=True, slots=True)
class Heartbeat(Message):
    """Requests states and acknowledges, every ``timing.heartbeat`` (rules F3, A1).

    Attributes:
      period_us: interval at which each acknowledgement is repeated, microseconds; a longer silence suggests a failure.
    """

    TAG: ClassVar[int] = 10
    SENDERS = CONSUMERS | {"coordinator"}
    IS_FLAT = True
    number: Id
    incarnation: Id
    period_us: Id
    acks: Annotated[Sequence[Ack], records_of(Ack)]

    def refusal(self, name: str) -> HeartbeatAnswer:
        return HeartbeatAnswer(self.number, 0, [])


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer(Message):
    """State and frontiers of each output; for a coordinator also checkpoints and samples of load (rule L1).

    Attributes:
      held: checkpoints of its standbys, for a coordinator.
      loads: new samples, for a coordinator.
      taken: another process acknowledges in the client's name, so the client's acknowledgements do not count (A2b).
      guest: the client is not in the configuration: no log waits for it (rule F8).
    """

    TAG: ClassVar[int] = 11
    IS_FLAT = True
    number: Id
    incarnation: Id
    outputs: Annotated[Sequence[OutputStatus], records_of(OutputStatus)]
    held: Annotated[Sequence[Held], records_of(Held)] = ()
    loads: Annotated[Sequence[Load], records_of(Load)] = ()
    taken: Flag = False
    guest: Flag = False


@dataclass(frozen=True, slots=True)
class OtherLog(Message):
    """No subscription: the stream does not continue what the consumer has read (rule S6)."""

    TAG: ClassVar[int] = 23
    reason: Reason


@dataclass(frozen=True, slots=True)
class Announced(Message):
    """New settings and waits of the sender and of nodes known to it, after a heartbeat answer (rule T8)."""

    TAG: ClassVar[int] = 24
    items: Annotated[Sequence[Announcement], announcements]
