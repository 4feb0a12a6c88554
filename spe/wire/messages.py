"""Control messages: a closed set of flat records, checked field by field on receipt.

On the wire a message is a msgpack array ``[tag, field, field, …]`` in a CONTROL frame.  docs/internals/protocol.md
lists their senders, times and handlers.  Every text, number and list has a bound in its declaration.
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
    """Versions of the wire protocol that a process supports, inclusive."""

    lowest: int
    highest: int

    def common(self, other: VersionRange) -> int | None:
        """The highest version that both support; None if there is none."""
        highest = min(self.highest, other.highest)
        return highest if highest >= max(self.lowest, other.lowest) else None

    def __str__(self) -> str:
        return f"version {self.highest}" if self.lowest == self.highest else f"versions {self.lowest} to {self.highest}"


#: Versions that this software supports.
PROTOCOL: Final = VersionRange(1, 1)
#: Most announcements in one message: they fit a control frame, however long the names are.
ANNOUNCEMENTS_MAX: Final = 64

#: Most values in a control message, containers included: at most some 6 MiB of objects.
VALUES_MAX: Final = 64 << 10
#: Most values in a status.
STATUS_VALUES_MAX: Final = VALUES_MAX * (STATUS_BYTES // CONTROL_BYTES)
#: Most values before authentication: a hello and its answer are flat and short, in other versions too.
HELLO_VALUES_MAX: Final = 64

M = TypeVar("M", bound="Message")


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


class ProposedMove(NamedTuple):
    """A move that would relieve a node, and its expected duration: microseconds."""

    unit: Name
    partition: Count
    source: Name
    target: Name
    took_us: Id


class Remark(NamedTuple):
    """A line for users."""

    text: Reason


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


#: Check of a list of announcements.
announcements: Final = records_of(Announcement)


# -- the messages --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Message:
    """Base of all control messages."""

    TAG: ClassVar[int] = 0
    #: Size of the largest body that may be sent.
    BYTES_MAX: ClassVar[int] = CONTROL_BYTES

    def encode(self) -> bytes:
        """Encodes the whole frame.  Raises LocalProtocolError if a field is out of its bounds."""
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
      lowest, highest: versions of the protocol that the sender supports.
      name: node id, ``source:NAME``, ``client:NAME``, ``control`` or ``supervisor``.
      incarnation: grows with each start of the process.
      fingerprint: of the plan (rule U11); "" is allowed for role control.
      token: shared secret of the cluster; "" if there is none.
      epoch, number: version of the sender's directory.
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
      epoch, number: version of the accepting process's directory.
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
    mode: Mode


@dataclass(frozen=True, slots=True)
class Heartbeat(Message):
    """Requests states and acknowledges, every ``timing.heartbeat`` (rules F3, A1).

    Attributes:
      period_us: interval at which each acknowledgement is repeated, microseconds; a longer silence suggests a failure.
    """

    TAG: ClassVar[int] = 10
    number: Id
    incarnation: Id
    period_us: Id
    acks: Annotated[Sequence[Ack], records_of(Ack)]


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
    number: Id
    incarnation: Id
    outputs: Annotated[Sequence[OutputStatus], records_of(OutputStatus)]
    held: Annotated[Sequence[Held], records_of(Held)] = ()
    loads: Annotated[Sequence[Load], records_of(Load)] = ()
    taken: Flag = False
    guest: Flag = False


@dataclass(frozen=True, slots=True)
class PartnerRequest(Message):
    """Requests a partner's permission to reconcile, every ``timing.request``, with a new number (rule K1)."""

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
    """A restarting replica, or a standby, requests state and stable log from a partner (rules A3, H1).

    Attributes:
      period_us: interval of progress messages that it requests, microseconds.
      log: checkpoint log of which it has the records up to ``since``, to request the rest (G9); ``any``: it has
        none; empty: it requests a snapshot.
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

    Empty ones before the first report that the sender is working on it.
    """

    TAG: ClassVar[int] = 15
    index: Count
    last: Flag
    data: Annotated[bytes, snapshot_data]


