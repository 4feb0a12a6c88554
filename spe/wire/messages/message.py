"""The base of control messages: a closed set of flat records, checked field by field on receipt.

On the wire a message is a msgpack array ``[tag, field, field, …]`` in a CONTROL frame.  docs/internals/protocol.md
lists their senders.  Every text, number and list has a bound in its declaration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeVar

import msgpack

from spe.errors import LocalProtocolError, RemoteProtocolError
from spe.status import plain
from spe.wire.budget import check_cost
from spe.wire.fields import MANY, Check, Role, checks_of
from spe.wire.framing import CONTROL_BYTES, STATUS_BYTES, Buffer, FrameType, check_length, frame

#: Most values in a control message, containers included: at most some 6 MiB of objects.
VALUES_MAX: Final = 64 << 10
#: Most values in a status.
STATUS_VALUES_MAX: Final = VALUES_MAX * (STATUS_BYTES // CONTROL_BYTES)
#: Most values before authentication: a hello and its answer are flat and short, in other versions too.
HELLO_VALUES_MAX: Final = 64
#: Size up to which a body cannot cost much, whatever its contents: no array in it can declare more entries than it
#: has bytes, nor hold that many arrays.  For these messages the check of the cost would be a third of decoding.
SMALL_BYTES: Final = 512

Senders = frozenset[Role]
M = TypeVar("M", bound="Message")


def senders(*roles: Role) -> Senders:
    return frozenset(roles)


EVERYBODY: Final = senders("node", "source", "client", "coordinator", "control", "newcomer", "writer")
CONSUMERS: Final = senders("node", "client")

_messages: Final[dict[int, type[Message]]] = {}
_CHECKS: Final[dict[type[Message], list[tuple[str, Check]]]] = {}
#: All messages, by tag.
MESSAGES: Final[Mapping[int, type[Message]]] = MappingProxyType(_messages)


@dataclass(frozen=True, slots=True)
class Message:
    """Base of all control messages.  A subclass registers itself; its dataclass fields are what is sent."""

    TAG: ClassVar[int] = 0
    #: Size of the largest body that may be sent.
    BYTES_MAX: ClassVar[int] = CONTROL_BYTES
    #: Roles that may send it over a connection that they opened; none: it is an answer.
    SENDERS: ClassVar[Senders] = frozenset()
    #: It comes ten times a second, and its only containers are lists of records.
    IS_FLAT: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        other = _messages.setdefault(cls.TAG, cls)
        if other.__qualname__ != cls.__qualname__:
            raise TypeError(f"{cls.__name__} has the tag of {other.__name__}: {cls.TAG}")
        _messages[cls.TAG] = cls  # a dataclass with slots is made twice
        _CHECKS[cls] = checks_of(cls)

    def encode(self) -> bytes:
        """Encodes the whole frame.  Raises LocalProtocolError if a field is out of its bounds."""
        try:
            values = [check(getattr(self, name)) for name, check in _CHECKS[type(self)]]
            body = msgpack.packb([self.TAG, *values], use_bin_type=True, default=plain)
        except (ValueError, TypeError, OverflowError) as e:
            raise LocalProtocolError(f"cannot send {self!r:.500}: {e}") from None
        if len(body) > CONTROL_BYTES:
            check_length(FrameType.CONTROL, len(body), self.BYTES_MAX)
        return frame(FrameType.CONTROL, body)

    def refusal(self, name: str) -> Message | None:
        """Returns the answer of process ``name``, which has no handler for it; None: no answer.

        Raises:
          RemoteProtocolError: nobody sends it to such a process.
        """
        raise RemoteProtocolError(f"unexpected {type(self).__name__}")

    @classmethod
    def known_part(cls, values: Sequence[Any]) -> Sequence[Any]:
        """Returns the fields that this version knows."""
        return values


def decode_message(body: Buffer, values_max: int = VALUES_MAX) -> Message:
    """Decodes the body of a CONTROL frame.

    Args:
      values_max: most values in it.

    Raises:
      RemoteProtocolError: the body is no message, or a field is wrong; the error names it.
    """
    items = _unpacked(body, values_max)
    if type(items) is not list or not items or type(items[0]) is not int or items[0] not in _messages:
        raise RemoteProtocolError(f"no control message: expected [tag, …], got {items!r:.100}")
    kind = _messages[items[0]]
    values, checks = kind.known_part(items[1:]), _CHECKS[kind]
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


def _unpacked(body: Buffer, values_max: int) -> Any:
    try:
        size = len(body)
        kind = _messages.get(body[1]) if 1 < size <= SMALL_BYTES else None
        if kind is None or not kind.IS_FLAT:
            check_cost(body, values_max)
        return msgpack.unpackb(
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


def expect(message: Message, kind: type[M]) -> M:
    """Returns ``message`` if it is of the expected kind.  Raises RemoteProtocolError otherwise."""
    if not isinstance(message, kind):
        raise RemoteProtocolError(f"expected {kind.__name__}, got {message!r:.200}")
    return message
