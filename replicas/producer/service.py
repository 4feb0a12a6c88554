"""The service of a process to its peers: a table of handlers by type of message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from replicas.link.connection import Connection
from replicas.producer.feed import Accepted
from spe.status import ProcessStatus
from spe.wire.messages.feeds import Announcement
from spe.wire.messages.message import Message


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
      handlers: by type of message; a message without a handler is refused (``Message.refusal``).
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
