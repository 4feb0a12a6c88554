"""Figures of a cluster at one moment, by rows: what every view of a cluster shows.  Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Final, NamedTuple

from spe.figures.histogram import at_most
from spe.figures.sight import Sight
from spe.plan.delays import delay_bound_us
from spe.plan.directory import CONFIGURED, Directory, Version
from spe.plan.nodes import Node, Policy
from spe.plan.plan import Plan
from spe.status import (
    ChannelStatus,
    HistogramStatus,
    NewestStatus,
    NodeStatus,
    ReplicaStatus,
    SettingsStatus,
    SourceLogStatus,
    StandbyStatus,
)
from spe.stream.ids import Channel, PartitionId, ReplicaId
from spe.stream.names import NodeId, NodeState, StreamId
from spe.stream.times import BEFORE_TIME, END_OF_TIME

STARTING: Final = "starting"
STOPPED: Final = "STOPPED"
STANDS_BY: Final = "stands by"
#: Longest usual delay of an answer, besides the buckets and boundaries of the plan.
USUAL_US: Final = 300_000


def usual_lag_us(plan: Plan, stream: StreamId) -> int:
    """Returns the usual lag of a reader of a stream."""
    return USUAL_US + 2 * plan.bucket_us + 2 * plan.boundary_us(stream)


def current_delay_us(channel: ChannelStatus, now_us: int) -> int | None:
    """Returns the delay of new tuples; without new ones, the time since the last.  None: unknown, or at the end."""
    if channel.delay_us is None or channel.ended:
        return None
    return max(channel.delay_us, 0 if channel.last_arrival_us is None else now_us - channel.last_arrival_us)


class UsedX(NamedTuple):
    """Shares of X that waits or delays took; 1 is all of it.

    Attributes:
      p99: share that 99 % took at most.
    """

    largest: float
    p99: float
    releases: int


def used_x(histogram: HistogramStatus | None) -> UsedX | None:
    """Returns the shares in a histogram; None if it has no value."""
    if histogram is None or not (releases := sum(histogram.counts)):
        return None
    return UsedX(histogram.largest, at_most(histogram, 0.99), releases)


def partition_name(plan: Plan, id: PartitionId) -> str:
    """Returns the name of a partition; the name of its unit if that has only one."""
    return str(id) if plan.unit[id.unit].partitions > 1 else id.unit


def in_force(node: Node, settings: SettingsStatus) -> Node:
    """Returns a node with the X, α and policies that it has now."""
    return replace(
        node,
        x_us=settings.x_us,
        alpha=settings.alpha,
        during_failure=Policy(settings.during_failure),
        during_stabilization=Policy(settings.during_stabilization),
    )


class SourceRow(NamedTuple):
    """Figures of a source.

    Attributes:
      word: replaces its status while it does not answer; "" while it does.
      log: None until it is open.
    """

    stream: StreamId
    word: str
    log: SourceLogStatus | None

    @property
    def state(self) -> str:
        if self.word or self.log is None:
            return self.word or STARTING
        return "failed" if self.log.fault else "ended" if self.log.ended else "running"


class ReplicaRow(NamedTuple):
    """Figures of a replica that a node runs, stands by for, or should run.

    Attributes:
      word: replaces the status of its node, as for a source.
    """

    id: ReplicaId
    word: str
    node: NodeStatus | None
    status: ReplicaStatus | None
    standby: StandbyStatus | None

    @property
    def state(self) -> str:
        if self.word:
            return self.word
        if self.status is None:
            return STARTING if self.standby is None else STANDS_BY
        return STOPPED if self.status.error else self.status.state.name

    def troubles(self) -> Iterator[tuple[str, str]]:
        """Yields the first problem of each kind, with the kind; the worst kind first."""
        if (status := self.status) is None:
            return
        if status.error:
            yield "error", status.error
        if status.differs:
            yield "differs", status.differs[0]
        if status.missing:
            yield "missing", status.missing[0]
        if other_logs := next((each.other_logs for each in status.inputs if each.other_logs), None):
            yield "other log", next(iter(other_logs.values()))
        if status.skew:
            yield "skew", status.skew[0]

    @property
    def lead_us(self) -> int:
        """Tuple time by which tentative results are ahead of stable ones."""
        status = self.status
        if status is None or status.state is NodeState.STABLE or status.tentative_frontier >= END_OF_TIME:
            return 0
        return max(0, status.tentative_frontier - max(status.frontier, BEFORE_TIME))


class ChannelRow(NamedTuple):
    """Figures of a channel of a client.

    Attributes:
      word: replaces the status of its client, as for a source.
      status: None before the client has sent it.
      bound_us: kX of the output.
      delay_us: :func:`current_delay_us`.
    """

    client: str
    channel: Channel
    word: str
    status: ChannelStatus | None
    bound_us: int
    delay_us: int | None


class ClusterFigures:
    """Makes the rows of one sight."""

    def __init__(self, plan: Plan, directory: Directory, sight: Sight) -> None:
        self.plan = plan
        self.directory = directory
        self.sight = sight
        #: Words of nodes, which have many replicas.
        self._words: dict[str, str] = {}

    @cached_property
    def nodes(self) -> tuple[NodeId, ...]:
        """The configured nodes, then those that have joined."""
        coordinator = self.sight.coordinator()
        joined = () if coordinator is None else map(NodeId, coordinator.joined)
        return tuple(dict.fromkeys([*self.directory.nodes, *joined]))

    @property
    def clients(self) -> Iterator[str]:
        """The clients that answer: those of the run."""
        return (name for name in self.directory.clients if self.sight.knows(f"client:{name}"))

    @cached_property
    def in_force(self) -> Directory:
        """The directory with the current X, α and policies of the nodes."""
        now = {}
        for name, node in self.directory.nodes.items():
            status = self.sight.node(name)
            now[name] = node if status is None or status.settings is None else in_force(node, status.settings)
        return replace(self.directory, nodes=now)

    @property
    def versions(self) -> Mapping[str, Version]:
        """The version of the directory that each process has."""
        known = {name: status.directory for name, status in self.sight.statuses.items()}
        return {name: Version(has.epoch, has.number) for name, has in known.items() if has is not None}

    @property
    def newest_version(self) -> Version:
        return max(self.versions.values(), default=CONFIGURED)

    @property
    def newest(self) -> dict[str, NewestStatus]:
        """The last results of each output by stream, each from one client that has received some."""
        newest: dict[str, NewestStatus] = {}
        for client in self.directory.clients:
            status = self.sight.client(client)
            for rows in () if status is None else status.newest:
                newest.setdefault(rows.stream, rows)
        return newest

    def source(self, stream: StreamId) -> SourceRow:
        status = self.sight.source(stream)
        return SourceRow(stream, self.sight.word(f"source:{stream}"), None if status is None else status.log)

    def replica(self, id: ReplicaId) -> ReplicaRow:
        sight, node, partition = self.sight, id.node, id.of
        if (word := self._words.get(node)) is None:
            word = self._words[node] = sight.word(node)
        status = sight.replica(node, partition)
        standby = sight.standby(node, partition) if status is None else None
        return ReplicaRow(id, word, sight.node(node), status, standby)

    def replicas(self) -> Iterator[ReplicaRow]:
        """Yields the replicas of all nodes."""
        return (self.replica(id) for node in self.nodes for id in self.hosted_on(node))

    def channel(self, client: str, channel: Channel, bound_us: int | None = None) -> ChannelRow:
        status = self.sight.channel(client, str(channel))
        bound = delay_bound_us(self.plan, self.in_force, channel.stream) if bound_us is None else bound_us
        delay_us = None if status is None else current_delay_us(status, self.sight.now_us)
        return ChannelRow(client, channel, self.sight.word(f"client:{client}"), status, bound, delay_us)

    def hosted_on(self, node: NodeId) -> list[ReplicaId]:
        """Returns the replicas that a node runs or stands by for: the configured ones until moves have changed them."""
        placed = [*self.directory.replicas_on(node), *self.directory.standbys_on(node)]
        if (status := self.sight.node(node)) is None:
            return placed
        reported = [replica.id for replica in status.replicas] + [standby.id for standby in status.standbys]
        moved = status.directory is not None and status.directory.number > 0
        stay = [replica for replica in placed if not moved or replica.of in reported]
        others = [id for id in reported if all(id != each.of for each in placed)]
        return stay + [ReplicaId(*id, node) for id in others]
