"""Control messages: a closed set of flat records, checked field by field at the door.

On the wire a message is a msgpack array ``[tag, field, field, …]`` in a CONTROL frame.  docs/internals/protocol.md says
who sends which, when, and where it is handled.  Every text, number and list has a bound where it is declared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeVar

import msgpack

from spe.errors import LocalProtocolError, RemoteProtocolError
from spe.status import ProcessStatus, plain, status_of
from spe.wire.budget import check_cost
from spe.wire.fields import (
    MANY,
    Amount,
    Count,
    Flag,
    Id,
    MoveVerb,
    Name,
    Policy,
    Reason,
    Reconcile,
    Share,
    State,
    Time,
    checks_of,
    integer,
    names,
    records_of,
    revision_data,
    snapshot_data,
    text_map,
)
from spe.wire.fields import SNAPSHOT_PART_BYTES as SNAPSHOT_PART_BYTES
from spe.wire.fields import Mode as Mode
from spe.wire.fields import Role as Role
from spe.wire.fields import Start as Start
from spe.wire.fields import Verb as Verb
from spe.wire.framing import CONTROL_BYTES, STATUS_BYTES, Buffer, FrameType, check_length, frame


class VersionRange(NamedTuple):
    """Versions of the wire protocol that a process speaks, both ends included."""

    lowest: int
    highest: int

    def common(self, other: VersionRange) -> int | None:
        """The highest that both speak; None: there is none."""
        highest = min(self.highest, other.highest)
        return highest if highest >= max(self.lowest, other.lowest) else None

    def __str__(self) -> str:
        return f"version {self.highest}" if self.lowest == self.highest else f"versions {self.lowest} to {self.highest}"


#: What this software speaks.
PROTOCOL: Final = VersionRange(7, 7)
#: Announcements in one message: they fit a control frame, however long the names are.
ANNOUNCEMENTS_MAX: Final = 64

#: Values in a control message, containers included: as objects at most some 6 MiB.
VALUES_MAX: Final = 64 << 10
#: The same of what may be a status.
STATUS_VALUES_MAX: Final = VALUES_MAX * (STATUS_BYTES // CONTROL_BYTES)
#: The same before authentication: a hello and its answer are flat and short, in other versions too.
HELLO_VALUES_MAX: Final = 64

M = TypeVar("M", bound="Message")


class Ack(NamedTuple):
    """``consumer`` needs nothing with an id ≤ ``id`` of a channel any more (rule A1)."""

    stream: Name
    partition: Count
    consumer: Name
    id: Id


class OutputStatus(NamedTuple):
    """One output channel of a replica, as its heartbeat answer announces it (rule F3).

    Attributes:
      fresh: while STABILIZATION, new tentative data goes on as well.
      last_id: last stable id (q).
      frontier, tentative_frontier: largest boundary of each kind; microseconds of tuple time.
      first: smallest stable id that can still be had.
      fill: share of the output buffer's cap in use, 0 … 1.
      marked_id, digest: newest id at which a digest of the stable tuples was taken, for partners to compare; 0: none.
      lacking: RECOVERING, and nobody upstream has what it would go on from (H8).
      sequence: grows with each change of ``state`` or ``fresh`` while the process lives (F4).
      stands_in: it has fresh results for the consumers of a partner that reconciles (K6).
      origin: of what it is made from (S6); "" while that is not known.
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
    """How many checkpoints of a partition a node holds that stands by for it (H2).

    Where it runs the partition meanwhile, that is 0 until its disk has a state from which it would go on (M3).
    """

    unit: Name
    partition: Count
    checkpoints: Count


class ProposedMove(NamedTuple):
    """A move that would relieve a node, and how long it would take: microseconds."""

    unit: Name
    partition: Count
    source: Name
    target: Name
    took_us: Id


class Remark(NamedTuple):
    """One line for people."""

    text: Reason


class Load(NamedTuple):
    """What a replica has needed in the last sample's time (L1), as :class:`replicas.planning.load.LoadSample`."""

    unit: Name
    partition: Count
    cpu: Amount
    memory: Amount
    network: Amount
    rows: Amount
    state: Amount


