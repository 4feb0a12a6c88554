"""When a run is complete, and when nothing moves any more.  Pure: statuses in, answers out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.stream.ids import PartitionId


class ProgressWatch:
    """Knows when a run is complete, and when nothing moves any more.  Pure."""

    def __init__(self, plan: Plan, directory: Directory) -> None:
        self._directory = directory
        self._sources = [f"source:{s}" for s in plan.sources]
        self._clients = [f"client:{c}" for c in directory.clients]
        self._replayed = not any(s.live for s in plan.sources.values())
        self._last: Mapping[str, Mapping[str, Any]] = {}
        #: Wall time of the last change of each process's figures.
        self._moved_us: dict[str, int] = {}
        self._figures: dict[str, Any] = {}
        self._hopeless_us: int | None = None
        self.complete = False

    def look(self, last: Mapping[str, Mapping[str, Any]], now_us: int) -> None:
        """Takes the latest status of each process."""
        self._last = last
        for name in [*self._sources, *self._clients]:
            figures = _progress(last.get(name, {}))
            if figures != self._figures.get(name) or name not in self._moved_us:
                self._figures[name] = figures
                self._moved_us[name] = now_us
        self.complete = not self._open()

    def _open(self) -> list[str]:
        """Sources that have not ended, channels that are not complete."""
        sources = [n for n in self._sources if not self._last.get(n, {}).get("ended")]
        return sources + [
            f"{name} {channel}" for name in self._clients for channel in _open_channels(self._last.get(name, {}))
        ]

    def sources_quiet(self, now_us: int, quiet_us: int) -> bool:
        """Replayed sources that have ended, or have not moved for so long.  Live ones may be silent for ever."""
        if not self._replayed:
            return False
        going = [n for n in self._sources if not self._last.get(n, {}).get("ended")]
        return all(now_us - self._moved_us.get(n, now_us) >= quiet_us for n in going)

    def stuck(self, now_us: int, patience_us: int) -> bool:
        """No source and no client has moved for twice the sum of X over the nodes, and this long."""
        x_us = sum(n.x_us for n in self._directory.nodes.values())
        return all(now_us - at >= patience_us + 2 * x_us for at in self._moved_us.values())

    def hopeless(self, now_us: int, grace_us: int, gone: Collection[str] = ()) -> str:
        """Why nothing more can come: a source has failed, or all replicas of a partition have stopped.

        Args:
          grace_us: so long what is still under way may arrive.
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
        for name in self._sources:
            if fault := self._last.get(name, {}).get("fault"):
                return f"{name}: {fault}"
        for partition, nodes in self._directory.placement.items():
            stopped = {n: _error(self._last.get(n, {}), partition) for n in nodes}
            errors = [e for e in stopped.values() if e]
            if errors and all(e or n in gone for n, e in stopped.items()):
                return f"{partition}: every replica has stopped"
        return ""

    def recovering(self, gone: Collection[str] = ()) -> list[str]:
        """Replicas that have yet to return, of processes that run.  One that has stopped for good does not count."""
        return [
            f"{partition}@{node}"
            for partition, nodes in self._directory.placement.items()
            for node in nodes
            if node not in gone and _recovers(self._last.get(node, {}), partition)
        ]

    def restart(self, now_us: int) -> None:
        """Something was done: everybody gets new time."""
        self._moved_us = dict.fromkeys(self._moved_us, now_us)

    def what_is_open(self) -> str:
        faults = [f"{n}: {self._last[n]['fault']}" for n in self._sources if self._last.get(n, {}).get("fault")]
        return "; ".join(faults) if faults else f"{', '.join(self._open())} not complete"


def _progress(data: Mapping[str, Any]) -> Any:
    channels: Sequence[Mapping[str, Any]] = data.get("channels", ())
    return (
        data.get("incarnation"),
        data.get("last_id"),
        data.get("frontier"),
        [(c["position"], c["frontier"], c["tentative"]) for c in channels],
    )


def _recovers(data: Mapping[str, Any], partition: PartitionId) -> bool:
    return any(
        (one["unit"], one["partition"], one["state"]) == (partition.unit, partition.partition, "RECOVERING")
        and not one.get("error")
        for one in data.get("replicas", ())
    )


def _error(data: Mapping[str, Any], partition: PartitionId) -> str:
    for one in data.get("replicas", ()):
        if (one["unit"], one["partition"]) == (partition.unit, partition.partition):
            return str(one.get("error") or "")
    return ""


def _open_channels(data: Mapping[str, Any]) -> list[str]:
    if not data.get("channels"):
        return ["(not heard of)"]
    return [str(c["channel"]) for c in data["channels"] if not c["ended"]]
