"""The directory: nodes, replicas, standbys, clients, and addresses.

Ids depend on the plan, which never changes.  The directory names the producers and consumers of each channel, and has
versions.  So the two are separate values: questions about channels go to the directory, with the plan as an argument.
``spe.plan.deploy`` makes version 0 from the configuration.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Any, Final, NamedTuple

from spe.plan.log_targets import Continuous
from spe.plan.nodes import Node
from spe.plan.plan import Plan, Retain
from spe.plan.settings import NodeSettings
from spe.plan.units import CHECKPOINT_US
from spe.stream.ids import Channel, PartitionId, ReplicaId
from spe.stream.names import NodeId, StreamId, UnitId

#: Any free port of this machine.
ANY_ADDRESS: Final = "127.0.0.1:0"
#: Name by which other processes know the process that activates standbys.
COORDINATOR: Final = "coordinator"


class Role(enum.StrEnum):
    """The role of a node for a partition (docs/internals/directory.md)."""

    ACTIVE = "active"
    STANDBY = "standby"


#: Order of roles in :meth:`Directory.hosts`.
_IN_ORDER: Final = {role: rank for rank, role in enumerate(Role)}


class Version(NamedTuple):
    """Version of a directory; the larger one is newer.

    Attributes:
      epoch: epoch of the coordinator that made it (rule H6).
      number: grows with each version, across epochs too.
    """

    epoch: int
    number: int

    def __str__(self) -> str:
        return f"{self.epoch}/{self.number}"


#: The version of the directory that follows from the configuration.
CONFIGURED: Final = Version(0, 0)


@dataclass(frozen=True, slots=True)
class Standbys:
    """Passive replicas of a partition: they hold checkpoints, and run only when ordered to (rules H1-H8).

    Attributes:
      nodes: their nodes, in order of preference.
      every_us: microseconds of wall time between the checkpoints that each standby gets.
    """

    nodes: tuple[NodeId, ...]
    every_us: int


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Settings of the process that activates standbys and moves partitions (rules H1-H8, M1-M6).

    A run has a coordinator if it has standbys or spare nodes, or if one is configured.

    Attributes:
      configured: the configuration has such a section.
      address: ``host:port`` where it listens.
      budget: number of partitions whose first standby runs before any failure, chosen for the largest benefit.
      algorithm: name of the planner that chooses these partitions.
      adapt_us: interval at which the choice is reviewed, microseconds of wall time; None: the choice is final.
      margin: relative improvement from which another choice replaces the current one.
      cap: share of a node's capacity and memory that may be filled (rules O1, L5).
      balance_us: interval at which loads are reviewed, microseconds; None: only on request.
      placement: of standbys: ``fixed``, or ``correlated``, where they follow loads (rule L2).
      idle: share of all capacity below which the coordinator tries to free a node (rule L8).
      spread: excess of a node's checkpoint load over the mean that is tolerated, as share of it (rule L2's δ).
    """

    address: str = ANY_ADDRESS
    budget: int = 0
    algorithm: str = "structure-aware"
    adapt_us: int | None = None
    margin: float = 0.05
    cap: float = 0.8
    configured: bool = False
    balance_us: int | None = None
    idle: float = 0.3
    placement: str = "fixed"
    spread: float = inf


@dataclass(frozen=True, slots=True)
class ExpectedLoad:
    """Expected load of a unit's partitions: one number for all, one for each, or none.

    Attributes:
      cores: shares of a core.
      install_us: how long an install takes, microseconds.
    """

    cores: tuple[float, ...] = ()
    install_us: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    """The order in which lost partitions are recovered (rules O1-O6).

    Attributes:
      value: ``fidelity``, where partial results count, or ``complete`` (rule O2).
      priorities: relative weight of outputs; 1 by default.
      loads: expected load by unit; a measured load takes precedence.
    """

    value: str = "fidelity"
    priorities: Mapping[StreamId, float] = field(default_factory=dict)
    loads: Mapping[UnitId, ExpectedLoad] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """A named consumer whose acknowledgements hold the output buffers.

    Attributes:
      sinks: ``{"kind": …, "mode": …}`` each, and the options that its ``SinkDeclaration.sink`` adds.
      external: a user program; ``spe run`` starts no process for it.
      retain: how long its recording is kept; None: for ever.
    """

    name: str
    reads: tuple[StreamId, ...]
    sinks: tuple[Mapping[str, Any], ...] = ()
    external: bool = False
    retain: Retain | None = None


