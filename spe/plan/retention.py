"""How long a log is kept (rules E1 to E6): what the configuration says, and whose state would need all of it."""

from __future__ import annotations

from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.names import StreamId


def memory_only(plan: Plan, directory: Directory, stream: StreamId) -> list[PartitionId]:
    """Partitions below a source of which no node keeps the state on a disk.

    After all their replicas died they begin again from the source's first tuple (A3, H8).
    """
    below = streams_below(plan, stream)
    return [
        id
        for unit in plan.units
        if below & {i.stream for i in unit.inputs}
        for id in (PartitionId(unit.id, p) for p in range(unit.partitions))
        if not _kept(directory, id)
    ]


def streams_below(plan: Plan, stream: StreamId) -> set[StreamId]:
    """A stream, and those that are made of it, directly or not."""
    found, size = {stream}, 0
    while size < len(found):
        size = len(found)
        found |= {o for u in plan.units if found & {i.stream for i in u.inputs} for o in u.outputs}
    return found


def _kept(directory: Directory, id: PartitionId) -> bool:
    if id in directory.logs or id in directory.standbys:
        return True
    return any(directory.disk_us(ReplicaId(*id, node)) is not None for node in directory.hosts(id))