class Announcement(NamedTuple):
    """What decides how long a unit may wait on a node, and how long it did (rule T8).

    Attributes:
      incarnation: of the node's process; of two announcements that of the later one counts.
      since_us: wall time from which what follows counts, microseconds: of two of one process the later one counts.
      x_us: availability threshold X of the node, microseconds of wall time.
      share_us: what of it the unit may use there.
      alpha: the share of that which an SUnion may spend waiting.
      waited_us: longest time from the first arrival of a bucket to its release since then, so far.
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


#: A list of announcements, checked.
announcements: Final = records_of(Announcement)


# -- the messages --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Message:
    """Base of all control messages."""

    TAG: ClassVar[int] = 0
    #: Of the largest body that may be sent.
    BYTES_MAX: ClassVar[int] = CONTROL_BYTES

    def encode(self) -> bytes:
        """The whole frame.  Raises LocalProtocolError where a field is out of its bounds."""
        kind = type(self)
        try:
            values = [check(getattr(self, name)) for name, check in _CHECKS[kind]]
            body = msgpack.packb([self.TAG, *values], use_bin_type=True, default=plain)
        except (ValueError, TypeError, OverflowError) as e:
            raise LocalProtocolError(f"cannot send {self!r:.500}: {e}") from None
        if len(body) > CONTROL_BYTES:
            check_length(FrameType.CONTROL, len(body), self.BYTES_MAX)
        return frame(FrameType.CONTROL, body)


@dataclass(frozen=True, slots=True)
class Hello(Message):
    """First message on every connection.  Later versions may only add fields at its end.

    Attributes:
      lowest, highest: versions of the protocol that it speaks.
      name: node id, ``source:NAME``, ``client:NAME``, ``control`` or ``supervisor``.
      incarnation: grows with each start of the process.
      fingerprint: of the plan (rule U11); "" is allowed for role control.
      token: shared secret of the cluster; "" when there is none.
      epoch, number: version of the directory that it goes by.
    """

    TAG: ClassVar[int] = 1
    lowest: Count
    highest: Count
    cluster: Name
    role: Role
    name: Name
    incarnation: Id
    fingerprint: Name
    token: Name
    epoch: Id = 0
    number: Id = 0


@dataclass(frozen=True, slots=True)
class Welcome(Message):
    """The hello is accepted: name of the accepting process, and the protocol version of this connection.

    Attributes:
      epoch, number: version of the directory that we go by.
    """

    TAG: ClassVar[int] = 2
    version: Count
    name: Name
    incarnation: Id
    epoch: Id = 0
    number: Id = 0


@dataclass(frozen=True, slots=True)
class Refused(Message):
    """The hello is refused: another version, token, cluster or plan.  The connection closes."""

    TAG: ClassVar[int] = 3
    reason: Reason


@dataclass(frozen=True, slots=True)
class Subscribe(Message):
    """Opens the one subscription of this connection, MAIN or CORRECTIONS (rules F1, F6).

    Attributes:
      consumer: name that acknowledgements will carry.
      position: last stable id held (p).
      frontier: largest stable boundary held (sb).
      held: tentative tuples follow the position.
      t_star: everything tentative up to this time has been seen or is of no more use.  Only ever compared, and may
        lie just before the beginning of time.
      substream_index, substream_count: which share of the key hash is wanted.
      origin: of what is held (rule S6); "" where nothing was read yet.
      start: where a client begins that holds nothing; the producer chooses the position (rule F8).
    """

    TAG: ClassVar[int] = 4
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


@dataclass(frozen=True, slots=True)
class Subscribed(Message):
    """First answer to a subscribe: the producer's state, frontiers and origin (rules F2, S6).

    Attributes:
      sequence: as in :class:`OutputStatus`.
      origin: of the stream (rule S6); "" while nothing stable was made of all inputs.
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

    As the answer to a writer's hello: all its places are taken, and it may come again.
    """

    TAG: ClassVar[int] = 6
    reason: Reason


@dataclass(frozen=True, slots=True)
class Truncated(Message):
    """No subscription: the requested ids are truncated; ``first`` is the smallest stable id that is left (rule A2)."""

    TAG: ClassVar[int] = 7
    first: Id


@dataclass(frozen=True, slots=True)
class StateChange(Message):
    """The producer's new state, numbered, in-band: elements sent before it belong to the state before (rule F2).

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
    mode: Mode


@dataclass(frozen=True, slots=True)
class Heartbeat(Message):
    """Asks for states and acknowledges, every ``timing.heartbeat`` (rules F3, A1).

    Attributes:
      period_us: after so long each acknowledgement comes again, microseconds: who is silent for longer may be dead.
    """

    TAG: ClassVar[int] = 10
    number: Id
    incarnation: Id
    period_us: Id
    acks: Annotated[Sequence[Ack], records_of(Ack)]


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer(Message):
    """State and frontiers of each output; to a coordinator also checkpoints held and samples of load (rule L1).

    Attributes:
      held: what it stands by for, to a coordinator.
      loads: samples that it was not told of before, to a coordinator.
      taken: another process acknowledges in the client's name, so that these acknowledgements do not count (A2b).
      guest: the client is not in the configuration: nothing is kept for it (rule F8).
    """

    TAG: ClassVar[int] = 11
    number: Id
    incarnation: Id
    outputs: Annotated[Sequence[OutputStatus], records_of(OutputStatus)]
    held: Annotated[Sequence[Held], records_of(Held)] = ()
    loads: Annotated[Sequence[Load], records_of(Load)] = ()
    taken: Flag = False
    guest: Flag = False


