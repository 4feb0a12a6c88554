"""K1-K5: replicas take turns to correct: while one corrects by a partner's leave, another one has fresh results.

A replica that corrects alone (R4) continues with fresh results of its own, and reports it; one that reports none has
the leave of a partner.  When a replica begins so, another running replica of the partition must not.  Nothing is
claimed if a replica of the partition died or restarted since the failure began, for the leave may have come from it,
nor if the policy is to suspend fresh results in any case, nor of a replica whose subscriptions are not in the history
(real processes, whose states have clocks of their own).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from consistency.checking.counters import Counters
from consistency.checking.finding import Finding
from spe.plan.directory import Directory
from spe.plan.nodes import Policy
from spe.stream.history import History, Opened, ProcessDown, StateChanged
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, NodeState


@dataclass(slots=True)
class _Replica:
    """State of a replica.

    Attributes:
      by_leave: it corrects, and has had no fresh results since it began to.
      known: the history has its subscriptions.
      failed_us: when its failure began.
    """

    state: NodeState = NodeState.RECOVERING
    by_leave: bool = False
    known: bool = False
    failed_us: int = 0


def check_turns(history: History, directory: Directory, counters: Counters) -> Iterator[Finding]:
    """Yields findings of K1 to K5."""
    partitions: dict[PartitionId, dict[NodeId, _Replica]] = {
        partition: {node: _Replica() for node in directory.hosts(partition)}
        for partition in directory.placement
        if not any(directory.nodes[node].during_stabilization is Policy.SUSPEND for node in directory.hosts(partition))
    }
    places = {f"{p}@{node}": (p, node) for p, replicas in partitions.items() for node in replicas}
    #: When a replica of the partition was last seen to die or to restart.
    gone_us = dict.fromkeys(partitions, -1)

    def away(partition: PartitionId, replica: _Replica, at_us: int) -> None:
        replica.state, replica.by_leave, gone_us[partition] = NodeState.RECOVERING, False, at_us

    for event in history:
        match event:
            case Opened(_, consumer) if consumer in places:
                partition, node = places[consumer]
                partitions[partition][node].known = True
            case ProcessDown(at_us, host):
                for partition, replicas in partitions.items():
                    if (replica := replicas.get(NodeId(host))) is not None:
                        away(partition, replica, at_us)
            case StateChanged(at_us, name, state, fresh) if name in places:
                partition, node = places[name]
                replica = partitions[partition][node]
                before, replica.state = replica.state, state
                if state is NodeState.RECOVERING:
                    away(partition, replica, at_us)
                elif state is NodeState.UP_FAILURE and before is not state:
                    replica.failed_us = at_us
                begins = state is NodeState.STABILIZATION and before is NodeState.UP_FAILURE and not fresh
                replica.by_leave = begins or (replica.by_leave and state is NodeState.STABILIZATION and not fresh)
                if begins and replica.known and gone_us[partition] < replica.failed_us:
                    others = [o for n, o in partitions[partition].items() if n != node]
                    yield from _check_others(others, at_us, name, counters)


def _check_others(others: Sequence[_Replica], at_us: int, name: str, counters: Counters) -> Iterator[Finding]:
    """Yields a finding if a replica begins to correct by leave, and the others that run do so already."""
    running = [other for other in others if other.state is not NodeState.RECOVERING]
    if not running:
        return
    counters.add("turns checked")
    if all(other.by_leave for other in running):
        what = f"it corrects without fresh results, and so do the other {len(running)} that run"
        yield Finding("turns", "one replica has fresh results", at_us, name, what)
