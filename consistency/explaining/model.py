"""Input and output of the explanations."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from spe.status import (
    ChannelStatus,
    ClientStatus,
    CoordinatorStatus,
    NodeStatus,
    ProcessStatus,
    ReplicaStatus,
    SourceStatus,
    UnreachedStatus,
)
from spe.stream.ids import PartitionId
from spe.stream.names import UnitId


@dataclass(frozen=True)
class Look:
    """Statuses of all processes at about the same time.

    Attributes:
      at_us: wall time.
      statuses: of the processes that answer, by name.
      errors: reasons why the others do not.
      took_us: time that each took to answer, microseconds.
    """

    at_us: int
    statuses: Mapping[str, ProcessStatus]
    errors: Mapping[str, UnreachedStatus] = field(default_factory=dict)
    took_us: Mapping[str, int] = field(default_factory=dict)

    def node(self, name: str) -> NodeStatus | None:
        status = self.statuses.get(name)
        return status if isinstance(status, NodeStatus) else None

    def source(self, stream: str) -> SourceStatus | None:
        status = self.statuses.get(f"source:{stream}")
        return status if isinstance(status, SourceStatus) else None

    def client(self, name: str) -> ClientStatus | None:
        status = self.statuses.get(f"client:{name}")
        return status if isinstance(status, ClientStatus) else None

    def coordinator(self) -> CoordinatorStatus | None:
        return next((s for s in self.statuses.values() if isinstance(s, CoordinatorStatus)), None)

    def replicas(self) -> Iterator[tuple[str, ReplicaStatus]]:
        """All replicas that answer, with their nodes."""
        for name, status in self.statuses.items():
            if isinstance(status, NodeStatus):
                yield from ((name, replica) for replica in status.replicas)

    def replica(self, node: str, unit: str, partition: int) -> ReplicaStatus | None:
        return self._replicas.get((node, unit, partition))

    def channel(self, client: str, name: str) -> ChannelStatus | None:
        """Returns the progress of a client on a channel; None if it does not answer, or does not read it."""
        return self._channels.get((client, name))

    def running(self, id: PartitionId) -> list[str]:
        """Nodes that answer and run a partition."""
        return self._running.get(id, [])

    @cached_property
    def _replicas(self) -> Mapping[tuple[str, str, int], ReplicaStatus]:
        return {(name, replica.unit, replica.partition): replica for name, replica in self.replicas()}

    @cached_property
    def _channels(self) -> Mapping[tuple[str, str], ChannelStatus]:
        return {
            (name.partition(":")[2], received.channel): received
            for name, status in self.statuses.items()
            if isinstance(status, ClientStatus)
            for received in status.channels
        }

    @cached_property
    def _running(self) -> Mapping[PartitionId, list[str]]:
        nodes: dict[PartitionId, list[str]] = {}
        for name, replica in self.replicas():
            nodes.setdefault(PartitionId(UnitId(replica.unit), replica.partition), []).append(name)
        return nodes


class Condition(enum.StrEnum):
    """Condition of an output at a client."""

    FINE = "fine"  # stable results arrive
    TENTATIVE = "tentative"  # the client holds results that will be undone
    LATE = "late"  # elements arrive, but nothing stable, or later than X allows
    SILENT = "silent"  # nothing arrives
    ENDED = "ended"
    UNKNOWN = "unknown"  # the client does not answer


class CauseKind(enum.StrEnum):
    """Kind of the cause at the end of a chain."""

    DOWN = "down"  # a process does not answer any other
    REFUSED = "refused"  # a process answers, and refuses
    LINK = "link"  # two processes do not reach each other, or slowly
    QUIET = "quiet"  # a source answers, and brings nothing new
    FAILED = "failed"  # a source or a replica has stopped for an error
    DISK = "disk"  # a disk is full
    AWAY = "away"  # a server outside of the cluster does not answer
    SLOW = "slow"  # a process does not keep up
    X = "x"  # an input comes later than X allows to wait for
    OTHER_LOG = "other log"  # a producer lacks the log that was read before
    FULL = "full"  # an output buffer is full
    RECOVERING = "recovering"  # a replica takes its state
    CORRECTING = "correcting"  # a replica corrects, or is about to


@dataclass(frozen=True, slots=True)
class Cause:
    """The end of a chain.

    Attributes:
      processes: the processes concerned; both ends of a link, the producer first.
    """

    kind: CauseKind
    processes: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Step:
    """A link of a chain.

    Attributes:
      depth: distance from the client; the following steps that are deeper by one explain it.
      who: client, replica, input or source.
    """

    depth: int
    who: str
    what: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of one output at one client.

    Attributes:
      client: its name; "" where the run has none.
      channel: stream and partition.
      steps: from the client to the causes, each before its own explanation.
      causes: without repetition; empty where all is well.
      next: future events.
      elsewhere: causes of trouble that do not affect this output now.
      moves: moves under way of partitions on the path to this output.
    """

    client: str
    channel: str
    condition: Condition
    steps: tuple[Step, ...]
    causes: tuple[Cause, ...]
    next: tuple[str, ...]
    elsewhere: tuple[Cause, ...] = ()
    moves: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Returns the explanation as text."""
        at = f" at client {self.client}" if self.client else ""
        texts = [f"{self.channel}{at} is {self.condition}"]
        texts += [f"{'  ' * (step.depth + 1)}{step.who}: {step.what}" for step in self.steps]
        texts += [f"cause ({cause.kind}): {cause.why}" for cause in self.causes]
        texts += [f"next: {text}" for text in self.next]
        texts += [f"under way: {move}" for move in self.moves]
        texts += [f"elsewhere ({cause.kind}): {cause.why}" for cause in self.elsewhere]
        return texts


def short(us: int) -> str:
    """Formats a duration."""
    return f"{us / 1000:.0f} ms" if us < 1_000_000 else f"{us / 1e6:.1f} s"
