"""Replicas take turns to correct (K1-K5): while one does by a partner's leave, another one has fresh results.

A replica that corrects alone (R4) goes on with fresh results of its own, and says so; one that says it has none has the
leave of a partner.  When one begins so, some other replica of the partition that runs must not.  Nothing is claimed
where a replica of the partition died or began anew since the failure began, for the leave may have come from it, nor
where the policy is to suspend fresh results in any case, nor of a replica of whose subscriptions the history does not
tell (real processes, whose states come by clocks of their own).
"""

from __future__ import annotations

from collections.abc import Iterator
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
    """How a replica has moved.

    Attributes:
      by_leave: it corrects, and has had no fresh results since it began to.
      known: the history tells of its subscriptions.
      failed_us: when its failure began.
    """

    state: NodeState = NodeState.RECOVERING
    by_leave: bool = False
    known: bool = False
    failed_us: int = 0


def check_turns(history: History, directory: Directory, counters: Counters) -> Iterator[Finding]:
    """See the module."""
    partitions: dict[PartitionId, dict[NodeId, _Replica]] = {
        of: {node: _Replica() for node in directory.hosts(of)}
        for of in directory.placement
        if not any(directory.nodes[node].during_stabilization is Policy.SUSPEND for node in directory.hosts(of))
    }
    places = {f"{of}@{node}": (of, node) for of, found in partitions.items() for node in found}
    #: When a replica of the partition was last seen to die or to begin anew.
    gone_us = dict.fromkeys(partitions, -1)

    def away(of: PartitionId, one: _Replica, at_us: int) -> None:
        one.state, one.by_leave, gone_us[of] = NodeState.RECOVERING, False, at_us

    for event in history:
        match event:
            case Opened(_, consumer) if consumer in places:
                of, node = places[consumer]
                partitions[of][node].known = True
            case ProcessDown(at_us, host):
                for of, found in partitions.items():
                    if (one := found.get(NodeId(host))) is not None:
                        away(of, one, at_us)
            case StateChanged(at_us, name, state, fresh) if name in places:
                of, node = places[name]
                one = partitions[of][node]
                before, one.state = one.state, state
                if state is NodeState.RECOVERING:
                    away(of, one, at_us)
                elif state is NodeState.UP_FAILURE and before is not state:
                    one.failed_us = at_us
                begins = state is NodeState.STABILIZATION and before is NodeState.UP_FAILURE and not fresh
                one.by_leave = begins or (one.by_leave and state is NodeState.STABILIZATION and not fresh)
                if begins and one.known and gone_us[of] < one.failed_us:
                    others = [o for n, o in partitions[of].items() if n != node and o.state is not NodeState.RECOVERING]
                    if not others:
                        continue
                    counters.add("turns checked")
                    if all(o.by_leave for o in others):
                        what = f"it corrects without fresh results, and so do the other {len(others)} that run"
                        yield Finding("turns", "somebody has fresh results", at_us, name, what)
