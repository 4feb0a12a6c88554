"""Control messages: a closed set of flat records, checked field by field at the door.

On the wire a message is a msgpack array ``[tag, field, field, …]`` in a CONTROL frame.  docs/protocol.md says who
sends which, when, and where it is handled.  Every text, number and list has a bound where it is declared.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, TypeVar, get_type_hints

import msgpack

from spe.errors import LocalProtocolError, PeerRefused, RemoteProtocolError
from spe.states import NodeState
from spe.times import BEFORE_TIME, END_OF_TIME
from spe.wire.framing import CONTROL_BYTES, Buffer, FrameType, check_length, frame

PROTOCOL_VERSION: Final = 1

#: Bytes of a snapshot per SnapshotPart: a quarter of a control frame, so the link stays free for heartbeats.
SNAPSHOT_PART_BYTES: Final = 64 << 10

_NAME_LENGTH: Final = 512
_REASON_LENGTH: Final = 4_096
_MANY: Final = 4_096
_ID_MAX: Final = 2**63 - 1

Check = Callable[[Any], Any]
M = TypeVar("M", bound="Message")


class Ack(NamedTuple):
    """``consumer`` needs nothing with an id ≤ ``id`` of a channel any more (protocol.md A1)."""

    stream: str
    partition: int
    consumer: str
    id: int


class OutputStatus(NamedTuple):
    """One output channel of a replica, as its heartbeat answer announces it (protocol.md F3).

    Attributes:
      fresh: while STABILIZATION, new tentative data goes on as well.
      last_id: last stable id (q).
      frontier, tentative_frontier: largest boundary of each kind; microseconds of tuple time.
      first: smallest stable id that can still be had.
      fill: share of the output buffer's cap in use, 0 … 1.
    """

    stream: str
    partition: int
    state: NodeState
    fresh: bool
    last_id: int
    frontier: int
    tentative_frontier: int
    first: int
    fill: float


# -- checks: value as unpacked -> value of the field; ValueError says what was expected ----------------------------


def _expect(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(f"expected {what}")


def _integer(low: int, high: int) -> Check:
    def check(value: Any) -> Any:
        _expect(type(value) is int and low <= value <= high, f"an integer from {low} to {high}")
        return value

    return check


def _name(value: Any) -> Any:
    _expect(type(value) is str and len(value) <= _NAME_LENGTH, f"a text of at most {_NAME_LENGTH} characters")
    return value


def _reason(value: Any) -> Any:
    """Text for people: cut rather than refused, because it often is the text of an exception."""
    _expect(type(value) is str, "a text")
    return value[:_REASON_LENGTH].encode("utf-8", "replace").decode()


def _one_of(*options: str) -> Check:
    def check(value: Any) -> Any:
        _expect(type(value) is str and value in options, f"one of {', '.join(options)}")
        return value

    return check


def _boolean(value: Any) -> Any:
    _expect(type(value) is bool, "a boolean")
    return value


def _share(value: Any) -> Any:
    _expect(type(value) in (float, int) and 0 <= value <= 1, "a number from 0 to 1")
    return float(value)


def _node_state(value: Any) -> Any:
    _expect(type(value) in (int, NodeState) and 0 <= value < len(NodeState), "a state from 0 to 3")
    return NodeState(value)


def _data(value: Any) -> Any:
    _expect(type(value) is bytes and len(value) <= SNAPSHOT_PART_BYTES, f"at most {SNAPSHOT_PART_BYTES} bytes")
    return value


def _map(value: Any) -> Any:
    _expect(type(value) is dict and all(type(k) is str for k in value), "a map with text keys")
    return value


def _records(make: Callable[..., Any], *checks: Check) -> Check:
    """A list of records of the named tuple ``make``, one check per field."""

    def check(value: Any) -> Any:
        _expect(type(value) in (list, tuple) and len(value) <= _MANY, f"a list of at most {_MANY}")
        records = []
        for item in value:
            _expect(isinstance(item, list | tuple) and len(item) == len(checks), f"records of {len(checks)} fields")
            records.append(make(*[c(v) for c, v in zip(checks, item)]))
        return tuple(records)

    return check


_id = _integer(0, _ID_MAX)
_count = _integer(0, 2**31 - 1)
_time = _integer(BEFORE_TIME, END_OF_TIME)

#: Types of fields, each with its check: what may come in, and what may go out.
Count = Annotated[int, _count]
Id = Annotated[int, _id]
Time = Annotated[int, _time]
Name = Annotated[str, _name]
Reason = Annotated[str, _reason]
Flag = Annotated[bool, _boolean]
State = Annotated[NodeState, _node_state]
Role = Annotated[Literal["node", "source", "client", "control"], _one_of("node", "source", "client", "control")]
Mode = Annotated[Literal["main", "corrections"], _one_of("main", "corrections")]


# -- the messages --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Message:
    """Base of all control messages."""

    TAG: ClassVar[int] = 0

    def encode(self) -> bytes:
        """The whole frame.  Raises LocalProtocolError where a field is out of its bounds."""
        kind = type(self)
        try:
            values = [check(getattr(self, name)) for name, check in _CHECKS[kind]]
            body = msgpack.packb([self.TAG, *values], use_bin_type=True)
        except (ValueError, TypeError, OverflowError) as e:
            raise LocalProtocolError(f"cannot send {self!r:.500}: {e}") from None
        check_length(FrameType.CONTROL, len(body), CONTROL_BYTES)
        return frame(FrameType.CONTROL, body)


@dataclass(frozen=True, slots=True)
class Hello(Message):
    """First message of whoever connects.

    Attributes:
      name: node id, ``source:NAME``, ``client:NAME``; free for role control.
      incarnation: grows with each start of the process.
      fingerprint: of the plan (protocol.md U11); "" is allowed for role control.
      token: shared secret of the cluster; "" when there is none.
    """

    TAG: ClassVar[int] = 1
    version: Count
    cluster: Name
    role: Role
    name: Name
    incarnation: Id
    fingerprint: Name
    token: Name


@dataclass(frozen=True, slots=True)
class Welcome(Message):
    """The hello is accepted; who we are."""

    TAG: ClassVar[int] = 2
    version: Count
    name: Name
    incarnation: Id


@dataclass(frozen=True, slots=True)
class Refused(Message):
    """The hello is not accepted; the connection closes after this."""

    TAG: ClassVar[int] = 3
    reason: Reason


@dataclass(frozen=True, slots=True)
class Subscribe(Message):
    """Opens the one subscription of this connection (protocol.md F1, section 6).

    Attributes:
      consumer: name that acknowledgements will carry.
      position: last stable id held (p).
      frontier: largest stable boundary held (sb).
      held: tentative tuples follow the position.
      t_star: everything tentative up to this time has been seen or is of no more use.  Only ever compared, and may
        lie just before the beginning of time.
      substream_index, substream_count: which share of the key hash is wanted.
    """

    TAG: ClassVar[int] = 4
    stream: Name
    partition: Count
    consumer: Name
    mode: Mode
    position: Id
    frontier: Time
    held: Flag
    t_star: Annotated[int, _integer(-(2**63), 2**63 - 1)]
    substream_index: Count
    substream_count: Annotated[int, _integer(1, 2**31 - 1)]

    def __post_init__(self) -> None:
        if not self.substream_index < self.substream_count:
            raise ValueError(f"expected a substream index below {self.substream_count}, got {self.substream_index}")


@dataclass(frozen=True, slots=True)
class Subscribed(Message):
    """First answer to a subscribe: the producer's state at this moment (protocol.md F2)."""

    TAG: ClassVar[int] = 5
    state: State
    fresh: Flag
    last_id: Id
    frontier: Time
    tentative_frontier: Time
    first: Id


