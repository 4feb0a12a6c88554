"""Messages of the command line, and of nodes that join."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

from spe.status import ProcessStatus, status_of
from spe.wire.fields import Count, Flag, Id, MoveVerb, Name, Reason, records_of, revision_data, text_map
from spe.wire.framing import STATUS_BYTES
from spe.wire.messages.message import Message, senders


@dataclass(frozen=True, slots=True)
class StatusRequest(Message):
    """Requests the status of a process, for ``spe status`` and the live view."""

    TAG: ClassVar[int] = 17
    SENDERS = senders("control")


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
    SENDERS = senders("control")
    fault: Annotated[Mapping[str, Any], text_map]


@dataclass(frozen=True, slots=True)
class InjectAnswer(Message):
    """The fault is injected, or ``error`` has the reason why not."""

    TAG: ClassVar[int] = 20
    ok: Flag
    error: Reason


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
    SENDERS = senders("control")
    verb: MoveVerb
    partition: Name
    source: Name
    target: Name
    number: Id

    def refusal(self, name: str) -> MoveAnswer:
        return MoveAnswer(1, 0, f"{name} is not the coordinator, which moves partitions")


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
    SENDERS = senders("control")
    node: Name
    changes: Annotated[Sequence[Setting], records_of(Setting)]

    def refusal(self, name: str) -> SetAnswer:
        return SetAnswer(0, 0, f"{name} is not the coordinator, which changes nodes")


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
    SENDERS = senders("newcomer")
    node: Annotated[bytes, revision_data]

    def refusal(self, name: str) -> JoinClusterAnswer:
        return JoinClusterAnswer(b"", f"{name} is not the coordinator, which lets nodes join")


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
