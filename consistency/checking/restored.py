"""A partition that has lost all its replicas is restored: one of its standbys runs it, soon (docs/rules.md H5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from consistency.checking.bounds import Bounds
from consistency.checking.counters import Counters
from consistency.checking.finding import Finding
from consistency.checking.schedule import Interval, World
from spe.plan import PartitionId, Plan
from spe.review import depth


def check_restored(static: Sequence[Interval], plan: Plan, bounds: Bounds, counters: Counters) -> Iterator[Finding]:
    """Claims something only while nothing but nodes is down: links, sources and the coordinator work.

    Partitions further up may be lost as well, and are restored first.
    """
    timing = plan.timing
    each_us = 4 * max(timing.request_us, timing.connect_us) + bounds.settle_us
    for of in plan.standbys:
        allowed_us = each_us * depth(plan, plan.unit[of.unit])
        since: int | None = None
        for one in static:
            if not _asked(plan, of, one.world):
                since = None
            elif _restored(plan, of, one.world):
                if since is not None:
                    counters.add("partitions restored")
                since = None
            elif since is None:
                since = one.from_us
                counters.add("partitions lost")
            if since is not None and one.to_us - since > allowed_us:
                what = f"{of}: all its replicas are down since {since / 1e6:.3f} s, and no standby runs it"
                yield Finding("P1", "a lost partition is restored", since + allowed_us, str(of), what)
                break


def _asked(plan: Plan, of: PartitionId, world: World) -> bool:
    """All replicas are down, a standby could run it, and nothing else is wrong."""
    working = not world.cut and not world.disturbed and world.down <= set(plan.nodes)
    lost = all(n in world.down for n in plan.placement[of])
    return working and lost and any(n not in world.down for n in plan.standbys[of].nodes)


def _restored(plan: Plan, of: PartitionId, world: World) -> bool:
    return any(n not in world.down and f"{of}@{n}" not in world.recovering for n in plan.standbys[of].nodes)