@dataclass(frozen=True, slots=True)
class PartnerRequest(Message):
    """Asks a partner for leave to reconcile, every ``timing.request``, with a new number (rule K1)."""

    TAG: ClassVar[int] = 12
    unit: Name
    partition: Count
    asker: Name
    number: Id


@dataclass(frozen=True, slots=True)
class PartnerAnswer(Message):
    """Grants or refuses request ``number`` (rules K2, K6)."""

    TAG: ClassVar[int] = 13
    unit: Name
    partition: Count
    number: Id
    granted: Flag


@dataclass(frozen=True, slots=True)
class SnapshotRequest(Message):
    """A restarting replica, or a standby, asks a partner for state and stable log (rules A3, H1).

    Attributes:
      period_us: how often it wants to hear that the partner is at work on it, microseconds.
      log: of whose checkpoint log it holds records, up to ``since``, and wants what follows (G9); ``any``: of nobody's;
        empty: it wants a snapshot.
    """

    TAG: ClassVar[int] = 14
    unit: Name
    partition: Count
    period_us: Id
    log: Reason = ""
    since: Id = 0


@dataclass(frozen=True, slots=True)
class SnapshotPart(Message):
    """A piece of an encoded snapshot; ``index`` counts from 0, ``last`` marks the end.

    Empty ones before the first say that the sender is at work on it.
    """

    TAG: ClassVar[int] = 15
    index: Count
    last: Flag
    data: Annotated[bytes, snapshot_data]


@dataclass(frozen=True, slots=True)
class SnapshotRefused(Message):
    """No snapshot from this replica, with the reason."""

    TAG: ClassVar[int] = 16
    reason: Reason


@dataclass(frozen=True, slots=True)
class StatusRequest(Message):
    """Asks for the status of a process: ``spe status`` and the live view."""

    TAG: ClassVar[int] = 17


@dataclass(frozen=True, slots=True)
class Status(Message):
    """The status of a process (``spe/status.py``), as a map of names, so that later versions can add fields."""

    TAG: ClassVar[int] = 18
    BYTES_MAX: ClassVar[int] = STATUS_BYTES
    process: Annotated[ProcessStatus, status_of]


@dataclass(frozen=True, slots=True)
class Inject(Message):
    """Asks a process to inject a fault: ``spe inject``."""

    TAG: ClassVar[int] = 19
    fault: Annotated[Mapping[str, Any], text_map]


@dataclass(frozen=True, slots=True)
class InjectAnswer(Message):
    """The fault is injected, or ``error`` says why not."""

    TAG: ClassVar[int] = 20
    ok: Flag
    error: Reason


@dataclass(frozen=True, slots=True)
class Order(Message):
    """A standby is to install or to retire, or a replica to replay; repeated until it is done (rules H3, H4, H8).

    Attributes:
      epoch: of the coordinator; a node that has heard a later one refuses.
      number: comes back in the answer.
    """

    TAG: ClassVar[int] = 21
    epoch: Id
    number: Id
    verb: Verb
    unit: Name
    partition: Count


@dataclass(frozen=True, slots=True)
class OrderAnswer(Message):
    """Order ``number`` is followed, or ``error`` says why not; ``epoch`` is the latest one heard of (rule H6).
    Number 0: the answer to the heartbeat of an older coordinator.
    """

    TAG: ClassVar[int] = 22
    number: Id
    epoch: Id
    error: Reason


@dataclass(frozen=True, slots=True)
class OtherLog(Message):
    """No subscription: the stream does not continue what the consumer has read (rule S6)."""

    TAG: ClassVar[int] = 23
    reason: Reason


@dataclass(frozen=True, slots=True)
class Announced(Message):
    """Settings and waits of nodes, behind a heartbeat answer if they are new: its own and those it heard (rule T8)."""

    TAG: ClassVar[int] = 24
    items: Annotated[Sequence[Announcement], announcements]


@dataclass(frozen=True, slots=True)
class DirectoryRequest(Message):
    """Version of the directory that the sender goes by; sent both ways, where versions differ (rule D2)."""

    TAG: ClassVar[int] = 25
    epoch: Id
    number: Id


