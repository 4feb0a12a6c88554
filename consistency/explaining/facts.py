"""Facts of a cluster that explanations are made from: two looks at it, a second apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from consistency.explaining.model import Condition, Look
from spe.figures.cluster_figures import usual_lag_us
from spe.plan.directory import Directory
from spe.plan.nodes import Policy
from spe.plan.plan import Plan
from spe.status import ChannelStatus
from spe.stream.ids import Channel, PartitionId
from spe.stream.names import NodeId, NodeState, StreamId

#: Minimum time between two snapshots.
BETWEEN_US: Final = 1_000_000


class Waits(NamedTuple):
    """Waiting time of a replica, and its policy after that."""

    alpha_x_us: int
    during_failure: Policy


@dataclass(frozen=True)
class Facts:
    """The plan, and two looks.

    Attributes:
      directory: roles of nodes; nodes' own reports of what they run count as well.
    """

    plan: Plan
    directory: Directory
    before: Look
    now: Look

    def condition(self, client: str, channel: Channel) -> Condition:
        """Returns the condition of an output, without its causes; "" for a client: that of its replicas."""
        if not client:
            return self._at_replicas(channel)
        status = self.now.channel(client, str(channel))
        return Condition.UNKNOWN if status is None else self._received(client, channel, status)

    def _received(self, client: str, channel: Channel, received: ChannelStatus) -> Condition:
        if received.ended:
            return Condition.ENDED
        if received.held:
            return Condition.TENTATIVE
        if self.is_stuck(client, channel, received):
            silent = received.last_arrival_us is None or self.now.at_us - received.last_arrival_us >= BETWEEN_US
            return Condition.SILENT if silent else Condition.LATE
        if received.delay_us is not None and received.bound_us is not None and received.delay_us > received.bound_us:
            return Condition.LATE
        reach = [r for h in self.hosts(self.plan.maker_of(channel)) if (r := self.reach(self.now, h, channel))]
        if max(reach, default=received.frontier) - received.frontier > self.lag_us(channel):
            return Condition.LATE
        return Condition.FINE

    def is_stuck(self, client: str, channel: Channel, received: ChannelStatus) -> bool:
        old = self.before.channel(client, str(channel))
        return old is not None and old.frontier >= received.frontier

    def _at_replicas(self, channel: Channel) -> Condition:
        maker = self.plan.maker_of(channel)
        replicas = [self.now.replica(host, maker) for host in self.hosts(maker)]
        states = [replica.state for replica in replicas if replica is not None and replica.error is None]
        if not states:
            return Condition.SILENT
        return Condition.FINE if NodeState.STABLE in states else Condition.TENTATIVE

    def hosts(self, id: PartitionId) -> list[str]:
        """Returns the nodes that run a partition, or should."""
        placed = [str(n) for n in self.directory.placement.get(id, ())]
        return list(dict.fromkeys([*placed, *self.now.running(id)]))

    def makers(self, channel: Channel) -> list[str]:
        if channel.stream in self.plan.sources:
            return [f"source:{channel.stream}"]
        return self.hosts(self.plan.maker_of(channel))

    def serves(self, node: str, id: PartitionId) -> bool:
        status = self.now.replica(node, id)
        return status is not None and status.error is None and status.state is not NodeState.RECOVERING

    def reach(self, look: Look, producer: str, channel: Channel) -> int | None:
        """Returns the stable boundary of a producer; None: it is unknown."""
        if channel.stream in self.plan.sources:
            source = look.source(channel.stream)
            return None if source is None or source.log is None else source.log.frontier
        status = look.replica(producer, self.plan.maker_of(channel))
        return None if status is None else status.frontier

    def lag_us(self, channel: Channel) -> int:
        return usual_lag_us(self.plan, channel.stream)

    def waits(self, node: str, id: PartitionId) -> Waits:
        status = self.now.node(node)
        share = self.directory.share(self.plan, id.unit, NodeId(node)) if node in self.directory.nodes else None
        if status is not None and status.settings is not None:
            settings, replica = status.settings, self.now.replica(node, id)
            x_us = replica.x_us if replica is not None and replica.x_us is not None else settings.x_us
            return Waits(round(settings.alpha * x_us), Policy(settings.during_failure))
        return Waits(0, Policy.PROCESS) if share is None else Waits(share.alpha_x_us, share.during_failure)


def channel_of(name: str) -> Channel:
    """Reads the name of a channel."""
    stream, _, partition = name.rpartition("/")
    return Channel(StreamId(stream), int(partition))