@dataclass(frozen=True, slots=True)
class NotReady(Message):
    """No subscription now: the replica is recovering, or does not serve this channel."""

    TAG: ClassVar[int] = 6
    reason: Reason


@dataclass(frozen=True, slots=True)
class Truncated(Message):
    """What was asked for is gone; ``first`` is the smallest stable id that is left."""

    TAG: ClassVar[int] = 7
    first: Id


@dataclass(frozen=True, slots=True)
class StateChange(Message):
    """The producer's state, in-band: what was sent before it was made in the state before."""

    TAG: ClassVar[int] = 8
    state: State
    fresh: Flag


@dataclass(frozen=True, slots=True)
class SetMode(Message):
    """The consumer turns its corrections feed into its main feed, or back (protocol.md F5)."""

    TAG: ClassVar[int] = 9
    mode: Mode


@dataclass(frozen=True, slots=True)
class Heartbeat(Message):
    """A consumer asks for states and acknowledges (protocol.md F3, A1)."""

    TAG: ClassVar[int] = 10
    number: Id
    incarnation: Id
    acks: Annotated[Sequence[Ack], _records(Ack, _name, _count, _name, _id)]


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer(Message):
    """The states of the outputs, with the number of the heartbeat that asked."""

    TAG: ClassVar[int] = 11
    number: Id
    incarnation: Id
    outputs: Annotated[
        Sequence[OutputStatus],
        _records(OutputStatus, _name, _count, _node_state, _boolean, _id, _time, _time, _id, _share),
    ]


@dataclass(frozen=True, slots=True)
class PartnerRequest(Message):
    """May I reconcile now? (protocol.md K1)"""

    TAG: ClassVar[int] = 12
    unit: Name
    partition: Count
    asker: Name
    number: Id


@dataclass(frozen=True, slots=True)
class PartnerAnswer(Message):
    """The answer to request ``number``."""

    TAG: ClassVar[int] = 13
    unit: Name
    partition: Count
    number: Id
    granted: Flag