@dataclass(frozen=True, slots=True)
class DirectoryAnswer(Message):
    """The newer version of the directory, as ``spe/plan/revision.py`` encodes it (rule D2)."""

    TAG: ClassVar[int] = 26
    revision: Annotated[bytes, revision_data]


@dataclass(frozen=True, slots=True)
class MoveOrder(Message):
    """Asks to move a partition, drain a node, cancel a move, or relieve full nodes.

    See rules M1-M6 and L4-L8.  Verb ``propose`` asks what ``balance`` would order.

    Attributes:
      partition: which one moves; "" for the other verbs.
      source: the node that it leaves, or that is drained; "" to cancel.
      target: where it moves to; "" for the other verbs.
      number: of the move that is cancelled; 0 for the other verbs.
    """

    TAG: ClassVar[int] = 27
    verb: MoveVerb
    partition: Name
    source: Name
    target: Name
    number: Id


@dataclass(frozen=True, slots=True)
class MoveAnswer(Message):
    """Numbers of the moves, from first to last, once they are on disk; or why there are none.

    Attributes:
      last: below ``first`` where there is nothing to move.
      proposed: what a balance orders, or would.
      remarks: what it says of nodes, such as why one stays full.
    """

    TAG: ClassVar[int] = 28
    first: Id
    last: Id
    error: Reason
    proposed: Annotated[Sequence[ProposedMove], records_of(ProposedMove)] = ()
    remarks: Annotated[Sequence[Remark], records_of(Remark)] = ()


class Setting(NamedTuple):
    """A change of a node as a person writes it, such as ``x`` and ``4s`` (spe.plan.settings)."""

    name: Name
    value: Name


@dataclass(frozen=True, slots=True)
class SetOrder(Message):
    """Asks that a node work with another X, α or policy: ``spe set`` (rules X1-X5)."""

    TAG: ClassVar[int] = 29
    node: Name
    changes: Annotated[Sequence[Setting], records_of(Setting)]


@dataclass(frozen=True, slots=True)
class SetAnswer(Message):
    """The version of the directory that has the setting, or why it is refused (rule X4)."""

    TAG: ClassVar[int] = 30
    epoch: Id
    number: Id
    error: Reason


@dataclass(frozen=True, slots=True)
class JoinCluster(Message):
    """A node that no configuration names asks to join the cluster (rule D4).

    Attributes:
      node: as spe.plan.revision.encode_node has it.
    """

    TAG: ClassVar[int] = 31
    node: Annotated[bytes, revision_data]


@dataclass(frozen=True, slots=True)
class JoinClusterAnswer(Message):
    """The directory with the new node in it, once it is on disk; or why the node is refused."""

    TAG: ClassVar[int] = 32
    revision: Annotated[bytes, revision_data]
    error: Reason


@dataclass(frozen=True, slots=True)
class StagePart(Message):
    """A piece of what one task of a writer has of a batch; answered once all is durable (W1).

    Attributes:
      query, batch: of the writer's.
      part: a name that no other part ever has, and no other attempt to send this one.
      index: of the piece, from 0.
      data: the pieces together are as spe.log.pushed_batches encodes a part.
    """

    TAG: ClassVar[int] = 33
    query: Name
    batch: Id
    part: Name
    index: Count
    last: Flag
    data: Annotated[bytes, snapshot_data]


@dataclass(frozen=True, slots=True)
class PartStaged(Message):
    """A part is on the source's disk, or ``error`` says why it is refused."""

    TAG: ClassVar[int] = 34
    part: Name
    error: Reason


@dataclass(frozen=True, slots=True)
class CommitPushed(Message):
    """These parts, in this order, are batch ``batch`` of a query: all of them or none (W2).

    Attributes:
      replaces: query whose place this one takes; "" where it only goes on.
    """

    TAG: ClassVar[int] = 35
    query: Name
    batch: Id
    parts: Annotated[Sequence[Name], names]
    replaces: Name


@dataclass(frozen=True, slots=True)
class PushCommitted(Message):
    """A batch is durable, or ``error`` says why it is refused."""

    TAG: ClassVar[int] = 36
    batch: Id
    error: Reason


@dataclass(frozen=True, slots=True)
class DropParts(Message):
    """These parts will never be committed; no answer."""

    TAG: ClassVar[int] = 37
    parts: Annotated[Sequence[Name], names]


@dataclass(frozen=True, slots=True)
class PushWaits(Message):
    """What an answer to a writer waits for; each second until it comes."""

    TAG: ClassVar[int] = 38
    reason: Reason


@dataclass(frozen=True, slots=True)
class EndPushed(Message):
    """The writer pushes no more: the stream ends behind what is committed, once every writer has said so (W6)."""

    TAG: ClassVar[int] = 39


