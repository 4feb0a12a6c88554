"""A cluster of a few nodes whose coordinator's pure parts restore what is lost, a heartbeat at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from replicas.placement.deciders.recovery_order import RecoveryOrder
from spe.config import load_data
from spe.plan.deploy import Deployed
from spe.plan.directory import Version
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.names import NodeId, NodeState, UnitId
from spe.wire.messages.feeds import OutputStatus
from tests.support.placement_world import Installing, answer

#: A heartbeat, and how long a coordinator waits for who has not been heard, microseconds.
BEAT = 100_000
PATIENCE = 10 * BEAT


def three_queries(
    loads: dict[str, Any],
    *,
    backs: list[str] | None = None,
    reads: str = "s",
    others: Sequence[str] = (),
    **sections: Any,
) -> Deployed:
    """Units fa, fb and fc, each alone on its node n1, n2, n3, make an output each; n4 and n5 stand by for all.

    Args:
      others: nodes with nothing to do.
      reads: what fc reads: the source, as the others do, or the output of one of them.
    """
    backs = ["n4", "n5"] if backs is None else backs
    named = dict(zip("abc", ("n1", "n2", "n3"), strict=True))
    recovery = {"loads": loads, **sections.pop("recovery", {})}
    return load_data(
        {
            "defaults": {"x": "1s"},
            "nodes": {"n1": {}, "n2": {}, "n3": {}, **{n: {} for n in backs}, **{n: {"spare": True} for n in others}},
            "sources": {"s": {"from": {"generator": {"name": "sequence", "rate": 100}}}},
            "query": {name: {"filter": {"from": reads if name == "c" else "s", "where": "n >= 0"}} for name in named},
            "outputs": list(named),
            "fragments": {
                f"f{name}": {"operators": [name], "replicas": [node], "standby": backs} for name, node in named.items()
            },
            "recovery": recovery,
            **sections,
        }
    )


class RestoringCluster:
    """See the module.

    Attributes:
      runs: by node that is alive, what it runs, and for how many heartbeats it will still recover.
      restores: heartbeats that an install takes.
      refusing: replicas that refuse to be installed.
      lacking: replicas that have no state to go on from.
      failing: replicas that are in UP_FAILURE once they have recovered.
      silent: nodes that run, and are cut off from the coordinator.
      knowing: do all processes take a new directory at once?
      silent_sources: sources that do not answer.
      frontiers: how far each replica is that is not at 0.
    """

    def __init__(self, deployed: Deployed, restores: int = 3) -> None:
        self.plan, self.directory = deployed
        self.configured = self.directory
        self.restores = restores
        self.now = 0
        self.runs: dict[NodeId, dict[PartitionId, int]] = {}
        self.refusing: set[str] = set()
        self.lacking: set[str] = set()
        self.failing: set[str] = set()
        self.silent: set[str] = set()
        self.knowing = True
        self.silent_sources: set[str] = set()
        self.frontiers: dict[str, int] = {}
        self.begin()
        for node in self.directory.nodes:
            self.start(node)
        self.beat(12)

    def begin(
        self,
        known: Mapping[PartitionId, float] = MappingProxyType({}),
        memory: Mapping[PartitionId, float] = MappingProxyType({}),
    ) -> None:
        """A coordinator begins that knows these loads, this memory, and the directory."""
        self.coordination = Installing(self.plan, self.directory, self.now, patience_us=BEAT, recovery_us=PATIENCE)
        self.order = RecoveryOrder(self.coordination.view, known, memory)

    def start(self, *nodes: str) -> None:
        for node in map(NodeId, nodes):
            self.runs[node] = {id.of: self.restores for id in self.directory.replicas_on(node)}

    def kill(self, *nodes: str) -> None:
        for node in map(NodeId, nodes):
            del self.runs[node]
            self.coordination.lost(node, self.now)

    def beat(self, times: int = 1, *, plans: bool = True) -> str:
        """Lets heartbeats pass; returns the orders."""
        said = []
        for _ in range(times):
            self.now += BEAT
            for node, runs in self.runs.items():
                self.runs[node] = {id: max(0, left - 1) for id, left in runs.items()}
                if node in self.silent:
                    self.coordination.lost(node, self.now)
                    continue
                outputs = [self._output(node, id, left) for id, left in self.runs[node].items()]
                self.coordination.heard(node, outputs, self.now)
            self._hear_sources()
            if plans and (task := self.order.task()) is not None:
                self.order.adopt(task.run())
            unserved = self.coordination.unserved(self.now)
            held = self.order.look(unserved, self.now, BEAT)
            self.coordination.hold(held)
            spared = partial(self.coordination.spared, now=self.now)
            if (change := self.order.role_change((), spared)) is not None:
                said.append(str(change))
                version = Version(1, self.directory.version.number + 1)
                self.directory = replace(change(self.directory), version=version)
                self.coordination.redirect(self.directory, self.now)
                self.order.redirect()
            for decision in self.coordination.decide(self.now):
                replica = decision.replica
                said.append(f"{decision.verb} {replica}")
                if decision.verb == "install":
                    self.order.ordered(replica)
                self._follow(decision.verb, replica)
        return ", ".join(said)

    def _hear_sources(self) -> None:
        view = self.coordination.view
        for source in self.plan.sources:
            if source in self.silent_sources:
                self.coordination.lost_source(source)
            else:
                view.heard(f"source:{source}", answer([]), self.now)
        counts = self.directory.version
        view.versions = {name: counts for name in view.alive} if self.knowing else {}

    def serving(self) -> str:
        """Partitions that somebody serves."""
        return " ".join(sorted({str(id) for runs in self.runs.values() for id, left in runs.items() if not left}))

    def _follow(self, verb: str, replica: ReplicaId) -> None:
        if str(replica) in self.refusing:
            self.order.refused(replica)
            self.coordination.refused(replica, self.now)
        elif verb == "install":
            self.runs[replica.node].setdefault(replica.of, self.restores + 1)
        elif verb == "retire":
            self.runs[replica.node].pop(replica.of, None)

    def _output(self, node: NodeId, id: PartitionId, left: int) -> OutputStatus:
        stream = self.plan.unit[UnitId(id.unit)].outputs[0]
        steady = NodeState.UP_FAILURE if f"{id}@{node}" in self.failing else NodeState.STABLE
        state = NodeState.RECOVERING if left else steady
        lacks = left > 0 and f"{id}@{node}" in self.lacking
        frontier = self.frontiers.get(f"{id}@{node}", 0)
        return OutputStatus(stream, id.partition, state, False, 0, frontier, 0, 1, 0.0, lacking=lacks)
