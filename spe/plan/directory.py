"""Who runs what, and where: nodes, replicas, standbys, clients, and addresses (rule D1).

The plan says what ids depend on, and never changes; a directory says who makes and who reads each channel, and another
version of it may say otherwise.  So the two are separate values: whoever asks about channels asks the directory, and
passes the plan that they are of.  ``spe.plan.deploy`` makes version 0 from the configuration.
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
#: The process that tells standbys to run, by the name that it has for others.
COORDINATOR: Final = "coordinator"


class Role(enum.StrEnum):
    """What a node is to a partition (docs/internals/directory.md)."""

    ACTIVE = "active"
    STANDBY = "standby"


#: Roles as :meth:`Directory.hosts` sorts by them.
_IN_ORDER: Final = {role: rank for rank, role in enumerate(Role)}


class Version(NamedTuple):
    """Of a directory; the larger one is newer.

    Attributes:
      epoch: of the coordinator that made it (rule H6).
      number: grows with each version, over epochs too.
    """

    epoch: int
    number: int

    def __str__(self) -> str:
        return f"{self.epoch}/{self.number}"


#: What the configuration says.
CONFIGURED: Final = Version(0, 0)


@dataclass(frozen=True, slots=True)
class Standbys:
    """Passive replicas of a partition: they hold checkpoints, and run only when they are told to (rules H1-H8).

    Attributes:
      nodes: where; the first that can is taken first.
      every_us: microseconds of wall time between the checkpoints that each of them gets.
    """

    nodes: tuple[NodeId, ...]
    every_us: int


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """The process that tells standbys to run, and moves partitions (rules H1-H8, M1-M6).

    There is one where there are standbys or spare nodes, or where one is configured.

    Attributes:
      configured: the configuration has such a section.
      address: ``host:port`` where it answers.
      budget: partitions whose first standby runs though nothing has failed: active replicas, where they do most.
      algorithm: of the planner that chooses them.
      adapt_us: how often measured rates are looked at, microseconds of wall time; None: the choice stays.
      margin: by how much, relative to what runs, another choice must be better to take its place.
      cap: share of a node's capacity and memory that may be filled (rules O1, L5).
      balance_us: how often loads are looked at, microseconds; None: only when somebody asks.
      placement: of standbys: ``fixed``, or ``correlated``, where they follow loads (rules L2, L3).
      idle: share of all capacity below which it is tried to do with one node fewer (rule L8).
      spread: by how much the load of a node's checkpoints may be beyond the mean, as share of it (rule L2's δ).
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
    """What a unit's partitions are expected to need; one number for all, or one for each, or none.

    Attributes:
      cores: shares of a core.
      install_us: how long an install takes, microseconds.
    """

    cores: tuple[float, ...] = ()
    install_us: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    """What of a loss comes back first (rules O1-O7).

    Attributes:
      value: ``fidelity``, where partial results count, or ``complete`` (rule O2).
      priorities: what outputs are worth against each other; 1 where nothing is said.
      loads: by unit; what is measured counts more.
    """

    value: str = "fidelity"
    priorities: Mapping[StreamId, float] = field(default_factory=dict)
    loads: Mapping[UnitId, ExpectedLoad] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """A named consumer whose acknowledgements hold the output buffers.

    Attributes:
      sinks: ``{"kind": …, "mode": …}`` each, and what its ``SinkDeclaration.sink`` gives besides.
      external: a program of the user's; ``spe run`` starts none for it.
      retain: how long its recording is kept; None: for ever.
    """

    name: str
    reads: tuple[StreamId, ...]
    sinks: tuple[Mapping[str, Any], ...] = ()
    external: bool = False
    retain: Retain | None = None


def roles_of(replicas: Iterable[NodeId], standbys: Iterable[NodeId] = ()) -> Mapping[NodeId, Role]:
    """The roles of one partition's nodes."""
    return dict.fromkeys(replicas, Role.ACTIVE) | dict.fromkeys(standbys, Role.STANDBY)


def _with(roles: Mapping[NodeId, Role], role: Role) -> tuple[NodeId, ...]:
    return tuple(node for node, has in roles.items() if has is role)