@dataclass(frozen=True, slots=True)
class PushEnded(Message):
    """The writer's end is durable, or ``error`` says why it is refused.

    Attributes:
      rows: of all committed batches.
      open: writers that have not ended.
    """

    TAG: ClassVar[int] = 40
    rows: Id
    open: Annotated[Sequence[Name], names]
    error: Reason


# -- decoding ------------------------------------------------------------------------------------------------------

MESSAGES: Final[tuple[type[Message], ...]] = (
    Hello,
    Welcome,
    Refused,
    Subscribe,
    Subscribed,
    NotReady,
    Truncated,
    StateChange,
    SetMode,
    Heartbeat,
    HeartbeatAnswer,
    PartnerRequest,
    PartnerAnswer,
    SnapshotRequest,
    SnapshotPart,
    SnapshotRefused,
    StatusRequest,
    Status,
    Inject,
    InjectAnswer,
    Order,
    OrderAnswer,
    OtherLog,
    Announced,
    DirectoryRequest,
    DirectoryAnswer,
    MoveOrder,
    MoveAnswer,
    SetOrder,
    SetAnswer,
    JoinCluster,
    JoinClusterAnswer,
    StagePart,
    PartStaged,
    CommitPushed,
    PushCommitted,
    DropParts,
    PushWaits,
    EndPushed,
    PushEnded,
)
_BY_TAG: Final = {m.TAG: m for m in MESSAGES}
#: Tags of messages that come ten times a second, and whose fields admit no containers but lists of records.
_FLAT: Final = frozenset({Heartbeat.TAG, HeartbeatAnswer.TAG})
#: A body of so many bytes cannot cost much, whatever is in it: no array in it can declare more entries than it has
#: bytes, nor hold that many arrays.  Of these messages the walk over all values would be a third of decoding them.
SMALL_BYTES: Final = 512
_CHECKS: Final = {m: checks_of(m) for m in MESSAGES}


def decode_message(body: Buffer, values_max: int = VALUES_MAX) -> Message:
    """The message in the body of a CONTROL frame.

    Args:
      values_max: of how many values it may consist.

    Raises:
      RemoteProtocolError: no message, or a field is not what it must be; says which.
    """
    try:
        size = len(body)
        if not 1 < size <= SMALL_BYTES or body[1] not in _FLAT:
            check_cost(body, values_max)
        items = msgpack.unpackb(
            body,
            raw=False,
            use_list=True,
            strict_map_key=True,
            max_ext_len=0,
            max_array_len=MANY if size > SMALL_BYTES else size,
            max_map_len=MANY,
        )
    except Exception as e:  # msgpack raises half a dozen unrelated types, Unicode and stack errors among them
        raise RemoteProtocolError(f"no control message: {type(e).__name__}: {e}") from None
    if type(items) is not list or not items or type(items[0]) is not int or items[0] not in _BY_TAG:
        raise RemoteProtocolError(f"no control message: expected [tag, …], got {items!r:.100}")
    kind = _BY_TAG[items[0]]
    values = items[1:]
    checks = _CHECKS[kind]
    if kind is Hello:
        values = _known_part(values, len(checks))
    if len(values) != len(checks):
        raise RemoteProtocolError(f"{kind.__name__}: expected {len(checks)} fields, got {len(values)}")
    checked = []
    for (name, check), value in zip(checks, values):
        try:
            checked.append(check(value))
        except (ValueError, TypeError) as e:
            raise RemoteProtocolError(f"{kind.__name__}.{name}: {e}, got {value!r:.100}") from None
    try:
        return kind(*checked)
    except ValueError as e:
        raise RemoteProtocolError(f"{kind.__name__}: {e}") from None


def _known_part(values: list[Any], count: int) -> list[Any]:
    """The fields of a hello that we know: a later version may have more.  Of a stranger's only the range is read."""
    if not values or type(values[0]) is not int:
        return values
    # Up to version 5 there was one number.
    highest = values[1] if len(values) > 1 and type(values[1]) is int else values[0]
    theirs = VersionRange(values[0], highest)
    if PROTOCOL.common(theirs) is None:
        return [*theirs, "", "node", "", 0, "", "", 0, 0]
    return values[:count] if theirs.highest > PROTOCOL.highest else values


def expect(message: Message, kind: type[M]) -> M:
    """``message``, when it is of the kind that must come now.  Raises RemoteProtocolError otherwise."""
    if not isinstance(message, kind):
        raise RemoteProtocolError(f"expected {kind.__name__}, got {message!r:.200}")
    return message