def roles_of(replicas: Iterable[NodeId], standbys: Iterable[NodeId] = ()) -> Mapping[NodeId, Role]:
    """Returns the roles of one partition's nodes."""
    return dict.fromkeys(replicas, Role.ACTIVE) | dict.fromkeys(standbys, Role.STANDBY)


def _with(roles: Mapping[NodeId, Role], role: Role) -> tuple[NodeId, ...]:
    return tuple(node for node, has in roles.items() if has is role)


@dataclass(frozen=True)
class Directory:
    """Assigns nodes to partitions, and addresses to processes.

    Attributes:
      nodes: by id, each with its address and X.
      roles: role of each node of each partition; of two nodes with one role the first is preferred.
      sources: ``host:port`` of the process of each source.
      clients: named consumers, and what each reads.
      checkpoint_us: microseconds of wall time between the checkpoints that each standby of a partition gets.
      logs: by partition, the checkpoint log of its replicas; the other partitions take whole checkpoints.
      coordinator: settings of the process that activates standbys.
      recovery: order in which lost partitions are recovered.
      bounds: by output, microseconds; X of the nodes on a path to it follows (spe.plan.bounds).
      settings: changes of ``nodes`` made while they run.
      joined: nodes that the configuration does not name, as they were when they joined.
      lent: standbys that a recovery made temporarily (rule O5).
      version: version of roles and settings.
    """

    nodes: Mapping[NodeId, Node]
    roles: Mapping[PartitionId, Mapping[NodeId, Role]]
    sources: Mapping[StreamId, str]
    clients: Mapping[str, ClientSettings]
    checkpoint_us: Mapping[PartitionId, int] = field(default_factory=dict)
    logs: Mapping[PartitionId, Continuous] = field(default_factory=dict)
    coordinator: CoordinatorSettings = CoordinatorSettings()
    recovery: RecoverySettings = RecoverySettings()
    bounds: Mapping[StreamId, int] = field(default_factory=dict)
    settings: Mapping[NodeId, NodeSettings] = field(default_factory=dict)
    joined: Mapping[NodeId, Node] = field(default_factory=dict)
    lent: frozenset[ReplicaId] = frozenset()
    version: Version = CONFIGURED

    @cached_property
    def placement(self) -> Mapping[PartitionId, tuple[NodeId, ...]]:
        """Nodes that run each partition; the first is replica 0."""
        return {id: _with(roles, Role.ACTIVE) for id, roles in self.roles.items()}

    @cached_property
    def standbys(self) -> Mapping[PartitionId, Standbys]:
        """Standbys of each partition that has some."""
        return {
            id: Standbys(nodes, self.checkpoint_us.get(id, CHECKPOINT_US))
            for id, roles in self.roles.items()
            if (nodes := _with(roles, Role.STANDBY))
        }

    @cached_property
    def signature(self) -> str:
        """A digest of X, α and policies of each node, and of the bounds that X follows from."""
        promises = [
            (n.id, n.x_us, n.alpha, str(n.during_failure), str(n.during_stabilization), str(n.reconcile))
            for n in sorted(self.nodes.values(), key=lambda n: n.id)
        ]
        return hashlib.blake2b(repr((promises, sorted(self.bounds.items()))).encode(), digest_size=8).hexdigest()

    @cached_property
    def _hosts(self) -> Mapping[PartitionId, tuple[NodeId, ...]]:
        return {id: tuple(sorted(roles, key=lambda n: _IN_ORDER[roles[n]])) for id, roles in self.roles.items()}

    def with_role(self, partition: PartitionId, node: NodeId, role: Role | None) -> Directory:
        """Returns the directory with a node in another role for a partition, last in its order; None: no role."""
        roles = {n: r for n, r in self.roles[partition].items() if n != node}
        if role is not None:
            roles[node] = role
        lent = self.lent - {ReplicaId(*partition, node)}
        return replace(self, roles={**self.roles, partition: roles}, lent=lent)

    def with_lent(self, partition: PartitionId, node: NodeId) -> Directory:
        """Returns the directory with a node as a temporary standby of a partition."""
        changed = self.with_role(partition, node, Role.STANDBY)
        return replace(changed, lent=changed.lent | {ReplicaId(*partition, node)})

    def with_settings(self, configured: Node, settings: NodeSettings) -> Directory:
        """Returns the directory with settings that override the configuration of a node."""
        by_node = {**self.settings, configured.id: settings}
        return replace(
            self,
            nodes={**self.nodes, configured.id: settings.over(configured)},
            settings={node: changes for node, changes in by_node.items() if changes},
        )

    def with_node(self, node: Node) -> Directory:
        """Returns the directory with a node that the configuration does not name, new or changed."""
        settings = self.settings.get(node.id, NodeSettings())
        return replace(self, nodes={**self.nodes, node.id: settings.over(node)}, joined={**self.joined, node.id: node})

    def without_node(self, node: NodeId) -> Directory:
        """Returns the directory without a node that had joined and has no role."""
        assert not any(node in roles for roles in self.roles.values()), "D4: a node that leaves has no role"
        return replace(
            self,
            nodes={n: other for n, other in self.nodes.items() if n != node},
            joined={n: other for n, other in self.joined.items() if n != node},
            settings={n: other for n, other in self.settings.items() if n != node},
        )

    def with_past(self, before: Directory) -> Directory:
        """Returns the directory with nodes that have lost a role since ``before`` as standbys: they may still run."""
        roles = {
            partition: {**dict.fromkeys(before.roles[partition], Role.STANDBY), **now}
            for partition, now in self.roles.items()
        }
        return replace(self, nodes={**before.nodes, **self.nodes}, roles=roles)

    def addresses(self) -> dict[str, str]:
        """Address of every process that listens, by node id, ``source:NAME`` and ``coordinator``."""
        nodes = {str(n): node.address for n, node in self.nodes.items()}
        sources = {f"source:{s}": address for s, address in self.sources.items()}
        return nodes | sources | ({COORDINATOR: self.coordinator.address} if self.coordinated else {})

    def is_guest(self, name: str) -> bool:
        """Is this a client that the directory does not name?  No log waits for it."""
        return name.startswith("client:") and name.removeprefix("client:") not in self.clients

    @property
    def coordinated(self) -> bool:
        """Is there a coordinator?"""
        changed = self.version != CONFIGURED
        return (
            bool(self.standbys) or self.coordinator.configured or changed or any(n.spare for n in self.nodes.values())
        )

    def hosts(self, partition: PartitionId) -> tuple[NodeId, ...]:
        """Nodes with a role for a partition: its replicas first, then its standbys."""
        return self._hosts[partition]

    @cached_property
    def expected_cores(self) -> Mapping[PartitionId, float]:
        """Expected need of partitions in cores, where the configuration states it."""
        loads = {id: self.recovery.loads.get(id.unit, ExpectedLoad()).cores for id in self.roles}
        return {id: cores[id.partition % len(cores)] for id, cores in loads.items() if cores}

    def fills(self, node: NodeId) -> bool:
        """Is a node expected to need more cores for its partitions than it may use (rule O1)?"""
        needed = sum(cores for id, cores in self.expected_cores.items() if node in self.roles[id])
        return needed > self.nodes[node].capacity * self.coordinator.cap

    def replicas_on(self, node: NodeId) -> tuple[ReplicaId, ...]:
        return tuple(ReplicaId(p.unit, p.partition, node) for p, nodes in self.placement.items() if node in nodes)

    def standbys_on(self, node: NodeId) -> tuple[ReplicaId, ...]:
        return tuple(ReplicaId(p.unit, p.partition, node) for p, s in self.standbys.items() if node in s.nodes)

    def disk_us(self, replica: ReplicaId) -> int | None:
        """Interval of a replica's checkpoints on disk; None: it writes none.

        A former standby goes on writing: upstream may delete only tuples whose effect is on a disk.
        """
        standbys = self.standbys.get(replica.of)
        if standbys is not None and replica.node in standbys.nodes:
            return standbys.every_us
        return self.nodes[replica.node].checkpoints.disk_us

    def producer_addresses(self, plan: Plan, channel: Channel) -> Mapping[str, str]:
        """Name (node id, or ``source:NAME``) -> address of every process that serves a channel."""
        if channel.stream in plan.sources:
            return {f"source:{channel.stream}": self.sources[channel.stream]}
        return {n: self.nodes[n].address for n in self.hosts(plan.maker_of(channel))}

    def consumers_of(self, plan: Plan, channel: Channel) -> tuple[str, ...]:
        """Names of all configured consumers of a channel: replicas and standbys, then clients (A2)."""
        names = [str(ReplicaId(id.unit, id.partition, n)) for id in plan.readers_of(channel) for n in self.hosts(id)]
        names += [f"client:{c.name}" for c in self.clients.values() if channel.stream in c.reads]
        return tuple(names)

    def standbys_of(self, plan: Plan, channel: Channel) -> tuple[str, ...]:
        """Names of the consumers of a channel that are standbys (H2)."""
        return tuple(
            str(ReplicaId(id.unit, id.partition, n))
            for id in plan.readers_of(channel)
            if (standbys := self.standbys.get(id)) is not None
            for n in standbys.nodes
        )

    def read_by(self, plan: Plan, processes: Set[str]) -> frozenset[Channel]:
        """Channels with a configured consumer that is one of these clients, or on one of these nodes."""
        on_nodes = {
            channel
            for id in self.placement
            if processes & set(self.hosts(id))
            for channel in plan.unit[id.unit].channels_in(id.partition)
        }
        by_clients = {
            Channel(stream, partition)
            for name, client in self.clients.items()
            if f"client:{name}" in processes
            for stream in client.reads
            for partition in range(plan.partitions_of(stream))
        }
        return frozenset(on_nodes | by_clients)

    def share(self, plan: Plan, unit: UnitId, node: NodeId) -> Node:
        """Returns the node with the share of X that one unit may use on it.

        SUnions in sequence on one node divide its X (DPC section 3): users set the delay of the whole node.
        """
        count = self.in_sequence(plan, unit, node)
        whole = self.nodes[node]
        return whole if count == 1 else replace(whole, x_us=whole.x_us // count)

    def in_sequence(self, plan: Plan, unit: UnitId, node: NodeId) -> int:
        """The number by which a node's X is divided for a unit."""
        return self._in_sequence(plan).get((unit, node), 1)

    def _in_sequence(self, plan: Plan) -> Mapping[tuple[UnitId, NodeId], int]:
        """(unit, node) -> SUnions on the longest path through that node with an SUnion of this unit."""
        known = self._sequences.get(id(plan))
        if known is not None and known[0] is plan:
            return known[1]
        before: dict[tuple[PartitionId, NodeId], int] = {}
        after: dict[tuple[PartitionId, NodeId], int] = {}
        in_order = [PartitionId(u.id, p) for u in plan.units for p in range(u.partitions)]  # topological
        for partition in in_order:
            channels = plan.unit[partition.unit].channels_in(partition.partition)
            makers = [plan.maker_of(c) for c in channels if c.stream in plan.producer]
            for node in self.hosts(partition):
                before[partition, node] = 1 + max((before.get((m, node), 0) for m in makers), default=0)
        for partition in reversed(in_order):
            made = [Channel(stream, partition.partition) for stream in plan.unit[partition.unit].outputs]
            readers = [r for c in made for r in plan.readers_of(c)]
            for node in self.hosts(partition):
                after[partition, node] = 1 + max((after.get((r, node), 0) for r in readers), default=0)
        longest: dict[tuple[UnitId, NodeId], int] = {}
        for (partition, node), count in before.items():
            longest[partition.unit, node] = max(
                longest.get((partition.unit, node), 0), count + after[partition, node] - 1
            )
        self._sequences[id(plan)] = plan, longest
        return longest

    @cached_property
    def _sequences(self) -> dict[int, tuple[Plan, Mapping[tuple[UnitId, NodeId], int]]]:
        """Results of :meth:`_in_sequence` by the id of the plan; holding the plan keeps its id unique."""
        return {}