@dataclass(frozen=True)
class Directory:
    """Who runs what, and where.

    Attributes:
      nodes: by id, each with its address and X.
      roles: of the nodes of each partition, in order: of two with one role the first is taken first.
      sources: ``host:port`` of the process of each source.
      clients: named consumers, and what each reads.
      checkpoint_us: microseconds of wall time between the checkpoints that each standby of a partition gets.
      logs: of partitions whose replicas write a checkpoint log; the others take whole checkpoints.
      coordinator: of the process that tells standbys to run.
      recovery: what of a loss comes back first.
      bounds: of outputs, microseconds: X of the nodes on the way follows from these (spe.plan.bounds).
      settings: what of ``nodes`` was changed while they run.
      joined: nodes that the configuration does not name, as they were when they joined.
      lent: of the standbys those that a recovery made so for a while (rule O5).
      version: of roles and settings.
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
        """Nodes that are to run each partition, the first being replica 0."""
        return {id: _with(roles, Role.ACTIVE) for id, roles in self.roles.items()}

    @cached_property
    def standbys(self) -> Mapping[PartitionId, Standbys]:
        """Of each partition that has some."""
        return {
            id: Standbys(nodes, self.checkpoint_us.get(id, CHECKPOINT_US))
            for id, roles in self.roles.items()
            if (nodes := _with(roles, Role.STANDBY))
        }

    @cached_property
    def signature(self) -> str:
        """A digest of what nodes are to promise: X, α and policies of each, and the bounds that X follows from."""
        said = [
            (n.id, n.x_us, n.alpha, str(n.during_failure), str(n.during_stabilization), str(n.reconcile))
            for n in sorted(self.nodes.values(), key=lambda n: n.id)
        ]
        return hashlib.blake2b(repr((said, sorted(self.bounds.items()))).encode(), digest_size=8).hexdigest()

    @cached_property
    def _hosts(self) -> Mapping[PartitionId, tuple[NodeId, ...]]:
        return {id: tuple(sorted(roles, key=lambda n: _IN_ORDER[roles[n]])) for id, roles in self.roles.items()}

    def with_role(self, partition: PartitionId, node: NodeId, role: Role | None) -> Directory:
        """The same, in which a node has another role for a partition, behind all others of it; None: none."""
        roles = {n: r for n, r in self.roles[partition].items() if n != node}
        if role is not None:
            roles[node] = role
        lent = self.lent - {ReplicaId(*partition, node)}
        return replace(self, roles={**self.roles, partition: roles}, lent=lent)

    def with_lent(self, partition: PartitionId, node: NodeId) -> Directory:
        """The same, in which a node is a standby of a partition for a while."""
        changed = self.with_role(partition, node, Role.STANDBY)
        return replace(changed, lent=changed.lent | {ReplicaId(*partition, node)})

    def with_settings(self, configured: Node, settings: NodeSettings) -> Directory:
        """The same, in which a node works with these settings over what the configuration says of it."""
        said = {**self.settings, configured.id: settings}
        return replace(
            self,
            nodes={**self.nodes, configured.id: settings.over(configured)},
            settings={node: one for node, one in said.items() if one},
        )

    def with_node(self, node: Node) -> Directory:
        """The same with a node that no configuration names, or with other facts of one."""
        settings = self.settings.get(node.id, NodeSettings())
        return replace(self, nodes={**self.nodes, node.id: settings.over(node)}, joined={**self.joined, node.id: node})

    def without_node(self, node: NodeId) -> Directory:
        """The same without a node that has joined, and has no role."""
        assert not any(node in roles for roles in self.roles.values()), "D4: who leaves has no role"
        return replace(
            self,
            nodes={n: one for n, one in self.nodes.items() if n != node},
            joined={n: one for n, one in self.joined.items() if n != node},
            settings={n: one for n, one in self.settings.items() if n != node},
        )

    def with_past(self, before: Directory) -> Directory:
        """The same, in which whoever had a role in an earlier version, and has none now, stands by: it may run."""
        roles = {
            partition: {**dict.fromkeys(before.roles[partition], Role.STANDBY), **now}
            for partition, now in self.roles.items()
        }
        return replace(self, nodes={**before.nodes, **self.nodes}, roles=roles)

    def addresses(self) -> dict[str, str]:
        """Address of every process that listens, by node id, ``source:NAME`` and, if there is one, ``coordinator``."""
        nodes = {str(n): node.address for n, node in self.nodes.items()}
        sources = {f"source:{s}": address for s, address in self.sources.items()}
        return nodes | sources | ({COORDINATOR: self.coordinator.address} if self.coordinated else {})

    def is_guest(self, name: str) -> bool:
        """Is this a client that no log waits for?"""
        return name.startswith("client:") and name.removeprefix("client:") not in self.clients

    @property
    def coordinated(self) -> bool:
        """Is there a coordinator?"""
        changed = self.version != CONFIGURED
        return (
            bool(self.standbys) or self.coordinator.configured or changed or any(n.spare for n in self.nodes.values())
        )

    def hosts(self, partition: PartitionId) -> tuple[NodeId, ...]:
        """Every node that has a role for a partition: its replicas first, then its standbys."""
        return self._hosts[partition]

    @cached_property
    def expected_cores(self) -> Mapping[PartitionId, float]:
        """Shares of a core that partitions are expected to need: of those of which the configuration says it."""
        loads = {id: self.recovery.loads.get(id.unit, ExpectedLoad()).cores for id in self.roles}
        return {id: cores[id.partition % len(cores)] for id, cores in loads.items() if cores}

    def fills(self, node: NodeId) -> bool:
        """Whether all that a node has a role for is expected to need more cores than it may give (rule O1)."""
        needed = sum(cores for id, cores in self.expected_cores.items() if node in self.roles[id])
        return needed > self.nodes[node].capacity * self.coordinator.cap

    def replicas_on(self, node: NodeId) -> tuple[ReplicaId, ...]:
        return tuple(ReplicaId(p.unit, p.partition, node) for p, nodes in self.placement.items() if node in nodes)

    def standbys_on(self, node: NodeId) -> tuple[ReplicaId, ...]:
        return tuple(ReplicaId(p.unit, p.partition, node) for p, s in self.standbys.items() if node in s.nodes)

    def disk_us(self, replica: ReplicaId) -> int | None:
        """Interval of a replica's checkpoints on disk; None: it writes none.

        One that stood by goes on writing: what upstream may forget is still only what lies on a disk.
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
        """Names of those consumers of a channel that stand by (H2)."""
        return tuple(
            str(ReplicaId(id.unit, id.partition, n))
            for id in plan.readers_of(channel)
            if (standbys := self.standbys.get(id)) is not None
            for n in standbys.nodes
        )

    def read_by(self, plan: Plan, processes: Set[str]) -> frozenset[Channel]:
        """Channels of which a configured consumer is one of these clients, or on one of these nodes."""
        on_nodes = {
            channel
            for of in self.placement
            if processes & set(self.hosts(of))
            for channel in plan.unit[of.unit].channels_in(of.partition)
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
        """The node with the share of X that one unit may use there.

        SUnions in sequence on one node divide its X (DPC section 3): what a user sets is the delay of the node.
        """
        count = self.in_sequence(plan, unit, node)
        one = self.nodes[node]
        return one if count == 1 else replace(one, x_us=one.x_us // count)

    def in_sequence(self, plan: Plan, unit: UnitId, node: NodeId) -> int:
        """By how many a node's X is divided for a unit."""
        return self._in_sequence(plan).get((unit, node), 1)

    def _in_sequence(self, plan: Plan) -> Mapping[tuple[UnitId, NodeId], int]:
        """(unit, node) -> SUnions on the longest way through that node on which one of this unit's is."""
        known = self._sequences.get(id(plan))
        if known is not None and known[0] is plan:
            return known[1]
        before: dict[tuple[PartitionId, NodeId], int] = {}
        after: dict[tuple[PartitionId, NodeId], int] = {}
        in_order = [PartitionId(u.id, p) for u in plan.units for p in range(u.partitions)]  # topological
        for of in in_order:
            channels = plan.unit[of.unit].channels_in(of.partition)
            makers = [plan.maker_of(c) for c in channels if c.stream in plan.producer]
            for node in self.hosts(of):
                before[of, node] = 1 + max((before.get((m, node), 0) for m in makers), default=0)
        for of in reversed(in_order):
            made = [Channel(stream, of.partition) for stream in plan.unit[of.unit].outputs]
            readers = [r for c in made for r in plan.readers_of(c)]
            for node in self.hosts(of):
                after[of, node] = 1 + max((after.get((r, node), 0) for r in readers), default=0)
        found: dict[tuple[UnitId, NodeId], int] = {}
        for (of, node), count in before.items():
            found[of.unit, node] = max(found.get((of.unit, node), 0), count + after[of, node] - 1)
        self._sequences[id(plan)] = plan, found
        return found

    @cached_property
    def _sequences(self) -> dict[int, tuple[Plan, Mapping[tuple[UnitId, NodeId], int]]]:
        """What :meth:`_in_sequence` found, by the id of the plan, with the plan, which so keeps its id."""
        return {}