@dataclass(frozen=True, slots=True)
class SnapshotRefused(Message):
    """This replica has no snapshot, with the reason."""

    TAG: ClassVar[int] = 16
    reason: Reason


@dataclass(frozen=True, slots=True)
class StatusRequest(Message):
    """Requests the status of a process, for ``spe status`` and the live view."""

    TAG: ClassVar[int] = 17


@dataclass(frozen=True, slots=True)
class Status(Message):
    """The status of a process (``spe/status.py``), as a map of names, so that later versions can add fields."""

    TAG: ClassVar[int] = 18
    BYTES_MAX: ClassVar[int] = STATUS_BYTES
    process: Annotated[ProcessStatus, status_of]


@dataclass(frozen=True, slots=True)
class Inject(Message):
    """Requests the injection of a fault: ``spe inject``."""

    TAG: ClassVar[int] = 19
    fault: Annotated[Mapping[str, Any], text_map]


@dataclass(frozen=True, slots=True)
class InjectAnswer(Message):
    """The fault is injected, or ``error`` has the reason why not."""

    TAG: ClassVar[int] = 20
    ok: Flag
    error: Reason


@dataclass(frozen=True, slots=True)
class Order(Message):
    """Orders a standby to install or to retire, or a replica to replay; repeated until done (rules H3, H8).

    Attributes:
      epoch: of the coordinator; a node that knows a later one refuses.
      number: repeated in the answer.
    """

    TAG: ClassVar[int] = 21
    epoch: Id
    number: Id
    verb: Verb
    unit: Name
    partition: Count


@dataclass(frozen=True, slots=True)
class OrderAnswer(Message):
    """Order ``number`` is followed, or ``error`` has the reason why not; ``epoch`` is the latest known one (rule H6).
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
    """New settings and waits of the sender and of nodes known to it, after a heartbeat answer (rule T8)."""

    TAG: ClassVar[int] = 24
    items: Annotated[Sequence[Announcement], announcements]


@dataclass(frozen=True, slots=True)
class DirectoryRequest(Message):
    """Version of the sender's directory; sent both ways if versions differ (rule D2)."""

    TAG: ClassVar[int] = 25
    epoch: Id
    number: Id


@dataclass(frozen=True, slots=True)
class DirectoryAnswer(Message):
    """The newer version of the directory, encoded by ``spe/plan/revision.py`` (rule D2)."""

    TAG: ClassVar[int] = 26
    revision: Annotated[bytes, revision_data]


@dataclass(frozen=True, slots=True)
class MoveOrder(Message):
    """Requests to move a partition, drain a node, cancel a move, or relieve full nodes.

    See rules M1-M6 and L4-L8.  Verb ``propose`` requests the moves that ``balance`` would order.

    Attributes:
      partition: partition to move; "" for the other verbs.
      source: node that it leaves, or node to drain; "" to cancel.
      target: node that it moves to; "" for the other verbs.
      number: number of the move to cancel; 0 for the other verbs.
    """

    TAG: ClassVar[int] = 27
    verb: MoveVerb
    partition: Name
    source: Name
    target: Name
    number: Id


@dataclass(frozen=True, slots=True)
class MoveAnswer(Message):
    """Numbers of the moves, from first to last, once they are on disk; or the reason why there are none.

    Attributes:
      last: below ``first`` if there is nothing to move.
      proposed: moves that a balance orders, or would order.
      remarks: remarks about nodes, such as the reason why a node stays full.
    """

    TAG: ClassVar[int] = 28
    first: Id
    last: Id
    error: Reason
    proposed: Annotated[Sequence[ProposedMove], records_of(ProposedMove)] = ()
    remarks: Annotated[Sequence[Remark], records_of(Remark)] = ()


class Setting(NamedTuple):
    """A change of a node's setting as users write it, such as ``x`` and ``4s`` (spe.plan.settings)."""

    name: Name
    value: Name


@dataclass(frozen=True, slots=True)
class SetOrder(Message):
    """Requests another X, α or policy of a node: ``spe set`` (rules X1-X5)."""

    TAG: ClassVar[int] = 29
    node: Name
    changes: Annotated[Sequence[Setting], records_of(Setting)]


