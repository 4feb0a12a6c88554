"""The coordinator's view of the cluster, from heartbeats and the directory.  Pure.

Heartbeat answers and directories come in; deciders (replicas/placement/deciders) read.  Only the view knows which
processes answer, which nodes run or hold which partitions, and since when.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from replicas.planning.load import LoadHistory, LoadSample
from spe.plan.directory import CONFIGURED, Directory, Role, Version
from spe.plan.plan import Plan
from spe.status import PartitionLoad
from spe.stream.ids import Channel, PartitionId, ReplicaId
from spe.stream.names import NodeId, NodeState, StreamId, UnitId
from spe.wire.messages.feeds import HeartbeatAnswer, OutputStatus


class Made(NamedTuple):
    """The outputs of a replica.

    Attributes:
      first: smallest id that the replica still has in all its outputs.
      origin: the source logs that they are made from; "" while that is not known.
    """

    first: int
    origin: str
    state: NodeState
    frontier: int


@dataclass(slots=True)
class PartitionView:
    """State of a partition with standbys, as its hosts report it.

    Attributes:
      unserved_since: since when no node serves it; None: it is served.
      running: state of the replica on each host that runs it.
      frontier: stable frontier of each host that runs it or ran it; microseconds of tuple time.
      lacking_since: since when each host that runs it has had no state to start from.
    """

    unserved_since: int | None
    running: dict[NodeId, NodeState] = field(default_factory=dict)
    frontier: dict[NodeId, int] = field(default_factory=dict)
    lacking_since: dict[NodeId, int] = field(default_factory=dict)


class ClusterView:
    """The coordinator's view of the cluster.

    Args:
      now: monotonic microseconds.
      recovery_us: how long a node that was never heard may take to answer.

    Attributes:
      directory: the current directory.
      alive: processes that answer.
      runs: first output of each partition that a node runs, by node, with or without a role.
      partitions: partitions with standbys.
      made: outputs of each partition, by node.
      logs: identity of the log of each source that answers and still has its first row.
      versions: version of the directory that each process follows.
      loads: load history of the partitions (L1); times are monotonic microseconds of our clock.
    """

    def __init__(self, plan: Plan, directory: Directory, now: int, *, recovery_us: int) -> None:
        self.plan = plan
        self.directory = directory
        self.recovery_us = recovery_us
        self.alive: set[str] = set()
        self.runs: dict[NodeId, Mapping[PartitionId, OutputStatus]] = {}
        self.partitions = {id: PartitionView(now) for id in directory.standbys}
        self.made: dict[PartitionId, dict[NodeId, Made]] = {}
        self.logs: dict[StreamId, str] = {}
        self.versions: Mapping[str, Version] = {}
        self.loads = LoadHistory()
        self._held: dict[str, Mapping[PartitionId, int]] = {}
        #: Nodes that have answered since all nodes were silent.
        self._heard: set[NodeId] = set()
        self._begun_at = now

    # --- news ---

    def redirect(self, directory: Directory, now: int) -> None:
        """Follows a changed directory.  Partitions with new standbys are unknown until the next heartbeats."""
        assert self.directory.version <= directory.version, "D2: directories never go back"
        known = self.partitions
        self.directory = directory
        self.partitions = {id: known.get(id) or PartitionView(now + self.recovery_us) for id in directory.standbys}
        for id, partition in self.partitions.items():
            for node in set(partition.running).difference(directory.hosts(id)):
                self._runs(partition, node, None, now)
        for node in set(self.runs).difference(directory.nodes):
            self.lost(node, now)

    def heard(self, process: str, answer: HeartbeatAnswer, now: int) -> list[tuple[PartitionId, LoadSample]]:
        """Takes a heartbeat answer, which names all outputs of a process.

        Returns:
          Load samples of partitions that the node has a role for.
        """
        self.alive.add(process)
        if process not in self.directory.nodes:
            for output in answer.outputs:
                self._heard_source(output)
            return []
        node = NodeId(process)
        self._heard.add(node)
        self._held[node] = {PartitionId(UnitId(h.unit), h.partition): h.checkpoints for h in answer.held}
        outputs = {Channel(StreamId(o.stream), o.partition): o for o in answer.outputs}
        self._forget(node)
        self.runs[node] = runs = dict[PartitionId, OutputStatus]()
        for channel, output in outputs.items():
            id = self.plan.maker_of(channel)
            if channel.stream == self.plan.unit[id.unit].outputs[0]:
                runs[id] = output
            made = self.made.setdefault(id, {})
            first = max(made[node].first if node in made else 0, output.first)
            made[node] = Made(first, output.origin, NodeState(output.state), output.frontier)
        for id, partition in self.partitions.items():
            if node in self.directory.hosts(id):
                self._runs(partition, node, runs.get(id), now)
        return self._sampled(node, answer, now)

    def lost(self, process: str, now: int) -> None:
        """Notes that a process does not answer any more."""
        self.alive.discard(process)
        self._held.pop(process, None)
        if process.startswith("source:"):
            self.logs.pop(StreamId(process.removeprefix("source:")), None)
        if process not in self.runs and process not in self.directory.nodes:
            return
        node = NodeId(process)
        self.runs.pop(node, None)
        if not self.runs:
            self._heard.clear()  # we may have been disconnected: wait for all nodes again
            self._begun_at = now
        self._forget(node)
        for partition in self.partitions.values():
            self._runs(partition, node, None, now)

    def _heard_source(self, output: OutputStatus) -> None:
        stream = StreamId(output.stream)
        self.logs.pop(stream, None)
        if output.first == 1:
            self.logs[stream] = output.origin

    def _forget(self, node: NodeId) -> None:
        for made in self.made.values():
            made.pop(node, None)

    def _runs(self, partition: PartitionView, node: NodeId, output: OutputStatus | None, now: int) -> None:
        """Notes the output of a partition on a host; None: the host does not run it."""
        if output is None:
            partition.running.pop(node, None)
        else:
            partition.running[node] = NodeState(output.state)
            partition.frontier[node] = output.frontier
        if output is not None and output.lacking:
            partition.lacking_since.setdefault(node, now)
        else:
            partition.lacking_since.pop(node, None)
        self._judge(partition, now)

    def _judge(self, partition: PartitionView, now: int) -> None:
        if any(state is not NodeState.RECOVERING for state in partition.running.values()):
            partition.unserved_since = None
        elif partition.unserved_since is None:
            partition.unserved_since = now
        assert partition.lacking_since.keys() <= partition.running.keys(), (
            "H8: only a replica that runs can lack its state"
        )

    def _sampled(self, node: NodeId, answer: HeartbeatAnswer, now: int) -> list[tuple[PartitionId, LoadSample]]:
        counted = []
        for load in answer.loads:
            partition, sample = PartitionId(UnitId(load.unit), load.partition), LoadSample(*load[2:])
            if partition in self.directory.roles and node in self.directory.hosts(partition):
                self.loads.sample(partition, sample, now)
                counted.append((partition, sample))
        return counted

    # --- nodes ---

    def was_heard(self, node: NodeId) -> bool:
        """Has the node answered since all nodes were silent?"""
        assert self.runs.keys() <= self._heard, "H5: a node that answers was heard"
        return node in self._heard

    def is_gone(self, node: NodeId, now: int) -> bool:
        """Does a node not answer, though it had the time to start?"""
        return node not in self.alive and (self.was_heard(node) or now - self._begun_at >= self.recovery_us)

    def behind(self, processes: Collection[str]) -> list[str]:
        """Returns the processes that answer and do not know this version of the directory yet (D3)."""
        version = self.directory.version
        return sorted(p for p in processes if p in self.alive and self.versions.get(p, CONFIGURED) < version)

    def know(self, partition: PartitionId, node: NodeId) -> bool:
        """Do the node and all producers of the partition follow the newest directory (D3)?"""
        return not self.behind({*self.producers(partition), node})

    def answers(self, source: str) -> bool:
        return f"source:{source}" in self.alive

    # --- partitions ---

    def role(self, partition: PartitionId, node: NodeId) -> Role | None:
        return self.directory.roles[partition].get(node)

    def is_lent(self, partition: PartitionId, node: NodeId) -> bool:
        """Is the role of a node lent, so that the recovery takes it back (O5)?"""
        return ReplicaId(*partition, node) in self.directory.lent

    def states(self, partition: PartitionId) -> dict[NodeId, NodeState]:
        """Returns the state on each node that runs a partition, with or without a role."""
        return {node: NodeState(runs[partition].state) for node, runs in self.runs.items() if partition in runs}

    def frontier(self, partition: PartitionId, node: NodeId) -> int:
        """Returns the stable frontier of a replica; 0 where the node does not run it."""
        output = self.runs.get(node, {}).get(partition)
        return 0 if output is None else output.frontier

    def running(self) -> dict[PartitionId, tuple[NodeId, ...]]:
        """Returns the answering nodes that run each partition, in the order of the directory."""
        nodes = [(n, self.runs[n]) for n in self.directory.nodes if n in self.runs]
        return {id: tuple(n for n, runs in nodes if id in runs) for id in self.directory.roles}

    def producers(self, partition: PartitionId) -> set[str]:
        """Returns every process that makes an input of the partition."""
        channels = self.plan.unit[partition.unit].channels_in(partition.partition)
        return {p for c in channels for p in self.directory.producer_addresses(self.plan, c)}

    def checkpoints(self, partition: PartitionId, node: NodeId) -> int | None:
        """Returns how many checkpoints of a partition a node holds; 0: it runs it and has none yet; None: unknown."""
        return self._held.get(node, {}).get(partition)

    def held(self) -> Iterator[tuple[PartitionId, NodeId]]:
        """Yields partitions of which a node holds a checkpoint, with the node."""
        for process, partitions in self._held.items():
            yield from ((partition, NodeId(process)) for partition, many in partitions.items() if many)

    # --- for people ---

    def load_status(self, now: int) -> list[PartitionLoad]:
        """Returns the mean load of each partition over the time that samples are kept."""
        loads = []
        for partition in self.directory.roles:
            if (mean := self.loads.mean(partition, now)) is not None:
                many = int((~np.isnan(self.loads.series(partition, now))).sum())
                loads.append(PartitionLoad(partition=str(partition), samples=many, mean=mean.status()))
        return loads
