"""Tells when a run is complete and read, and when nothing moves any more.  Pure: statuses in, answers out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.status import ClientStatus, NodeStatus, ProcessStatus, ReplicaStatus, SourceLogStatus, SourceStatus
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, NodeState, StreamId


class ProgressWatch:
    """Tells when a run is complete, and when nothing moves any more.  Pure."""

    def __init__(self, plan: Plan, directory: Directory) -> None:
        self._directory = directory
        self._sources = [f"source:{s}" for s in plan.sources]
        self._clients = [f"client:{c}" for c in directory.clients]
        self._replayed = not any(s.live for s in plan.sources.values())
        self._last: Mapping[str, ProcessStatus] = {}
        #: Wall time of the last change of each process's figures.
        self._moved_us: dict[str, int] = {}
        self._figures: dict[str, Any] = {}
        self._hopeless_us: int | None = None
        #: Since when a replica lacks something that it needs to recover; wall time.
        self._lacks_us: dict[str, int] = {}
        self._told: set[str] = set()
        #: Since when a process that is not ready starts; wall time.
        self._starts_us: dict[str, int] = {}
        self.complete = False

    def look(self, last: Mapping[str, ProcessStatus], now_us: int) -> None:
        """Takes the latest status of each process that has answered."""
        self._last = last
        for name in [*self._sources, *self._clients]:
            figures = _progress(last.get(name))
            if figures != self._figures.get(name) or name not in self._moved_us:
                self._figures[name] = figures
                self._moved_us[name] = now_us
        self.complete = not self._open()
        self._lacks_us = {name: self._lacks_us.get(name, now_us) for name in self._lacking()}

    def _lacking(self) -> dict[str, tuple[str, NodeId]]:
        """Returns, by recovering replica, its lack, and its node."""
        return {
            f"{partition}@{node}": (replica.missing[0], node)
            for partition, nodes in self._directory.placement.items()
            for node in nodes
            if (replica := self._replica(partition, node)) is not None and replica.missing and not replica.installed
        }

    def stranded(self, now_us: int) -> list[str]:
        """Returns replicas that have lacked something for X, each with its lack."""
        return [
            f"{name} lacks {what}"
            for name, (what, node) in self._lacking().items()
            if now_us - self._lacks_us.get(name, now_us) >= self._directory.nodes[node].x_us
        ]

    def newly_stranded(self, now_us: int) -> list[str]:
        """Returns those that the last call did not name."""
        now = self.stranded(now_us)
        new = [text for text in now if text not in self._told]
        self._told = set(now)
        return new

    def _open(self) -> list[str]:
        """Returns sources that have not ended, and channels that are not complete."""
        return self._going() + [
            f"{name} {channel}" for name in self._clients for channel in _open_channels(self._last.get(name))
        ]

    def _going(self) -> list[str]:
        """Returns sources that have not ended."""
        return [n for n in self._sources if (log := self._log(n)) is None or not log.ended]

    def _log(self, source: str) -> SourceLogStatus | None:
        status = self._last.get(source)
        return status.log if isinstance(status, SourceStatus) else None

    def _faults(self) -> list[str]:
        """Returns the faults of sources that have failed."""
        return [f"{n}: {log.fault}" for n in self._sources if (log := self._log(n)) is not None and log.fault]

    def _replica(self, partition: PartitionId, node: str) -> ReplicaStatus | None:
        status = self._last.get(node)
        replicas = status.replicas if isinstance(status, NodeStatus) else ()
        return next((r for r in replicas if (r.unit, r.partition) == partition), None)

    def sources_quiet(self, now_us: int, quiet_us: int) -> bool:
        """Have replayed sources ended, or not moved for so long?  Live ones may be silent for ever."""
        if not self._replayed:
            return False
        return all(now_us - self._moved_us.get(n, now_us) >= quiet_us for n in self._going())

    def stuck(self, now_us: int, patience_us: int) -> bool:
        """Has no source and no client moved for twice the sum of X over the nodes, and this long?"""
        x_us = sum(n.x_us for n in self._directory.nodes.values())
        return all(now_us - at >= patience_us + 2 * x_us for at in self._moved_us.values())

    def hopeless(self, now_us: int, grace_us: int, gone: Collection[str] = ()) -> str:
        """Returns why nothing more can come: a source has failed, or all replicas of a partition have stopped.

        Args:
          grace_us: time for elements under way to arrive.
          gone: processes that do not run.

        Returns:
          "" while more may come.
        """
        why = self._lost(gone)
        if not why:
            self._hopeless_us = None
        elif self._hopeless_us is None:
            self._hopeless_us = now_us
        return why if self._hopeless_us is not None and now_us - self._hopeless_us >= grace_us else ""

    def _lost(self, gone: Collection[str]) -> str:
        if faults := self._faults():
            return faults[0]
        for partition, nodes in self._directory.placement.items():
            replicas = {n: self._replica(partition, n) for n in nodes}
            stopped = {n for n, r in replicas.items() if r is not None and r.error}
            if stopped and all(n in stopped or n in gone for n in nodes):
                return f"{partition}: every replica has stopped"
        return ""

    def recovering(self, gone: Collection[str] = ()) -> list[str]:
        """Returns replicas that have yet to return, of running processes; without those that stopped for good."""
        return [
            f"{partition}@{node}"
            for partition, nodes in self._directory.placement.items()
            for node in nodes
            if node not in gone
            and (replica := self._replica(partition, node)) is not None
            and replica.state is NodeState.RECOVERING
            and not replica.error
        ]

    def restart(self, now_us: int) -> None:
        """Restarts the time without progress of all processes, after a fault or a repair."""
        self._moved_us = dict.fromkeys(self._moved_us, now_us)

    def starting(self, names: Collection[str], now_us: int, patience_us: int) -> None:
        """Notes processes that start now.  Each counts as movement while it starts, but only for so long."""
        self._starts_us = {name: self._starts_us.get(name, now_us) for name in names}
        if any(now_us - since < patience_us for since in self._starts_us.values()):
            self.restart(now_us)

    def what_is_open(self, now_us: int) -> str:
        faults = self._faults()
        return "; ".join(faults or [f"{', '.join(self._open())} not complete", *self.stranded(now_us)])


class UnreadWatch:
    """Tells whether external clients have read all of a complete run.

    Args:
      external: client -> the outputs that it reads.
      patience_us: maximum time without reading.

    Attributes:
      left: something is still kept for a client.
    """

    def __init__(self, plan: Plan, external: Mapping[str, Collection[StreamId]], patience_us: int) -> None:
        self._units = {plan.producer[s].id for reads in external.values() for s in reads if s in plan.producer}
        self._patience_us = patience_us
        self._fill: float | None = None
        self._moved_us = 0
        self.left = bool(self._units)

    def over(self, now: Mapping[str, ProcessStatus], now_us: int) -> bool:
        """Is all of it read, or was nothing read for too long?

        Args:
          now: the present statuses of running processes.
        """
        replicas = [r for status in now.values() if isinstance(status, NodeStatus) for r in status.replicas]
        serving = [r for r in replicas if r.state is not NodeState.RECOVERING and not r.error]
        fill = sum(r.fill for r in serving if r.unit in self._units)
        if fill != self._fill:
            self._fill, self._moved_us = fill, now_us
        self.left = fill > 0
        return not self.left or now_us - self._moved_us >= self._patience_us


def _progress(status: ProcessStatus | None) -> Any:
    """Returns the figures that change while a source or a client moves."""
    if isinstance(status, SourceStatus) and status.log is not None:
        return status.incarnation, status.log.last_id, status.log.frontier
    if isinstance(status, ClientStatus):
        return status.incarnation, [(c.position, c.frontier, c.tentative) for c in status.channels]
    return None if status is None else status.incarnation


def _open_channels(status: ProcessStatus | None) -> list[str]:
    if not isinstance(status, ClientStatus) or not status.channels:
        return ["(not heard of)"]
    return [c.channel for c in status.channels if not c.ended]