@dataclass(frozen=True, slots=True)
class SetAnswer(Message):
    """The version of the directory that has the setting, or the reason for its refusal (rule X4)."""

    TAG: ClassVar[int] = 30
    epoch: Id
    number: Id
    error: Reason


@dataclass(frozen=True, slots=True)
class JoinCluster(Message):
    """A node that the configuration does not name requests to join the cluster (rule D4).

    Attributes:
      node: encoded by spe.plan.revision.encode_node.
    """

    TAG: ClassVar[int] = 31
    node: Annotated[bytes, revision_data]


@dataclass(frozen=True, slots=True)
class JoinClusterAnswer(Message):
    """The directory with the new node, once it is on disk; or the reason why the node is refused.

    Attributes:
      failed: the node may join, but the coordinator's disk refuses.
    """

    TAG: ClassVar[int] = 32
    revision: Annotated[bytes, revision_data]
    error: Reason
    failed: Flag = False


@dataclass(frozen=True, slots=True)
class StagePart(Message):
    """A piece of a part of a batch, from one task of a writer; answered once the part is durable (W1).

    Attributes:
      query, batch: of the writer.
      part: name that is unique for each part and each attempt to send it.
      index: of the piece, from 0.
      data: the pieces together are a part as encoded by spe.log.pushed_batches.
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
    """A part is on the source's disk, or ``error`` has the reason for its refusal."""

    TAG: ClassVar[int] = 34
    part: Name
    error: Reason


@dataclass(frozen=True, slots=True)
class CommitPushed(Message):
    """Commits these parts, in this order, as batch ``batch`` of a query: all of them or none (W2).

    Attributes:
      replaces: query that this one replaces; "" if it continues.
    """

    TAG: ClassVar[int] = 35
    query: Name
    batch: Id
    parts: Annotated[Sequence[Name], names]
    replaces: Name


@dataclass(frozen=True, slots=True)
class PushCommitted(Message):
    """A batch is durable, or ``error`` has the reason for its refusal."""

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
    """The reason why an answer to a writer is delayed; repeated every second."""

    TAG: ClassVar[int] = 38
    reason: Reason


@dataclass(frozen=True, slots=True)
class EndPushed(Message):
    """The writer ends: the stream ends after the committed batches, once every writer has ended (W6)."""

    TAG: ClassVar[int] = 39


@dataclass(frozen=True, slots=True)
class PushEnded(Message):
    """The writer's end is durable, or ``error`` has the reason for its refusal.

    Attributes:
      rows: number of rows of all committed batches.
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
#: Tags of messages that come ten times a second, and whose only containers are lists of records.
_FLAT: Final = frozenset({Heartbeat.TAG, HeartbeatAnswer.TAG})
#: Size up to which a body cannot cost much, whatever its contents: no array in it can declare more entries than it
#: has bytes, nor hold that many arrays.  For these messages the check of the cost would be a third of decoding.
SMALL_BYTES: Final = 512
_CHECKS: Final = {m: checks_of(m) for m in MESSAGES}


def decode_message(body: Buffer, values_max: int = VALUES_MAX) -> Message:
    """Decodes the body of a CONTROL frame.

    Args:
      values_max: most values in it.

    Raises:
      RemoteProtocolError: the body is no message, or a field is wrong; the error names it.
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
    """The known fields of a hello: a later version may have more.  Without a common version only the range is read."""
    if len(values) < 2 or not all(type(v) is int for v in values[:2]):
        return values
    theirs = VersionRange(*values[:2])
    if PROTOCOL.common(theirs) is None:
        return [*theirs, "", "node", "", 0, "", "", 0, 0]
    return values[:count] if theirs.highest > PROTOCOL.highest else values


def expect(message: Message, kind: type[M]) -> M:
    """Returns ``message`` if it is of the expected kind.  Raises RemoteProtocolError otherwise."""
    if not isinstance(message, kind):
        raise RemoteProtocolError(f"expected {kind.__name__}, got {message!r:.200}")
    return message
