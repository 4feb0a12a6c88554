"""The service of a process to its peers: a table of handlers by type of message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from replicas.link.connection import Connection
from replicas.producer.feed import Accepted
from spe.status import ProcessStatus
from spe.wire.messages import (
    Announcement,
    CommitPushed,
    DropParts,
    EndPushed,
    Heartbeat,
    HeartbeatAnswer,
    JoinCluster,
    JoinClusterAnswer,
    Message,
    MoveAnswer,
    MoveOrder,
    NotReady,
    Order,
    OrderAnswer,
    PartnerAnswer,
    PartnerRequest,
    PartStaged,
    PushCommitted,
    PushEnded,
    SetAnswer,
    SetOrder,
    SnapshotRefused,
    SnapshotRequest,
    StagePart,
    Subscribe,
)


class Visitor(NamedTuple):
    """A peer on one of its connections."""

    name: str
    connection: Connection


#: The answer to a message; an opened subscription; the bytes of a snapshot; None: no answer.
Reply = Message | Accepted | memoryview | None
Handler = Callable[[Visitor, Any], Reply | Awaitable[Reply]]


def _no_announcements(version: int) -> tuple[int, Sequence[Announcement]]:
    return version, ()


@dataclass(frozen=True, slots=True)
class Service:
    """Handlers of messages, and other functions that the server calls.

    Attributes:
      name: name of the process, for refusals.
      status: returns the status of the process.
      handlers: by type of message; a message without a handler is refused, see ``REFUSALS``.
      announced: returns announcements of X and waits newer than a version, and the newest version (T8).
      hung_up: called when a connection ends.
      waits: says what an answer to a writer waits for.
    """

    name: str
    status: Callable[[], ProcessStatus]
    handlers: Mapping[type[Message], Handler] = field(default_factory=dict)
    announced: Callable[[int], tuple[int, Sequence[Announcement]]] = _no_announcements
    hung_up: Callable[[Connection], None] = lambda connection: None
    waits: Callable[[], str] = str


#: Answers to messages that a process has no handler for; they get its name.
REFUSALS: Final[Mapping[type[Message], Callable[[str, Any], Message | None]]] = MappingProxyType(
    {
        Subscribe: lambda name, message: NotReady(f"{name} serves no streams"),
        Heartbeat: lambda name, message: HeartbeatAnswer(message.number, 0, []),
        PartnerRequest: lambda name, message: PartnerAnswer(message.unit, message.partition, message.number, False),
        SnapshotRequest: lambda name, message: SnapshotRefused(f"{name} runs no partition"),
        Order: lambda name, message: OrderAnswer(message.number, 0, f"{name} runs no partition"),
        MoveOrder: lambda name, message: MoveAnswer(1, 0, f"{name} is not the coordinator, which moves partitions"),
        SetOrder: lambda name, message: SetAnswer(0, 0, f"{name} is not the coordinator, which changes nodes"),
        JoinCluster: lambda name, message: JoinClusterAnswer(
            b"", f"{name} is not the coordinator, which lets nodes join"
        ),
        StagePart: lambda name, message: PartStaged(message.part, f"{name} takes no pushed rows"),
        CommitPushed: lambda name, message: PushCommitted(message.batch, f"{name} takes no pushed rows"),
        EndPushed: lambda name, message: PushEnded(0, (), f"{name} takes no pushed rows"),
        DropParts: lambda name, message: None,
    }
)
