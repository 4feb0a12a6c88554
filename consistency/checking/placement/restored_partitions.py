"""A partition that has lost all its replicas is restored: one of its standbys runs it, soon (rule H5)."""

from __future__ import annotations

from collections.abc import Iterator

from consistency.checking.bounds import has_room
from consistency.checking.checked_run import CheckedRun
from consistency.checking.finding import Finding
from consistency.checking.schedule import LOSING, World, hosts_behind
from spe.plan.directory import COORDINATOR, Directory
from spe.plan.plan import Plan
from spe.plan.timing import depth
from spe.stream.history import FaultBegan, History, Note
from spe.stream.ids import Channel, PartitionId
from spe.stream.times import END_OF_TIME


def check_restored(run: CheckedRun) -> Iterator[Finding]:
    """Claims something only while nothing but nodes is down: links, sources and the coordinator work.

    Partitions further up may be lost as well, and are restored first.  The time begins anew when somebody comes or
    goes, for that may have been the one on its way.  What begins anew from the sources' logs (H8) takes as long as it
    takes, so nothing is claimed of what may have to.
    """
    history, static, plan, directory, _, bounds, counters = run
    timing = plan.timing
    each_us = 4 * max(timing.request_us, timing.connect_us) + bounds.settle_us
    everybody = {*directory.nodes, COORDINATOR}
    for of in directory.standbys if has_room(plan) else ():
        allowed_us = each_us * depth(plan, plan.unit[of.unit])
        if (in_turn := _in_turn(directory, of)) is None:
            counters.add("partitions that may lack room")
            continue
        allowed_us *= in_turn
        until_us = _may_lack(history, plan, directory, of)
        since, down = None, frozenset[str]()
        for one in static:
            moved, down = one.world.down != down or not one.shaken.isdisjoint(everybody), one.world.down
            if not _asked(directory, of, one.world) or one.from_us >= until_us:
                since = None
            elif _restored(directory, of, one.world):
                if since is not None:
                    counters.add("partitions restored")
                since = None
            elif since is None or moved:
                counters.add("partitions lost", since is None)
                since = one.from_us
            if since is not None and min(one.to_us, until_us) - since > allowed_us:
                what = f"{of}: all its replicas are down since {since / 1e6:.3f} s, and no standby runs it"
                yield Finding("P1", "a lost partition is restored", since + allowed_us, str(of), what)
                break


def _in_turn(directory: Directory, of: PartitionId) -> int | None:
    """How many partitions a standby may have to restore one after the other; None: one may have too little room.

    What ``recovery_order.py`` asks for then.
    """
    if not directory.recovery.loads:
        return 1
    standbys = directory.standbys[of].nodes
    if any(directory.fills(node) for node in standbys):
        return None
    return max(len(directory.standbys_on(node)) for node in standbys)


def _may_lack(history: History, plan: Plan, directory: Directory, of: PartitionId) -> int:
    """The time since which the state of a partition may be damaged, or upstream may have truncated its input."""
    hosts = hosts_behind(plan, directory, Channel(plan.unit[of.unit].outputs[0], of.partition))
    for event in history:
        if isinstance(event, FaultBegan) and event.kind in LOSING and hosts & set(event.hosts):
            return event.at_us
        if isinstance(event, Note) and event.name == "evicted":
            return event.at_us
    return END_OF_TIME


def _asked(directory: Directory, of: PartitionId, world: World) -> bool:
    """All replicas are down, a standby could run it, and nothing else is wrong."""
    working = not world.cut and not world.disturbed and world.down <= set(directory.nodes)
    lost = all(n in world.down for n in directory.placement[of])
    return working and lost and any(n not in world.down for n in directory.standbys[of].nodes)


def _restored(directory: Directory, of: PartitionId, world: World) -> bool:
    return any(n not in world.down and f"{of}@{n}" not in world.recovering for n in directory.standbys[of].nodes)
