"""Messages of programs that push rows to a source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from spe.wire.fields import Count, Flag, Id, Name, Reason, names, snapshot_data
from spe.wire.messages.message import Message, senders


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
    SENDERS = senders("writer")
    query: Name
    batch: Id
    part: Name
    index: Count
    last: Flag
    data: Annotated[bytes, snapshot_data]

    def refusal(self, name: str) -> PartStaged:
        return PartStaged(self.part, f"{name} takes no pushed rows")


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
    SENDERS = senders("writer")
    query: Name
    batch: Id
    parts: Annotated[Sequence[Name], names]
    replaces: Name

    def refusal(self, name: str) -> PushCommitted:
        return PushCommitted(self.batch, f"{name} takes no pushed rows")


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
    SENDERS = senders("writer")
    parts: Annotated[Sequence[Name], names]

    def refusal(self, name: str) -> None:
        return None


@dataclass(frozen=True, slots=True)
class PushWaits(Message):
    """The reason why an answer to a writer is delayed; repeated every second."""

    TAG: ClassVar[int] = 38
    reason: Reason


@dataclass(frozen=True, slots=True)
class EndPushed(Message):
    """The writer ends: the stream ends after the committed batches, once every writer has ended (W6)."""

    TAG: ClassVar[int] = 39
    SENDERS = senders("writer")

    def refusal(self, name: str) -> PushEnded:
        return PushEnded(0, (), f"{name} takes no pushed rows")


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