@dataclass(frozen=True, slots=True)
class SnapshotRequest(Message):
    """A restarting replica asks a partner for state and stable log (protocol.md A3)."""

    TAG: ClassVar[int] = 14
    unit: Name
    partition: Count


@dataclass(frozen=True, slots=True)
class SnapshotPart(Message):
    """A piece of an encoded snapshot; ``index`` counts from 0, ``last`` marks the end."""

    TAG: ClassVar[int] = 15
    index: Count
    last: Flag
    data: Annotated[bytes, _data]


@dataclass(frozen=True, slots=True)
class SnapshotRefused(Message):
    """No snapshot from here."""

    TAG: ClassVar[int] = 16
    reason: Reason


@dataclass(frozen=True, slots=True)
class StatusRequest(Message):
    """What is going on there?  For people and the live view."""

    TAG: ClassVar[int] = 17


@dataclass(frozen=True, slots=True)
class Status(Message):
    """Free-form: whoever shows it must cope with anything that fits a control frame."""

    TAG: ClassVar[int] = 18
    data: Annotated[Mapping[str, Any], _map]


@dataclass(frozen=True, slots=True)
class Inject(Message):
    """A fault to make happen, for experiments."""

    TAG: ClassVar[int] = 19
    fault: Annotated[Mapping[str, Any], _map]


@dataclass(frozen=True, slots=True)
class InjectAnswer(Message):
    """Whether the fault was made to happen; ``error`` is "" or says why not."""

    TAG: ClassVar[int] = 20
    ok: Flag
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
)
_BY_TAG: Final = {m.TAG: m for m in MESSAGES}
_CHECKS: Final = {
    m: [(f.name, get_type_hints(m, include_extras=True)[f.name].__metadata__[0]) for f in fields(m)] for m in MESSAGES
}


def decode_message(body: Buffer) -> Message:
    """The message in the body of a CONTROL frame.

    Raises:
      RemoteProtocolError: no message, or a field is not what it must be; says which.
    """
    try:
        items = msgpack.unpackb(
            body, raw=False, use_list=True, strict_map_key=True, max_ext_len=0, max_array_len=_MANY, max_map_len=_MANY
        )
    except Exception as e:  # msgpack raises half a dozen unrelated types, Unicode and stack errors among them
        raise RemoteProtocolError(f"no control message: {type(e).__name__}: {e}") from None
    if type(items) is not list or not items or type(items[0]) is not int or items[0] not in _BY_TAG:
        raise RemoteProtocolError(f"no control message: expected [tag, …], got {items!r:.100}")
    kind = _BY_TAG[items[0]]
    values = items[1:]
    if kind is Hello and values and values[0] != PROTOCOL_VERSION:
        # Only the version is sure to mean the same in other versions; it is all that a refusal needs.
        values = [values[0], "", "node", "", 0, "", ""]
    checks = _CHECKS[kind]
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


def expect(message: Message, kind: type[M]) -> M:
    """``message``, when it is of the kind that must come now.  Raises RemoteProtocolError otherwise."""
    if not isinstance(message, kind):
        raise RemoteProtocolError(f"expected {kind.__name__}, got {message!r:.200}")
    return message


# -- who may come in -----------------------------------------------------------------------------------------------


def check_hello(
    hello: Hello, *, cluster: str, fingerprint: str, token: str, name: str, incarnation: int
) -> Welcome | Refused:
    """The answer to a hello.

    Args:
      cluster, fingerprint, token: what our own plan and configuration say.
      name, incarnation: ours, for the welcome.
    """
    if hello.version != PROTOCOL_VERSION:
        return Refused(f"protocol version {hello.version} is not supported; {name} speaks version {PROTOCOL_VERSION}")
    if not hmac.compare_digest(hello.token.encode(), token.encode()):  # first: strangers learn nothing else
        return Refused("the token does not match")
    if hello.cluster != cluster:
        return Refused(f"this is cluster {cluster!r}, not {hello.cluster!r}")
    anonymous = hello.role == "control" and not hello.fingerprint
    if hello.fingerprint != fingerprint and not anonymous:
        return Refused(
            f"the plan is another one: fingerprint {hello.fingerprint or '(none)'}, {name} has {fingerprint};"
            " both sides need the same query, schema, partition counts and bucket width"
        )
    return Welcome(PROTOCOL_VERSION, name, incarnation)


def check_welcome(answer: Message, name: str | None) -> Welcome:
    """What came back for our hello.

    Args:
      name: who should be at that address; None: whoever is there.

    Raises:
      PeerRefused: it refused, or it is somebody else.
      RemoteProtocolError: the answer is neither Welcome nor Refused.
    """
    if isinstance(answer, Refused):
        raise PeerRefused(answer.reason)
    welcome = expect(answer, Welcome)
    if name is not None and welcome.name != name:
        raise PeerRefused(f"expected {name!r} at this address, found {welcome.name!r}")
    return welcome
