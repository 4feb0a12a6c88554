"""Messages between replicas, and from the coordinator to nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from spe.wire.fields import Count, Flag, Id, Name, Reason, Verb, snapshot_data
from spe.wire.messages.message import Message, senders


@dataclass(frozen=True, slots=True)
class PartnerRequest(Message):
    """Requests a partner's permission to reconcile, every ``timing.request``, with a new number (rule K1)."""

    TAG: ClassVar[int] = 12
    SENDERS = senders("node")
    unit: Name
    partition: Count
    asker: Name
    number: Id

    def refusal(self, name: str) -> PartnerAnswer:
        return PartnerAnswer(self.unit, self.partition, self.number, False)


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
    SENDERS = senders("node")
    unit: Name
    partition: Count
    period_us: Id
    log: Reason = ""
    since: Id = 0

    def refusal(self, name: str) -> SnapshotRefused:
        return SnapshotRefused(f"{name} runs no partition")


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
class Order(Message):
    """Orders a standby to install or to retire, or a replica to replay; repeated until done (rules H3, H8).

    Attributes:
      epoch: of the coordinator; a node that knows a later one refuses.
      number: repeated in the answer.
    """

    TAG: ClassVar[int] = 21
    SENDERS = senders("coordinator")
    epoch: Id
    number: Id
    verb: Verb
    unit: Name
    partition: Count

    def refusal(self, name: str) -> OrderAnswer:
        return OrderAnswer(self.number, 0, f"{name} runs no partition")


@dataclass(frozen=True, slots=True)
class OrderAnswer(Message):
    """Order ``number`` is followed, or ``error`` has the reason why not; ``epoch`` is the latest known one (rule H6).
    Number 0: the answer to the heartbeat of an older coordinator.
    """

    TAG: ClassVar[int] = 22
    number: Id
    epoch: Id
    error: Reason
