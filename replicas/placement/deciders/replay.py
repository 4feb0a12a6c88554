"""Orders replays from the sources' logs, where no state is left (rule H8).  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from replicas.placement.view import ClusterView, Made
from spe.log.origin import combined
from spe.plan.plan import Plan
from spe.plan.retention import streams_below
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.names import NodeId, NodeState
from spe.wire.fields import Verb

#: After this time without progress another replica replays, microseconds.
REPLAYS_IN_VAIN_US: Final = 300_000_000
#: Progress of a replica that was ordered to replay and has not begun.
_NOT_BEGUN: Final = -1
#: States by their fitness to replay, the best last: it has its input.
_CAN_REPLAY: Final = (NodeState.RECOVERING, NodeState.UP_FAILURE, NodeState.STABILIZATION, NodeState.STABLE)


@dataclass(frozen=True, slots=True)
class Decision:
    """An order to a node."""

    verb: Verb
    replica: ReplicaId


class ReplayDecider:
    """Decides which replicas replay."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._plan = view.plan
        #: Progress of each replica that replays or was ordered to, and since when; in this look and the last.
        self._replaying: dict[ReplicaId, tuple[int, int]] = {}
        self._replaying_before: Mapping[ReplicaId, tuple[int, int]] = {}

    def look(self) -> None:
        """Begins a new look at the cluster."""
        self._replaying_before, self._replaying = self._replaying, {}

    def replays(self, id: PartitionId, now: int) -> list[Decision]:
        """Orders, as the last resort, one replica of each upstream partition to replay, unless one has its beginning.

        None replays while a source does not answer or has a new log: the missing input could not be made again, and
        the state would be lost too (S6).  Nor below a source whose log is truncated: its first rows may go (H8).
        """
        read = {i.stream for i in self._plan.unit[id.unit].inputs}
        if any(
            s.retain is not None and read & streams_below(self._plan, name) for name, s in self._plan.sources.items()
        ):
            return []
        decisions, origins = [], dict[PartitionId, str]()
        for before in upstream_of(self._plan, id):
            origin = self._origin_of(before, origins)
            made = {
                n: outputs for n, outputs in self._view.made.get(before, {}).items() if outputs.origin in ("", origin)
            }
            if not made:
                return []
            if (node := self._to_replay(before, made, now)) is not None:
                decisions.append(Decision("replay", ReplicaId(*before, node)))
        assert id not in {decision.replica.of for decision in decisions}, "H8: what lies before it begins anew"
        for decision in decisions:
            self._replaying.setdefault(decision.replica, (_NOT_BEGUN, now))
        return decisions

    def _to_replay(self, id: PartitionId, made: Mapping[NodeId, Made], now: int) -> NodeId | None:
        """Returns the replica of a partition that is to replay; None: one has or makes its beginning, or none can.

        One that was ordered to and makes no progress is left alone: it may be disconnected from the sources.
        """
        in_vain = {n for n, outputs in made.items() if self._replays_in_vain(ReplicaId(*id, n), outputs, now)}
        if any(outputs.first == 1 and n not in in_vain for n, outputs in made.items()):
            return None
        left = [n for n, outputs in made.items() if outputs.first > 1]
        ordered = [n for n in left if ReplicaId(*id, n) in self._replaying]
        best = [n for n in ordered if n not in in_vain] or [n for n in left if n not in in_vain] or left
        return max(best, key=lambda n: (_CAN_REPLAY.index(made[n].state), n), default=None)

    def _replays_in_vain(self, replica: ReplicaId, made: Made, now: int) -> bool:
        """Has a replay made no progress for long?  Time does not count while it waits for an upstream partition."""
        known = self._replaying.get(replica) or self._replaying_before.get(replica)
        begun = made.first == 1
        if (begun and made.state is not NodeState.RECOVERING) or (not begun and known is None):
            return False
        upstream = (self._view.made.get(before, {}).values() for before in upstream_of(self._plan, replica.of))
        states = [{outputs.state for outputs in made if outputs.first == 1} for made in upstream]
        waits = {NodeState.RECOVERING} in states
        progress = made.frontier if begun else _NOT_BEGUN
        since = now if known is None or known[0] != progress or waits else known[1]
        assert since <= now, "H8: progress is of the past"
        self._replaying[replica] = progress, since
        return now - since >= REPLAYS_IN_VAIN_US

    def _origin_of(self, id: PartitionId, known: dict[PartitionId, str]) -> str:
        """Returns the origin of the present source logs; "" where one does not answer, or not from id 1 on."""
        if id not in known:
            plan = self._plan
            known[id] = combined(
                [
                    self._view.logs.get(c.stream, "")
                    if c.stream in plan.sources
                    else self._origin_of(plan.maker_of(c), known)
                    for c in plan.unit[id.unit].channels_in(id.partition)
                ]
            )
        return known[id]


def upstream_of(plan: Plan, id: PartitionId) -> tuple[PartitionId, ...]:
    """Returns the partitions that a partition reads, directly or through others."""
    makers: dict[PartitionId, None] = {}
    waiting = [id]
    while waiting:
        reader = waiting.pop()
        for channel in plan.unit[reader.unit].channels_in(reader.partition):
            if channel.stream not in plan.sources and (maker := plan.maker_of(channel)) not in makers:
                makers[maker] = None
                waiting.append(maker)
    return tuple(makers)
