"""Messages of every connection: hello, its answers, and the version of the directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Final, NamedTuple

from spe.wire.fields import Count, Id, Name, Reason, Role, revision_data
from spe.wire.messages.message import CONSUMERS, EVERYBODY, Message, senders


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
    SENDERS = EVERYBODY
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

    @classmethod
    def known_part(cls, values: Sequence[Any]) -> Sequence[Any]:
        """A later version may have more fields.  Without a common version only the range is read."""
        if len(values) < 2 or not all(type(v) is int for v in values[:2]):
            return values
        theirs = VersionRange(*values[:2])
        if PROTOCOL.common(theirs) is None:
            return [*theirs, "", "node", "", 0, "", "", 0, 0]
        return values[: len(fields(cls))] if theirs.highest > PROTOCOL.highest else values


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
class DirectoryRequest(Message):
    """Version of the sender's directory; sent both ways if versions differ (rule D2)."""

    TAG: ClassVar[int] = 25
    SENDERS = CONSUMERS | {"coordinator"}
    epoch: Id
    number: Id


@dataclass(frozen=True, slots=True)
class DirectoryAnswer(Message):
    """The newer version of the directory, encoded by ``spe/plan/revision.py`` (rule D2)."""

    TAG: ClassVar[int] = 26
    SENDERS = senders("node", "coordinator")
    revision: Annotated[bytes, revision_data]
