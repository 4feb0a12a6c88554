"""Moves of partitions from node to node, and changes of roles.  Pure data."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from replicas.planning.prediction import StateSource
from spe.errors import SpeError
from spe.plan.directory import Directory, Role
from spe.status import MoveStatus
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId
from spe.stream.times import SECOND

#: Least time after which a target that answers but is not ready has failed, microseconds.
IN_VAIN_US: Final = 300 * SECOND


class MoveRefused(SpeError):
    """An order to move that cannot be carried out; the message has the reason and the remedy."""


class MovePhase(enum.StrEnum):
    """Phases of a move, in order.

    WAIT: another move is under way, or not all replicas of the partition are STABLE.
    JOIN: the directory names the target as a standby; until all live producers of the partition know that.
    INSTALL: the target is to run the partition; until it is STABLE.
    FOLLOW: until the target is as far as the old replica was, and its disk has the state where that is required.  A
    standby only has to hold two checkpoints.
    LEAVE: the directory has the target in place of the source, which retires.
    """

    WAIT = "wait"
    JOIN = "join"
    INSTALL = "install"
    FOLLOW = "follow"
    LEAVE = "leave"
    DONE = "done"
    DROPPED = "dropped"


@dataclass(slots=True)
class Move:
    """A move and its progress.

    Attributes:
      number: number of the order; they count up.
      role: role of the source, which the target takes: ACTIVE or STANDBY.
      reason: reason of the order, for people.
      drain: the node that it helps to empty.
      by_load: the balancer ordered it.
      state_us: predicted time for its state, microseconds; None: unknown.
      state_from: predicted source of the state.
      predicted_us: predicted time for the whole move.
      began_us: time at which it entered each phase, wall time in microseconds, for people.
      was_standby: the target was a permanent standby before; then the source becomes one afterwards.
      mark: frontier of the other replicas when the target was first STABLE; None: it was not yet.
      tries: how often the target fell silent.
      interrupted: the coordinator restarted during the move, so the times of its phases are unknown.
      dropping: reason why the move is undone; None: it is not.
      why: reason why it waits, or was dropped, for people.
    """

    number: int
    partition: PartitionId
    source: NodeId
    target: NodeId
    role: Role
    reason: str
    drain: NodeId | None = None
    by_load: bool = False
    state_us: int | None = None
    state_from: StateSource = StateSource.PARTNER
    predicted_us: int | None = None
    phase: MovePhase = MovePhase.WAIT
    began_us: dict[MovePhase, int] = field(default_factory=dict)
    was_standby: bool = False
    mark: int | None = None
    tries: int = 0
    interrupted: bool = False
    dropping: str | None = None
    why: str = ""

    def kept(self) -> tuple[MovePhase, bool, int | None, int, str | None]:
        """Progress that a new coordinator needs to continue the move."""
        return self.phase, self.was_standby, self.mark, self.tries, self.dropping

    def status(self) -> MoveStatus:
        return MoveStatus(
            number=self.number,
            partition=str(self.partition),
            source=self.source,
            target=self.target,
            role=self.role.value,
            reason=self.reason,
            phase=self.phase.value,
            why=self.why,
            began_us={phase.value: at for phase, at in self.began_us.items()},
            predicted_us=self.predicted_us,
            state_from=self.state_from.value,
        )

    @property
    def took_us(self) -> int:
        """Time since its first phase."""
        assert self.began_us, "L4: a move that began knows when"
        return max(self.began_us.values()) - min(self.began_us.values())

    @property
    def over(self) -> bool:
        return self.phase in (MovePhase.DONE, MovePhase.DROPPED)

    def __str__(self) -> str:
        return f"move {self.number} ({self.partition} from {self.source} to {self.target})"


@dataclass(frozen=True, slots=True)
class RoleChange:
    """Changes the roles of nodes for a partition; None removes a role.

    Attributes:
      lent: the roles are lent for a recovery.
    """

    partition: PartitionId
    roles: tuple[tuple[NodeId, Role | None], ...]
    lent: bool = False

    def __call__(self, directory: Directory) -> Directory:
        assert not self.lent or {role for _, role in self.roles} == {Role.STANDBY}, "O5: lent is a standby's role"
        for node, role in self.roles:
            if self.lent:
                directory = directory.with_lent(self.partition, node)
            else:
                directory = directory.with_role(self.partition, node, role)
        return directory

    def __str__(self) -> str:
        roles = (f"{node} {role or 'gone'}" for node, role in self.roles)
        return f"{self.partition}: {', '.join(roles)}"


def some(names: Iterable[str]) -> str:
    """Lists the first names."""
    all_names = list(names)
    return ", ".join(all_names[:5]) + (f" and {len(all_names) - 5} more" if len(all_names) > 5 else "")
