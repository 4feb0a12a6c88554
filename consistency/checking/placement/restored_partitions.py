"""H5: a partition that has lost all its replicas is restored: one of its standbys runs it, soon."""

from __future__ import annotations

from collections.abc import Iterator

from consistency.checking.bounds import has_room
from consistency.checking.checked_run import CheckedRun
from consistency.checking.finding import Finding
from consistency.checking.schedule import World, hosts_behind
from consistency.faults.kinds import kind_of
from spe.plan.directory import COORDINATOR, Directory
from spe.plan.plan import Plan
from spe.plan.timing import depth
from spe.stream.history import FaultBegan, History, Note
from spe.stream.ids import Channel, PartitionId
from spe.stream.times import END_OF_TIME


def check_restored(run: CheckedRun) -> Iterator[Finding]:
    """Judges times in which nothing but nodes is down: links, sources and the coordinator work.

    Partitions further up may be lost as well, and are restored first.  The time starts again when a process comes or
    goes, for that may have been the restoring one.  A restart from the sources' logs (H8) has no limit, so nothing is
    claimed of partitions that may need one.
    """
    history, static, plan, directory, _, bounds, counters = run
    timing = plan.timing
    each_us = 4 * max(timing.request_us, timing.connect_us) + bounds.settle_us
    everybody = {*directory.nodes, COORDINATOR}
    for partition in directory.standbys if has_room(plan) else ():
        allowed_us = each_us * depth(plan, plan.unit[partition.unit])
        if (in_turn := _in_turn(directory, partition)) is None:
            counters.add("partitions that may lack room")
            continue
        allowed_us *= in_turn
        until_us = _may_lack(history, plan, directory, partition)
        since, down = None, frozenset[str]()
        for interval in static:
            moved, down = interval.world.down != down or not interval.shaken.isdisjoint(everybody), interval.world.down
            if not _asked(directory, partition, interval.world) or interval.from_us >= until_us:
                since = None
            elif _restored(directory, partition, interval.world):
                if since is not None:
                    counters.add("partitions restored")
                since = None
            elif since is None or moved:
                counters.add("partitions lost", since is None)
                since = interval.from_us
            if since is not None and min(interval.to_us, until_us) - since > allowed_us:
                what = f"{partition}: all its replicas are down since {since / 1e6:.3f} s, and no standby runs it"
                yield Finding("P1", "a lost partition is restored", since + allowed_us, str(partition), what)
                break


def _in_turn(directory: Directory, partition: PartitionId) -> int | None:
    """Returns how many partitions a standby may have to restore one after the other; None: one may lack the room.

    ``recovery_order.py`` judges those.
    """
    if not directory.recovery.loads:
        return 1
    standbys = directory.standbys[partition].nodes
    if any(directory.fills(node) for node in standbys):
        return None
    return max(len(directory.standbys_on(node)) for node in standbys)


def _may_lack(history: History, plan: Plan, directory: Directory, partition: PartitionId) -> int:
    """Returns when a partition's state may first be damaged, or upstream may have truncated its input."""
    hosts = hosts_behind(plan, directory, Channel(plan.unit[partition.unit].outputs[0], partition.partition))
    for event in history:
        if isinstance(event, FaultBegan) and kind_of(event.kind).harm is not None and hosts & set(event.hosts):
            return event.at_us
        if isinstance(event, Note) and event.name == "evicted":
            return event.at_us
    return END_OF_TIME


def _asked(directory: Directory, partition: PartitionId, world: World) -> bool:
    """Are all replicas down, could a standby run the partition, and is nothing else wrong?"""
    working = not world.cut and not world.disturbed and world.down <= set(directory.nodes)
    lost = all(n in world.down for n in directory.placement[partition])
    return working and lost and any(n not in world.down for n in directory.standbys[partition].nodes)


def _restored(directory: Directory, partition: PartitionId, world: World) -> bool:
    return any(
        n not in world.down and f"{partition}@{n}" not in world.recovering for n in directory.standbys[partition].nodes
    )
