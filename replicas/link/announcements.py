"""What a process knows of the X, α, policies and waits of nodes, to pass it on (rule T8).  Pure.

Nodes tell whoever asks them for heartbeats, and pass on what they were told; so it reaches the clients from anywhere
upstream, also of nodes that have died since.
"""

from __future__ import annotations

from collections.abc import Iterable

from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.stream.ids import PartitionId
from spe.stream.names import NodeId, UnitId
from spe.wire.messages import Announcement


class Announcements:
    """The latest of each node and unit of the plan, and so bounded by it.

    Attributes:
      directory: of the cluster now.
      version: grows with each change.
    """

    def __init__(self, plan: Plan, directory: Directory) -> None:
        self._plan = plan
        self.directory = directory
        self.version = 0
        #: In the order of their changes: version of the change, and what it says.
        self._latest: dict[tuple[str, str], tuple[int, Announcement]] = {}

    def heard(self, items: Iterable[Announcement]) -> list[Announcement]:
        """Takes what is new of it, and returns that."""
        return [one for one in items if self._is_new(one) and self._take(one)]

    def _is_new(self, one: Announcement) -> bool:
        before = self._latest.get((one.node, one.unit))
        if before is None:
            return self._is_placed(one)
        known = before[1]
        return (one.incarnation, one.since_us, one.waited_us) > (known.incarnation, known.since_us, known.waited_us)

    def _is_placed(self, one: Announcement) -> bool:
        unit = self._plan.unit.get(UnitId(one.unit))
        return unit is not None and any(
            NodeId(one.node) in self.directory.hosts(PartitionId(unit.id, p)) for p in range(unit.partitions)
        )

    def _take(self, one: Announcement) -> bool:
        key = one.node, one.unit
        self._latest.pop(key, None)
        self.version += 1
        self._latest[key] = self.version, one
        return True

    def since(self, version: int, most: int) -> tuple[int, list[Announcement]]:
        """At most so many that changed behind a version, and the version up to which they are all."""
        new = [entry for entry in self._latest.values() if entry[0] > version][:most]
        return (new[-1][0] if new else version), [one for _, one in new]
