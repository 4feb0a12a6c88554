"""The X, α, policies and waits of nodes that a process knows, for passing them on (rule T8).  Pure.

Nodes announce them to processes that ask for heartbeats, and pass on announcements of others; so they reach the clients
from anywhere upstream, also of nodes that have died since.
"""

from __future__ import annotations

from collections.abc import Iterable

from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, UnitId
from spe.wire.messages.feeds import Announcement


class Announcements:
    """The latest announcement of each node and unit of the plan, and so bounded by it.

    Attributes:
      directory: of the cluster now.
      version: grows with each change.
    """

    def __init__(self, plan: Plan, directory: Directory) -> None:
        self._plan = plan
        self.directory = directory
        self.version = 0
        #: In the order of their changes: version of the change, and the announcement.
        self._latest: dict[tuple[str, str], tuple[int, Announcement]] = {}

    def heard(self, items: Iterable[Announcement]) -> list[Announcement]:
        """Takes the new ones and returns them."""
        return [announcement for announcement in items if self._is_new(announcement) and self._take(announcement)]

    def _is_new(self, announcement: Announcement) -> bool:
        before = self._latest.get((announcement.node, announcement.unit))
        if before is None:
            return self._is_placed(announcement)
        known = before[1]
        return (announcement.incarnation, announcement.since_us, announcement.waited_us) > (
            known.incarnation,
            known.since_us,
            known.waited_us,
        )

    def _is_placed(self, announcement: Announcement) -> bool:
        unit = self._plan.unit.get(UnitId(announcement.unit))
        return unit is not None and any(
            NodeId(announcement.node) in self.directory.hosts(PartitionId(unit.id, p)) for p in range(unit.partitions)
        )

    def _take(self, announcement: Announcement) -> bool:
        key = announcement.node, announcement.unit
        self._latest.pop(key, None)
        self.version += 1
        self._latest[key] = self.version, announcement
        return True

    def since(self, version: int, most: int) -> tuple[int, list[Announcement]]:
        """Returns at most ``most`` changed after a version, and the version up to which they are complete."""
        new = [entry for entry in self._latest.values() if entry[0] > version][:most]
        return (new[-1][0] if new else version), [announcement for _, announcement in new]
