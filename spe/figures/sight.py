"""The last statuses of a cluster's processes, by which everything that shows a cluster looks them up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeVar

from spe.plan.directory import COORDINATOR
from spe.status import (
    ChannelStatus,
    ClientStatus,
    CoordinatorStatus,
    FaultStatus,
    NodeStatus,
    ProcessStatus,
    ReplicaStatus,
    SourceStatus,
    StandbyStatus,
    UnreachedStatus,
)
from spe.stream.ids import PartitionId

S = TypeVar("S", bound=ProcessStatus)

#: A status older than this is not current.
STALE_US: Final = 1_500_000
#: Phase of a process that answers, or should; another phase is shown instead of its last status.
_RUNNING: Final = "running"


class Statuses:
    """Finds statuses by name.  Subclasses have the map ``statuses``."""

    statuses: Mapping[str, ProcessStatus]

    def last(self, name: str, kind: type[S]) -> S | None:
        """Returns the last status of a process of this kind; None if it never answered."""
        status = self.statuses.get(name)
        return status if isinstance(status, kind) else None

    def node(self, name: str) -> NodeStatus | None:
        return self.last(name, NodeStatus)

    def source(self, stream: str) -> SourceStatus | None:
        return self.last(f"source:{stream}", SourceStatus)

    def client(self, name: str) -> ClientStatus | None:
        return self.last(f"client:{name}", ClientStatus)

    def coordinator(self) -> CoordinatorStatus | None:
        return self.last(COORDINATOR, CoordinatorStatus)

    def replicas(self) -> Iterator[tuple[str, ReplicaStatus]]:
        """All replicas that answer, with their nodes."""
        for name, status in self.statuses.items():
            if isinstance(status, NodeStatus):
                yield from ((name, replica) for replica in status.replicas)

    def replica(self, node: str, id: PartitionId) -> ReplicaStatus | None:
        return self._replicas.get((node, id))

    def standby(self, node: str, id: PartitionId) -> StandbyStatus | None:
        return self._standbys.get((node, id))

    def channel(self, client: str, name: str) -> ChannelStatus | None:
        """Returns the progress of a client on a channel; None if it does not answer, or does not read it."""
        return self._channels.get((client, name))

    def running(self, id: PartitionId) -> list[str]:
        """Nodes that answer and run a partition."""
        return self._running.get(id, [])

    @cached_property
    def _replicas(self) -> Mapping[tuple[str, PartitionId], ReplicaStatus]:
        return {(name, replica.id): replica for name, replica in self.replicas()}

    @cached_property
    def _standbys(self) -> Mapping[tuple[str, PartitionId], StandbyStatus]:
        nodes = {name: status for name, status in self.statuses.items() if isinstance(status, NodeStatus)}
        return {(name, standby.id): standby for name, status in nodes.items() for standby in status.standbys}

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
            nodes.setdefault(replica.id, []).append(name)
        return nodes


@dataclass(frozen=True, slots=True)
class Seen:
    """The last status of a process.

    Attributes:
      at_us: wall time at which it came.
      took_us: time that the process took to answer.
    """

    status: ProcessStatus
    at_us: int
    took_us: int = 0


@dataclass(frozen=True)
class Sight(Statuses):
    """All data of one view.

    Attributes:
      now_us, begun_us: wall time; None: the sources have not begun.
      phases: phase of each process in its supervisor; empty without a supervisor.
      seen: the last status of each process.
      errors: reasons why processes do not answer.
      faults: in order of planning.
      note: what the run is waiting for.
      loads: show the loads of replicas and partitions.
      page: address of the dashboard; "" where there is none.
    """

    title: str
    now_us: int
    begun_us: int | None = None
    phases: Mapping[str, str] = field(default_factory=dict)
    seen: Mapping[str, Seen] = field(default_factory=dict)
    errors: Mapping[str, UnreachedStatus] = field(default_factory=dict)
    faults: Sequence[FaultStatus] = ()
    note: str = ""
    loads: bool = False
    page: str = ""

    @cached_property
    def statuses(self) -> Mapping[str, ProcessStatus]:  # type: ignore[override]
        return {name: answer.status for name, answer in self.seen.items()}

    def knows(self, name: str) -> bool:
        """Returns whether a process was ever asked: only the clients of a run answer for themselves."""
        return any(name in known for known in (self.phases, self.seen, self.errors))

    def word(self, name: str) -> str:
        """Returns a word that replaces the last status of a process, such as "silent"; "" while it answers."""
        phase = self.phases.get(name)
        if phase is not None and phase != _RUNNING:
            return str(phase)
        answer = self.seen.get(name)
        if answer is None:
            return "starting" if phase is not None else "unreachable"
        return "silent" if name in self.errors and self.now_us - answer.at_us > STALE_US else ""
