"""Status of the coordinator: partitions, moves and recoveries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from spe.status.field_types import Flag, Integer, Many, Number, State, Text
from spe.status.node_status import LoadStatus
from spe.status.process_status import CommonStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """A partition that has standbys.

    Attributes:
      partition: its name.
      running: state of each replica that answers, by node.
      placed: nodes that always run it.
      standbys: its standby nodes, in order.
      wanted: standbys that are to run it although nothing has failed.
      served: a node runs it, answers, and is not recovering.
    """

    partition: Text
    running: Mapping[Text, State]
    placed: Many[Text]
    standbys: Many[Text]
    wanted: Many[Text]
    served: Flag


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationStatus:
    """Standbys that run by plan.

    Attributes:
      budget: partitions that may have a standby run.
      active: partitions that have one.
      target: partitions that will have one, after all pending changes.
      of: output fidelity of the target if all partitions with a single replica fail; null before the first choice.
    """

    budget: Integer
    active: Many[Text]
    target: Many[Text]
    of: Number | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveStatus:
    """A partition that moves, or has moved, from one node to another.

    Attributes:
      number: number of the order.
      partition: its name.
      source: node that it leaves.
      target: node that it moves to.
      role: role of the source, which the target takes: `active` or `standby`.
      reason: origin of the request.
      phase: `wait`, `join`, `install`, `follow`, `leave`, then `done` or `dropped`.
      why: reason of its wait, or why it was dropped; empty while it proceeds.
      began_us: wall time at which each phase began.
      predicted_us: expected duration; null if unknown.
      state_from: `partner`, or `checkpoint` if the target's own one is expected to be faster.
    """

    number: Integer
    partition: Text
    source: Text
    target: Text
    role: Text
    reason: Text
    phase: Text
    why: Text
    began_us: Mapping[Text, Integer]
    predicted_us: Integer | None
    state_from: Text

    @property
    def is_over(self) -> bool:
        return self.phase in ("done", "dropped")

    def took_us(self, now_us: int) -> int:
        """Returns the time since its order; until its end if it is over; 0 before its first phase."""
        times = self.began_us.values()
        return (max(times) if self.is_over else now_us) - min(times) if times else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLoad:
    """Load of a partition in the last 15 minutes (rule L1).

    Attributes:
      partition: its name.
      samples: number of known samples of 10 s; 90 at most.
      mean: mean of these; the largest of its replicas counts.
    """

    partition: Text
    samples: Integer
    mean: LoadStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedInstallStatus:
    """A partition to be restored after those before it on its node.

    Attributes:
      partition: its name.
      node: node that is to run it.
    """

    partition: Text
    node: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueStatus:
    """Value of the results from some time on.

    Attributes:
      after_s: seconds after the plan was made.
      value: from 0 to 1.
    """

    after_s: Number
    value: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryStatus:
    """Partitions that are restored in an order, because nodes lack room for all.

    Attributes:
      goal: `fidelity` or `complete`, as `recovery.value`.
      value: present value of the results, from 0 to 1.
      under_way: node of each partition that is being restored.
      planned: next partitions, in order.
      waits: partitions without a place, and the reason.
      values: expected values over time, if no node comes or goes; empty before the first plan.
      room: free cores of each node that answers; below 0 if it is overloaded.
    """

    goal: Text
    value: Number
    under_way: Mapping[Text, Text]
    planned: Many[PlannedInstallStatus]
    waits: Mapping[Text, Text]
    values: Many[ValueStatus]
    room: Mapping[Text, Number]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStatus(CommonStatus):
    """The coordinator.

    Attributes:
      partitions: partitions with standbys.
      activation: standbys that run by plan.
      moves: the newest moves, in the order of their commands.
      loads: known loads of partitions.
      recovery: order of recoveries; null while there is room for all lost partitions.
      joined: addresses of nodes that the configuration does not name, by name.
    """

    kind: Literal["coordinator"] = "coordinator"
    partitions: Many[PartitionStatus]
    activation: ActivationStatus
    moves: Many[MoveStatus] = ()
    loads: Many[PartitionLoad] = ()
    recovery: RecoveryStatus | None = None
    joined: Mapping[Text, Text] = field(default_factory=dict)
