"""Retention of source logs (rules E1 to E4): finds the partitions that would need the whole log to recover."""

from __future__ import annotations

from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.stream.ids import PartitionId, ReplicaId
from spe.stream.names import StreamId


def memory_only(plan: Plan, directory: Directory, stream: StreamId) -> list[PartitionId]:
    """Partitions downstream of a source whose state no node keeps on a disk.

    If all their replicas die, they restart from the source's first tuple (A3, H8).
    """
    below = streams_below(plan, stream)
    return [
        id
        for unit in plan.units
        if below & {i.stream for i in unit.inputs}
        for id in (PartitionId(unit.id, p) for p in range(unit.partitions))
        if not _is_on_disk(directory, id)
    ]


def streams_below(plan: Plan, stream: StreamId) -> set[StreamId]:
    """A stream, and the streams made from it, directly or not."""
    streams, size = {stream}, 0
    while size < len(streams):
        size = len(streams)
        streams |= {o for u in plan.units if streams & {i.stream for i in u.inputs} for o in u.outputs}
    return streams


def _is_on_disk(directory: Directory, id: PartitionId) -> bool:
    if id in directory.logs or id in directory.standbys:
        return True
    return any(directory.disk_us(ReplicaId(*id, node)) is not None for node in directory.hosts(id))
